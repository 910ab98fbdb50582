//! Identity of a connection's peer, as the kernel reports it.

// The kernel writes the credentials of a socket's peer into memory of this process.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::socket::{ClientId, Peer};

/// Returns the peer; None if the kernel does not report it.
pub(super) fn of(fd: &OwnedFd, tcp: bool) -> Option<Peer> {
    match tcp {
        true => {
            let address: SocketAddr = rustix::net::getpeername(fd).ok()??.try_into().ok()?;
            let client = ClientId::Host(address.ip().to_canonical());
            Some(Peer {
                name: SocketAddr::new(address.ip().to_canonical(), address.port()).to_string(),
                client,
            })
        }
        false => process(peer_pid(fd)?),
    }
}

/// Returns a peer of which only the connection is known.
pub(super) fn unnamed() -> Peer {
    /// A connection may move to another core, so its number is used once in the process.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    Peer {
        name: format!("a process of another PID namespace (connection {number})"),
        client: ClientId::Connection(number),
    }
}

fn process(pid: u32) -> Option<Peer> {
    let (program, started) = look_up_process(pid).unzip();
    let name = match program {
        Some(program) => format!("pid {pid} ({program})"),
        None => format!("pid {pid}"),
    };
    Some(Peer { name, client: ClientId::Process { pid, started } })
}

/// Returns the process at the other end of a Unix socket when it connected; None if this PID namespace does not have
/// it. The type of rustix cannot represent the 0 that the kernel returns then.
fn peer_pid(fd: &OwnedFd) -> Option<u32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes, the size of the object behind the
    // pointer.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    u32::try_from(credentials.pid).ok().filter(|pid| result == 0 && *pid != 0)
}

/// Returns a process's program and its start, in clock ticks after the boot. None if it has ended (also as a zombie) or
/// is hidden from this process.
pub fn look_up_process(pid: u32) -> Option<(String, u64)> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses proc_pid_stat(5): `PID (PROGRAM) STATE ...`. The program may contain any character; the 22nd field is the
/// start.
fn parse_stat(stat: &str) -> Option<(String, u64)> {
    let (program, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    let printable = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    (state != "Z" && state != "X").then(|| (program.chars().map(printable).collect(), started))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_program_name_may_contain_any_characters() {
        let stat = "4711 (a) Z (b\u{1b}[2J) S 1 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5225 1 2\n";
        assert_eq!(parse_stat(stat), Some(("a) Z (b?[2J".into(), 5225)));
        assert_eq!(parse_stat(&stat.replace(") S", ") Z")), None, "a zombie is gone");
        assert_eq!(parse_stat("4711 (a"), None);
    }

    #[test]
    fn connections_from_one_address_are_one_client() {
        let listener = std::net::TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let clients: Vec<_> =
            (0..2).map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let peers: Vec<_> =
            clients.iter().map(|_| of(&listener.accept().unwrap().0.into(), true).unwrap()).collect();
        assert_eq!(peers[0].client, ClientId::Host(std::net::Ipv4Addr::LOCALHOST.into()));
        assert_eq!(peers[0].client, peers[1].client);
        assert_eq!(peers[0].name, clients[0].local_addr().unwrap().to_string());
    }

    #[test]
    fn a_local_client_is_identified_by_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = of(&ours.into(), false).unwrap();
        let pid = std::process::id();
        assert!(peer.name.starts_with(&format!("pid {pid} (")), "{}", peer.name);
        let started = look_up_process(pid).map(|(_, started)| started);
        assert!(started.is_some());
        assert_eq!(peer.client, ClientId::Process { pid, started });
    }
}
