//! The daemon as a process, with the real engine: start, serve, stop, start again.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::nbd::{self, Nbd};
use crate::support::{Daemon, UNSTUN, json, unstun};

#[test]
fn up_creates_the_datastore_here_and_a_signal_drains_it() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), &[]);
    let datastore = folder.path().canonicalize().unwrap().join("unstun-data");
    assert_eq!(daemon.status["datastore"], datastore.to_str().unwrap());
    assert_eq!(json(folder.path(), "status --json")["pid"], daemon.id());
    assert!(datastore.join(".unstun/api.sock").exists());
    assert_eq!(daemon.stop(Signal::TERM).code(), Some(0));
    assert!(!datastore.join(".unstun/api.sock").exists());
    assert_eq!(unstun(folder.path(), "status").status.code(), Some(1));
}

#[test]
fn a_second_daemon_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), &[]);
    let second = unstun(folder.path(), "up");
    assert_eq!(second.status.code(), Some(5), "{second:?}");
    assert_eq!(json(folder.path(), "status --json")["pid"], daemon.id());
    assert_eq!(daemon.stop(Signal::INT).code(), Some(0));
}

#[test]
fn vms_and_snapshots_outlive_the_daemon_and_its_death() {
    let folder = tempfile::tempdir().unwrap();
    for signal in [Signal::TERM, Signal::KILL] {
        let name = format!("vm-{}", signal.as_raw());
        let daemon = Daemon::start(folder.path(), &[]);
        json(folder.path(), &format!("vm create {name} --disk 1G,64M --json"));
        let taken = json(folder.path(), &format!("snapshot take {name}@before -m text --json"));
        assert_eq!(taken["snapshot"]["sealed"], true);
        let (shown, tree) = (show(folder.path(), &name), tree(folder.path(), &name));
        daemon.stop(signal);
        let again = Daemon::start(folder.path(), &[]);
        assert_eq!((show(folder.path(), &name), self::tree(folder.path(), &name)), (shown, tree));
        assert_eq!(again.stop(Signal::TERM).code(), Some(0));
    }
}

/// What must not change over a restart.
fn show(folder: &Path, name: &str) -> Vec<Value> {
    let vm = json(folder, &format!("vm show {name} --json"));
    let disks = vm["disks"].as_array().unwrap();
    let kept = ["id", "number", "slot", "size_bytes", "nbd_uri", "descriptor"];
    disks.iter().flat_map(|disk| kept.map(|field| disk[field].clone())).chain([vm["id"].clone()]).collect()
}

fn tree(folder: &Path, name: &str) -> Value {
    json(folder, &format!("snapshot tree {name} --json"))["snapshots"].clone()
}

#[test]
fn a_snapshot_is_committed_to_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), &[]);
    json(folder.path(), "vm create web --disk 64M --json");
    json(folder.path(), "snapshot take web a --json");
    json(folder.path(), "snapshot take web b --json");
    let job = json(folder.path(), "snapshot commit web --all --yes --json");
    assert_eq!(job["state"], "done");
    assert_eq!(tree(folder.path(), "web"), Value::Array(vec![]));
    let layers = json(folder.path(), "vm show web --json")["disks"][0]["layers"].clone();
    assert_eq!(layers.as_array().unwrap().len(), 1, "{layers}");
    assert_eq!(json(folder.path(), "events web --json").as_array().unwrap()[0]["operation"], "take");
    assert_eq!(daemon.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn nbd_is_served_where_it_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("n.sock");
    let argument = format!("unix:{}", socket.display());
    let daemon = Daemon::start(folder.path(), &["--nbd", &argument]);
    json(folder.path(), "vm create web --disk 64M --json");
    let vm = json(folder.path(), "vm show web --json");
    let uri = vm["disks"][0]["nbd_uri"].as_str().unwrap().to_owned();
    let (name, place) = uri.split_once('?').unwrap();
    assert!(name.starts_with("nbd+unix:///web/disk0.g"), "{uri}");
    assert_eq!(place, format!("socket={}", socket.display()));
    let executor = lab::real::UringExecutor::new().unwrap();
    let disk = lab::real::open_disk(&executor, &uri).unwrap();
    let size = disk.info().size_bytes;
    let read = executor.run(async move {
        let mut data = blk::Buf::alloc(4096);
        data.fill(7);
        disk.clone().write(4096, data.freeze()).await.unwrap();
        let (read, result) = disk.read(4096, blk::Buf::alloc(4096)).await;
        result.map(|()| read)
    });
    assert_eq!(read.unwrap()[..], [7; 4096]);
    assert_eq!(size, 64 << 20);
    assert_eq!(daemon.stop(Signal::TERM).code(), Some(0));
}

