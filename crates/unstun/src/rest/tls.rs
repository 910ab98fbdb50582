//! TLS of the API: a certificate of the user's, or one that the daemon makes for itself.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::{Error, Result};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;

/// Files of a certificate and its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Accepts TLS connections.
pub(crate) struct Tls {
    pub acceptor: TlsAcceptor,
    /// SHA-256 of the certificate, by which a user knows it: two digits and a colon for each byte.
    pub fingerprint: String,
}

impl Tls {
    /// Reads the certificate of the user, or the daemon's own in `folder`, which is made for `address` if it is missing.
    pub(crate) fn open(files: Option<&CertificateFiles>, folder: &Path, address: IpAddr) -> Result<Tls> {
        match files {
            Some(files) => Tls::read(files),
            None => {
                let files =
                    CertificateFiles { certificate: folder.join("tls.crt"), key: folder.join("tls.key") };
                if !files.certificate.exists() {
                    make(&files, address)?;
                }
                Tls::read(&files)
            }
        }
    }

    fn read(CertificateFiles { certificate, key }: &CertificateFiles) -> Result<Tls> {
        let chain = read_certificates(certificate)?;
        let fingerprint = fingerprint(&chain[0]);
        let secret = read_key(key)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
            .map_err(|e| at(key, &e, "the key of the certificate"))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), fingerprint })
    }
}

pub(crate) fn at(path: &Path, e: &dyn std::fmt::Display, expected: &str) -> Error {
    Error::invalid(format!("{}: {e}; expected {expected}", path.display()))
}

/// Reads the certificates of a file, at least one.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let wrong = |e: &dyn std::fmt::Display| at(path, e, "certificates in PEM");
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let all = all.map_err(|e| wrong(&e))?;
    if all.is_empty() { Err(wrong(&"no certificate")) } else { Ok(all) }
}

pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|e| at(path, &e, "a private key in PEM"))
}

fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let digits: Vec<String> = Sha256::digest(certificate).iter().map(|byte| format!("{byte:02X}")).collect();
    digits.join(":")
}

/// Makes a certificate that is signed by itself: a client accepts it by its fingerprint.
fn make(files: &CertificateFiles, address: IpAddr) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Error::failed(format!("making a certificate: {e}"));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let names = vec![host.clone(), "localhost".to_owned()];
    let mut parameters = CertificateParams::new(names).map_err(|e| failed(&e))?;
    if !address.is_unspecified() {
        parameters.subject_alt_names.push(SanType::IpAddress(address));
    }
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, format!("unstun on {host}"));
    let key = KeyPair::generate().map_err(|e| failed(&e))?;
    let certificate = parameters.self_signed(&key).map_err(|e| failed(&e))?;
    // The certificate comes last: with it, both files are whole.
    write(&files.key, &key.serialize_pem())?;
    write(&files.certificate, &certificate.pem())
}

fn write(path: &Path, text: &str) -> Result<()> {
    let failed = |e: std::io::Error| Error::failed(format!("{}: {e}", path.display()));
    let staged = path.with_extension("unstun-tmp");
    let open = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&staged);
    let mut file = open.map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&staged, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_is_made_once_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let address = "192.0.2.7".parse().unwrap();
        let first = Tls::open(None, folder.path(), address).unwrap().fingerprint;
        assert_eq!(first.len(), 32 * 3 - 1);
        assert_eq!(Tls::open(None, folder.path(), address).unwrap().fingerprint, first);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(folder.path().join("tls.key")).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn files_that_are_not_a_certificate_and_its_key_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let address = "192.0.2.7".parse().unwrap();
        Tls::open(None, folder.path(), address).unwrap();
        let certificate = folder.path().join("tls.crt");
        let wrong = folder.path().join("text");
        std::fs::write(&wrong, "hello").unwrap();
        for (files, named) in [
            (CertificateFiles { certificate: wrong.clone(), key: wrong.clone() }, "text: no certificate"),
            (CertificateFiles { certificate: certificate.clone(), key: wrong.clone() }, "text: "),
            (CertificateFiles { certificate, key: folder.path().join("none") }, "none: "),
        ] {
            let error = Tls::open(Some(&files), folder.path(), address).err().unwrap().message;
            assert!(error.contains(named) && error.contains("; expected "), "{error}");
        }
    }
}
