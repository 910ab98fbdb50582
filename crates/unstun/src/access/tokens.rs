//! Tokens: each a secret that a client sends, of which the daemon keeps the hash.
//!
//! The file `.unstun/tokens` of the main datastore has one JSON object per line. A secret has 256 random bits, so a plain
//! SHA-256 of it tells nothing to a reader of the file.

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::error::{Error, ErrorKind, Result};
use api::name::TokenName;
use api::{Role, StoredToken, Token, TokenCreate, TokenCreated};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::error;

use crate::daemon::{CoreHandle, Subject, own_files};
use crate::hex::hex;

const FILE_NAME: &str = "tokens";
/// What every secret begins with, so that a search for leaked secrets finds ours.
const SECRET_PREFIX: &str = "unstun_";
/// Maximum number of tokens; the file stays far below its own limit.
const TOKENS_MAX: usize = 1000;
/// Longest validity: a hundred years.
const VALID_S_MAX: u64 = 100 * 366 * 24 * 3600;

/// A token on file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    #[serde(flatten)]
    token: Token,
    /// SHA-256 of the secret, in hexadecimal digits.
    sha256: String,
}

/// The tokens that the daemon accepts.
pub(crate) struct Tokens {
    all: Mutex<Vec<Stored>>,
    /// Why the file could not be read. No token is accepted then, and none is created.
    broken: Option<Error>,
    /// One change at a time: each writes the whole file.
    changing: tokio::sync::Mutex<()>,
}

