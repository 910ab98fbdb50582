//! One file system for each kind of failure: read-only, failing, hung, and reachable by others too (a full one is in
//! `full.rs`). Every command answers, refuses with a reason or names its job in time. Once the file system works again,
//! so do the VMs.
//!
//! The tests need root and a loop device; without them they say so and pass. A failing file system is one that was shut
//! down under its users (`xfs_io -x -c shutdown`). A hung one is frozen: a writer waits in the kernel.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{Daemon, Datastore};
use crate::nbd::Nbd;
use crate::skip::skip;
use crate::space::{Mounted, until};

const MIB: u32 = 1 << 20;
const IMAGE_BYTES: u64 = 1 << 30;
/// Time in which every command must answer: a limit against hangs. The daemon needs less than ten seconds. A machine
/// that runs other tests too may take as long again to start the command.
const ANSWER: Duration = Duration::from_secs(20);
/// Stores of the VMs on the file system. `kept-*` are read at the end; commands may change the others.
const STORES: [&str; 2] = ["redo", "native"];

/// Prefix of a command that addresses this file system instead of the main datastore.
const AT_ODD: &str = "--datastore odd ";

/// Result of a command.
struct Answer {
    line: String,
    code: i32,
    said: String,
}

impl Answer {
    fn is_refused_with(&self, reasons: &[&str]) {
        let has = reasons.iter().any(|reason| self.said.contains(reason));
        assert!(self.code != 0 && has, "`{}` ended with {}: {}", self.line, self.code, self.said);
    }
}

pub(crate) struct Odd {
    mounted: Mounted,
    pub(crate) datastore: Datastore,
}

impl Odd {
    pub(crate) fn new() -> Option<Odd> {
        Some(Odd { mounted: Mounted::of(IMAGE_BYTES)?, datastore: Datastore::new() })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.mounted.path()
    }

