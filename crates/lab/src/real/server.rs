//! A program that serves a disk for the length of a run: started here, ended here by its own id.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use blk::{Errno, Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::program::{ends_within, not_started};

const START_LIMIT: Duration = Duration::from_secs(30);
/// A daemon ends its jobs at a safe point and writes what it holds back.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Waits on its standard input, which nobody writes: it ends with whoever holds the other end. `$1` is a process group.
const WARDEN: &str = "read -r nothing; kill -s KILL -- \"-$1\"";
/// Between two looks at a server that is starting.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Until the server has ended.
    warden: Option<Child>,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Its output goes to a file in `folder`. Returns when `is_ready`.
    pub fn start(command: &mut Command, folder: &Path, mut is_ready: impl FnMut() -> bool) -> Result<Server> {
        let name = command.get_program().to_string_lossy().into_owned();
        let log = folder.join("server.log");
        let failed = |e: std::io::Error| Errno::from(e).at(log.display().to_string(), "making the log");
        let (out, err) =
            (File::create(&log).map_err(failed)?, File::options().append(true).open(&log).map_err(failed)?);
        // Of its own group: a Ctrl-C is the run's, which ends the server when its load has stopped.
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn();
        let child = child.map_err(|e| not_started(&name, &e))?;
        let mut server = Server { child, warden: None, name, log };
        server.warden = Some(warden(&server.child)?);
        let began = now();
        while !is_ready() {
            if ends_within(&server.child, LOOK)? {
                return Err(server.complaint("it ended while starting"));
            }
            if began.elapsed() > START_LIMIT {
                return Err(
                    server.complaint(&format!("it does not answer after {} s", START_LIMIT.as_secs()))
                );
            }
        }
        Ok(server)
    }

    fn complaint(&self, what: &str) -> Error {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<_> = said.trim().lines().rev().take(3).collect();
        let last: Vec<_> = last.into_iter().rev().collect();
        Error::new(ErrorKind::Io, &self.name, format!("{what}: {}", last.join(" / ")))
    }

    /// Does nothing the second time.
    pub fn stop(&mut self) -> Result<()> {
        let Some(warden) = self.warden.take() else { return Ok(()) };
        let ended = self.end();
        dismiss(warden);
        // Its number may be another's from here on.
        self.child.wait().map_err(|e| Errno::from(e).at(&self.name, "waiting for its end"))?;
        ended
    }

    fn end(&mut self) -> Result<()> {
        // Gone already, perhaps: then the wait below says so.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if !ends_within(&self.child, STOP_LIMIT)? {
            // The same.
            let _ = self.child.kill();
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody is left who could be told.
        let _ = self.stop();
    }
}

/// Kills the server and what it has started once this process is gone without having ended it: SIGKILL leaves no time to.
fn warden(server: &Child) -> Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", WARDEN, "sh", &server.id().to_string()]);
    // The pipe's other end is this process's alone: it is closed on exec.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().map_err(|e| not_started("sh", &e))
}

/// Before its server has been waited for, so that it finds no other of that number.
fn dismiss(mut warden: Child) {
    // A kill without a wait could come too late; neither fails for a child that runs.
    let _ = warden.kill().and_then(|()| warden.wait());
}

/// Here and nowhere else in the lab: a child of ours starts in real time.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}
