//! Delivery to a program of the host: the message as JSON is its input.

use std::process::Stdio;
use std::time::Duration;

use api::AlarmMessage;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// Time after which the program and its children are ended.
const RUN_MAX: Duration = Duration::from_secs(30);
/// Bytes of the program's errors that are reported.
const ERRORS_BYTES_MAX: u64 = 400;

pub(super) async fn run(words: &[String], message: &AlarmMessage) -> Result<(), String> {
    let (program, arguments) = words.split_first().ok_or("no program")?;
    let input = serde_json::to_vec(message).map_err(|e| e.to_string())?;
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{program}: {e}"))?;
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let mut errors = Vec::new();
    let work = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input is none that failed.
            let _ = stdin.write_all(&input).await;
        }
        if let Some(mut stderr) = stderr {
            let _ = (&mut stderr).take(ERRORS_BYTES_MAX).read_to_end(&mut errors).await;
            // A program whose errors nobody reads would be ended by a signal.
            let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
        }
        child.wait().await
    };
    let ended = tokio::time::timeout(RUN_MAX, work).await;
    let Ok(ended) = ended else {
        // Its children too.
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        return Err(format!("{program}: it did not end within {} s", RUN_MAX.as_secs()));
    };
    let status = ended.map_err(|e| format!("{program}: {e}"))?;
    let said = String::from_utf8_lossy(&errors).trim().replace(char::is_control, " ");
    match status.success() {
        true => Ok(()),
        false if said.is_empty() => Err(format!("{program}: {status}")),
        false => Err(format!("{program}: {status}: {said}")),
    }
}
