//! Tests of saved memory with a monitor that the test plays: one that works, fails, hangs, and is another guest's.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, atomic::AtomicBool};
use std::time::Duration;

use api::client::runtime;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

use super::held::{HeldGuest, Waits, thaw_recorded};
use super::memory::{DiskClient, SaveMemory, StoppedGuest};
use super::memory_file::{MemoryFile, SavedDisk, header_of, stream_to};
use super::record::{Held, Record, all};

/// Long, for what comes, on a machine that does much else.
const LONG: Duration = Duration::from_secs(60);
const WAITS: Waits =
    Waits { reach: LONG, freeze: LONG, thaw: LONG, again: Duration::from_millis(10), tries: LONG };
const RAM_BYTES: u64 = 1 << 20;
/// Parts of the stream, before the guest stands still and after.
const PARTS: [&[u8]; 2] = [&[7; 300_000], b"the end"];

/// What a monitor does that does not work.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The migration fails before the guest stands still.
    Fails,
    /// It fails after the snapshot.
    FailsLate,
    /// The connection ends after the snapshot, once.
    Dies,
    Paused,
    Blocked,
    /// The stream is longer than the datastore can spare, so that its reader goes.
    Long,
}

/// A QEMU that the test plays, for one connection after another.
struct Qemu {
    fault: Fault,
    /// Whether the guest's processors are emulated.
    emulated: bool,
    /// The guest's state, and that of the migration.
    status: &'static str,
    migration: &'static str,
    stream: Option<File>,
    commands: Sender<String>,
}

impl Qemu {
    fn start(socket: &Path, fault: Fault) -> Receiver<String> {
        Self::start_as(socket, fault, false)
    }

    fn start_as(socket: &Path, fault: Fault, emulated: bool) -> Receiver<String> {
        let listener = UnixListener::bind(socket).unwrap();
        let (commands, told) = channel();
        let status = if fault == Fault::Paused { "paused" } else { "running" };
        let mut qemu = Qemu { fault, emulated, status, migration: "none", stream: None, commands };
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let version = json!({"qemu": {"major": 7, "minor": 2, "micro": 1}});
                say(&mut stream, &json!({"QMP": {"version": version, "capabilities": []}}));
                while let Some(request) = qemu.request(&stream) {
                    if !qemu.answer(&mut stream, &request) {
                        break;
                    }
                }
            }
        });
        told
    }

    /// Returns the next request. Its descriptor is kept.
    fn request(&mut self, stream: &UnixStream) -> Option<Value> {
        let mut text = Vec::new();
        loop {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received =
                recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty());
            let count = received.ok().map(|message| message.bytes).filter(|count| *count > 0)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    self.stream = descriptors.map(|fd: OwnedFd| File::from(fd)).next();
                }
            }
            text.extend_from_slice(&bytes[..count]);
            if text.ends_with(b"\n") {
                return Some(serde_json::from_slice(&text).unwrap());
            }
        }
    }

    /// Answers a request. Returns whether the connection goes on.
    fn answer(&mut self, stream: &mut UnixStream, request: &Value) -> bool {
        let command = request["execute"].as_str().unwrap();
        let _ = self.commands.send(format!("{command} {}", request["arguments"]));
        let mut answer = json!({});
        let mut events: Vec<Value> = Vec::new();
        match command {
            "query-status" => {
                answer = json!({"status": self.status});
                // It is put away only after it has completed.
                if self.status == "finish-migrate" && self.migration != "pre-switchover" {
                    self.status = "postmigrate";
                }
            }
            "cont" if self.status == "finish-migrate" => {
                say(
                    stream,
                    &json!({"error": {"class": "GenericError", "desc": "Migration is not finalized yet"}}),
                );
                return true;
            }
            "query-kvm" => answer = json!({"enabled": !self.emulated, "present": true}),
            "stop" => {
                self.status = "paused";
                events.push(stop_at(5, 0));
            }
            "query-migrate" => answer = self.shown(),
            "query-named-block-nodes" => {
                let node = |file| json!({"drv": "nbd", "file": file});
                answer = json!([node("json:{}"), node("nbd://127.0.0.1/web/disk0.g3")]);
            }
            "query-memory-size-summary" => answer = json!({"base-memory": RAM_BYTES}),
            "query-migrate-capabilities" => {
                let of = |name, state| json!({"capability": name, "state": state});
                answer =
                    json!([of("events", false), of("pause-before-switchover", false), of("multifd", true)]);
            }
            "query-migrate-parameters" => answer = json!({"max-bandwidth": 1, "downtime-limit": 2, "x": 3}),
            "migrate" => {
                let part = if self.fault == Fault::Long { noise() } else { PARTS[0].to_vec() };
                let fails = !self.send(&part) || self.fault == Fault::Fails;
                let ends = if fails { "failed" } else { "pre-switchover" };
                self.migration = ends;
                events.push(migration("active"));
                if self.status == "running" {
                    events.push(stop_at(5, 0));
                }
                if ends == "failed" {
                    self.stream = None;
                } else {
                    self.status = "finish-migrate";
                }
                events.push(migration(ends));
            }
            "migrate-continue" if self.fault == Fault::Dies => {
                self.fault = Fault::None;
                return false;
            }
            "migrate-continue" => {
                self.migration = if self.fault == Fault::FailsLate { "failed" } else { "completed" };
                self.send(PARTS[1]);
                self.stream = None;
                events.push(migration(self.migration));
            }
            "migrate_cancel" => {
                let status = if self.emulated { "paused" } else { "running" };
                (self.migration, self.status, self.stream) = ("cancelled", status, None);
                events.push(migration("cancelled"));
            }
            "cont" => {
                self.status = "running";
                events.push(json!({"event": "RESUME", "timestamp": {"seconds": 5, "microseconds": 40}}));
            }
            _ => {}
        }
        say(stream, &json!({"return": answer}));
        events.iter().for_each(|event| say(stream, event));
        true
    }

    fn shown(&self) -> Value {
        let reasons = if self.fault == Fault::Blocked { json!(["a device of its own"]) } else { Value::Null };
        let ram = json!({"transferred": 1, "dirty-sync-count": 1});
        json!({"status": self.migration, "ram": ram, "blocked-reasons": reasons, "error-desc": "no cable"})
    }

    /// Returns whether the reader has taken it.
    fn send(&mut self, part: &[u8]) -> bool {
        match self.stream.as_mut().expect("getfd comes before").write_all(part) {
            Ok(()) => true,
            Err(e) if e.kind() == ErrorKind::BrokenPipe => false,
            Err(e) => panic!("the stream: {e}"),
        }
    }
}

