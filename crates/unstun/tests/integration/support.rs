//! The daemon as a process on a datastore of the test, and a guest that writes to a disk of it.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

use api::client::Client;
use api::location::Datastore;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Deserializer, Value};
use tempfile::TempDir;

use crate::nbd::Nbd;

pub(crate) const UNSTUN: &str = env!("CARGO_BIN_EXE_unstun");
/// Name of the datastore that `up` creates.
const LOCAL: &str = "unstun-data";
/// Bytes that a guest writes, a size that is shown as a whole number.
pub(crate) const DELTA_BYTES: u64 = 64 << 20;
const REQUEST_BYTES: usize = 4 << 20;

pub(crate) struct Daemon {
    child: Child,
    /// What it printed once it served.
    pub status: Value,
    /// Kept open: a daemon must not die of a closed pipe here.
    _stdout: BufReader<ChildStdout>,
}

impl Daemon {
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self::start_with(folder, arguments, Stdio::inherit())
    }

    pub(crate) fn start_with(folder: &Path, arguments: &[&str], log: Stdio) -> Self {
        Self::start_in(folder, arguments, log, &[])
    }

    pub(crate) fn start_in(
        folder: &Path,
        arguments: &[&str],
        log: Stdio,
        variables: &[(&str, String)],
    ) -> Self {
        let mut child = Command::new(UNSTUN)
            .args(["up", "--json"])
            .args(arguments)
            .current_dir(folder)
            .env_remove("UNSTUN_DATASTORE")
            .env_remove("UNSTUN_LOG")
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let first = Deserializer::from_reader(&mut stdout).into_iter::<Value>().next();
        let status = first.expect("the daemon ended without a word").unwrap();
        assert!(status["error"].is_null(), "{status}");
        Self { child, status, _stdout: stdout }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stop(mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Daemon {
    /// Only where a test has not stopped it.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon on a datastore of its own, both of which end with the test.
pub(crate) struct Own {
    _daemon: Daemon,
    folder: TempDir,
}

impl Own {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        // The bin keeps what is removed on a full machine too.
        let daemon = Daemon::start_with(folder.path(), &["--bin-free-percent", "0"], log.into());
        Self { _daemon: daemon, folder }
    }

    /// Returns the datastore's folder.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(LOCAL)
    }

    /// Returns a new folder beside the datastore.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().canonicalize().unwrap().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    pub(crate) fn socket(&self) -> PathBuf {
        Datastore::for_client(Some(&self.path())).unwrap().api_socket()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&Datastore::for_client(Some(&self.path())).unwrap())
    }

    /// Returns a client that has written the first `DELTA_BYTES` of a disk, and stays connected.
    pub(crate) fn guest(&self, export: &str) -> Nbd {
        let mut guest = Nbd::attach(&self.path().join(".unstun/nbd.sock"), export).unwrap();
        for at in (0..DELTA_BYTES).step_by(REQUEST_BYTES) {
            assert_eq!(guest.write(at, &[7; REQUEST_BYTES]).unwrap(), 0);
        }
        guest.flush().unwrap();
        guest
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log"));
            println!("the daemon said: {}", log.unwrap_or_default());
        }
    }
}

/// Runs a command beside the datastore that `up` creates.
pub(crate) fn unstun(folder: &Path, line: &str) -> Output {
    Command::new(UNSTUN)
        .args(line.split_whitespace())
        .current_dir(folder)
        .env_remove("UNSTUN_DATASTORE")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub(crate) fn json(folder: &Path, line: &str) -> Value {
    let output = unstun(folder, line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
