//! Runs external programs: starts and watches them, and ends them by their process ID when their time is over.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use blk::{Errno, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Bytes kept of a program's output: the last ones.
const OUTPUT_KEPT_BYTES: usize = 16 << 10;
/// Interval of the checks whether the caller still waits.
const LOOK: Duration = Duration::from_millis(100);

/// Returns the standard output of a program that ended with 0 within `limit`: at most its last 16 KiB. Otherwise
/// returns an error with its last lines. A program that takes longer is killed with all processes it started.
pub(super) fn run(command: &mut Command, limit: Duration) -> Result<String> {
    run_while(command, limit, || Ok(()))
}

/// Runs a program like `run`, and ends it early with the error of `check` once that returns one.
pub(super) fn run_while(
    command: &mut Command,
    limit: Duration,
    check: impl Fn() -> Result<()>,
) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|e| not_started(&name, &e))?;
    let stdout = collect(child.stdout.take().expect("piped"));
    let stderr = collect(child.stderr.take().expect("piped"));
    let in_time = wait(&child, limit, check);
    if !matches!(in_time, Ok(true)) {
        kill_all(&child);
    }
    let status = child.wait().map_err(|e| Errno::from(e).at(&name, "waiting for it"))?;
    let (output, errors) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    let words = last_lines(if errors.trim().is_empty() { &output } else { &errors });
    if !in_time? {
        let cause = format!("stopped after {} s, its time limit; it said: {words}", limit.as_secs());
        return Err(Error::new(ErrorKind::Cancelled, name, cause));
    }
    if !status.success() {
        return Err(Error::new(ErrorKind::Io, name, format!("{status}: {words}")));
    }
    Ok(output)
}

/// Returns whether the child ends within `limit`. Ends the wait with the error of `check`.
fn wait(child: &Child, limit: Duration, check: impl Fn() -> Result<()>) -> Result<bool> {
    let mut left = limit;
    while !left.is_zero() {
        check()?;
        let look = LOOK.min(left);
        if ends_within(child, look)? {
            return Ok(true);
        }
        left -= look;
    }
    Ok(false)
}

pub(super) fn not_started(name: &str, error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(name, "no such program on this machine; install it"),
        _ => Error::new(ErrorKind::Io, name, format!("starting it: {error}")),
    }
}

/// Returns whether the child ends within `limit`.
pub(super) fn ends_within(child: &Child, limit: Duration) -> Result<bool> {
    let failed = |e: rustix::io::Errno| Errno::from(e).at("a child process", "watching it");
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).map_err(failed)?;
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)).map_err(failed)?;
    Ok(ended > 0)
}

/// Kills the child's process group, which contains the processes that the child started.
fn kill_all(child: &Child) {
    // The child may have exited just now.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(read) = from.read(&mut piece)
            && read > 0
        {
            kept.extend_from_slice(&piece[..read]);
            let surplus = kept.len().saturating_sub(OUTPUT_KEPT_BYTES);
            kept.drain(..surplus);
        }
        String::from_utf8_lossy(&kept).into_owned()
    })
}

/// Returns the last three lines of a program's output, as one.
pub(super) fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.trim().lines().rev().take(3).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit_ms: u64) -> Result<String> {
        run(Command::new("sh").args(["-c", script]), Duration::from_millis(limit_ms))
    }

    #[test]
    fn what_it_prints_is_kept() {
        assert_eq!(shell("echo taken", 60_000).unwrap(), "taken\n");
        let error = shell("echo no such VM >&2; exit 3", 60_000).unwrap_err();
        assert!(error.cause.contains("no such VM") && error.cause.contains('3'), "{error}");
    }

    #[test]
    fn one_that_hangs_is_ended_with_what_it_started() {
        let error = shell("echo begun; sleep 1000 & sleep 1000", 50).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Cancelled);
        assert!(error.cause.contains("begun"), "{error}");
    }

    #[test]
    fn a_cancelled_program_is_ended() {
        let over = || Err(Error::new(ErrorKind::Cancelled, "it", "the run is over"));
        let mut command = Command::new("sleep");
        let error = run_while(command.arg("1000"), Duration::from_secs(60), over).unwrap_err();
        assert_eq!(error.cause, "the run is over");
    }

    #[test]
    fn one_that_is_not_installed_is_named() {
        let error = run(&mut Command::new("no-such-program"), Duration::from_secs(1)).unwrap_err();
        assert!(error.kind == ErrorKind::NotFound && error.place == "no-such-program");
    }
}