    /// Starts a daemon with a datastore `odd` that has two VMs of each store, each with a snapshot, and a VM elsewhere.
    pub(crate) fn start(&self) -> Daemon<'_> {
        let daemon = self.datastore.start();
        self.datastore.json("vm create elsewhere --disk 16M");
        self.datastore.json(&format!("datastore add odd={}", self.path().display()));
        for store in STORES {
            for vm in ["kept", "lost"] {
                let name = format!("{vm}-{store}");
                self.datastore.json_at("odd", &format!("vm create {name} --disk 64M --store {store}"));
                self.write(&name, 0, 1);
                self.datastore.json(&format!("snapshot take {name} before"));
                self.write(&name, 1, 2);
            }
        }
        daemon
    }

    fn attach(&self, vm: &str) -> Nbd {
        Nbd::attach(&self.datastore.nbd_socket(), &format!("{vm}/disk0")).unwrap()
    }

    /// Writes a MiB of `byte`, and flushes.
    fn write(&self, vm: &str, mib: u64, byte: u8) {
        let mut nbd = self.attach(vm);
        assert_eq!(nbd.write(mib * u64::from(MIB), &[byte; MIB as usize]).unwrap(), 0);
        nbd.flush().unwrap();
    }

    /// Runs a command that must end in time.
    fn verb(&self, line: &str) -> Answer {
        self.begin(line)()
    }

    /// Starts a command, and returns a function that waits for its answer.
    fn begin(&self, line: &str) -> impl FnOnce() -> Answer + use<> {
        let mut command = match line.strip_prefix(AT_ODD) {
            Some(line) => self.datastore.command_at("odd", line),
            None => self.datastore.command(&line.split_whitespace().collect::<Vec<_>>()),
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (line, began) = (line.to_owned(), Instant::now());
        let (sender, receiver) = channel();
        thread::spawn(move || {
            let mut said = String::new();
            let _ = child.stderr.take().unwrap().read_to_string(&mut said);
            // Findings go to standard output, because they are the command's result and no error.
            let _ = child.stdout.take().unwrap().read_to_string(&mut said);
            let _ = sender.send((child.wait().unwrap(), said));
        });
        move || {
            let left = ANSWER.saturating_sub(began.elapsed());
            let Ok((status, said)) = receiver.recv_timeout(left) else {
                panic!("`{line}` has no answer after {ANSWER:?}")
            };
            let code = status.code().unwrap_or_else(|| panic!("`{line}`: {status}"));
            assert!(code == 0 || !said.trim().is_empty(), "`{line}` ended with {code} and said nothing");
            assert!(!said.contains("Usage:"), "`{line}`: {said}");
            println!("{code} after {:4} ms: {line}: {}", began.elapsed().as_millis(), said.trim());
            Answer { line, code, said }
        }
    }

    /// Runs the commands that change nothing.
    fn looks(&self) -> Vec<Answer> {
        let mut lines = vec![
            "status".to_owned(),
            "datastore list".to_owned(),
            "vm list".to_owned(),
            "job list".to_owned(),
            "bin list".to_owned(),
        ];
        for store in STORES {
            lines.push(format!("vm show lost-{store}"));
            lines.push(format!("space lost-{store}"));
            lines.push(format!("snapshot tree lost-{store}"));
            lines.push(format!("snapshot commit lost-{store} before --dry-run"));
        }
        lines.iter().map(|line| self.verb(line)).collect()
    }

    /// Runs the commands that change VMs `lost-*`, the datastore, or something beside it.
    fn changes(&self, store: &str) -> Vec<Answer> {
        let (odd, home) = (format!("lost-{store}"), self.path().join(format!("lost-{store}")));
        let lines = [
            format!("snapshot take {odd} more"),
            format!("snapshot commit {odd} before --yes"),
            format!("snapshot revert {odd} before --yes --disconnect"),
            format!("snapshot discard {odd} before --yes --disconnect"),
            format!("vm reset {odd} --yes --disconnect"),
            format!("vm clone {odd}@before twin-{store}"),
            format!("vm disk add {odd} 16M"),
            format!("vm close {odd}"),
            format!("vm open {odd}"),
            format!("vm import {} --name taken", home.display()),
            format!("vm move {odd} --to ds"),
            format!("vm move elsewhere --to odd --store {store}"),
            "scrub".to_owned(),
            "check".to_owned(),
            format!("check {}", home.display()),
            format!("repair {}", home.display()),
            format!("vm remove {odd} --delete-disks --yes"),
            "bin empty --yes".to_owned(),
        ];
        let mut answers: Vec<_> = lines.iter().map(|line| self.verb(line)).collect();
        answers.push(self.verb(&format!("--datastore odd vm create new-{store} --disk 16M --store {store}")));
        answers
    }

    fn removal(&self) -> [Answer; 2] {
        let again = format!("datastore add odd={}", self.path().display());
        [self.verb("datastore remove odd --yes"), self.verb(&again)]
    }

    /// Asserts that another daemon finds the guests' acknowledged writes.
    fn assert_whole(&self) {
        let daemon = self.datastore.start();
        if self.datastore.json("datastore list").as_array().unwrap().len() == 1 {
            self.datastore.json(&format!("datastore add odd={}", self.path().display()));
        }
        for store in STORES {
            let vm = format!("kept-{store}");
            // A store whose last records failed cannot be distinguished from one that has lost writes.
            if self.datastore.json(&format!("vm show {vm}"))["fenced"] == json!(true) {
                self.datastore.json(&format!("vm open {vm}"));
            }
            let mut nbd = self.attach(&vm);
            for (mib, byte) in [(0, 1), (1, 2)] {
                let data = nbd.read(mib * u64::from(MIB), MIB).unwrap();
                assert!(data.iter().all(|found| *found == byte), "MiB {mib} of {vm} is not {byte}");
            }
            drop(nbd);
            self.write(&vm, 2, 3);
            self.datastore.json(&format!("snapshot take {vm} after"));
        }
        let checked = self.datastore.json_at("odd", "check");
        let findings = checked["findings"].as_array().unwrap();
        // The finding says that the check reads no files.
        assert!(findings.len() == 1 && findings[0]["field"] == "check", "{checked}");
        daemon.stop();
    }

    fn mounted_again(&self) {
        run("umount", &[self.path().as_ref()]);
        let image = self.mounted.image();
        // A file system that was shut down is recovered by its journal.
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), self.path().as_ref()]);
    }

    fn listed(&self) -> Value {
        let all = self.datastore.json("datastore list");
        all.as_array().unwrap().iter().find(|one| one["name"] == "odd").unwrap().clone()
    }
}

