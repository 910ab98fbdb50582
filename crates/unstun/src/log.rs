//! The log: events of the crate `tracing`, each as one line on standard error.
//!
//! A line that cannot be written is lost: a closed pipe or a full disk under the log must not end the daemon, as a panic
//! of `eprintln!` would. Where standard error is the journal, a line begins with its priority as in sd-daemon(3). That
//! gives the journal the levels without its own protocol, for which `tracing-journald` would be another dependency.

#[cfg(test)]
pub(crate) mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::str::FromStr;

use api::output::escape_line;
use jiff::Timestamp;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

/// Variable with the device and the inode of the journal's stream, which systemd sets (systemd.exec(5)).
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";

/// Part of lines from modules without a part of their own.
const DAEMON: &str = "daemon";
/// Names that lines and filters use. Each is a module of this crate, of its `daemon` or of what the daemon runs.
const PARTS: [&str; 8] = ["access", "bin", "client", DAEMON, "datastore", "relocation", "rest", "vm"];

/// Returns the part to which the module `target` belongs.
fn part(target: &str) -> &str {
    let mut modules = target.split("::").filter(|module| *module != DAEMON);
    modules.find(|module| PARTS.contains(module)).unwrap_or(DAEMON)
}

/// Selection of the lines that are written: a level for all parts, and levels for some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    level: Level,
    parts: Vec<(String, Level)>,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter { level: Level::INFO, parts: Vec::new() }
    }
}

impl FromStr for Filter {
    type Err = String;

    /// Reads `LEVEL`, `PART=LEVEL` or several of them. The later one counts. An empty text is the default.
    fn from_str(text: &str) -> Result<Filter, String> {
        let mut filter = Filter::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let level = |name: &str| name.parse::<Level>().map_err(|_| refusal(item));
            match item.split_once('=') {
                None => filter.level = level(item)?,
                Some((part, name)) if PARTS.contains(&part) => {
                    filter.parts.push((part.to_owned(), level(name)?));
                }
                Some(_) => return Err(refusal(item)),
            }
        }
        Ok(filter)
    }
}

fn refusal(item: &str) -> String {
    format!(
        "{item:?}: expected error, warn, info, debug or trace, or PART=LEVEL with a part of {}; several are separated \
         by commas",
        PARTS.join(", ")
    )
}

impl Filter {
    fn admits(&self, target: &str, level: Level) -> bool {
        let part = part(target);
        let own = self.parts.iter().rev().find(|(name, _)| name == part);
        level <= own.map_or(self.level, |(_, level)| *level)
    }
}

/// Writes the lines that `filter` admits from now on. A second call has no effect.
pub(crate) fn start(filter: Filter) {
    let lines = subscriber(filter, is_journal(), std::io::stderr);
    let _ = tracing::subscriber::set_global_default(lines);
}

fn subscriber<W>(filter: Filter, is_journal: bool, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // A failed write must not be reported on standard error, which is what has failed.
    let lines = layer().event_format(Form { is_journal }).with_writer(writer).log_internal_errors(false);
    let filter = filter_fn(move |event| filter.admits(event.target(), *event.level()));
    tracing_subscriber::registry().with(lines).with(filter)
}

/// Returns whether standard error is the journal.
pub(crate) fn is_journal() -> bool {
    let Ok(journal) = std::env::var(JOURNAL_VARIABLE) else { return false };
    let own = rustix::fs::fstat(std::io::stderr());
    own.is_ok_and(|own| journal == format!("{}:{}", own.st_dev, own.st_ino))
}

/// Form of the lines. Each is one write, so that lines of several threads do not mix.
struct Form {
    is_journal: bool,
}

impl<S, N> FormatEvent<S, N> for Form
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let (level, part) = (*event.metadata().level(), part(event.metadata().target()));
        // Names in the text can come from untrusted files.
        let text = escape_line(&text);
        match self.is_journal {
            true => writeln!(writer, "<{}>{part}: {text}", priority(level)),
            false => writeln!(writer, "{:.3} {level:>5} {part}: {text}", Timestamp::now()),
        }
    }
}

/// Returns the priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Limiter of the lines that clients cause: at most `max` in a second; the lines left out are counted.
pub(crate) struct LineLimit {
    max: u32,
    second: Cell<i64>,
    admitted: Cell<u32>,
    left_out: Cell<u64>,
}

/// Number of lines that were left out before an admitted one, as the end of that line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeftOut(u64);

impl Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} lines left out before it)"),
        }
    }
}

impl LineLimit {
    pub(crate) fn new(max: u32) -> LineLimit {
        LineLimit { max, second: Cell::new(0), admitted: Cell::new(0), left_out: Cell::new(0) }
    }

    /// Returns `None` if the line is to be left out.
    pub(crate) fn admit(&self) -> Option<LeftOut> {
        self.admit_in(Timestamp::now().as_second())
    }

    fn admit_in(&self, second: i64) -> Option<LeftOut> {
        if self.second.replace(second) != second {
            self.admitted.set(0);
        }
        if self.admitted.get() == self.max {
            self.left_out.update(|count| count + 1);
            return None;
        }
        self.admitted.update(|count| count + 1);
        Some(LeftOut(self.left_out.take()))
    }
}

/// The last facts that were reported, so that a client's next attempts are not reported again.
pub(crate) struct Reported<T>(RefCell<VecDeque<T>>);

/// Maximum number of facts kept in a `Reported`.
const REPORTED_MAX: usize = 64;

impl<T> Default for Reported<T> {
    fn default() -> Reported<T> {
        Reported(RefCell::default())
    }
}

impl<T: PartialEq> Reported<T> {
    pub(crate) fn is_news(&self, fact: T) -> bool {
        let mut facts = self.0.borrow_mut();
        if facts.contains(&fact) {
            return false;
        }
        if facts.len() == REPORTED_MAX {
            facts.pop_front();
        }
        facts.push_back(fact);
        true
    }
}
