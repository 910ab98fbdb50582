//! The browser that sends a request: its session, and the checks against requests that another site makes it send.

use std::sync::Arc;

use api::Alarm;
use axum::extract::{Extension, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use super::shown::Shown;
use crate::access::authorize::Access;
use crate::access::callers::Origin;
use crate::access::sessions::Session;
use crate::alarms::Alarms;

/// Everything comes from the daemon itself; no page of it is part of another site's.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Header of the script's own requests.
const REFRESH: &str = "x-unstun-refresh";

/// A browser that has logged in.
#[derive(Clone)]
pub(super) struct Browser {
    pub session: Session,
    /// Secret of its cookie.
    pub secret: String,
    pub origin: Origin,
    /// The script fetches the page that it shows already.
    pub is_refresh: bool,
    /// Number of alarms that last and are not acknowledged, as far as they are about its VMs.
    pub alarms: usize,
    /// There is a folder of reports, which the caller may see.
    pub has_reports: bool,
}

/// Returns the secret of the session's cookie.
pub(super) fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, secret)| secret.to_owned())
}

/// Lets the requests of browsers with a session pass, and sends others to the login page.
pub(super) async fn with_session(
    State(access): State<Arc<Access>>,
    Extension(origin): Extension<Origin>,
    mut request: Request,
    next: Next,
) -> Response {
    let secret = cookie(request.headers(), &access.sessions.cookie);
    let session = match &secret {
        Some(secret) => access.session(secret).await,
        None => None,
    };
    let (Some(secret), Some(session)) = (secret, session) else {
        // The login page says that a form was not carried out.
        let is_form = request.method() == Method::POST;
        return Redirect::to(if is_form { "/login?ended=yes" } else { "/login" }).into_response();
    };
    let is_refresh = request.headers().contains_key(REFRESH);
    let lasting =
        request.extensions().get::<Arc<Alarms>>().map(|alarms| alarms.list(false)).unwrap_or_default();
    let is_new = |alarm: &&Alarm| alarm.acknowledged.is_none() && session.caller.reaches_alarm(alarm);
    let alarms = lasting.iter().filter(is_new).count();
    let has_folder = request.extensions().get::<Shown>().is_some_and(|shown| shown.reports.is_some());
    let has_reports = has_folder && !session.caller.is_limited();
    request.extensions_mut().insert(Browser { session, secret, origin, is_refresh, alarms, has_reports });
    next.run(request).await
}

/// Refuses requests to another host's name, and adds the headers of all pages.
pub(super) async fn guarded(Extension(origin): Extension<Origin>, request: Request, next: Next) -> Response {
    if !is_own_host(&origin, request.headers()) {
        let message = "this address is served under its own name and localhost only";
        return (StatusCode::FORBIDDEN, message).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    // A file that is not the console's own has a policy that is stricter.
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Returns whether the request names this host. Another site's name that leads to the loopback address of the browser's
/// host would otherwise reach the pages. Beyond loopback the certificate has the names. No browser connects to the socket of
/// a proxy itself, and the proxy serves under names of its own; a page under another name gets no cookie.
fn is_own_host(origin: &Origin, headers: &HeaderMap) -> bool {
    let Origin::Tcp(from) = origin else { return true };
    if !from.is_loopback() {
        return true;
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: axum::http::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let of = |value| cookie(&headers(COOKIE, value), "unstun");
        assert_eq!(of("a=1; unstun=secret; b=2").as_deref(), Some("secret"));
        assert_eq!(of("unstun2=x"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn on_loopback_only_its_names_are_served() {
        let here = Origin::Tcp("127.0.0.1".parse().unwrap());
        for host in ["localhost", "localhost:8484", "127.0.0.1:9000", "[::1]:8484"] {
            assert!(is_own_host(&here, &headers(HOST, host)), "{host}");
        }
        for host in ["evil.example:8484", "localhost.evil.example", "127.0.0.1.evil.example:80", ""] {
            assert!(!is_own_host(&here, &headers(HOST, host)), "{host}");
        }
        let beyond = Origin::Tcp("192.0.2.1".parse().unwrap());
        assert!(is_own_host(&beyond, &headers(HOST, "vmhost.example")));
    }
}
