use std::sync::{Arc, Mutex};

use super::*;

/// Returns what is written of the events of `work`.
pub(crate) fn written(is_journal: bool, filter: &str, work: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<Vec<u8>>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().push(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (lines, filter) = (Lines::default(), filter.parse::<Filter>().unwrap());
    let writer = lines.clone();
    tracing::subscriber::with_default(subscriber(filter, is_journal, move || writer.clone()), work);
    let writes = lines.0.lock().unwrap();
    assert!(writes.iter().all(|write| write.ends_with(b"\n")), "one write for each line");
    String::from_utf8(writes.concat()).unwrap()
}

#[test]
fn a_line_has_a_time_a_level_and_a_part() {
    let line = written(false, "", || tracing::warn!(target: "unstun::daemon::vm::slow", "VM {} is", "web"));
    let (time, rest) = line.split_once(' ').unwrap();
    time.parse::<Timestamp>().unwrap();
    assert_eq!(rest, " WARN vm: VM web is\n");
}

#[test]
fn a_line_of_the_journal_has_a_priority() {
    let line = written(true, "", || tracing::error!(target: "unstun::command::up", "ends"));
    assert_eq!(line, "<3>daemon: ends\n");
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    assert_eq!(levels.map(priority), [3, 4, 6, 7, 7]);
}

#[test]
fn a_name_adds_no_line_and_no_escape() {
    let name = "web\n<0>daemon: lies\r\u{1b}[2J\u{202e}";
    let line = written(true, "", || tracing::info!(target: "unstun::rest", "VM {name}"));
    assert!(line.starts_with("<6>rest: VM web\\n<0>daemon: lies\\r\\"), "{line}");
    assert!(line.trim_end_matches('\n').chars().all(|c| c.is_ascii_graphic() || c == ' '), "{line}");
}

#[test]
fn a_filter_has_levels_for_all_parts_and_for_some() {
    let work = || {
        tracing::debug!(target: "unstun::daemon::client::exports", "a");
        tracing::info!(target: "unstun::daemon::client", "b");
        tracing::debug!(target: "unstun::daemon::datastore::hang", "c");
        tracing::info!(target: "unstun::daemon::state", "d");
        tracing::warn!(target: "hyper", "e");
    };
    let parts = |filter: &str| {
        let lines = written(true, filter, work);
        lines.lines().map(|line| line.rsplit(' ').next().unwrap()).collect::<String>()
    };
    assert_eq!(parts(""), "bde");
    assert_eq!(parts("debug"), "abcde");
    assert_eq!(parts("warn, client=debug"), "abe");
    assert_eq!(parts("client=error,daemon=error,datastore=trace,DEBUG"), "c");
    assert_eq!(parts("error,daemon=info"), "de");
}

#[test]
fn a_filter_of_another_form_is_refused_with_the_expected_one() {
    for filter in ["verbose", "client", "client=", "=info", "cleint=info", "info;client=debug", "off"] {
        let refused = filter.parse::<Filter>().unwrap_err();
        assert!(refused.starts_with(&format!("{filter:?}: expected error, warn, info")), "{refused}");
        assert!(refused.contains("PART=LEVEL with a part of access, bin, client"), "{refused}");
    }
}

#[test]
fn every_part_is_a_module() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for part in PARTS {
        let is_module = |folder: &std::path::Path| {
            folder.join(part).is_dir() || folder.join(format!("{part}.rs")).is_file()
        };
        let folders = ["", "daemon", "daemon/running"];
        assert!(folders.iter().any(|folder| is_module(&source.join(folder))), "{part}");
    }
}

#[test]
fn lines_of_one_second_are_counted_beyond_their_number() {
    let limit = LineLimit::new(2);
    let admitted: Vec<_> = [7, 7, 7, 7, 8, 9].map(|second| limit.admit_in(second)).into();
    let left_out = |count| Some(LeftOut(count));
    assert_eq!(admitted, [left_out(0), left_out(0), None, None, left_out(2), left_out(0)]);
    assert_eq!(
        (LeftOut(0).to_string(), LeftOut(2).to_string()),
        (String::new(), " (2 lines left out before it)".into())
    );
}

#[test]
fn a_fact_is_news_once_while_it_is_among_the_last() {
    let reported = Reported::default();
    assert!(reported.is_news(0) && !reported.is_news(0));
    (1..=REPORTED_MAX).for_each(|fact| assert!(reported.is_news(fact)));
    assert!(reported.is_news(0));
}
