//! A daemon whose core panics or hangs ends, and its supervisor restarts it. A client that reconnects sees neither an
//! error nor a lost flush.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::Datastore;
use crate::guest::{Guest, seed};

const SIZE: u64 = 24 << 20;
/// Value of systemd's WatchdogSec: eight stamps of the core.
const WATCHDOG: Duration = Duration::from_secs(4);
/// Interval at which the supervisor checks the daemon.
const LOOK: Duration = Duration::from_millis(100);
/// Number of the guest's messages between two faults, each for 50 writes.
const STEPS: usize = 20;

/// A supervisor that acts as systemd for a service with `Type=notify`, `WatchdogSec` and `Restart=on-failure`.
struct Supervisor<'a> {
    datastore: &'a Datastore,
    socket: UnixDatagram,
    stop: &'a AtomicBool,
    /// Receives a message for each daemon once it serves.
    ready: Sender<()>,
}

impl Supervisor<'_> {
    /// Restarts the daemon and sends the status of each, until one ends successfully.
    fn run(&self, ended: &Sender<ExitStatus>) {
        loop {
            let mut child = self.start();
            let status = self.watch(&mut child);
            // If the test has failed, the receiver is closed.
            if ended.send(status).is_err() || status.success() {
                return;
            }
        }
    }

    fn start(&self) -> Child {
        let mut command = self.datastore.daemon();
        command.stdout(Stdio::null());
        command.env("NOTIFY_SOCKET", notify_socket(self.datastore));
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        command.env("UNSTUN_TEST_FAULT", fault(self.datastore));
        command.spawn().unwrap()
    }

    fn watch(&self, child: &mut Child) -> ExitStatus {
        let mut heard = None;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            match self.word().as_deref() {
                Some(b"READY=1") => {
                    heard = Some(Instant::now());
                    // If the test has failed, the receiver is closed.
                    let _ = self.ready.send(());
                }
                Some(b"WATCHDOG=1") => heard = Some(Instant::now()),
                _ if heard.is_some_and(|at| at.elapsed() > WATCHDOG) => {
                    kill_process(Pid::from_child(child), Signal::ABORT).unwrap();
                    heard = None;
                }
                _ => {}
            }
            if self.stop.swap(false, Ordering::SeqCst) {
                kill_process(Pid::from_child(child), Signal::TERM).unwrap();
            }
        }
    }

    fn word(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 64];
        let length = self.socket.recv(&mut bytes).ok()?;
        Some(bytes[..length].to_vec())
    }
}

fn notify_socket(datastore: &Datastore) -> PathBuf {
    datastore.beside("notify")
}

fn fault(datastore: &Datastore) -> PathBuf {
    datastore.beside("fault")
}

/// QEMU's block layer, started with the lines of `attach`, which serves its disk to the test.
struct Qemu(Child);

impl Qemu {
    fn attach(datastore: &Datastore, export: &str, socket: &Path) -> Qemu {
        let disk = format!(
            "driver=nbd,node-name=disk,server.type=unix,server.path={},export={export},reconnect-delay=60",
            datastore.nbd_socket().display()
        );
        let mut command = Command::new("qemu-storage-daemon");
        command.args(["--blockdev", &disk]);
        command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
        command.args(["--export", "type=nbd,id=served,node-name=disk,name=disk,writable=on"]);
        command.args(["--chardev", "stdio,id=qmp", "--monitor", "chardev=qmp"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // QEMU prints its greeting once everything before it is set up.
        let mut greeting = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut greeting).unwrap();
        assert!(greeting.contains("QMP"), "qemu-storage-daemon: {greeting:?}");
        Qemu(child)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(progress: &Receiver<u64>) {
    // Earlier messages are no evidence of progress from now on.
    while progress.try_recv().is_ok() {}
    for _ in 0..STEPS {
        progress.recv().expect("the guest goes on");
    }
}

/// Sets the flag when dropped, also if a test fails, so that its threads end.
struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_core_that_panics_or_hangs_is_started_again_under_its_clients() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 24M");
    datastore.json("vm create old --store redo --disk 24M");
    daemon.stop();
    for (vm, seed) in [("web", seed()), ("old", seed() ^ 1)] {
        fail_under(&datastore, vm, Guest::new(SIZE, seed));
    }
    let log = std::fs::read_to_string(datastore.beside("daemon.log")).unwrap();
    let has_panicked =
        |line: &str| line.contains("internal error in thread core") && line.contains("daemon/heartbeat.rs:");
    assert!(log.lines().any(has_panicked), "{log}");
    assert!(log.contains("internal error in thread fault at "), "{log}");
    assert!(log.contains("the core has not run for "), "{log}");
}

fn fail_under(datastore: &Datastore, vm: &str, mut guest: Guest) {
    let _ = std::fs::remove_file(notify_socket(datastore));
    let socket = UnixDatagram::bind(notify_socket(datastore)).unwrap();
    socket.set_read_timeout(Some(LOOK)).unwrap();
    let stop = AtomicBool::new(false);
    let (ready, served) = channel();
    let supervisor = Supervisor { datastore, socket, stop: &stop, ready };
    let (tell_end, ended) = channel();
    let (tell, progress) = channel();
    thread::scope(|scope| {
        scope.spawn(|| supervisor.run(&tell_end));
        let stopped = Stopped(&stop);
        served.recv().unwrap();
        let socket = datastore.beside("qemu.sock");
        let qemu = Qemu::attach(datastore, &format!("{vm}/disk0"), &socket);
        let writing = scope.spawn(move || {
            guest.write_until_cut(&socket, "disk", &tell);
            guest
        });
        wait_for(&progress);
        for (n, kind) in ["panic", "thread", "hang"].into_iter().enumerate() {
            std::fs::write(fault(datastore).with_extension("new"), kind).unwrap();
            std::fs::rename(fault(datastore).with_extension("new"), fault(datastore)).unwrap();
            let status = ended.recv().unwrap();
            match kind {
                "hang" => assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{status}"),
                _ => assert_eq!(status.code(), Some(70), "{kind}: {status}"),
            }
            served.recv().unwrap();
            wait_for(&progress);
            datastore.json(&format!("snapshot take {vm} s{n}"));
            wait_for(&progress);
        }
        datastore.json(&format!("snapshot commit {vm} --all --yes"));
        drop(qemu);
        let mut guest = writing.join().unwrap();
        guest.check(&datastore.nbd_socket(), &format!("{vm}/disk0"));
        drop(stopped);
        assert!(ended.recv().unwrap().success());
        assert_eq!(guest.errors, 0, "QEMU has shown its guest no error");
        println!("{vm}: {} writes, {} flushes over three ends", guest.acknowledged, guest.flushes);
    });
}
