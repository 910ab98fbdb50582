//! Messages to systemd that the daemon serves, that its cores run, or that it is about to stop (sd_notify(3)). A
//! message is a datagram to the socket that $NOTIFY_SOCKET names, with `@` for a leading NUL of an abstract name.
//! Without the variable no message is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::error::{Error, Result};
use tracing::{error, warn};

use crate::daemon::Heartbeat;

const VARIABLE: &str = "NOTIFY_SOCKET";
/// Variable with the microseconds within which systemd expects a message from the service (sd_watchdog_enabled(3)).
const WATCHDOG_VARIABLE: &str = "WATCHDOG_USEC";
/// Variable with the ID of the process from which systemd expects it; absent where any process may send it.
const WATCHDOG_PID_VARIABLE: &str = "WATCHDOG_PID";

pub(crate) fn ready() {
    notify("READY=1");
}

pub(crate) fn stopping() {
    notify("STOPPING=1");
}

/// Starts the thread that answers systemd's watchdog, if there is one. The thread answers only while every core has
/// stamped its heartbeat within half of the watchdog's time.
///
/// # Errors
/// `Failed` if the thread cannot be started.
pub(crate) fn keep_watchdog(cores: Vec<Arc<Heartbeat>>) -> Result<()> {
    let variable = |name| std::env::var(name).ok();
    let pid = variable(WATCHDOG_PID_VARIABLE);
    let Some(limit) = watchdog_limit(variable(WATCHDOG_VARIABLE).as_deref(), pid.as_deref()) else {
        return Ok(());
    };
    let thread = std::thread::Builder::new().name("watchdog".into());
    let started = thread.spawn(move || answer_watchdog(limit, &cores));
    started.map(drop).map_err(|e| Error::failed(format!("starting the watchdog's thread: {e}")))
}

fn watchdog_limit(microseconds: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    let meant = pid.is_none_or(|pid| pid == std::process::id().to_string());
    let limit = microseconds?.parse().ok().filter(|limit| *limit > 0)?;
    meant.then_some(Duration::from_micros(limit))
}

fn answer_watchdog(limit: Duration, cores: &[Arc<Heartbeat>]) -> ! {
    let mut was_alive = true;
    loop {
        let age = cores.iter().map(|core| core.age()).max().unwrap_or_default();
        let is_alive = age < limit / 2;
        if is_alive {
            notify("WATCHDOG=1");
        } else if was_alive {
            error!(
                "the core has not run for {age:?}: the watchdog is not answered, and systemd will end this"
            );
        }
        was_alive = is_alive;
        // No other thread wakes this one earlier.
        std::thread::park_timeout(limit / 8);
    }
}

/// Sends a state to systemd. A failure is logged and does not stop the daemon.
fn notify(state: &str) {
    let Some(name) = std::env::var_os(VARIABLE) else { return };
    if let Err(e) = send(Path::new(&name), state) {
        warn!("${VARIABLE} {}: {e}", name.to_string_lossy());
    }
}

fn send(name: &Path, state: &str) -> std::io::Result<()> {
    let address = match name.to_str().and_then(|text| text.strip_prefix('@')) {
        Some(hidden) => SocketAddr::from_abstract_name(hidden)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_answered_where_it_means_this_process() {
        let own = std::process::id().to_string();
        assert_eq!(watchdog_limit(Some("2000000"), None), Some(Duration::from_secs(2)));
        assert_eq!(watchdog_limit(Some("2000000"), Some(&own)), Some(Duration::from_secs(2)));
        for (microseconds, pid) in
            [(None, None), (Some("0"), None), (Some("x"), None), (Some("1"), Some("0"))]
        {
            assert_eq!(watchdog_limit(microseconds, pid), None, "{microseconds:?} {pid:?}");
        }
    }

    #[test]
    fn the_word_arrives_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let abstract_name = format!("unstun-test-{}", std::process::id());
        let hidden = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let cases = [
            (UnixDatagram::bind(&path).unwrap(), path.clone()),
            (UnixDatagram::bind_addr(&hidden).unwrap(), format!("@{abstract_name}").into()),
        ];
        for (socket, name) in cases {
            send(&name, "READY=1").unwrap();
            let mut bytes = [0; 16];
            let length = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], b"READY=1");
        }
        assert!(send(&folder.path().join("absent"), "READY=1").is_err());
    }
}
