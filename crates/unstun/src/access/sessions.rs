//! Sessions of browsers: a code that logs in once, and the cookie that follows it. They are in memory: a restart of the
//! daemon ends them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::error::{Error, ErrorKind, Result};

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::callers::Caller;

/// Time within which a code logs in.
pub(crate) const CODE_VALID: Duration = Duration::from_secs(60);
/// A session ends after this time without a request.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Time for which the rights of a user of the host are taken as they were found.
const RIGHTS_KNOWN: Duration = Duration::from_secs(10);
/// Maximum number of codes and of sessions. The ones that were used longest ago end first.
const ENTRIES_MAX: usize = 1000;

/// Sentence at the top of a page.
#[derive(Clone)]
pub(crate) enum Notice {
    Done(String),
    Fault(String),
}

/// A browser's session.
#[derive(Clone)]
pub(crate) struct Session {
    pub caller: Caller,
    /// What every form of the session carries, so that no other site can send one.
    pub form_key: String,
    used: Instant,
    /// When the caller's rights were last looked up.
    looked_up: Instant,
    /// What the next page says at its top.
    notice: Option<Notice>,
}

#[derive(Default)]
struct State {
    /// Codes that have not logged in yet, with the time of their making.
    codes: BTreeMap<String, (Caller, Instant)>,
    /// By the secret of the cookie.
    sessions: BTreeMap<String, Session>,
}

/// The sessions of all browsers.
pub(crate) struct Sessions {
    /// Name of the cookie. Browsers send cookies to all ports of a host, so the daemons of several datastores have different
    /// ones.
    pub cookie: String,
    state: Mutex<State>,
}