/// Returns bytes that do not become fewer by compression, more than a socket takes ahead of its reader.
fn noise() -> Vec<u8> {
    (0..4_u64 << 20)
        .map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u8 ^ (at >> 8) as u8)
        .collect()
}

fn say(stream: &mut UnixStream, message: &Value) {
    // The other side may have gone.
    let _ = writeln!(stream, "{message}");
}

fn migration(status: &str) -> Value {
    json!({"event": "MIGRATION", "data": {"status": status}, "timestamp": {"seconds": 5, "microseconds": 1}})
}

fn stop_at(seconds: u64, microseconds: u64) -> Value {
    json!({"event": "STOP", "timestamp": {"seconds": seconds, "microseconds": microseconds}})
}

fn of(folder: &Path) -> SaveMemory {
    fs::create_dir_all(folder.join(".unstun")).unwrap();
    let held = Held::Stopped { monitor: folder.join("qmp.sock"), paused: false };
    let record = Record { vm: "web".parse().unwrap(), held };
    SaveMemory {
        guest: HeldGuest { record, datastore: folder.to_owned(), guests_dir: folder.to_owned() },
        file: MemoryFile { folder: folder.to_owned(), snapshot: 7 },
        bytes_max: 1 << 30,
        disks: vec![SavedDisk {
            number: 0,
            nbd_uri: "nbd+unix:///web/disk0.g7?socket=/run/u".to_owned(),
            vhost_user_socket: None,
        }],
        clients: vec![client(Some(1), false), client(Some(std::process::id()), true)],
        stopped_max: LONG,
        busy: Arc::new(AtomicBool::new(false)),
    }
}

fn client(process: Option<u32>, writes: bool) -> DiskClient {
    DiskClient { process, writes }
}

fn begin(save: SaveMemory) -> Result<StoppedGuest, String> {
    runtime().unwrap().block_on(save.begin_with(WAITS)).map_err(|error| error.cause)
}

/// Returns the commands up to `last`.
fn until(commands: &Receiver<String>, last: &str) -> Vec<String> {
    let mut heard = Vec::new();
    while !heard.last().is_some_and(|command: &String| command.starts_with(last)) {
        heard.push(commands.recv_timeout(LONG).expect("the command comes"));
    }
    heard
}

