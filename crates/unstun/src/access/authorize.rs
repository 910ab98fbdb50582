//! The check of a caller: who it is, whether its role has the right, and the entry of the audit.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use api::error::{Error, ErrorKind, Result};
use api::location::Datastore;
use api::name::VmName;
use api::{AuditEntry, ConsoleLink, Role};
use axum::http::{HeaderValue, Method};
use jiff::Timestamp;
use tracing::warn;

use super::audit::Audit;
use super::callers::{Caller, Origin};
use super::request_limit::RequestLimit;
use super::rights::{self, Right};
use super::sessions::{CODE_VALID, Session, Sessions};
use super::syslog::Syslog;
use super::tokens::Tokens;
use super::users;
use crate::daemon::{CoreHandle, Subject};
use crate::hex::hex;

/// What the check of requests needs.
pub(crate) struct Access {
    pub core: Arc<CoreHandle>,
    pub tokens: Tokens,
    pub audit: Audit,
    pub limit: RequestLimit,
    pub sessions: Sessions,
    /// One import of a configuration at a time.
    pub importing: tokio::sync::Mutex<()>,
    /// Whether an import has left its journal, which a task removes.
    pub journal_left: AtomicBool,
}

/// A request, as far as its rights are concerned.
pub(crate) struct Asked {
    pub right: &'static Right,
    pub path: String,
    pub vm: Option<VmName>,
    pub from: String,
}

impl Access {
    /// Begins the check of requests to the datastore's daemon.
    pub(crate) async fn start(
        core: &Arc<CoreHandle>,
        datastore: &Datastore,
        syslog: Option<Syslog>,
    ) -> Access {
        Access {
            core: core.clone(),
            tokens: Tokens::read(core).await,
            audit: Audit::start(&datastore.own_folder(), syslog),
            limit: RequestLimit::default(),
            sessions: Sessions::new(datastore.root()),
            importing: tokio::sync::Mutex::default(),
            journal_left: AtomicBool::default(),
        }
    }

    /// Returns a secret of 256 random bits.
    pub(crate) async fn secret(&self) -> Result<String> {
        let random = self.core.ask(Subject::None, async |daemon| Ok(daemon.random_bytes())).await?;
        Ok(hex(&random))
    }

    /// Makes a link that logs in a browser as `caller`.
    pub(crate) async fn console_link(&self, caller: Caller) -> Result<ConsoleLink> {
        // A session has the rights of the user, which those of the process may differ from.
        let caller = match caller.host_user() {
            Some(uid) => users::look_up(uid, None).await?,
            None => caller,
        };
        let code = self.secret().await?;
        let web = self.core.ask(Subject::None, async |daemon| Ok(daemon.web.borrow().clone())).await?;
        self.sessions.add_code(code.clone(), caller, Instant::now());
        // The proxy behind a socket has its own URL.
        let urls = web.iter().filter(|url| !url.starts_with("unix:"));
        let urls = urls.map(|url| format!("{url}/login?code={code}")).collect();
        Ok(ConsoleLink { urls, valid_s: CODE_VALID.as_secs() })
    }

    /// Returns the session of a browser's cookie, with the rights that its user has now.
    pub(crate) async fn session(self: &Arc<Self>, secret: &str) -> Option<Session> {
        if let Some(uid) = self.sessions.user_to_look_up(secret, Instant::now()) {
            let (access, of) = (self.clone(), secret.to_owned());
            let look = async move {
                match users::look_up(uid, None).await {
                    Ok(caller) => access.sessions.set_caller(&of, Some(caller).filter(Caller::may_log_in)),
                    Err(error) if error.kind == ErrorKind::Unidentified => {
                        access.sessions.set_caller(&of, None);
                    }
                    // The directory service has failed: the session keeps the rights that it has.
                    Err(error) => warn!("a session of the console: {error}"),
                }
            };
            // A browser that closes its connection does not end the look.
            let _ = tokio::spawn(look).await;
        }
        self.sessions.of(secret, Instant::now())
    }

    /// Records a failed login, and returns the error for the browser.
    pub(crate) fn refused_login(&self, origin: &Origin, error: Error) -> Error {
        let right = rights::needed(&Method::POST, "/console");
        let asked = Asked { right, path: "/login".to_owned(), vm: None, from: origin.shown() };
        self.note_refusal(&asked, None, error)
    }

