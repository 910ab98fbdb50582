//! Address of an NBD export, in the form of the NBD project's `doc/uri.md`.

use std::fmt;
use std::path::PathBuf;

use blk::uri::{escape, unescape};
use blk::{Error, Result};

use crate::nbd::proto::STRING_BYTES_MAX;

/// Port that IANA assigned to NBD.
const DEFAULT_PORT: u16 = 10809;
const EXPECTED: &str = "not an NBD URI; expected nbd+unix:///EXPORT?socket=PATH or nbd://HOST[:PORT]/EXPORT";

/// The place where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// "HOST:PORT".
    Tcp(String),
}

/// A server, and the name of one of its exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Where the server listens.
    pub server: Server,
    /// Name of the export; empty for the server's default.
    pub export: String,
}

/// Returns whether `target` is a URI of an export rather than a file.
pub fn is_uri(target: &str) -> bool {
    target.starts_with("nbd") && target.contains("://")
}

impl Address {
    /// Parses `nbd+unix://[/EXPORT]?socket=PATH` or `nbd://HOST[:PORT][/EXPORT]`. Query parameters without a meaning
    /// for the address are passed over.
    ///
    /// # Errors
    /// `Unsupported` for TLS (`nbds`) and vsock; otherwise `Invalid`.
    pub fn parse(uri: &str) -> Result<Address> {
        let invalid = || Error::invalid(uri, EXPECTED);
        let (scheme, rest) = uri.split_once("://").ok_or_else(invalid)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = unescape(export).ok_or_else(invalid)?;
        if export.len() > STRING_BYTES_MAX {
            return Err(Error::invalid(uri, format!("a name of more than {STRING_BYTES_MAX} bytes")));
        }
        let server = match scheme {
            "nbd" => Server::Tcp(host_and_port(authority).ok_or_else(invalid)?),
            "nbd+unix" if authority.is_empty() => Server::Unix(socket(query).ok_or_else(invalid)?),
            "nbds" | "nbds+unix" => {
                let cause =
                    "TLS is not supported by this client; use a Unix socket, or a TCP address without TLS";
                return Err(Error::unsupported(uri, cause));
            }
            "nbd+vsock" | "nbds+vsock" => {
                return Err(Error::unsupported(uri, "vsock is not supported by this client"));
            }
            _ => return Err(invalid()),
        };
        Ok(Address { server, export })
    }
}

/// Returns the path in the parameter `socket`.
fn socket(query: &str) -> Option<PathBuf> {
    let path = query.split(['&', ';']).find_map(|parameter| parameter.strip_prefix("socket="))?;
    unescape(path).filter(|path| !path.is_empty() && !path.contains('\0')).map(PathBuf::from)
}

/// Completes `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`.
fn host_and_port(authority: &str) -> Option<String> {
    let bracket = authority.rfind(']').unwrap_or(0);
    let (host, port) = match authority[bracket..].rfind(':') {
        Some(at) => (&authority[..bracket + at], authority[bracket + at + 1..].parse().ok()?),
        None => (authority, DEFAULT_PORT),
    };
    let is_plain = !host.contains([':', '@', '[', ']']);
    let is_v6 = host.len() > 2 && host.starts_with('[') && host.ends_with(']');
    let valid = !host.is_empty() && (is_plain || is_v6);
    valid.then(|| format!("{host}:{port}"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = escape(&self.export);
        match &self.server {
            Server::Unix(path) => {
                write!(f, "nbd+unix:///{export}?socket={}", escape(&path.to_string_lossy()))
            }
            Server::Tcp(host) => write!(f, "nbd://{host}/{export}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use blk::ErrorKind;

    use super::*;

    #[test]
    fn unix_and_tcp_addresses() {
        let unix =
            |path: &str, export: &str| Address { server: Server::Unix(path.into()), export: export.into() };
        for (uri, expected) in [
            ("nbd+unix:///web/disk0?socket=/run/a%20b.sock", unix("/run/a b.sock", "web/disk0")),
            ("nbd+unix:///?socket=/s", unix("/s", "")),
            ("nbd+unix://?socket=/s", unix("/s", "")),
            ("nbd+unix:////x?a=b&socket=/s;c", unix("/s", "/x")),
        ] {
            assert_eq!(Address::parse(uri).unwrap(), expected, "{uri}");
        }
        let tcp =
            |host: &str, export: &str| Address { server: Server::Tcp(host.into()), export: export.into() };
        for (uri, expected) in [
            ("nbd://here/web", tcp("here:10809", "web")),
            ("nbd://here:99", tcp("here:99", "")),
            ("nbd://[::1]:7/x", tcp("[::1]:7", "x")),
            ("nbd://[::1]/x?tls-verify-peer=1", tcp("[::1]:10809", "x")),
        ] {
            assert_eq!(Address::parse(uri).unwrap(), expected, "{uri}");
        }
    }

    #[test]
    fn an_address_is_its_text() {
        for uri in ["nbd+unix:///web/disk0@a%20b?socket=/run/a%26b", "nbd://[::1]:7/x%3F"] {
            let address = Address::parse(uri).unwrap();
            assert_eq!(address.to_string(), uri);
            assert!(is_uri(uri));
        }
        assert!(!is_uri("/dev/nbd0") && !is_uri("http://nbd"));
    }

    #[test]
    fn an_error_says_what_an_address_is() {
        for wrong in [
            "",
            "http://x",
            "nbd://",
            "nbd://:1/x",
            "nbd://a:b/x",
            "nbd://::1/x",
            "nbd://[]/x",
            "nbd+unix:///x",
            "nbd+unix://host/x?socket=/s",
            "nbd+unix:///x?socket=",
            "nbd+unix:///x?socket=/a%00b",
            "nbd://x/%zz",
        ] {
            assert!(Address::parse(wrong).unwrap_err().cause.contains("expected"), "{wrong}");
        }
        assert!(Address::parse(&format!("nbd://x/{}", "y".repeat(4097))).is_err());
        for tls in ["nbds://host/x", "nbds+unix:///x?socket=/s"] {
            let error = Address::parse(tls).unwrap_err();
            assert!(error.kind == ErrorKind::Unsupported && error.cause.contains("TLS is not supported"));
        }
    }
}