#[test]
fn the_file_has_the_whole_stream_and_the_settings_are_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let commands = Qemu::start(&folder.path().join("qmp.sock"), Fault::None);
    let save = of(folder.path());
    let stopped = begin(save.clone()).unwrap();
    assert_eq!(all(folder.path()).len(), 1, "recorded while the guest stands still");
    let saved = runtime().unwrap().block_on(stopped.finish()).map_err(|error| error.cause).unwrap();
    assert_eq!((saved.ram_bytes, saved.stopped_us), (RAM_BYTES, 40));
    assert_eq!(saved.stream_bytes as usize, PARTS.concat().len());
    let mut read = Vec::new();
    stream_to(&save.file.path(), &mut read).unwrap();
    assert!(read == PARTS.concat());
    let header = header_of(&save.file.path()).unwrap();
    assert_eq!((header.vm.as_str(), header.qemu.as_str()), ("web", "7.2.1"));
    assert!(!header.command_line.is_empty());
    assert_eq!(all(folder.path()), []);
    let heard = until(&commands, "cont");
    let set: Vec<_> = heard.iter().filter(|command| command.starts_with("migrate-set-cap")).collect();
    assert!(set.len() == 1 && set[0].contains(r#""multifd","state":false"#), "{set:?}");
    let after = until(&commands, "migrate-set-parameters");
    assert!(after[0].contains(r#""multifd","state":true"#), "{after:?}");
    assert_eq!(after[1], r#"migrate-set-parameters {"downtime-limit":2,"max-bandwidth":1}"#);
}

#[test]
fn a_failure_lets_the_guest_run_on_and_leaves_no_file() {
    for (fault, expected) in [
        (Fault::Fails, "migration has failed: no cable"),
        (Fault::FailsLate, "migration has failed: no cable"),
        (Fault::Paused, "the guest is \"paused\""),
        (Fault::Blocked, "a device of its own"),
        (Fault::Long, "more than the 1048576 bytes that are free"),
    ] {
        for emulated in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let commands = Qemu::start_as(&folder.path().join("qmp.sock"), fault, emulated);
            let save = SaveMemory { bytes_max: RAM_BYTES, ..of(folder.path()) };
            let cause = match begin(save.clone()) {
                Err(cause) => cause,
                Ok(stopped) => runtime().unwrap().block_on(stopped.finish()).err().unwrap().cause,
            };
            assert!(cause.contains(expected), "{cause}");
            assert_eq!(all(folder.path()), []);
            assert!(!save.file.path().exists());
            let began = ![Fault::Paused, Fault::Blocked].contains(&fault);
            if fault == Fault::FailsLate || (emulated && began) {
                until(&commands, "cont");
            }
        }
    }
}

#[test]
fn an_emulated_guest_stands_still_before_its_memory_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let commands = Qemu::start_as(&folder.path().join("qmp.sock"), Fault::None, true);
    let save = of(folder.path());
    let stopped = begin(save.clone()).unwrap();
    let heard = until(&commands, "migrate {");
    let heard: Vec<&str> = heard.iter().filter_map(|command| command.split(' ').next()).collect();
    assert_eq!(heard[heard.len() - 2..], ["stop", "migrate"]);
    let left = all(folder.path());
    let saved = runtime().unwrap().block_on(stopped.finish()).map_err(|error| error.cause).unwrap();
    assert_eq!(saved.stopped_us, 40);
    assert!(header_of(&save.file.path()).unwrap().paused);
    until(&commands, "cont");
    until(&commands, "migrate-set-parameters");
    // A paused guest runs on if its record says that this program paused it, and stays paused otherwise.
    let runs_on = |record: &Record| {
        record.write(folder.path()).unwrap();
        pause_by_hand(&folder.path().join("qmp.sock"));
        thaw_recorded(&HeldGuest { record: record.clone(), ..save.guest.clone() }, Some(LONG)).unwrap();
        let defaults = until(&commands, "migrate-set-parameters");
        defaults.iter().any(|command| command.starts_with("cont"))
    };
    assert!(runs_on(&left[0]));
    assert!(!runs_on(&save.guest.record));
}

/// Pauses the guest as a person does.
fn pause_by_hand(socket: &Path) {
    let mut stream = UnixStream::connect(socket).unwrap();
    writeln!(stream, "{}", json!({"execute": "stop", "arguments": {}})).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("STOP")));
}

#[test]
fn a_take_that_fails_lets_the_guest_run_on() {
    let folder = tempfile::tempdir().unwrap();
    let commands = Qemu::start(&folder.path().join("qmp.sock"), Fault::None);
    let save = of(folder.path());
    drop(begin(save.clone()).unwrap());
    until(&commands, "migrate_cancel");
    until(&commands, "migrate-set-parameters");
    assert!(!save.file.path().exists());
    // The first thread may not have ended.
    let late = SaveMemory { stopped_max: Duration::from_millis(1), busy: Arc::default(), ..save };
    let stopped = begin(late).unwrap();
    until(&commands, "migrate_cancel");
    let cause = runtime().unwrap().block_on(stopped.finish()).err().unwrap().cause;
    assert!(cause.contains("not taken within"), "{cause}");
}