impl Sessions {
    pub(crate) fn new(datastore: &Path) -> Sessions {
        let of = Sha256::digest(datastore.as_os_str().as_encoded_bytes());
        let cookie = format!("unstun-{:08x}", u32::from_le_bytes([of[0], of[1], of[2], of[3]]));
        Sessions { cookie, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a code with which a browser logs in as `caller`, once.
    pub(crate) fn add_code(&self, code: String, caller: Caller, now: Instant) {
        let mut state = self.state();
        state.codes.retain(|_, (_, made)| now.duration_since(*made) < CODE_VALID);
        if state.codes.len() < ENTRIES_MAX {
            state.codes.insert(code, (caller, now));
        }
    }

    /// Uses up a code.
    pub(crate) fn take_code(&self, code: &str, now: Instant) -> Result<Caller> {
        let known = self.state().codes.remove(code);
        let valid = known.filter(|(_, made)| now.duration_since(*made) < CODE_VALID);
        let message = "this link has been used, or is older than a minute; `unstun console` prints another";
        valid.map(|(caller, _)| caller).ok_or_else(|| Error::new(ErrorKind::Unidentified, message))
    }

    /// Begins a session. `secret` is what the browser's cookie has.
    pub(crate) fn begin(&self, secret: String, form_key: String, caller: Caller, now: Instant) {
        let mut state = self.state();
        state.sessions.retain(|_, session| now.duration_since(session.used) < IDLE_MAX);
        if state.sessions.len() >= ENTRIES_MAX {
            let oldest = state.sessions.iter().min_by_key(|(_, session)| session.used);
            if let Some(secret) = oldest.map(|(secret, _)| secret.clone()) {
                state.sessions.remove(&secret);
            }
        }
        state.sessions.insert(secret, Session { caller, form_key, used: now, looked_up: now, notice: None });
    }

    /// Returns the session of a cookie.
    pub(crate) fn of(&self, secret: &str, now: Instant) -> Option<Session> {
        let mut state = self.state();
        let session = state.sessions.get_mut(secret)?;
        if now.duration_since(session.used) >= IDLE_MAX || session.caller.has_expired(Timestamp::now()) {
            state.sessions.remove(secret);
            return None;
        }
        session.used = now;
        Some(session.clone())
    }

    /// Returns the number of a session's user of the host, if the rights have to be looked up again. Until
    /// `set_caller` the session has the former ones.
    pub(crate) fn user_to_look_up(&self, secret: &str, now: Instant) -> Option<u32> {
        let mut state = self.state();
        let session = state.sessions.get_mut(secret)?;
        let user = session.caller.host_user()?;
        if now.duration_since(session.looked_up) < RIGHTS_KNOWN {
            return None;
        }
        session.looked_up = now;
        Some(user)
    }

    /// Gives a session the rights that its user has now; without any it ends.
    pub(crate) fn set_caller(&self, secret: &str, caller: Option<Caller>) {
        let Some(caller) = caller else { return self.end(secret) };
        if let Some(session) = self.state().sessions.get_mut(secret) {
            session.caller = caller;
        }
    }

    /// Keeps a sentence for the session's next page.
    pub(crate) fn tell(&self, secret: &str, notice: Notice) {
        if let Some(session) = self.state().sessions.get_mut(secret) {
            session.notice = Some(notice);
        }
    }

    pub(crate) fn take_notice(&self, secret: &str) -> Option<Notice> {
        self.state().sessions.get_mut(secret)?.notice.take()
    }

    /// Ends all sessions of a caller, whose token is revoked, and its links.
    pub(crate) fn end_all_of(&self, who: &str) {
        let mut state = self.state();
        state.sessions.retain(|_, session| session.caller.who != who);
        state.codes.retain(|_, (caller, _)| caller.who != who);
    }

    pub(crate) fn end(&self, secret: &str) {
        self.state().sessions.remove(secret);
    }
}

#[cfg(test)]
mod tests {
    use api::Role;

    use super::*;

    fn caller() -> Caller {
        Caller::user("user root (uid 0)".to_owned(), Role::Admin, Vec::new())
    }

    #[test]
    fn a_code_logs_in_once_and_within_a_minute() {
        let (sessions, now) = (Sessions::new(Path::new("/ds")), Instant::now());
        sessions.add_code("a".to_owned(), caller(), now);
        sessions.add_code("b".to_owned(), caller(), now);
        assert!(sessions.take_code("a", now).is_ok());
        assert_eq!(sessions.take_code("a", now).unwrap_err().kind, ErrorKind::Unidentified);
        assert!(sessions.take_code("b", now + CODE_VALID).is_err());
        assert!(sessions.take_code("c", now).is_err());
    }

    #[test]
    fn a_session_ends_when_it_is_not_used_and_memory_is_bounded() {
        let (sessions, now) = (Sessions::new(Path::new("/ds")), Instant::now());
        for n in 0..=ENTRIES_MAX as u64 {
            sessions.begin(format!("s{n}"), "f".to_owned(), caller(), now + Duration::from_secs(n));
        }
        assert!(sessions.of("s0", now).is_none(), "the oldest one");
        let later = now + IDLE_MAX;
        assert!(sessions.of("s5", later - Duration::from_secs(1)).is_some());
        assert!(sessions.of("s5", later + Duration::from_secs(60)).is_some(), "it was used");
        assert!(sessions.of("s6", later + Duration::from_secs(60)).is_none());
        sessions.end("s5");
        assert!(sessions.of("s5", later).is_none());
    }

    #[test]
    fn a_session_has_the_rights_that_its_user_has_now() {
        let (sessions, now) = (Sessions::new(Path::new("/ds")), Instant::now());
        let user = |role| Caller::user("user anna".to_owned(), role, Vec::new()).of_host(1000);
        sessions.begin("a".to_owned(), "f".to_owned(), user(Role::Admin), now);
        sessions.begin("root".to_owned(), "f".to_owned(), caller(), now);
        assert_eq!(sessions.user_to_look_up("a", now), None, "it has just logged in");
        let later = now + RIGHTS_KNOWN;
        assert_eq!(sessions.user_to_look_up("a", later), Some(1000));
        assert_eq!(sessions.user_to_look_up("a", later), None, "once for all requests");
        assert_eq!(sessions.user_to_look_up("root", later), None);
        sessions.set_caller("a", Some(user(Role::Viewer)));
        assert_eq!(sessions.of("a", later).unwrap().caller.role, Role::Viewer);
        sessions.set_caller("a", None);
        assert!(sessions.of("a", later).is_none());
    }

    #[test]
    fn a_session_ends_with_its_token() {
        let (sessions, now) = (Sessions::new(Path::new("/ds")), Instant::now());
        let token = |expires| {
            let (name, vms) = ("ci".parse().unwrap(), Vec::new());
            let (created, by) = (Timestamp::UNIX_EPOCH, String::new());
            Caller::token(api::Token {
                name,
                role: Role::Viewer,
                vms,
                created,
                by,
                expires,
                quota_bytes: None,
            })
        };
        for (secret, caller) in
            [("user", caller()), ("ci", token(None)), ("old", token(Some(Timestamp::UNIX_EPOCH)))]
        {
            sessions.begin(secret.to_owned(), "f".to_owned(), caller, now);
        }
        assert!(sessions.of("old", now).is_none() && sessions.of("ci", now).is_some());
        sessions.end_all_of("token ci");
        assert!(sessions.of("ci", now).is_none() && sessions.of("user", now).is_some());
    }
}
