//! The check of each request before its route sees it: its caller, the right, and the entry of the audit.

use std::sync::Arc;

use api::error::Error;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{Extension, MatchedPath, RawPathParams, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

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
        Ok(()) => carry_out(&access, &asked, caller, request, next).await,
        Err(error) => refusal(&access, &asked, Some(&caller), error),
    }
}

fn refusal(access: &Access, asked: &Asked, caller: Option<&Caller>, error: Error) -> Response {
    Failure(access.note_refusal(asked, caller, error)).into_response()
}

async fn carry_out(
    access: &Access,
    asked: &Asked,
    caller: Caller,
    mut request: Request,
    next: Next,
) -> Response {
    let mut body = Bytes::new();
    if asked.right.is_change() {
        let (parts, sent) = request.into_parts();
        body = match to_bytes(sent, BODY_BYTES_MAX).await {
            Ok(body) => body,
            Err(e) => {
                let error =
                    Error::invalid(format!("the request's body: {e}; at most {BODY_BYTES_MAX} bytes"));
                return refusal(access, asked, Some(&caller), error);
            }
        };
        request = Request::from_parts(parts, Body::from(body.clone()));
    }
    request.extensions_mut().insert(caller.clone());
    let response = next.run(request).await;
    if asked.right.is_change() {
        let error = response.extensions().get::<Error>().map(|e| e.message.clone());
        let status = response.status().as_u16();
        let request = audit::shown_body(&body);
        access.audit.record(&asked.entry(Some((&caller.who, caller.role)), (status, error), request));
    }
    response
}