#[test]
fn another_guest_is_left_alone_and_so_is_one_without_room() {
    let folder = tempfile::tempdir().unwrap();
    let commands = Qemu::start(&folder.path().join("qmp.sock"), Fault::None);
    let save = of(folder.path());
    let refused = |clients: &[DiskClient]| {
        begin(SaveMemory { clients: clients.to_vec(), ..save.clone() }).err().unwrap()
    };
    let (own, other, tcp) =
        (client(Some(std::process::id()), true), client(Some(1), true), client(None, true));
    let cause = refused(&[other, other]);
    assert!(cause.contains("no disk of this VM open; expected that of process 1"), "{cause}");
    let cause = refused(&[own, other]);
    assert!(cause.contains("process 1 writes"), "{cause}");
    let cause = refused(&[own, tcp]);
    assert!(cause.contains("a client over TCP writes"), "{cause}");
    let cause = refused(&[other, tcp]);
    assert!(cause.contains("process 1 writes"), "{cause}");
    // A client over TCP is QEMU where QEMU has a node on the export. This one has a node on disk0.
    let disk1 =
        SavedDisk { nbd_uri: "nbd+unix:///web/disk1.g7?socket=/run/u".to_owned(), ..save.disks[0].clone() };
    let cause = begin(SaveMemory { clients: vec![tcp], disks: vec![disk1], ..save.clone() }).err().unwrap();
    assert!(cause.contains("expected that of a client over TCP"), "{cause}");
    let cause = begin(SaveMemory { bytes_max: RAM_BYTES - 1, ..save }).err().unwrap();
    assert!(cause.contains("can spare"), "{cause}");
    while let Ok(command) = commands.try_recv() {
        assert!(command.starts_with('q'), "{command}");
    }
}

#[test]
fn a_guest_that_a_take_left_frozen_loses_no_record_to_one_with_memory() {
    let folder = tempfile::tempdir().unwrap();
    let _commands = Qemu::start(&folder.path().join("qmp.sock"), Fault::None);
    let save = of(folder.path());
    let absent = format!("unix:{}/no-agent.sock", folder.path().display());
    let frozen = Record { held: Held::Frozen(absent.parse().unwrap()), ..save.guest.record.clone() };
    frozen.write(folder.path()).unwrap();
    let cause = begin(save).err().unwrap();
    assert!(cause.contains("may be frozen since an earlier snapshot"), "{cause}");
    assert_eq!(all(folder.path()), [frozen]);
}

#[test]
fn a_guest_whose_monitor_dies_is_released_through_the_next_connection() {
    let folder = tempfile::tempdir().unwrap();
    let commands = Qemu::start(&folder.path().join("qmp.sock"), Fault::Dies);
    let save = of(folder.path());
    let stopped = begin(save.clone()).unwrap();
    let error = runtime().unwrap().block_on(stopped.finish()).err().unwrap();
    let later = runtime().unwrap().block_on(error.later.expect("it is tried further")).unwrap();
    assert_eq!(later, "the guest runs on");
    until(&commands, "migrate_cancel");
    assert_eq!(all(folder.path()), []);
}

#[test]
fn a_guest_that_a_daemon_left_standing_is_released_by_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let commands = Qemu::start(&folder.path().join("qmp.sock"), Fault::None);
    let save = of(folder.path());
    // As after a crash: nothing of the process is left but the record.
    let stopped = begin(save.clone()).unwrap();
    let record = fs::read(folder.path().join(".unstun/frozen/web")).unwrap();
    drop(stopped);
    until(&commands, "migrate_cancel");
    until(&commands, "migrate-set-parameters");
    fs::write(folder.path().join(".unstun/frozen/web"), record).unwrap();
    thaw_recorded(&save.guest, Some(LONG)).unwrap();
    assert_eq!(all(folder.path()), []);
    let defaults = until(&commands, "migrate-set-parameters");
    assert!(defaults.iter().any(|command| command.contains(r#""pause-before-switchover","state":false"#)));
    // A guest that is gone with its QEMU is not tried for long.
    fs::remove_file(folder.path().join("qmp.sock")).unwrap();
    save.guest.record.write(folder.path()).unwrap();
    thaw_recorded(&save.guest, Some(LONG)).unwrap();
    assert_eq!(all(folder.path()), []);
}