/// Starts a daemon with its log in a file, has a client open a disk and read beyond its end, and returns the log.
fn log_of(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let said = std::fs::File::create(&log).unwrap();
    let stream = rustix::fs::fstat(&said).unwrap();
    let stream = format!("{}:{}", stream.st_dev, stream.st_ino);
    let variables: Vec<_> =
        variables.iter().map(|&(name, value)| (name, value.replace("STREAM", &stream))).collect();
    let daemon = Daemon::start_in(folder.path(), arguments, said.into(), &variables);
    json(folder.path(), "vm create web --disk 64M --json");
    let vm = json(folder.path(), "vm show web --json");
    let uri = vm["disks"][0]["nbd_uri"].as_str().unwrap().to_owned();
    let (export, _) = uri.strip_prefix("nbd+unix:///").unwrap().split_once('?').unwrap();
    let mut client = Nbd::attach(&folder.path().join("unstun-data/.unstun/nbd.sock"), export).unwrap();
    client.send(nbd::Command::Read, 0, 64 << 20, 4096, &[]).unwrap();
    assert_ne!(client.reply().unwrap(), (0, 0), "a read beyond the end");
    drop(client);
    assert!(daemon.stop(Signal::TERM).success());
    std::fs::read_to_string(log).unwrap()
}

#[test]
fn the_log_shows_the_start_the_clients_their_failures_and_the_end() {
    let log = log_of(&[], &[]);
    let version = concat!(" INFO daemon: unstun ", env!("CARGO_PKG_VERSION"));
    let in_order = [
        version,
        " INFO datastore: datastore unstun-data is served: folder /",
        " INFO daemon: NBD is on unix:",
        " INFO daemon: the API is on /",
        " INFO daemon: ready\n",
        " opens web/disk0.g",
        " WARN client: a request of pid ",
        " leaves web/disk0.g",
        " INFO daemon: stopped\n",
    ];
    let mut rest = log.as_str();
    for part in in_order {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is missing in order: {log}"));
        rest = &rest[at + part.len()..];
    }
    for line in log.lines() {
        let (time, _) = line.split_once(' ').unwrap();
        time.parse::<jiff::Timestamp>().unwrap_or_else(|e| panic!("{line}: {e}"));
    }
    assert!(!log.contains("DEBUG"), "{log}");
}

#[test]
fn the_option_selects_lines_and_counts_before_the_variable() {
    let warnings = log_of(&["--log", "warn"], &[("UNSTUN_LOG", "debug")]);
    assert!(warnings.contains(" WARN client: a request"), "{warnings}");
    assert!(!warnings.contains(" INFO ") && !warnings.contains("DEBUG"), "{warnings}");
    let rest = log_of(&[], &[("UNSTUN_LOG", "error,rest=debug")]);
    assert!(rest.contains(" DEBUG rest: POST /api/v1/vms: 201\n"), "{rest}");
    assert!(rest.lines().all(|line| line.contains(" rest: ")), "{rest}");
    assert!(log_of(&[], &[("UNSTUN_LOG", "")]).contains(" INFO daemon: ready"));
}

#[test]
fn the_journal_gets_priorities() {
    let journal = log_of(&[], &[("JOURNAL_STREAM", "STREAM")]);
    assert!(
        journal.contains("\n<6>daemon: ready\n") && journal.contains("\n<4>client: a request"),
        "{journal}"
    );
    assert!(journal.lines().all(|line| line.starts_with('<')), "{journal}");
    let another = log_of(&[], &[("JOURNAL_STREAM", "1:STREAM")]);
    assert!(!another.contains('<'), "{another}");
}

#[test]
fn a_filter_of_another_form_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut by_variable = Command::new(UNSTUN);
    by_variable.arg("up").current_dir(folder.path()).env("UNSTUN_LOG", "loud");
    for (refused, filter) in [
        (unstun(folder.path(), "up --log cleint=info"), "cleint=info"),
        (by_variable.output().unwrap(), "loud"),
    ] {
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{filter:?}: expected error, warn, info, debug or trace")), "{said}");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "nothing was created");
}

#[test]
fn a_daemon_whose_log_is_full_or_closed_serves() {
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    for log in [Stdio::from(closed), Stdio::from(full)] {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::start_with(folder.path(), &["--log", "debug"], log);
        json(folder.path(), "vm create web --disk 64M --json");
        assert_eq!(json(folder.path(), "status --json")["vms"], 1);
        assert_eq!(daemon.stop(Signal::TERM).code(), Some(0));
    }
}

#[test]
fn nbd_beyond_this_machine_is_refused_or_warned_about() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Command::new(UNSTUN);
    up.args(["up", "--nbd", "127.0.0.1:0", "--nbd", "0.0.0.0:10809"]).current_dir(folder.path());
    let refused = up.env_remove("UNSTUN_DATASTORE").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--nbd 0.0.0.0:10809: every client") && said.contains("--nbd-insecure"), "{said}");
    for (host, warned) in [("127.0.0.1", false), ("0.0.0.0", true)] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let port = std::net::TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port();
        let address = format!("{host}:{port}");
        let said = std::fs::File::create(&log).unwrap();
        let mut options = vec!["--nbd", &address];
        options.extend(warned.then_some("--nbd-insecure"));
        let daemon = Daemon::start_with(folder.path(), &options, said.into());
        assert!(daemon.stop(Signal::TERM).success());
        let said = std::fs::read_to_string(&log).unwrap();
        let warning = format!("NBD on {address}: every client that reaches this address");
        assert_eq!(said.contains(&warning), warned, "{said}");
    }
}
