//! The check of each request before its route sees it: its caller, the right, and the entry of the audit.

use std::sync::Arc;
use std::time::Instant;

use api::error::Error;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{Extension, MatchedPath, RawPathParams, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::idempotency::{self, Begun, Repeats};
use super::{API_PREFIX, BODY_BYTES_MAX, Failure};
use crate::access::audit;
use crate::access::authorize::{Access, Asked};
use crate::access::callers::{Caller, Origin};
use crate::access::rights;

/// Lets a request pass to its route, or refuses it. Both are recorded where the audit has them.
pub(super) async fn authorize(
    State(access): State<Arc<Access>>,
    Extension(origin): Extension<Origin>,
    matched: MatchedPath,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let route = matched.as_str().strip_prefix(API_PREFIX).unwrap_or(matched.as_str());
    let path = request.uri().path();
    let path = path.strip_prefix(API_PREFIX).unwrap_or(path).to_owned();
    // A name that is none is refused by its route.
    let named = parameters.as_ref().ok().and_then(|all| all.iter().find(|(name, _)| *name == "vm"));
    let vm = named.and_then(|(_, vm)| vm.parse().ok());
    let asked = Asked { right: rights::needed(request.method(), route), path, vm, from: origin.shown() };
    let credentials = request.headers().get(AUTHORIZATION).cloned();
    let caller = match access.identify(&origin, credentials).await {
        Ok(caller) => caller,
        Err(error) => return refusal(&access, &asked, None, error),
    };
    match access.permit(&caller, &origin, &asked).await {
        Ok(()) => carry_out(access, asked, caller, request, next).await,
        Err(error) => refusal(&access, &asked, Some(&caller), error),
    }
}

fn refusal(access: &Access, asked: &Asked, caller: Option<&Caller>, error: Error) -> Response {
    Failure(access.note_refusal(asked, caller, error)).into_response()
}

/// Carries out a request. One that changes something is a task of its own, which ends and is recorded even if its client
/// has gone.
async fn carry_out(
    access: Arc<Access>,
    asked: Asked,
    caller: Caller,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(caller.clone());
    if !asked.right.is_change() {
        return next.run(request).await;
    }
    let (parts, sent) = request.into_parts();
    let body = to_bytes(sent, BODY_BYTES_MAX)
        .await
        .map_err(|e| Error::malformed(format!("the request's body: {e}; at most {BODY_BYTES_MAX} bytes")));
    let begun = body.and_then(|body| Ok((begin(&parts, &asked, &caller, &body)?, body)));
    let (first, body) = match begun {
        Ok((Some(Begun::Answered(answer)), _)) => return answer,
        Ok((Some(Begun::First(first)), body)) => (Some(first), body),
        Ok((None, body)) => (None, body),
        Err(error) => return refusal(&access, &asked, Some(&caller), error),
    };
    // After the look at the key: a request that was carried out has its answer, whatever it has used.
    if let Err(error) = access.permit_space(&caller, &asked).await {
        return refusal(&access, &asked, Some(&caller), error);
    }
    let request = Request::from_parts(parts, Body::from(body.clone()));
    let changing = tokio::spawn(async move {
        let response = next.run(request).await;
        let error = response.extensions().get::<Error>().map(|e| e.message.clone());
        let entry = asked.entry(Some((&caller.who, caller.role)), (response.status().as_u16(), error), {
            audit::shown_body(&body)
        });
        access.audit.record(&entry);
        match first {
            Some(first) => first.answered(response, Instant::now()).await,
            None => response,
        }
    });
    changing.await.unwrap_or_else(|e| Failure(Error::failed(format!("the request: {e}"))).into_response())
}

/// Begins a request that has a key; None: it has none.
fn begin(parts: &Parts, asked: &Asked, caller: &Caller, body: &Bytes) -> Result<Option<Begun>, Error> {
    let Some(key) = idempotency::key(&parts.headers, asked.right)? else { return Ok(None) };
    let repeats = parts.extensions.get::<Arc<Repeats>>().expect("the router adds it");
    let asked = idempotency::asked(&parts.method, &parts.uri, body);
    repeats.begin(&caller.who, key, asked, Instant::now()).map(Some)
}
