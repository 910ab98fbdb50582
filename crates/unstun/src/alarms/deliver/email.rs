//! Delivery by e-mail.

use api::AlarmMessage;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::{AsyncSmtpTransport, AsyncTransport, Tokio1Executor};

use super::config::{Email, Encryption};
use super::{TRY_MAX, text};

pub(super) async fn send(email: &Email, message: &AlarmMessage) -> Result<(), String> {
    let (subject, body) = text(message);
    let mailbox = |address: &str| -> Result<Mailbox, String> {
        address.parse().map_err(|e| format!("address {address:?}: {e}"))
    };
    let mut built = Message::builder().from(mailbox(&email.from)?).subject(subject);
    for to in &email.to {
        built = built.to(mailbox(to)?);
    }
    let mail = built.header(ContentType::TEXT_PLAIN).body(body).map_err(|e| e.to_string())?;
    transport(email)?.send(mail).await.map(drop).map_err(|e| format!("{}: {e}", email.server))
}

fn transport(email: &Email) -> Result<AsyncSmtpTransport<Tokio1Executor>, String> {
    type Smtp = AsyncSmtpTransport<Tokio1Executor>;
    let server = email.server.as_str();
    let builder = match email.tls {
        Encryption::Tls => Smtp::relay(server),
        Encryption::Starttls => Smtp::starttls_relay(server),
        Encryption::None => Ok(Smtp::builder_dangerous(server)),
    };
    let mut builder = builder.map_err(|e| format!("{server}: {e}"))?.timeout(Some(TRY_MAX));
    if let Some(port) = email.port {
        builder = builder.port(port);
    }
    if let Some((user, password)) = &email.login {
        builder = builder.credentials(Credentials::new(user.clone(), password.clone()));
    }
    Ok(builder.build())
}
