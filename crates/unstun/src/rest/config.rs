//! `/config`: policies, tokens and thresholds, all at once.

use std::rc::Rc;
use std::sync::Arc;

use api::error::{Error, ErrorKind};
use api::name::TokenName;
use api::{CONFIG_VERSION, Config, ConfigImported};
use axum::Router;
use axum::extract::{Extension, Json, State};
use axum::routing::get;
use serde::Deserialize;

use super::{Body, Failure, Parameters};
use crate::access::authorize::Access;
use crate::access::callers::{Caller, token_name};
use crate::alarms::Alarms;
use crate::daemon::{Daemon, Subject};

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
    let names: Vec<_> = new.tokens.iter().map(|stored| stored.token.name.clone()).collect();
    apply(&access, &alarms, (&known, new, &names), caller.who).await?;
    names.iter().for_each(|name| access.sessions.end_all_of(&token_name(name)));
    Ok(Json(imported))
}

/// Puts `new` in force, whose tokens have these names: all of it, or none. Each kind has one file, which is replaced as a
/// whole. Policies come last: they begin to work at once.
async fn apply(
    access: &Access,
    alarms: &Alarms,
    (known, new, names): (&Config, Config, &[TokenName]),
    by: String,
) -> Result<(), Error> {
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
