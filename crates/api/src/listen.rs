//! Addresses at which NBD is served, and their URIs (`nbd+unix:///EXPORT?socket=PATH`, `nbd://HOST:PORT/EXPORT` and with TLS
//! `nbds://`; the NBD project's `doc/uri.md`).

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use blk::uri::{escape, unescape};

/// Port that IANA assigned to NBD.
pub const NBD_PORT: u16 = 10809;
/// Maximum length of a socket's path: `sun_path` holds 108 bytes, the last of which is a NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdListen {
    /// Absolute path, at most 107 bytes.
    Unix(PathBuf),
    Tcp(SocketAddr),
    /// TCP with TLS, which `up --nbd-tls-dir` makes of a TCP address.
    Tls(SocketAddr),
}

impl FromStr for NbdListen {
    type Err = String;

    /// Parses `unix:PATH`, `HOST:PORT` or `[V6]:PORT`. `:PORT` means loopback; any other address must be given
    /// explicitly.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = std::path::absolute(path).map_err(|e| format!("unix:{path}: {e}"))?;
            return check_socket_path(&path).map(|()| Self::Unix(path));
        }
        if let Some(port) = text.strip_prefix(':') {
            let port = port.parse().map_err(|_| expected(text))?;
            return Ok(Self::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        }
        if !text.contains(':') || text.contains('/') {
            return Err(expected(text));
        }
        let mut addresses = text.to_socket_addrs().map_err(|e| format!("{}: {e}", expected(text)))?;
        addresses.next().map(Self::Tcp).ok_or_else(|| format!("{text:?}: the host has no address"))
    }
}

/// Port of the API over TCP.
pub const WEB_PORT: u16 = 8484;

/// Where the API is served for clients with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebListen {
    Nowhere,
    Tcp(SocketAddr),
    /// Socket of a proxy, which connects for others. Absolute path, at most 107 bytes.
    Unix(PathBuf),
}

impl FromStr for WebListen {
    type Err = String;

    /// Parses `none`, or what `NbdListen` does.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Nowhere);
        }
        match text.parse() {
            Ok(NbdListen::Tcp(address) | NbdListen::Tls(address)) => Ok(Self::Tcp(address)),
            Ok(NbdListen::Unix(path)) => Ok(Self::Unix(path)),
            Err(error) if text.starts_with("unix:") => Err(error),
            Err(_) => {
                Err(format!("{text:?}: expected HOST:PORT, such as 127.0.0.1:{WEB_PORT}, unix:PATH, or none"))
            }
        }
    }
}

impl WebListen {
    /// Returns the address at which `up` serves without --web.
    pub fn default_address() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, WEB_PORT).into()
    }
}

fn expected(text: &str) -> String {
    format!(
        "{text:?}: expected unix:PATH or HOST:PORT, such as 127.0.0.1:{NBD_PORT} (:PORT alone is loopback)"
    )
}

pub fn check_socket_path(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        let path = path.display();
        return Err(format!(
            "socket {path}: {bytes} bytes, but a socket's path has at most {SOCKET_PATH_BYTES_MAX}"
        ));
    }
    Ok(())
}

impl NbdListen {
    /// Returns whether clients of other hosts can connect.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Tcp(address) | Self::Tls(address) if !address.ip().to_canonical().is_loopback())
    }

    /// Returns the URI of `export`. An empty `export` gives the base URI, without an export's name.
    pub fn uri(&self, export: &str) -> String {
        match self {
            Self::Unix(path) => {
                format!("nbd+unix:///{}?socket={}", escape(export), escape(&path.to_string_lossy()))
            }
            Self::Tcp(address) => format!("nbd://{}/{}", authority(address), escape(export)),
            Self::Tls(address) => format!("nbds://{}/{}", authority(address), escape(export)),
        }
    }

    /// Returns the address to connect to and the export's name; the inverse of `uri`.
    pub fn parse_uri(uri: &str) -> Result<(Self, String), String> {
        let bad = || {
            format!(
                "{uri:?}: expected nbd+unix:///EXPORT?socket=PATH, or nbd:// or nbds://ADDRESS:PORT/EXPORT"
            )
        };
        if let Some(rest) = uri.strip_prefix("nbd+unix:///") {
            let (export, socket) = rest.split_once("?socket=").ok_or_else(bad)?;
            let (export, socket) = (unescape(export).ok_or_else(bad)?, unescape(socket).ok_or_else(bad)?);
            return Ok((Self::Unix(socket.into()), export));
        }
        let (scheme, rest) = uri.split_once("://").ok_or_else(bad)?;
        let listen = match scheme {
            "nbd" => Self::Tcp,
            "nbds" => Self::Tls,
            _ => return Err(bad()),
        };
        let (authority, export) = rest.split_once('/').ok_or_else(bad)?;
        let address =
            authority.parse().or_else(|_| format!("{authority}:{NBD_PORT}").parse()).map_err(|_| bad())?;
        Ok((listen(address), unescape(export).ok_or_else(bad)?))
    }
}

