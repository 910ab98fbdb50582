//! TLS of NBD: the certificates in the folder of `--nbd-tls-dir`, under the names that QEMU gives them (`tls-creds-x509`).

use std::path::Path;
use std::sync::Arc;

use api::error::Result;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::rest::tls::{at, read_certificates, read_key};

/// Certificates of the authorities that sign the certificates of clients.
const AUTHORITIES: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// Reads the certificates. A client needs one that the authority has signed: NBD has no other way to say who it is.
pub(crate) fn read(folder: &Path) -> Result<Arc<ServerConfig>> {
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
    Ok(Arc::new(config))
}
