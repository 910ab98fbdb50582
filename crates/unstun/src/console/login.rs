//! Logging in: with the link that `unstun console` prints, or with a token.

use std::sync::Arc;
use std::time::Instant;

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use axum::extract::{Extension, Form, Query, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;

use super::page::bare;
use super::request::FormRequest;
use crate::access::authorize::Access;
use crate::access::callers::{Caller, Origin};
use crate::access::sessions::IDLE_MAX;

/// Header with the scheme of the connection between browser and proxy.
const FORWARDED_PROTO: &str = "x-forwarded-proto";

#[derive(Deserialize)]
pub(super) struct Code {
    code: Option<String>,
    /// VM whose page comes next; without it the overview.
    vm: Option<VmName>,
    /// Whether the browser has sent a form after its session had ended.
    ended: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Token {
    token: String,
}

/// Logs in with the code of a link, or shows the form for a token.
pub(super) async fn show(
    State(access): State<Arc<Access>>,
    Extension(origin): Extension<Origin>,
    headers: HeaderMap,
    Query(Code { code, vm, ended }): Query<Code>,
) -> Response {
    let Some(code) = code else {
        let message =
            "the session has ended, and what was sent was not carried out; log in and send it again";
        let ended = ended.map(|_| Error::new(ErrorKind::Unidentified, message));
        return form(ended.as_ref()).into_response();
    };
    let caller = access.sessions.take_code(&code, Instant::now());
    log_in(&access, (&origin, &headers), caller, vm.as_ref()).await
}

pub(super) async fn with_token(
    State(access): State<Arc<Access>>,
    Extension(origin): Extension<Origin>,
    headers: HeaderMap,
    Form(Token { token }): Form<Token>,
) -> Response {
    let caller = access.tokens.of_secret(token.trim(), Timestamp::now()).map(Caller::token);
    log_in(&access, (&origin, &headers), caller, None).await
}

async fn log_in(
    access: &Access,
    from: (&Origin, &HeaderMap),
    caller: Result<Caller>,
    vm: Option<&VmName>,
) -> Response {
    match begin(access, from, caller).await {
        Ok(cookie) => {
            // A page of its own leads on: after a redirect from another site's link the browser would not send the cookie.
            let mut response = bare("Logged in", &leads_on(vm)).into_response();
            response.headers_mut().insert(SET_COOKIE, cookie);
            response
        }
        Err(error) => form(Some(&error)).into_response(),
    }
}

async fn begin(
    access: &Access,
    (origin, headers): (&Origin, &HeaderMap),
    caller: Result<Caller>,
) -> Result<HeaderValue> {
    // Attempts that fail are limited and recorded, as those of the API are.
    let caller = match caller {
        Ok(caller) => caller,
        Err(error) => return Err(access.refused_login(origin, error)),
    };
    caller.require("console", api::Role::Viewer)?;
    let (secret, form_key) = (access.secret().await?, access.secret().await?);
    let secure = if is_over_tls(origin, headers) { "; Secure" } else { "" };
    let cookie = format!(
        "{}={secret}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{secure}",
        access.sessions.cookie,
        IDLE_MAX.as_secs()
    );
    access.sessions.begin(secret, form_key, caller, Instant::now());
    HeaderValue::from_str(&cookie).map_err(|e| Error::new(ErrorKind::Failed, format!("a cookie: {e}")))
}

/// Returns whether the browser's own connection is encrypted. A proxy says so in a header.
fn is_over_tls(origin: &Origin, headers: &HeaderMap) -> bool {
    match origin {
        Origin::Tcp(from) => !from.is_loopback(),
        Origin::Proxy(_) => headers.get(FORWARDED_PROTO).is_some_and(|scheme| scheme == "https"),
        Origin::Unix { .. } => false,
    }
}

fn leads_on(vm: Option<&VmName>) -> Markup {
    let to = vm.map_or("/".to_owned(), |vm| format!("/vms/{vm}"));
    html! {
        meta http-equiv="refresh" content=(format!("0; url={to}"));
        p { a href=(to) { "To the console" } }
    }
}

fn form(error: Option<&Error>) -> Markup {
    bare(
        "unstun",
        &html! {
            @if let Some(error) = error { p.notice.fault role="alert" { (error) } }
            p { "On the daemon's host, " code { "unstun console" } " prints a link that logs in." }
            form.row method="post" action="/login" {
                label { "Or use a token" input type="password" name="token" autocomplete="off" required; }
                button { "Log in" }
            }
        },
    )
}

pub(super) async fn log_out(form: FormRequest) -> Response {
    let (access, browser) = (&form.page.access, &form.page.browser);
    if form.sent.text("form_key") == browser.session.form_key {
        access.sessions.end(&browser.secret);
    }
    Redirect::to("/login").into_response()
}