/// Returns host and port, without the standard port.
fn authority(address: &SocketAddr) -> String {
    match address {
        _ if address.port() != NBD_PORT => address.to_string(),
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_up_accepts() {
        assert_eq!("unix:/run/u.sock".parse(), Ok(NbdListen::Unix("/run/u.sock".into())));
        assert_eq!("127.0.0.1:10809".parse(), Ok(NbdListen::Tcp("127.0.0.1:10809".parse().unwrap())));
        assert_eq!("[::1]:1234".parse(), Ok(NbdListen::Tcp("[::1]:1234".parse().unwrap())));
        assert_eq!(":1234".parse(), Ok(NbdListen::Tcp("127.0.0.1:1234".parse().unwrap())));
        let relative: NbdListen = "unix:u.sock".parse().unwrap();
        assert!(matches!(relative, NbdListen::Unix(path) if path.is_absolute()));
    }

    #[test]
    fn parses_where_the_api_is_served() {
        assert_eq!("none".parse(), Ok(WebListen::Nowhere));
        assert_eq!(":8484".parse(), Ok(WebListen::Tcp(WebListen::default_address())));
        assert_eq!("unix:/run/w.sock".parse(), Ok(WebListen::Unix("/run/w.sock".into())));
        assert!("web".parse::<WebListen>().unwrap_err().contains("unix:PATH, or none"));
        let long = format!("unix:/{}", "x".repeat(SOCKET_PATH_BYTES_MAX));
        assert!(long.parse::<WebListen>().unwrap_err().contains("at most 107"));
    }

    #[test]
    fn refuses_with_what_was_expected() {
        for text in ["", "10809", "/run/u.sock", "localhost", "1.2.3.4:99999", ":x", "unix:"] {
            assert!(text.parse::<NbdListen>().is_err(), "{text:?}");
        }
        let long = format!("unix:/{}", "x".repeat(SOCKET_PATH_BYTES_MAX));
        assert!(long.parse::<NbdListen>().unwrap_err().contains("at most 107"));
    }

    #[test]
    fn other_hosts_reach_tcp_beyond_loopback_only() {
        let is_remote = |text: &str| text.parse::<NbdListen>().unwrap().is_remote();
        for text in ["unix:/run/u.sock", ":1", "127.0.0.2:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(!is_remote(text), "{text}");
        }
        assert!(is_remote("0.0.0.0:1") && is_remote("192.0.2.1:1") && is_remote("[::]:1"));
    }

    #[test]
    fn uris_say_what_clients_expect() {
        let unix = NbdListen::Unix("/srv/a b/nbd.sock".into());
        assert_eq!(unix.uri("web/disk0"), "nbd+unix:///web/disk0?socket=/srv/a%20b/nbd.sock");
        let tcp = NbdListen::Tcp("127.0.0.1:10810".parse().unwrap());
        assert_eq!(tcp.uri("web/disk0@before"), "nbd://127.0.0.1:10810/web/disk0@before");
        let standard = NbdListen::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(standard.uri(""), "nbd://[::1]/");
    }

    #[test]
    fn uris_round_trip() {
        for listen in
            ["unix:/srv/a b%41/nbd.sock", "127.0.0.1:10809", "127.0.0.1:1", "[::1]:10809", "[::1]:5"]
        {
            let listen: NbdListen = listen.parse().unwrap();
            let uri = listen.uri("web/disk0@x");
            assert_eq!(NbdListen::parse_uri(&uri), Ok((listen, "web/disk0@x".to_owned())), "{uri}");
        }
        let tls = NbdListen::Tls("192.0.2.1:10809".parse().unwrap());
        assert_eq!(tls.uri("web/disk0"), "nbds://192.0.2.1/web/disk0");
        assert_eq!(NbdListen::parse_uri(&tls.uri("x")), Ok((tls, "x".to_owned())));
        for bad in ["", "nbd://", "nbd+unix:///x", "nbd+unix:///%zz?socket=/a", "http://a/b"] {
            assert!(NbdListen::parse_uri(bad).is_err(), "{bad}");
        }
    }
}
