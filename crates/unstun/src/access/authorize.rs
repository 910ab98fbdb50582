//! The check of each request: who sends it, whether its role has the right, and the entry of the audit.

use std::sync::Arc;
use std::time::Instant;

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use api::{AuditEntry, Role};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, MatchedPath, RawPathParams, Request, State};
use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;

use super::audit::{self, Audit};
use super::callers::{Caller, Origin};
use super::request_limit::RequestLimit;
use super::rights::{self, Right};
use super::tokens::SharedTokens;
use super::users;
use crate::daemon::{CoreHandle, Subject};
use crate::rest::{API_PREFIX, BODY_BYTES_MAX, Failure};

/// What the check of requests needs.
pub(crate) struct Access {
    pub core: Arc<CoreHandle>,
    pub tokens: SharedTokens,
    pub audit: Audit,
    pub limit: RequestLimit,
}

/// A request, as far as its rights are concerned.
struct Asked {
    right: &'static Right,
    path: String,
    vm: Option<VmName>,
    from: String,
}

/// Lets a request pass to its route, or refuses it. Both are recorded where the audit has them.
pub(crate) async fn authorize(
    State(access): State<Arc<Access>>,
    Extension(origin): Extension<Origin>,
    matched: MatchedPath,
    parameters: RawPathParams,
    request: Request,
    next: Next,
) -> Response {
    let route = matched.as_str().strip_prefix(API_PREFIX).unwrap_or_default();
    let path = request.uri().path().strip_prefix(API_PREFIX).unwrap_or_default().to_owned();
    // A name that is none is refused by its route.
    let vm = parameters.iter().find(|(name, _)| *name == "vm").and_then(|(_, vm)| vm.parse().ok());
    let asked = Asked { right: rights::needed(request.method(), route), path, vm, from: origin.shown() };
    let credentials = request.headers().get(AUTHORIZATION).cloned();
    let caller = match access.identify(&origin, credentials).await {
        Ok(caller) => caller,
        Err(error) => return access.refuse(&asked, None, error),
    };
    if let Err(error) = access.permit(&caller, &origin, &asked).await {
        return access.refuse(&asked, Some(&caller), error);
    }
    access.carry_out(asked, caller, request, next).await
}

impl Access {
    /// Returns who sends a request: the owner of the token that it names, or the user of the process.
    async fn identify(&self, origin: &Origin, credentials: Option<HeaderValue>) -> Result<Caller> {
        let unidentified = |message: &str| Err(Error::new(ErrorKind::Unidentified, message));
        match (credentials, origin) {
            (Some(value), _) => {
                let secret = value.to_str().ok().and_then(|text| text.strip_prefix("Bearer "));
                let Some(secret) = secret else {
                    return unidentified("Authorization: expected `Bearer TOKEN`, see `unstun token create`");
                };
                self.tokens.of_secret(secret.trim(), Timestamp::now()).map(Caller::token)
            }
            (None, &Origin::Unix { uid, gid }) => {
                // It may ask a directory service.
                let identified = tokio::task::spawn_blocking(move || users::identify(uid, gid)).await;
                identified.map_err(|e| Error::failed(format!("looking user {uid} up: {e}")))?
            }
            (None, Origin::Tcp(_)) => unidentified(
                "this address needs a token: `unstun token create` prints one, and `Authorization: Bearer TOKEN` sends it",
            ),
        }
    }

    async fn permit(&self, caller: &Caller, origin: &Origin, asked: &Asked) -> Result<()> {
        let Right { operation, role, reach, .. } = asked.right;
        if matches!(origin, Origin::Tcp(_)) {
            self.limit.admit(&caller.who, Instant::now())?;
        }
        caller.require(operation, *role)?;
        match (reach, &asked.vm) {
            (rights::Reach::Vm, Some(vm)) => caller.check(vm)?,
            (rights::Reach::Vm | rights::Reach::Listed, _) => {}
            (rights::Reach::All, _) => caller.refuse_limited(operation)?,
        }
        match caller.quota_bytes.filter(|_| asked.right.uses_space()) {
            Some(quota_bytes) => self.check_quota(caller, quota_bytes).await,
            None => Ok(()),
        }
    }

    /// Refuses if the caller's VMs use their quota already.
    async fn check_quota(&self, caller: &Caller, quota_bytes: u64) -> Result<()> {
        let vms = self.core.ask(Subject::None, async |daemon| daemon.vm_list().await).await?;
        let own = vms.iter().filter(|vm| caller.reaches(vm.name.as_str()));
        let used = api::units::total(own.filter_map(|vm| vm.allocated_bytes));
        if used < quota_bytes {
            return Ok(());
        }
        let [used, quota] = [used, quota_bytes].map(api::units::format_bytes);
        Err(caller.forbidden(&format!(
            "its VMs use {used}, and its quota is {quota}; an administrator frees space or creates a token with a larger \
             quota"
        )))
    }

    async fn carry_out(&self, asked: Asked, caller: Caller, mut request: Request, next: Next) -> Response {
        let mut body = Bytes::new();
        if asked.right.is_change() {
            let (parts, sent) = request.into_parts();
            body = match to_bytes(sent, BODY_BYTES_MAX).await {
                Ok(body) => body,
                Err(e) => {
                    let error = Error::invalid(format!("the request's body: {e}; at most {BODY_BYTES_MAX} bytes"));
                    return self.refuse(&asked, Some(&caller), error);
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
            self.audit.record(&asked.entry(Some((&caller.who, caller.role)), (status, error), request));
        }
        response
    }

    /// Answers a request that may not be carried out. Too many of them from one address are not recorded one by one.
    fn refuse(&self, asked: &Asked, caller: Option<&Caller>, error: Error) -> Response {
        let error = match self.limit.admit_refused(&asked.from, Instant::now()) {
            Ok(()) => {
                let status = (error.kind.http_status(), Some(error.message.clone()));
                let caller = caller.map(|caller| (caller.who.as_str(), caller.role));
                self.audit.record(&asked.entry(caller, status, None));
                error
            }
            Err(too_many) => too_many,
        };
        Failure::from(error).into_response()
    }
}

impl Asked {
    fn entry(
        &self,
        caller: Option<(&str, Role)>,
        (status, error): (u16, Option<String>),
        request: Option<serde_json::Value>,
    ) -> AuditEntry {
        AuditEntry {
            time: Timestamp::now(),
            who: caller.map_or("nobody", |(who, _)| who).to_owned(),
            role: caller.map(|(_, role)| role),
            from: self.from.clone(),
            operation: self.right.operation.to_owned(),
            path: self.path.clone(),
            vm: self.vm.as_ref().map(ToString::to_string),
            request,
            status,
            error,
        }
    }
}
