//! Address of an NBD export, in the form of the NBD project's `doc/uri.md`.

use std::fmt;
use std::path::PathBuf;

use api::listen::unescape;
use blk::{Error, Result};

const DEFAULT_PORT: u16 = 10809;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Server {
    Unix(PathBuf),
    /// "HOST:PORT".
    Tcp(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub server: Server,
    pub export: String,
}

impl Address {
    /// Parses `nbd+unix:///EXPORT?socket=PATH` or `nbd://HOST[:PORT]/EXPORT`. Errors: `Invalid`.
    pub(crate) fn parse(uri: &str) -> Result<Address> {
        let wrong = || {
            Error::invalid(
                uri,
                "not an NBD URI; expected nbd+unix:///EXPORT?socket=PATH or nbd://HOST[:PORT]/EXPORT",
            )
        };
        if let Some(rest) = uri.strip_prefix("nbd+unix:///") {
            let (export, socket) = rest.split_once("?socket=").ok_or_else(wrong)?;
            let path = unescape(socket).filter(|path| !path.is_empty()).ok_or_else(wrong)?;
            return Ok(Address {
                server: Server::Unix(path.into()),
                export: unescape(export).ok_or_else(wrong)?,
            });
        }
        let rest = uri.strip_prefix("nbd://").ok_or_else(wrong)?;
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            return Err(wrong());
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_string() } else { format!("{host}:{DEFAULT_PORT}") };
        Ok(Address { server: Server::Tcp(host), export: unescape(export).ok_or_else(wrong)? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Server::Unix(path) => write!(f, "nbd+unix:///{}?socket={}", self.export, path.display()),
            Server::Tcp(host) => write!(f, "nbd://{host}/{}", self.export),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_address() {
        let unix = Address::parse("nbd+unix:///web/disk0?socket=/run/a%20b.sock").unwrap();
        assert_eq!(
            unix,
            Address { server: Server::Unix("/run/a b.sock".into()), export: "web/disk0".into() }
        );
        let tcp =
            |host: &str, export: &str| Address { server: Server::Tcp(host.into()), export: export.into() };
        assert_eq!(Address::parse("nbd://here/web").unwrap(), tcp("here:10809", "web"));
        assert_eq!(Address::parse("nbd://here:99").unwrap(), tcp("here:99", ""));
        assert_eq!(Address::parse("nbd://[::1]:7/x").unwrap(), tcp("[::1]:7", "x"));
    }

    #[test]
    fn what_is_no_address_says_what_one_looks_like() {
        for wrong in ["", "http://x", "nbd://", "nbd+unix:///x", "nbd+unix:///x?socket=", "nbd://x/%zz"] {
            assert!(Address::parse(wrong).unwrap_err().cause.contains("expected"), "{wrong}");
        }
    }
}
