//! Delivery to a webhook: a request with the message as JSON, signed with the channel's secret.

use std::sync::{Arc, OnceLock};

use api::AlarmMessage;
use axum::body::Body;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use ring::hmac;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::config::Webhook;
use crate::hex::hex;

/// Header with the time of the request in seconds since 1970, which is part of what is signed.
const TIMESTAMP: &str = "x-unstun-timestamp";
/// Header with `sha256=` and the HMAC of the time, a dot and the body, in hexadecimal digits.
const SIGNATURE: &str = "x-unstun-signature";

pub(super) async fn post(webhook: &Webhook, message: &AlarmMessage) -> Result<(), String> {
    let is_tls = webhook.url.scheme_str() == Some("https");
    let host = webhook.url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = webhook.url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let request = request(webhook, message)?;
    let stream =
        TcpStream::connect((host.as_str(), port)).await.map_err(|e| format!("{host}:{port}: {e}"))?;
    if !is_tls {
        return exchange(stream, request).await;
    }
    let name = ServerName::try_from(host.clone()).map_err(|e| format!("{host}: {e}"))?;
    let stream =
        TlsConnector::from(roots()?).connect(name, stream).await.map_err(|e| format!("{host}: TLS: {e}"))?;
    exchange(stream, request).await
}

fn request(webhook: &Webhook, message: &AlarmMessage) -> Result<Request<Body>, String> {
    let body = serde_json::to_vec(message).map_err(|e| e.to_string())?;
    let path = webhook.url.path_and_query().map_or("/", |path| path.as_str());
    let authority = webhook.url.authority().map_or("", |authority| authority.as_str());
    // The user and the password of an address are not sent.
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, authority)
        .header(USER_AGENT, "unstun")
        .header(CONTENT_TYPE, "application/json");
    if let Some(secret) = &webhook.secret {
        // Not the message's own: a receiver refuses what was signed long ago, and a delivery is tried again after minutes.
        let time = Timestamp::now().as_second();
        request = request.header(TIMESTAMP, time).header(SIGNATURE, signature(secret, time, &body));
    }
    request.body(Body::from(body)).map_err(|e| e.to_string())
}

fn signature(secret: &str, time: i64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signed = [format!("{time}.").as_bytes(), body].concat();
    format!("sha256={}", hex(hmac::sign(&key, &signed).as_ref()))
}

/// Sends the request. A redirect is not followed: it could lead anywhere.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> Result<(), String> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    // The task ends with the connection; the request below reports a failure of the connection.
    let connection = tokio::spawn(async move { drop(connection.await) });
    let answered = sender.send_request(request).await.map_err(|e| e.to_string());
    connection.abort();
    match answered?.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("the webhook answered {status}, expected a success")),
    }
}

/// Returns the certificates that the host trusts, read once.
fn roots() -> Result<Arc<ClientConfig>, String> {
    static ROOTS: OnceLock<Result<Arc<ClientConfig>, String>> = OnceLock::new();
    let read = || {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(
                "the host trusts no certificate; the package ca-certificates has the usual ones".to_owned()
            );
        }
        Ok(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
    };
    ROOTS.get_or_init(read).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf '1.{}' | openssl dgst -sha256 -hmac key` prints the same digits.
    #[test]
    fn the_signature_is_that_of_other_programs() {
        let expected = "sha256=1ba6b8171186efc613e8bcc0cbdab2748f24984d7c5a84faa2637afa0e40d224";
        assert_eq!(signature("key", 1, b"{}"), expected);
    }
}
