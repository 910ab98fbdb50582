//! The routes of the alarms.

use std::sync::Arc;

use api::error::Error;
use api::{
    Alarm, AlarmAcknowledge, AlarmChannel, AlarmMute, AlarmMuted, AlarmRule, AlarmRuleShown, AlarmThreshold,
};
use axum::Router;
use axum::extract::{Extension, Json};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use clap::ValueEnum;
use serde::Deserialize;

use super::{Body, Failure, Parameter, Parameters, malformed};
use crate::access::callers::Caller;
use crate::alarms::Alarms;

type Shared = Extension<Arc<Alarms>>;
type Answer<T> = Result<Json<T>, Failure>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct All {
    #[serde(default)]
    all: bool,
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/alarms", get(list))
        .route("/alarms/rules", get(rules).put(set_threshold))
        .route("/alarms/rules/{rule}", delete(reset_rule))
        .route("/alarms/channels", get(channels))
        .route("/alarms/channels/{name}/test", post(test_channel))
        .route("/alarms/mutes", get(mutes).post(mute))
        .route("/alarms/mutes/{id}", delete(unmute))
        .route("/alarms/{alarm}/acknowledge", post(acknowledge).delete(unacknowledge))
}

async fn list(
    Extension(alarms): Shared,
    Extension(caller): Extension<Caller>,
    Parameters(All { all }): Parameters<All>,
) -> Json<Vec<Alarm>> {
    let mut found = alarms.list(all);
    found.retain(|alarm| caller.reaches_alarm(alarm));
    Json(found)
}

async fn acknowledge(
    Extension(alarms): Shared,
    Extension(caller): Extension<Caller>,
    Parameter(id): Parameter<String>,
    Body(AlarmAcknowledge { note }): Body<AlarmAcknowledge>,
) -> Answer<Alarm> {
    check(&alarms, &caller, &id)?;
    Ok(Json(alarms.acknowledge(&id, Some((caller.who, note))).await?))
}

async fn unacknowledge(
    Extension(alarms): Shared,
    Extension(caller): Extension<Caller>,
    Parameter(id): Parameter<String>,
) -> Answer<Alarm> {
    check(&alarms, &caller, &id)?;
    Ok(Json(alarms.acknowledge(&id, None).await?))
}

fn check(alarms: &Alarms, caller: &Caller, id: &str) -> Result<(), Error> {
    match caller.reaches_alarm(&alarms.find(id)?) {
        true => Ok(()),
        false => Err(caller.forbidden("the alarm is about none of its VMs")),
    }
}

async fn mutes(Extension(alarms): Shared) -> Json<Vec<AlarmMuted>> {
    Json(alarms.mutes())
}

async fn mute(
    Extension(alarms): Shared,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<AlarmMute>,
) -> Result<(StatusCode, Json<AlarmMuted>), Failure> {
    Ok((StatusCode::CREATED, Json(alarms.mute(wanted, caller.who).await?)))
}

async fn unmute(Extension(alarms): Shared, Parameter(id): Parameter<u64>) -> Answer<AlarmMuted> {
    Ok(Json(alarms.unmute(id).await?))
}

async fn channels(Extension(alarms): Shared) -> Json<Vec<AlarmChannel>> {
    Json(alarms.channels.list().await)
}

async fn test_channel(Extension(alarms): Shared, Parameter(name): Parameter<String>) -> Answer<AlarmChannel> {
    Ok(Json(alarms.channels.test(&name).await?))
}

async fn rules(Extension(alarms): Shared) -> Json<Vec<AlarmRuleShown>> {
    Json(alarms.rules())
}

async fn set_threshold(
    Extension(alarms): Shared,
    Body(wanted): Body<AlarmThreshold>,
) -> Answer<Vec<AlarmRuleShown>> {
    Ok(Json(alarms.set_threshold(wanted).await?))
}

async fn reset_rule(
    Extension(alarms): Shared,
    Parameter(rule): Parameter<String>,
) -> Answer<Vec<AlarmRuleShown>> {
    let rule = AlarmRule::from_str(&rule, false)
        .map_err(|_| malformed(format!("{rule:?}: expected a rule; `unstun alarm rules` lists them")))?;
    Ok(Json(alarms.reset_rule(rule).await?))
}