    /// Carries out an operation of the console. It needs the right of the API's route that does the same. `path` and `vm`
    /// are those of that route.
    pub(crate) async fn act<T>(
        &self,
        caller: &Caller,
        origin: &Origin,
        (right, path, vm): (&'static Right, String, Option<VmName>),
        body: serde_json::Value,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let asked = Asked { right, path, vm, from: origin.shown() };
        let permitted = async {
            self.permit(caller, origin, &asked).await?;
            self.permit_space(caller, &asked).await
        };
        if let Err(error) = permitted.await {
            return Err(self.note_refusal(&asked, Some(caller), error));
        }
        let result = work.await;
        if right.is_change() {
            let status = result.as_ref().map_or_else(|error| error.kind.http_status(), |_| 200);
            let error = result.as_ref().err().map(|error| error.message.clone());
            self.audit.record(&asked.entry(Some((&caller.who, caller.role)), (status, error), Some(body)));
        }
        result
    }

    /// Returns who sends a request: the owner of the token that it names, or the user of the process.
    pub(crate) async fn identify(&self, origin: &Origin, credentials: Option<HeaderValue>) -> Result<Caller> {
        let unidentified = |message: &str| Err(Error::new(ErrorKind::Unidentified, message));
        match (credentials, origin) {
            (Some(value), _) => {
                let secret = value.to_str().ok().and_then(|text| text.strip_prefix("Bearer "));
                let Some(secret) = secret else {
                    return unidentified("Authorization: expected `Bearer TOKEN`, see `unstun token create`");
                };
                self.tokens.of_secret(secret.trim(), Timestamp::now()).map(Caller::token)
            }
            (None, &Origin::Unix { uid, gid }) => users::look_up(uid, Some(gid)).await,
            (None, Origin::Tcp(_) | Origin::Proxy(_)) => unidentified(
                "this address needs a token: `unstun token create` prints one, and `Authorization: Bearer TOKEN` sends it",
            ),
        }
    }

    pub(crate) async fn permit(&self, caller: &Caller, origin: &Origin, asked: &Asked) -> Result<()> {
        let Right { operation, role, reach, .. } = asked.right;
        if origin.needs_token() {
            self.limit.admit(&caller.who, Instant::now())?;
        }
        caller.require(operation, *role)?;
        match (reach, &asked.vm) {
            (rights::Reach::Vm, Some(vm)) => caller.check(vm)?,
            (rights::Reach::Vm | rights::Reach::Listed, _) => {}
            (rights::Reach::All, _) => caller.refuse_limited(operation)?,
        }
        Ok(())
    }

    /// Refuses an operation that adds to the space of the caller's VMs if they use their quota already.
    pub(crate) async fn permit_space(&self, caller: &Caller, asked: &Asked) -> Result<()> {
        match caller.quota_bytes.filter(|_| asked.right.uses_space()) {
            Some(quota_bytes) => self.check_quota(caller, quota_bytes).await,
            None => Ok(()),
        }
    }

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

    /// Records a request that may not be carried out, and returns the error for the caller. Of many refusals in a short
    /// time only the first ones are recorded. An unknown caller gets another error then.
    pub(crate) fn note_refusal(&self, asked: &Asked, caller: Option<&Caller>, error: Error) -> Error {
        let who = caller.map_or(asked.from.as_str(), |caller| caller.who.as_str());
        match (self.limit.admit_refused(who, Instant::now()), caller) {
            (Ok(()), _) => {
                let status = (error.kind.http_status(), Some(error.message.clone()));
                let caller = caller.map(|caller| (caller.who.as_str(), caller.role));
                self.audit.record(&asked.entry(caller, status, None));
                error
            }
            (Err(_), Some(_)) => error,
            (Err(too_many), None) => too_many,
        }
    }
}

impl Asked {
    pub(crate) fn entry(
        &self,
        caller: Option<(&str, Role)>,
        (status, error): (u16, Option<String>),
        request: Option<serde_json::Value>,
    ) -> AuditEntry {
        AuditEntry {
            time: Timestamp::now(),
            who: caller.map_or("unknown", |(who, _)| who).to_owned(),
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
