//! The copy of the audit in the system's log: one datagram for each entry, to the socket of syslog(3).
//!
//! Nothing waits for the socket. An entry that it does not take is only in the audit and in the daemon's own log.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use api::output::escape_line;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing::warn;

/// The socket of syslog(3).
const SOCKET: &str = "/dev/log";
/// Facility `authpriv` (10) and severity `notice` (5), RFC 3164, 4.1.1.
const PRIORITY: u8 = 10 * 8 + 5;
/// Maximum size of a line; more is cut off. Syslog daemons take 8 KiB and more.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Where `--syslog` has the audit copied to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyslogTo {
    Nowhere,
    Socket(PathBuf),
}

impl FromStr for SyslogTo {
    type Err = String;

    fn from_str(text: &str) -> Result<SyslogTo, String> {
        match text {
            "none" => Ok(SyslogTo::Nowhere),
            path if path.starts_with('/') => Ok(SyslogTo::Socket(path.into())),
            other => {
                Err(format!("{other:?}: expected the absolute path of a socket, such as {SOCKET}, or none"))
            }
        }
    }
}

pub(crate) struct Syslog {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Syslog {
    /// Returns the log that the user has chosen. Without a choice it is the system's, unless the daemon's own log goes to the
    /// journal, which has every entry already.
    pub(crate) fn chosen(to: Option<&SyslogTo>, has_journal: bool) -> Option<Syslog> {
        match to {
            Some(SyslogTo::Nowhere) => None,
            Some(SyslogTo::Socket(path)) => Syslog::open(path),
            None if has_journal => None,
            None => Syslog::open(Path::new(SOCKET)),
        }
    }

    fn open(path: &Path) -> Option<Syslog> {
        let open = || {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(socket)
        };
        match open() {
            Ok(socket) => Some(Syslog { socket, path: path.to_owned() }),
            Err(e) => {
                warn!("a socket for the system's log: {e}; the audit is not copied there");
                None
            }
        }
    }

    pub(crate) fn send(&self, text: &str) {
        // It names the path each time: a syslog daemon that was restarted has another socket there.
        let _ = self.socket.send_to(&datagram(Timestamp::now(), &TimeZone::system(), text), &self.path);
    }
}

/// Returns a line as syslog(3) sends it: the time is local and has no year.
fn datagram(now: Timestamp, zone: &TimeZone, text: &str) -> Vec<u8> {
    let time = zone.to_datetime(now).strftime("%b %e %H:%M:%S").to_string();
    let mut line = format!("<{PRIORITY}>{time} unstun[{}]: {}", std::process::id(), escape_line(text));
    let end = (0..=LINE_BYTES_MAX.min(line.len())).rev().find(|&at| line.is_char_boundary(at));
    line.truncate(end.unwrap_or(0));
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_one_line_with_its_priority_and_bounded() {
        let now = "2026-11-07T09:08:07Z".parse().unwrap();
        let line = |text: &str| String::from_utf8(datagram(now, &TimeZone::UTC, text)).unwrap();
        let pid = std::process::id();
        assert_eq!(line("a\nb"), format!("<85>Nov  7 09:08:07 unstun[{pid}]: {}", escape_line("a\nb")));
        assert!(!line("a\nb").contains('\n'));
        let long = line(&"\u{e9}".repeat(LINE_BYTES_MAX));
        assert!(long.len() <= LINE_BYTES_MAX && long.len() > LINE_BYTES_MAX - 4);
    }

    #[test]
    fn a_missing_or_a_full_socket_holds_up_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let syslog = Syslog::chosen(Some(&SyslogTo::Socket(path.clone())), true).unwrap();
        syslog.send("no socket");
        let reader = UnixDatagram::bind(&path).unwrap();
        // Far more than the kernel keeps for a socket (net.unix.max_dgram_qlen).
        (0..10_000).for_each(|n| syslog.send(&format!("entry {n}")));
        let mut first = [0; 200];
        let length = reader.recv(&mut first).unwrap();
        assert!(first[..length].ends_with(b": entry 0"));
    }

    #[test]
    fn the_journal_needs_no_copy() {
        assert!(Syslog::chosen(None, true).is_none() && Syslog::chosen(None, false).is_some());
        assert!(Syslog::chosen(Some(&SyslogTo::Nowhere), false).is_none());
        assert!("log".parse::<SyslogTo>().unwrap_err().contains("/dev/log, or none"));
    }
}
