//! Who sends a request, and from where.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use api::error::{Error, ErrorKind, Result};
use api::name::{TokenName, VmName};
use api::{Alarm, Job, Role, Token, VmGlob};
use jiff::Timestamp;

/// Where a connection comes from.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    /// The API's Unix socket, with the user and the group of the process.
    Unix {
        uid: u32,
        gid: u32,
    },
    Tcp(IpAddr),
    /// The Unix socket of a proxy, with its path. The proxy connects for others, so its process identifies no caller.
    Proxy(Arc<Path>),
}

impl Origin {
    /// Returns the origin for the audit.
    pub(crate) fn shown(&self) -> String {
        match self {
            Origin::Unix { .. } => "api.sock".to_owned(),
            Origin::Tcp(address) => address.to_string(),
            Origin::Proxy(path) => format!("unix:{}", path.display()),
        }
    }

    /// Returns whether only a token or a session identifies the caller.
    pub(crate) fn needs_token(&self) -> bool {
        !matches!(self, Origin::Unix { .. })
    }
}

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// For the audit.
    pub who: String,
    pub role: Role,
    /// VMs that the caller is limited to; empty: not limited.
    vms: Vec<VmGlob>,
    /// Bytes that its VMs may use when it takes or clones.
    pub quota_bytes: Option<u64>,
    /// End of its token's validity.
    expires: Option<Timestamp>,
    /// User of this host, if its rights may change while a session lasts.
    host_user: Option<u32>,
}

/// Returns how a token's owner is called.
pub(crate) fn token_name(name: &TokenName) -> String {
    format!("token {name}")
}

impl Caller {
    pub(crate) fn user(who: String, role: Role, vms: Vec<VmGlob>) -> Caller {
        Caller { who, role, vms, quota_bytes: None, expires: None, host_user: None }
    }

    /// A user of this host, whose rights have to be looked up again while a session lasts.
    pub(crate) fn of_host(self, uid: u32) -> Caller {
        Caller { host_user: Some(uid), ..self }
    }

    pub(crate) fn host_user(&self) -> Option<u32> {
        self.host_user
    }

    pub(crate) fn token(token: Token) -> Caller {
        let Token { name, role, vms, quota_bytes, expires, .. } = token;
        Caller { who: token_name(&name), role, vms, quota_bytes, expires, host_user: None }
    }

    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Returns whether the console has anything for the caller.
    pub(crate) fn may_log_in(&self) -> bool {
        self.require("console", Role::Viewer).is_ok()
    }

    /// Returns whether the caller may do everything.
    pub(crate) fn is_unlimited_admin(&self) -> bool {
        self.role == Role::Admin && !self.is_limited()
    }

    /// Returns whether the caller is limited to some VMs.
    pub(crate) fn is_limited(&self) -> bool {
        !self.vms.is_empty()
    }

    pub(crate) fn reaches(&self, vm: &str) -> bool {
        !self.is_limited() || self.vms.iter().any(|glob| glob.matches(vm))
    }

    /// Returns whether a job is of one of the caller's VMs.
    pub(crate) fn reaches_job(&self, job: &Job) -> bool {
        job.vm.as_ref().map_or(!self.is_limited(), |vm| self.reaches(vm.as_str()))
    }

    /// Returns whether an alarm is about one of the caller's VMs.
    pub(crate) fn reaches_alarm(&self, alarm: &Alarm) -> bool {
        alarm.vm.as_ref().map_or(!self.is_limited(), |vm| self.reaches(vm.as_str()))
    }

    /// Refuses a VM that the caller does not reach.
    pub(crate) fn check(&self, vm: &VmName) -> Result<()> {
        if self.reaches(vm.as_str()) {
            return Ok(());
        }
        Err(self.forbidden(&format!("VM {vm} is none of its VMs")))
    }

    /// Refuses what is about other objects than the caller's VMs.
    pub(crate) fn refuse_limited(&self, operation: &str) -> Result<()> {
        match self.is_limited() {
            false => Ok(()),
            true => Err(self.forbidden(&format!("`{operation}` is about more than its VMs"))),
        }
    }

    pub(crate) fn require(&self, operation: &str, role: Role) -> Result<()> {
        if self.role >= role {
            return Ok(());
        }
        let (own, needed) = (self.role.as_str(), role.as_str());
        Err(self.forbidden(&format!("`{operation}` needs role {needed}, and it has role {own}")))
    }

    pub(crate) fn forbidden(&self, cause: &str) -> Error {
        let vms: Vec<_> = self.vms.iter().map(VmGlob::as_str).collect();
        let limit = if vms.is_empty() { String::new() } else { format!(" (limited to {})", vms.join(", ")) };
        Error::new(ErrorKind::Forbidden, format!("{}{limit} may not do this: {cause}", self.who))
    }
}
