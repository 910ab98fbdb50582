//! TLS of NBD: the certificates in the folder of `--nbd-tls-dir`, under the names that QEMU gives them (`tls-creds-x509`), and
//! which certificate may use which VMs.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use api::VmGlob;
use api::error::{Error, Result};
use export::nbd::{Permits, TlsSource, TlsTerms};
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use tracing::{error, info};

use crate::hex::hex;
use crate::rest::tls::{at, read_certificates, read_key};

/// Certificates of the authorities that sign the certificates of clients.
const AUTHORITIES: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
/// Which client may use which VMs: lines `FINGERPRINT VM...`. Without the file each client may use all.
const CLIENTS: &str = "clients";
/// Hexadecimal digits of a fingerprint.
const FINGERPRINT_DIGITS: usize = 64;
const EXPECTED: &str = "a line `FINGERPRINT VM...`: the SHA-256 of a certificate, and names of VMs in which * and ? stand for others";

/// Time after which a file that has changed is read again, at most.
const LOOKS_EVERY: Duration = Duration::from_secs(5);

/// What tells whether a file was written or replaced: the time of its last change, its length and its number. None for one
/// that is missing.
type Stamp = Option<(i64, i64, u64, u64)>;

/// Reads the files, and reads them again whenever one has changed. What cannot be used then is logged, and the earlier terms stay.
pub(crate) fn follow(folder: &Path) -> Result<TlsSource> {
    // Before they are read: what is written meanwhile is found at the next look.
    let seen = stamps(folder);
    let (terms, is_listed) = read(folder, false)?;
    let source = TlsSource::new(terms);
    let (folder, follower) = (folder.to_owned(), source.clone());
    let work = move || read_again(&folder, &follower, seen, is_listed);
    let spawned = thread::Builder::new().name("nbd-tls".to_owned()).spawn(work);
    spawned.map_err(|e| Error::failed(format!("a thread to follow the certificates: {e}")))?;
    Ok(source)
}

fn read_again(folder: &Path, source: &TlsSource, mut used: [Stamp; 4], mut is_listed: bool) {
    let mut said = String::new();
    loop {
        thread::park_timeout(LOOKS_EVERY);
        let now = stamps(folder);
        if now == used {
            continue;
        }
        match read(folder, is_listed) {
            Ok((terms, listed)) => {
                (used, is_listed) = (now, listed);
                said.clear();
                source.replace(terms);
                let folder = folder.display();
                info!("NBD over TLS: new clients are served by the files that are now in {folder}");
            }
            // The next look tries again: the file may be half written, or out of reach for a while.
            Err(e) if e.message != said => {
                error!("NBD over TLS: {e}; new clients are served as before");
                said = e.message;
            }
            Err(_) => {}
        }
    }
}

fn stamps(folder: &Path) -> [Stamp; 4] {
    [AUTHORITIES, CERTIFICATE, KEY, CLIENTS].map(|name| {
        let found = std::fs::metadata(folder.join(name)).ok()?;
        Some((found.ctime(), found.ctime_nsec(), found.len(), found.ino()))
    })
}

/// Reads the certificates, and whether there is a list of clients. A client needs a certificate that the authority has signed:
/// NBD has no other way to say who it is. A list that there was must not be missing: each client would reach every disk.
fn read(folder: &Path, must_list: bool) -> Result<(TlsTerms, bool)> {
    let [authorities, certificate, key] = [AUTHORITIES, CERTIFICATE, KEY].map(|name| folder.join(name));
    let mut roots = RootCertStore::empty();
    for one in read_certificates(&authorities)? {
        roots.add(one).map_err(|e| at(&authorities, &e, "certificates of authorities"))?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|e| at(&authorities, &e, "certificates of authorities"))?;
    let (chain, secret) = (read_certificates(&certificate)?, read_key(&key)?);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_client_cert_verifier(verifier).with_single_cert(chain, secret))
        .map_err(|e| at(&key, &e, "the key of the certificate"))?;
    // A client that reconnects carries out a whole handshake: a certificate is checked each time.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    let list = folder.join(CLIENTS);
    let clients = read_clients(&list)?;
    let is_listed = matches!(clients, Clients::Listed(_));
    if must_list && !is_listed {
        return Err(Error::failed(format!("{} is gone", list.display())));
    }
    Ok((TlsTerms { config: Arc::new(config), permits: Arc::new(clients) }, is_listed))
}

/// What clients may use: all VMs, or by the fingerprint of the certificate those that match.
#[derive(Debug)]
enum Clients {
    All,
    Listed(BTreeMap<String, Vec<VmGlob>>),
}

impl Permits for Clients {
    fn permits(&self, certificate: &[u8], export: &str) -> bool {
        let Clients::Listed(clients) = self else { return true };
        // Exports are `VM/diskN`, with more behind it.
        let vm = export.split('/').next().unwrap_or_default();
        clients.get(&fingerprint(certificate)).is_some_and(|vms| vms.iter().any(|one| one.matches(vm)))
    }
}

fn fingerprint(certificate: &[u8]) -> String {
    hex(&Sha256::digest(certificate))
}

fn read_clients(path: &Path) -> Result<Clients> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text).map(Clients::Listed).map_err(|cause| at(path, &cause, EXPECTED)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Clients::All),
        Err(e) => Err(at(path, &e, EXPECTED)),
    }
}

fn parse(text: &str) -> std::result::Result<BTreeMap<String, Vec<VmGlob>>, String> {
    let mut clients: BTreeMap<String, Vec<VmGlob>> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let digits = first.replace(':', "").to_ascii_lowercase();
        if digits.len() != FINGERPRINT_DIGITS || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(format!("line {number}: found {first:?}"));
        }
        let vms: std::result::Result<Vec<VmGlob>, String> = words.map(str::parse).collect();
        let vms = vms.map_err(|cause| format!("line {number}: {cause}"))?;
        if vms.is_empty() {
            return Err(format!("line {number}: found no VM"));
        }
        clients.entry(digits).or_default().extend(vms);
    }
    Ok(clients)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_may_use_what_its_lines_name() {
        let known = fingerprint(b"known").to_uppercase();
        let pairs: Vec<&str> = (0..32).map(|at| &known[2 * at..2 * at + 2]).collect();
        let text = format!("# the backup host\n{}  web db-*  # nightly\n\n{known} test\n", pairs.join(":"));
        let clients = Clients::Listed(parse(&text).unwrap());
        for export in ["web/disk0", "web/disk0@a", "web/disk1.g7", "db-1/disk0", "test/disk0"] {
            assert!(clients.permits(b"known", export), "{export}");
            assert!(!clients.permits(b"other", export), "{export}");
        }
        for export in ["webs/disk0", "db/disk0", "", "/disk0"] {
            assert!(!clients.permits(b"known", export), "{export}");
        }
        assert!(Clients::All.permits(b"other", "web/disk0"));
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let known = fingerprint(b"known");
        for (text, expected) in [
            (format!("{known} web\n{} web", &known[1..]), "line 2: found"),
            (known.clone(), "line 1: found no VM"),
            (format!("{known} ../x"), "line 1: \"../x\""),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
