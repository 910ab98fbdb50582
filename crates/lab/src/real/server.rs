//! A program that serves a disk for the length of a run. The lab starts it and ends it by its process ID.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use blk::{Errno, Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::program::{ends_within, last_lines, not_started};

const START_LIMIT: Duration = Duration::from_secs(30);
/// A daemon ends its jobs at a safe point and writes the data it holds back.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// A shell script that waits on its standard input, which receives no data: it continues when the holder of the other
/// end exits. `$1` is a process group.
const WATCHDOG: &str = "read -r nothing; kill -s KILL -- \"-$1\"";
/// Interval of the checks of a server that is starting.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Present until the server has ended.
    watchdog: Option<Child>,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts the server, with its output in a file in `folder`. Returns when `is_ready` returns true.
    pub(super) fn start(
        command: &mut Command,
        folder: &Path,
        mut is_ready: impl FnMut() -> bool,
    ) -> Result<Server> {
        let name = command.get_program().to_string_lossy().into_owned();
        let log = folder.join("server.log");
        let failed = |e: std::io::Error| Errno::from(e).at(log.display().to_string(), "making the log");
        let (out, err) =
            (File::create(&log).map_err(failed)?, File::options().append(true).open(&log).map_err(failed)?);
        // The server has its own process group, so Ctrl-C reaches only the run. The run ends the server when its load
        // has stopped.
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn();
        let child = child.map_err(|e| not_started(&name, &e))?;
        let mut server = Server { child, watchdog: None, name, log };
        server.watchdog = Some(watchdog(&server.child)?);
        let began = now();
        while !is_ready() {
            if ends_within(&server.child, LOOK)? {
                return Err(server.start_error("it ended while starting"));
            }
            if began.elapsed() > START_LIMIT {
                return Err(
                    server.start_error(&format!("it does not answer after {} s", START_LIMIT.as_secs()))
                );
            }
        }
        Ok(server)
    }

    fn start_error(&self, what: &str) -> Error {
        let output = std::fs::read_to_string(&self.log).unwrap_or_default();
        Error::new(ErrorKind::Io, &self.name, format!("{what}: {}", last_lines(&output)))
    }

    /// Ends the server and its watchdog. A second call does nothing.
    pub(super) fn stop(&mut self) -> Result<()> {
        let Some(watchdog) = self.watchdog.take() else { return Ok(()) };
        let ended = self.end();
        end_watchdog(watchdog);
        // Once the child has been waited for, another process may get its number.
        self.child.wait().map_err(|e| Errno::from(e).at(&self.name, "waiting for its end"))?;
        ended
    }

    fn end(&mut self) -> Result<()> {
        // The child may have exited already; the wait below returns then.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if !ends_within(&self.child, STOP_LIMIT)? {
            // The child may have exited just now.
            let _ = self.child.kill();
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.stop();
    }
}

/// Starts a process that kills the server and its children if this process exits without having ended them. After
/// SIGKILL this process cannot do that itself.
fn watchdog(server: &Child) -> Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", WATCHDOG, "sh", &server.id().to_string()]);
    // This process holds the only other end of the pipe, because it is closed on exec.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().map_err(|e| not_started("sh", &e))
}

/// Ends the watchdog. The caller has not yet waited for the server, so the watchdog cannot kill another process of that
/// number.
fn end_watchdog(mut watchdog: Child) {
    // The wait rules out a kill that comes too late. Neither call fails for a running child.
    let _ = watchdog.kill().and_then(|()| watchdog.wait());
}

/// Returns the real time. Only this function of the lab uses it, because a child process starts in real time.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}
