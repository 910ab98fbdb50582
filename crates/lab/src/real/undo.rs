//! What a stack has set up on the machine (mounts, pools, loop devices), undone when the run ends, and when it is killed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use blk::{Errno, Error, ErrorKind, Result};

use super::program::{ends_within, last_lines, not_started};

/// Longer than the retries of a script, which are those of a device that is still in use.
const LIMIT: Duration = Duration::from_secs(120);
/// Begin of every script. Its standard input has no data, and ends when this process ends it or exits. `try` repeats a
/// command for ten seconds: the kernel closes the files of a killed process with a delay.
const WAIT: &str = "\
read -r nothing
status=0
try() {
    tries=0
    until \"$@\"; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || { status=1; return; }
        sleep 0.2
    done
}
";

/// A process that waits for the end of this one, and then runs a script.
#[derive(Debug)]
pub(super) struct Undo {
    /// Present until the script has run.
    child: Option<Child>,
    log: PathBuf,
}

impl Undo {
    /// Starts the process. `arguments` are `$1`, `$2`... of the script, whose output is a file in `folder`. It sets
    /// `status` where something cannot be undone.
    pub(super) fn start(script: &str, arguments: &[&OsStr], folder: &Path) -> Result<Undo> {
        let log = folder.join("undo.log");
        let failed = |e: std::io::Error| Errno::from(e).at(log.display().to_string(), "making the log");
        let out = File::create(&log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{WAIT}{script}\nexit $status"), "sh"]).args(arguments);
        // Ctrl-C must not reach it: it is needed afterwards.
        command.stdin(Stdio::piped()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().map_err(|e| not_started("sh", &e))?;
        Ok(Undo { child: Some(child), log })
    }

    /// Runs the script and waits for its end. A second call does nothing.
    pub(super) fn run(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        drop(child.stdin.take());
        let in_time = ends_within(&child, LIMIT)?;
        if !in_time {
            // The child may have ended just now.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|e| Errno::from(e).at("sh", "waiting for its end"))?;
        if status.success() {
            return Ok(());
        }
        let output = std::fs::read_to_string(&self.log).unwrap_or_default();
        let cause = format!("not everything of the run could be removed: {}", last_lines(&output));
        Err(Error::new(ErrorKind::Io, self.log.display().to_string(), cause))
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.run();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_runs_at_the_end_with_its_arguments_as_words() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("it's; $(made) here");
        std::fs::write(&file, "").unwrap();
        let mut undo = Undo::start("try rm -- \"$1\"", &[file.as_os_str()], folder.path()).unwrap();
        assert!(file.exists(), "it waits");
        undo.run().unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn what_cannot_be_undone_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut undo = Undo::start("echo pool is busy >&2; status=1", &[], folder.path()).unwrap();
        assert!(undo.run().unwrap_err().cause.contains("pool is busy"));
        undo.run().unwrap();
    }
}
