//! The daemon as a separate process, on a datastore of its own.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Deserializer, Value};
use tempfile::TempDir;

const UNSTUN: &str = env!("CARGO_BIN_EXE_unstun");
/// Cargo's folder for tests. It is beside the build, so on the same storage.
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

/// A datastore that outlives the daemons started on it.
pub(crate) struct Datastore {
    folder: TempDir,
    name: &'static str,
    own_memory: bool,
}

impl Datastore {
    pub(crate) fn new() -> Self {
        Self::called("ds")
    }

    pub(crate) fn called(name: &'static str) -> Self {
        let folder = tempfile::Builder::new().prefix("u").tempdir_in(TEMPORARY).unwrap();
        std::fs::create_dir(folder.path().join(name)).unwrap();
        Self { folder, name, own_memory: false }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(self.name)
    }

    /// Returns a path for files of the test, on the same storage.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn start(&self) -> Daemon<'_> {
        self.start_with(&[])
    }

    /// Starts a daemon with environment variables.
    pub(crate) fn start_with(&self, variables: &[(&str, &Path)]) -> Daemon<'_> {
        let mut daemon = self.daemon();
        daemon.envs(variables.iter().copied());
        self.started(daemon)
    }

    /// Starts a daemon with options of `up`.
    pub(crate) fn start_as(&self, options: &[&str]) -> Daemon<'_> {
        let mut daemon = self.daemon();
        daemon.args(options);
        self.started(daemon)
    }

    /// Starts a daemon with a limit on descriptors.
    pub(crate) fn start_with_descriptors(&self, limit: u64) -> Daemon<'_> {
        let daemon = self.daemon();
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--nofile={limit}:{limit}")).arg(daemon.get_program()).args(daemon.get_args());
        limited.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
        limited.env_remove("UNSTUN_DATASTORE").current_dir(self.folder.path()).stdin(Stdio::null());
        limited.stderr(File::options().create(true).append(true).open(self.beside("daemon.log")).unwrap());
        self.started(limited)
    }

    fn started(&self, mut daemon: Command) -> Daemon<'_> {
        daemon.stdout(Stdio::piped());
        let mut child = daemon.spawn().unwrap_or_else(|e| panic!("{UNSTUN}: {e}"));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        // The daemon prints its status once every client is served.
        let status = Deserializer::from_reader(&mut stdout).into_iter::<Value>().next();
        let status = status.expect("the daemon ended without a word").unwrap();
        assert!(status["error"].is_null(), "{status}");
        Daemon { datastore: self, child, _stdout: stdout }
    }

    /// Returns the command that starts a daemon, whose log is in `daemon.log` beside the datastore.
    pub(crate) fn daemon(&self) -> Command {
        let log = File::options().create(true).append(true).open(self.beside("daemon.log")).unwrap();
        let mut command = self.command(&["up", "--json", "--web", "127.0.0.1:0"]);
        command.stderr(log);
        command
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(UNSTUN);
        command.args(["--datastore".as_ref(), self.path().as_os_str()]).args(arguments);
        command.current_dir(self.folder.path()).env_remove("UNSTUN_DATASTORE").stdin(Stdio::null());
        command.env("RUNTIME_DIRECTORY", self.memory());
        command.env("UNSTUN_REPOSITORIES", self.repositories());
        command
    }

    /// Returns the path of the file that names repositories of backups; it need not exist.
    pub(crate) fn repositories(&self) -> PathBuf {
        self.beside("repositories.toml")
    }

    /// Returns the folder in a tmpfs that stands for the one that systemd gives the daemon. All daemons of a host share
    /// it.
    pub(crate) fn memory(&self) -> PathBuf {
        let shared = Path::new("/dev/shm/unstun-tests");
        match self.own_memory {
            true => shared.join(self.folder.path().file_name().expect("a folder of its own")),
            false => shared.to_path_buf(),
        }
    }

    /// Gives the datastore's daemons a folder in memory of their own, which the test may remove.
    pub(crate) fn with_own_memory(mut self) -> Self {
        self.own_memory = true;
        self
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        self.command(&line.split_whitespace().collect::<Vec<_>>()).output().unwrap()
    }

    /// Starts a command that runs beside the test; its output is thrown away.
    pub(crate) fn begin(&self, line: &str) -> Child {
        let mut command = self.command(&line.split_whitespace().collect::<Vec<_>>());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    pub(crate) fn json(&self, line: &str) -> Value {
        let output = self.run(&format!("{line} --json"));
        assert!(output.status.success(), "unstun {line}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("unstun {line}: {e}"))
    }

    /// Runs a command that names another datastore, by folder or name, at this datastore's daemon.
    fn run_at(&self, named: &str, line: &str) -> Output {
        self.command_at(named, line).output().unwrap()
    }

    pub(crate) fn command_at(&self, named: &str, line: &str) -> Command {
        let mut command = Command::new(UNSTUN);
        command.args(["--datastore", named]).args(line.split_whitespace());
        command.current_dir(self.folder.path()).env("UNSTUN_DATASTORE", self.path()).stdin(Stdio::null());
        command.env("UNSTUN_REPOSITORIES", self.repositories());
        command
    }

    pub(crate) fn json_at(&self, named: &str, line: &str) -> Value {
        let output = self.run_at(named, &format!("{line} --json"));
        assert!(output.status.success(), "unstun {line}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("unstun {line}: {e}"))
    }

    /// Returns the exit code and standard error.
    pub(crate) fn at(&self, named: &str, line: &str) -> (i32, String) {
        let output = self.run_at(named, line);
        (output.status.code().expect("not a signal"), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Returns the exit code and standard error.
    pub(crate) fn fails(&self, line: &str) -> (i32, String) {
        let output = self.run(line);
        (output.status.code().expect("not a signal"), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub(crate) fn nbd_socket(&self) -> PathBuf {
        self.path().join(".unstun/nbd.sock")
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.nbd_socket().display())
    }

    /// Returns the descriptor of the running layer of a VM's first disk, from the daemon's answer.
    pub(crate) fn descriptor(&self, vm: &str) -> PathBuf {
        let shown = self.json(&format!("vm show {vm}"));
        PathBuf::from(shown["disks"][0]["descriptor"].as_str().unwrap())
    }
}

impl Drop for Datastore {
    fn drop(&mut self) {
        if self.own_memory {
            let _ = std::fs::remove_dir_all(self.memory());
        }
    }
}

pub(crate) struct Daemon<'a> {
    datastore: &'a Datastore,
    child: Child,
    /// The pipe stays open, because a closed pipe must not end the daemon here.
    _stdout: BufReader<ChildStdout>,
}

impl Daemon<'_> {
    /// Returns the ID of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGSTOP. The daemon stands still until it gets SIGCONT.
    pub(crate) fn pause(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
    }

    pub(crate) fn resume(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Sends SIGTERM: the daemon drains, writes its tables and ends successfully.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the daemon of {}: {status}", self.datastore.path().display());
    }

    /// Sends SIGKILL: the daemon ends at once.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon<'_> {
    /// Kills the daemon if a test failed before it could stop it.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.datastore.beside("daemon.log"));
            println!("the daemon said: {}", log.unwrap_or_default());
        }
    }
}

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
}