impl Tokens {
    /// Reads the tokens. If the file cannot be read, the disks are served all the same.
    pub(crate) async fn read(core: &CoreHandle) -> Tokens {
        let bytes = core.ask(Subject::Datastore(None), async |daemon| daemon.own_file(FILE_NAME).await).await;
        let (all, broken) = match bytes.and_then(|bytes| own_files::parse_lines(FILE_NAME, &bytes)) {
            Ok(all) => (all, None),
            Err(e) => {
                error!("no token is accepted: {e}");
                (Vec::new(), Some(e))
            }
        };
        Tokens { all: Mutex::new(all), broken, changing: tokio::sync::Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Stored>> {
        // Each change of the list is one assignment.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the tokens in the order of their names, those that have expired too.
    pub(crate) fn list(&self) -> Result<Vec<Token>> {
        self.refuse_broken()?;
        Ok(self.all().iter().map(|stored| stored.token.clone()).collect())
    }

    fn refuse_broken(&self) -> Result<()> {
        let Some(e) = &self.broken else { return Ok(()) };
        let message = format!(
            "{e}; no token is accepted until the file is repaired, or moved aside, and the daemon is started again"
        );
        Err(Error::new(e.kind, message))
    }

    /// Returns the token of a secret.
    pub(crate) fn of_secret(&self, secret: &str, now: Timestamp) -> Result<Token> {
        let unknown =
            || Error::new(ErrorKind::Unidentified, "the token is unknown; it may have been revoked");
        if !secret.starts_with(SECRET_PREFIX) {
            return Err(unknown());
        }
        // The time of a comparison of hashes tells nothing about a secret.
        let hash = hash_of(secret);
        let token = self.all().iter().find(|stored| stored.sha256 == hash).map(|stored| stored.token.clone());
        let token = token.ok_or_else(unknown)?;
        if token.expires.is_some_and(|expires| expires <= now) {
            let message = format!("token {} has expired; an administrator can create another", token.name);
            return Err(Error::new(ErrorKind::Unidentified, message));
        }
        Ok(token)
    }

    /// Creates a token for `by`, and returns it with its secret.
    pub(crate) async fn create(
        &self,
        core: &CoreHandle,
        request: TokenCreate,
        by: String,
    ) -> Result<TokenCreated> {
        let random = core.ask(Subject::None, async |daemon| Ok(daemon.random_bytes())).await?;
        let secret = format!("{SECRET_PREFIX}{}", hex(&random));
        let TokenCreate { name, role, vms, valid_s, quota_bytes } = request;
        let created = Timestamp::now();
        let expires = valid_s.map(|s| created + SignedDuration::from_secs(s.cast_signed()));
        let token = Token { name, role, vms, created, by, expires, quota_bytes };
        let stored = Stored { token: token.clone(), sha256: hash_of(&secret) };
        self.change(core, |all| {
            if all.iter().any(|known| known.token.name == stored.token.name) {
                let message = format!("token {} exists already; revoke it first", stored.token.name);
                return Err(Error::new(ErrorKind::Exists, message));
            }
            if all.len() >= TOKENS_MAX {
                return Err(too_many());
            }
            all.push(stored);
            all.sort_by(|a, b| a.token.name.cmp(&b.token.name));
            Ok(())
        })
        .await?;
        Ok(TokenCreated { token, secret })
    }

    /// Returns the tokens as they are on file.
    pub(crate) fn stored(&self) -> Result<Vec<StoredToken>> {
        self.refuse_broken()?;
        let show = |Stored { token, sha256 }: Stored| StoredToken { token, sha256 };
        Ok(self.all().iter().cloned().map(show).collect())
    }

    /// Replaces the tokens with these names by those of an export: all of them, or on an error none.
    pub(crate) async fn restore(
        &self,
        core: &CoreHandle,
        names: &[TokenName],
        tokens: Vec<StoredToken>,
    ) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        self.change(core, |all| {
            all.retain(|known| !names.contains(&known.token.name));
            for StoredToken { token, sha256 } in tokens {
                if let Some(other) = all.iter().find(|known| known.sha256 == sha256) {
                    let message =
                        format!("token {} has the secret of token {}", token.name, other.token.name);
                    return Err(Error::refused(message));
                }
                if all.len() >= TOKENS_MAX {
                    return Err(too_many());
                }
                all.push(Stored { token, sha256 });
            }
            all.sort_by(|a, b| a.token.name.cmp(&b.token.name));
            Ok(())
        })
        .await
    }

    /// Revokes a token. Requests under way end.
    pub(crate) async fn revoke(&self, core: &CoreHandle, name: &TokenName) -> Result<Token> {
        let mut revoked = None;
        self.change(core, |all| {
            let at = all.iter().position(|known| known.token.name == *name);
            let at =
                at.ok_or_else(|| Error::not_found(format!("no token {name}; see `unstun token list`")))?;
            revoked = Some(all.remove(at).token);
            Ok(())
        })
        .await?;
        Ok(revoked.expect("the change has set it"))
    }

    /// Changes the tokens: first on file, then in force.
    async fn change(
        &self,
        core: &CoreHandle,
        change: impl FnOnce(&mut Vec<Stored>) -> Result<()>,
    ) -> Result<()> {
        let _turn = self.changing.lock().await;
        self.refuse_broken()?;
        let mut all = self.all().clone();
        change(&mut all)?;
        let text = own_files::lines(&all);
        let write = async move |daemon: std::rc::Rc<crate::daemon::Daemon>| {
            daemon.replace_own_file(FILE_NAME, text.as_bytes()).await
        };
        core.ask(Subject::Datastore(None), write).await?;
        *self.all() = all;
        Ok(())
    }
}

fn too_many() -> Error {
    Error::refused(format!("there are {TOKENS_MAX} tokens, the most there can be"))
}

fn hash_of(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// Checks a request for a token.
pub(crate) fn check(request: &TokenCreate) -> std::result::Result<(), String> {
    if request.valid_s.is_some_and(|s| s == 0 || s > VALID_S_MAX) {
        return Err(format!("valid_s: expected 1 to {VALID_S_MAX} seconds, or null for ever"));
    }
    if request.quota_bytes.is_some() && request.role != Role::Operator {
        return Err(format!(
            "quota_bytes: role {} has no quota; an operator's token may have one",
            request.role.as_str()
        ));
    }
    if !request.vms.is_empty() && request.role == Role::Metrics {
        return Err(
            "vms: the metrics are about all VMs; a token of role metrics is not limited to some".to_owned()
        );
    }
    Ok(())
}