/// Retries while the kernel still holds files of a ring for a moment after its process.
fn run(program: &str, arguments: &[&Path]) {
    until(program, || {
        let output: Output = Command::new(program).args(arguments).output().unwrap();
        output.status.success().then_some(())
    });
}

/// Returns false, and skips the test, if the command is not possible here.
fn can(program: &str, arguments: &[&str], path: &Path) -> bool {
    match Command::new(program).args(arguments).arg(path).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            skip(&format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
            false
        }
        Err(e) => {
            skip(&format!("{program}: {e}"));
            false
        }
    }
}

/// A file system that is frozen until dropped, or for five minutes: a process that writes to it cannot be killed.
pub(crate) struct Frozen(PathBuf);

impl Frozen {
    pub(crate) fn new(path: PathBuf) -> Option<Frozen> {
        if !can("fsfreeze", &["--freeze"], &path) {
            return None;
        }
        // The command outlives a test that is killed.
        let late = "(sleep 300; fsfreeze --unfreeze \"$0\") > /dev/null 2>&1 &";
        Command::new("sh").args(["-c", late]).arg(&path).status().unwrap();
        Some(Frozen(path))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).output();
    }
}

/// Runs every command on a file system on which every change fails.
fn nothing_can_be_written(spoil: (&str, &[&str]), reasons: &[&str]) {
    let Some(odd) = Odd::new() else { return };
    let daemon = odd.start();
    if !can(spoil.0, spoil.1, &odd.path()) {
        return daemon.stop();
    }
    odd.looks();
    for store in STORES {
        let answers = odd.changes(store);
        let take = answers.first().unwrap();
        take.is_refused_with(reasons);
        answers.last().unwrap().is_refused_with(reasons);
    }
    // The other VMs are still served.
    odd.write("elsewhere", 0, 9);
    odd.datastore.json("snapshot take elsewhere a");
    odd.removal();
    daemon.kill();
    odd.mounted_again();
    odd.assert_whole();
}

#[test]
fn a_read_only_file_system_refuses_with_a_reason() {
    let abort = ("mount", &["-o", "remount,abort"][..]);
    nothing_can_be_written(abort, &["Read-only file system", "read-only"]);
}

#[test]
fn a_failing_file_system_refuses_with_a_reason() {
    let shutdown = ("xfs_io", &["-x", "-c", "shutdown"][..]);
    nothing_can_be_written(
        shutdown,
        &["Input/output error", "read-only", "Read-only", "Structure needs cleaning"],
    );
}

const HUNG: &[&str] = &["datastore odd has not answered for"];

