//! The word to systemd that the daemon serves, or is about to stop (sd_notify(3)): a datagram to the socket
//! that $NOTIFY_SOCKET names, with `@` for a leading NUL of an abstract name. Without the variable nothing is
//! said.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use crate::log::log;

const VARIABLE: &str = "NOTIFY_SOCKET";

pub fn ready() {
    tell("READY=1");
}

pub fn stopping() {
    tell("STOPPING=1");
}

/// A manager that does not listen is no reason not to serve.
fn tell(state: &str) {
    let Some(name) = std::env::var_os(VARIABLE) else { return };
    if let Err(e) = send(Path::new(&name), state) {
        log(format_args!("${VARIABLE} {}: {e}", name.to_string_lossy()));
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
        assert!(send(&folder.path().join("nobody"), "READY=1").is_err());
    }
}
