//! `/config`: policies, tokens and thresholds, all at once.
//!
//! Each kind has one file, which is replaced as a whole. From before the first to after the last, the file `config-import`
//! has what an import changes. A daemon that finds it at its start was killed meanwhile, and completes the import.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::error::{Error, ErrorKind};
use api::name::TokenName;
use api::{CONFIG_VERSION, Config, ConfigImported};
use axum::Router;
use axum::extract::{Extension, Json, State};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use tracing::{error, info};

use super::{Body, Failure, Parameters};
use crate::access::authorize::Access;
use crate::access::callers::{Caller, token_name};
use crate::alarms::Alarms;
use crate::daemon::{CoreHandle, Daemon, Subject};

/// The import under way, in the own folder of the main datastore.
const JOURNAL_NAME: &str = "config-import";

/// Time between two tries to remove it.
const REMOVE_AGAIN: Duration = Duration::from_secs(10);

/// An import that has begun.
#[derive(Serialize, Deserialize)]
struct Begun {
    by: String,
    /// What is added or replaced.
    config: Config,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Replace {
    #[serde(default)]
    replace: bool,
}

pub(super) fn routes() -> Router<Arc<Access>> {
    Router::new().route("/config", get(export).post(import))
}

async fn export(
    State(access): State<Arc<Access>>,
    Extension(alarms): Extension<Arc<Alarms>>,
) -> Result<Json<Config>, Failure> {
    Ok(Json(current(&access, &alarms).await?))
}

async fn current(access: &Access, alarms: &Alarms) -> Result<Config, Error> {
    let policies = access.core.ask(Subject::None, async |daemon| daemon.policy_list().await).await?;
    Ok(Config {
        version: CONFIG_VERSION,
        policies: policies.into_iter().map(|one| one.policy).collect(),
        tokens: access.tokens.stored()?,
        thresholds: alarms.thresholds(),
    })
}

/// Adds what is not there yet. With `replace` it also replaces what is there with another content. If something fails, nothing
/// is changed.
async fn import(
    State(access): State<Arc<Access>>,
    Extension(alarms): Extension<Arc<Alarms>>,
    Extension(caller): Extension<Caller>,
    Parameters(Replace { replace }): Parameters<Replace>,
    Body(config): Body<Config>,
) -> Result<Json<ConfigImported>, Failure> {
    let _turn = access.importing.lock().await;
    if access.journal_left.load(Ordering::Acquire) {
        let message = "an earlier import has left its record, because the main datastore did not answer; try again when it does";
        return Err(Error::new(ErrorKind::Unavailable, message).into());
    }
    let known = current(&access, &alarms).await?;
    let (new, differ) = config.beyond(&known);
    if !replace && !differ.is_empty() {
        let message = format!(
            "{}: there with another content; nothing was changed; `unstun config import FILE --replace` replaces them",
            differ.join(", ")
        );
        return Err(Error::new(ErrorKind::Exists, message).into());
    }
    let imported = ConfigImported {
        policies: new.policies.len() as u64,
        tokens: new.tokens.len() as u64,
        thresholds: new.thresholds.len() as u64,
        unchanged: (config.count() - new.count()) as u64,
    };
    let names = names_of(&new);
    let begun = Begun { by: caller.who, config: new };
    let written = Arc::new(AtomicBool::new(false));
    let applied = match write_journal(&access.core, &begun, Written(written.clone())).await {
        Ok(()) => apply(&access, &alarms, &known, begun).await,
        Err(error) => Err(error),
    };
    // Some may have other rights, even if what comes after the tokens has failed.
    names.iter().for_each(|name| access.sessions.end_all_of(&token_name(name)));
    let ended = remove_journal(&access, written).await;
    both(applied, ended)?;
    Ok(Json(imported))
}

fn names_of(config: &Config) -> Vec<TokenName> {
    config.tokens.iter().map(|stored| stored.token.name.clone()).collect()
}

/// Sets its flag when the write of the journal has ended: one that meets a hang continues without its caller.
struct Written(Arc<AtomicBool>);

impl Drop for Written {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

async fn write_journal(core: &CoreHandle, begun: &Begun, written: Written) -> Result<(), Error> {
    let text = serde_json::to_vec(begun).expect("a configuration is JSON");
    let write = async move |daemon: Rc<Daemon>| {
        let _written = written;
        daemon.replace_own_file(JOURNAL_NAME, &text).await
    };
    core.ask(Subject::Datastore(None), write).await
}

/// Removes the journal, once its write has ended. If that fails, a task tries it until it succeeds: a later start must not import
/// over what users have set since.
async fn remove_journal(access: &Arc<Access>, written: Arc<AtomicBool>) -> Result<(), Error> {
    let Err(error) = try_to_remove_journal(&access.core, &written).await else { return Ok(()) };
    access.journal_left.store(true, Ordering::Release);
    let access = access.clone();
    tokio::spawn(async move {
        while try_to_remove_journal(&access.core, &written).await.is_err() {
            tokio::time::sleep(REMOVE_AGAIN).await;
        }
        access.journal_left.store(false, Ordering::Release);
    });
    let message = format!(
        "{}; .unstun/{JOURNAL_NAME} is still there, and is removed when the datastore allows it: a start of the daemon before that \
         imports it once more",
        error.message
    );
    Err(Error::new(error.kind, message))
}

async fn try_to_remove_journal(core: &CoreHandle, written: &AtomicBool) -> Result<(), Error> {
    if !written.load(Ordering::Acquire) {
        return Err(Error::new(ErrorKind::UnderWay, "the datastore does not answer"));
    }
    let remove = async |daemon: Rc<Daemon>| daemon.remove_own_file(JOURNAL_NAME).await;
    core.ask(Subject::Datastore(None), remove).await
}

fn both(applied: Result<(), Error>, ended: Result<(), Error>) -> Result<(), Error> {
    match (applied, ended) {
        (Err(applied), Err(ended)) => {
            Err(Error::new(applied.kind, format!("{}; {}", applied.message, ended.message)))
        }
        (applied, ended) => applied.and(ended),
    }
}

/// Completes an import that a kill of the daemon has interrupted. No request may be served yet.
pub(crate) async fn complete_import(access: &Arc<Access>, alarms: &Alarms) {
    match complete(access, alarms).await {
        Ok(None) => {}
        Ok(Some(by)) => info!("an import of {by} that the end of the daemon interrupted is complete"),
        Err(e) => error!(
            "an import that the end of the daemon interrupted cannot be completed: {e}; some of its policies, tokens and \
             thresholds may be in force: import the file once more, with --replace"
        ),
    }
}

/// Returns who began the import, if there was one. One that fails is given up: a later start must not change what users have
/// set since.
async fn complete(access: &Arc<Access>, alarms: &Alarms) -> Result<Option<String>, Error> {
    let read = async |daemon: Rc<Daemon>| daemon.own_file(JOURNAL_NAME).await;
    let text = access.core.ask(Subject::Datastore(None), read).await;
    if text.as_ref().is_ok_and(Vec::is_empty) {
        return Ok(None);
    }
    let applied = async {
        let text = text?;
        let begun: Begun = serde_json::from_slice(&text)
            .map_err(|e| Error::new(ErrorKind::Damaged, format!(".unstun/{JOURNAL_NAME}: {e}")))?;
        let (known, by) = (current(access, alarms).await?, begun.by.clone());
        apply(access, alarms, &known, begun).await.map(|()| by)
    };
    let applied = applied.await;
    let ended = remove_journal(access, Arc::new(AtomicBool::new(true))).await;
    let (applied, by) = match applied {
        Ok(by) => (Ok(()), Some(by)),
        Err(error) => (Err(error), None),
    };
    both(applied, ended).map(|()| by)
}

/// Puts a configuration in force: all of it, or on an error none. Policies come last: they begin to work at once.
async fn apply(access: &Access, alarms: &Alarms, known: &Config, begun: Begun) -> Result<(), Error> {
    let Begun { by, config: new } = begun;
    let names = &names_of(&new);
    access.tokens.restore(&access.core, names, new.tokens).await?;
    let rest = async {
        alarms.set_thresholds(new.thresholds).await?;
        let policies = new.policies;
        let set = alarms.thresholds();
        let import = async move |daemon: Rc<Daemon>| daemon.policies_import(policies, by).await;
        let Err(error) = access.core.ask(Subject::Datastore(None), import).await else { return Ok(()) };
        let undone = alarms.replace_thresholds(set, known.thresholds.clone()).await;
        Err(after(error, "thresholds", undone))
    };
    let Err(error) = rest.await else { return Ok(()) };
    let before = known.tokens.iter().filter(|stored| names.contains(&stored.token.name)).cloned().collect();
    let undone = access.tokens.restore(&access.core, names, before).await;
    Err(after(error, "tokens", undone))
}

/// Returns the error of an import, with what could not be taken back.
fn after(error: Error, what: &str, undone: Result<(), Error>) -> Error {
    match undone {
        Ok(()) => error,
        Err(e) => Error::new(
            error.kind,
            format!(
                "{}; the {what} of the file are in force, and could not be taken back: {e}",
                error.message
            ),
        ),
    }
}