#[test]
fn a_hung_file_system_holds_up_no_other_and_goes_on_when_it_answers() {
    let Some(odd) = Odd::new() else { return };
    let daemon = odd.start();
    odd.datastore.json_at("odd", "vm create gone --disk 16M");
    let before = odd.listed();
    let Some(frozen) = Frozen::new(odd.path()) else { return daemon.stop() };
    // The first commands are in flight before the daemon detects the hang.
    let begun = [
        "snapshot take kept-redo late".to_owned(),
        "snapshot take kept-native late".to_owned(),
        "vm clone lost-redo@before twin".to_owned(),
        "vm remove gone --delete-disks --yes".to_owned(),
        "--datastore odd vm create late --disk 16M --store redo".to_owned(),
        "vm move elsewhere --to odd --store redo".to_owned(),
    ];
    let begun: Vec<_> = begun.iter().map(|line| odd.begin(line)).collect();
    for answer in begun.into_iter().map(|wait| wait()) {
        answer.is_refused_with(HUNG);
    }
    let hung = odd.listed();
    assert!(hung["condition"] == "hung" && hung["hung"]["for_s"].as_u64() >= Some(5), "{hung}");
    assert_eq!((&hung["free_bytes"].is_u64(), &hung["vms"]), (&true, &before["vms"]), "{hung}");
    let status = String::from_utf8(odd.datastore.run("status").stdout).unwrap();
    assert!(status.starts_with("HUNG") && status.contains("datastore odd"), "{status}");
    odd.looks();
    for store in STORES {
        odd.changes(store)[0].is_refused_with(HUNG);
    }
    odd.removal()[0].is_refused_with(HUNG);
    // The other VMs are served meanwhile.
    odd.write("elsewhere", 0, 9);
    odd.datastore.json("vm create other --disk 16M");
    odd.datastore.json("snapshot take other a");
    // A command for all datastores returns the results of the others. A datastore that was not checked does not count
    // as sound.
    for line in ["check --json", "scrub --json"] {
        let output = odd.datastore.run(line);
        let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
        let is_of_odd = |finding: &Value| finding["field"] == "datastore odd";
        let named = checked["findings"].as_array().is_some_and(|all| all.iter().any(is_of_odd));
        assert!(output.status.code() == Some(1) && named, "{line}: {output:?}");
    }
    odd.datastore.json("bin list");
    drop(frozen);
    until("an answer", || (odd.listed()["condition"] == "open").then_some(()));
    for vm in ["kept-redo", "kept-native"] {
        until("the take to end", || {
            let tree = odd.datastore.json(&format!("snapshot tree {vm}"));
            tree.to_string().contains("\"late\"").then_some(())
        });
    }
    until("the clone to be made", || {
        let all = odd.datastore.json("vm list");
        all.to_string().contains("\"twin\"").then_some(())
    });
    daemon.stop();
    odd.assert_whole();
}

#[test]
fn a_daemon_starts_without_a_datastore_that_hangs_and_serves_it_later() {
    let Some(odd) = Odd::new() else { return };
    odd.start().stop();
    let Some(frozen) = Frozen::new(odd.path()) else { return };
    let daemon = odd.datastore.start();
    let listed = odd.listed();
    let said = listed["message"].as_str().unwrap_or_default();
    assert!(listed["condition"] == "broken" && said.contains(HUNG[0]), "{listed}");
    odd.write("elsewhere", 0, 9);
    odd.looks();
    for line in ["vm show kept-redo", "vm move elsewhere --to odd"] {
        assert_ne!(odd.verb(line).code, 0);
    }
    drop(frozen);
    until("the datastore to be served", || (odd.listed()["vms"] == json!(4)).then_some(()));
    daemon.stop();
    odd.assert_whole();
}

/// The same file system under another path, at which other processes of this host may have it.
#[test]
fn a_file_system_that_others_reach_too_is_served_once() {
    let Some(odd) = Odd::new() else { return };
    let daemon = odd.start();
    let twin = Datastore::called("twin");
    if !can("mount", &["--bind", odd.path().to_str().unwrap()], &twin.path()) {
        return daemon.stop();
    }
    odd.looks();
    let answers = [
        odd.verb(&format!("datastore add twin={}", twin.path().display())),
        odd.verb(&format!("vm import {} --name taken", twin.path().join("kept-redo").display())),
    ];
    let (code, said) = twin.fails("up");
    run("umount", &[&twin.path()]);
    for answer in answers {
        answer.is_refused_with(&["another unstun", "a running unstun"]);
    }
    assert!(code == 5 && said.contains("another unstun"), "{said}");
    for store in STORES {
        assert_eq!(odd.changes(store)[0].code, 0);
    }
    daemon.stop();
    odd.assert_whole();
}
