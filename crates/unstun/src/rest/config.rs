//! `/config`: policies, tokens and thresholds, all at once.

use std::rc::Rc;
use std::sync::Arc;

use api::error::{Error, ErrorKind};
use api::{CONFIG_VERSION, Config, ConfigImported, Policy};
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

/// Adds what is not there yet. With `replace` it also replaces what is there with another content.
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
    access.tokens.restore(&access.core, new.tokens).await?;
    names.iter().for_each(|name| access.sessions.end_all_of(&token_name(name)));
    for threshold in new.thresholds {
        alarms.set_threshold(threshold).await?;
    }
    for policy in new.policies {
        let is_known = known.policies.iter().any(|one| one.name == policy.name);
        let by = caller.who.clone();
        let put = async move |daemon: Rc<Daemon>| put_policy(&daemon, policy, is_known, by).await;
        access.core.ask(Subject::Datastore(None), put).await?;
    }
    Ok(Json(imported))
}

async fn put_policy(daemon: &Rc<Daemon>, policy: Policy, is_known: bool, by: String) -> Result<(), Error> {
    match is_known {
        true => daemon.policy_set(&policy.name.clone(), policy, by).await.map(drop),
        false => daemon.policy_create(policy, by).await.map(drop),
    }
}
