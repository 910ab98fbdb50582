//! `/vms/VM/record` and `/vms/VM/cost`: what the recorder has of a VM; and previews that it completes.

use std::rc::Rc;
use std::sync::Arc;

use api::name::VmName;
use api::{CommitPreview, CommitTarget, Recorded, VmCost};
use axum::Router;
use axum::extract::{Extension, Json, State};
use axum::routing::{get, post};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::{Body, Failure, Parameter, Parameters};
use crate::access::authorize::Access;
use crate::daemon::{Daemon, Subject};
use crate::recorder::Recorder;

/// Time of a record for which no begin is asked.
const RECORD_SPAN: SignedDuration = SignedDuration::from_hours(1);
/// Time of a cost for which no begin is asked.
const COST_SPAN: SignedDuration = SignedDuration::from_hours(30 * 24);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Times {
    from: Option<Timestamp>,
    until: Option<Timestamp>,
    /// 0 or absent: about 360 steps.
    #[serde(default)]
    step_s: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Since {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

/// Returns both times.
fn times(from: Option<Timestamp>, until: Option<Timestamp>, span: SignedDuration) -> (Timestamp, Timestamp) {
    let until = until.unwrap_or_else(Timestamp::now);
    (from.unwrap_or_else(|| until.checked_sub(span).unwrap_or(Timestamp::UNIX_EPOCH)), until)
}

pub(super) fn routes(recorder: Arc<Recorder>) -> Router<Arc<Access>> {
    Router::new()
        .route("/vms/{vm}/record", get(record))
        .route("/vms/{vm}/cost", get(cost))
        .route("/vms/{vm}/commit/preview", post(commit_preview))
        .layer(Extension(recorder))
}

async fn record(
    Extension(recorder): Extension<Arc<Recorder>>,
    Parameter(vm): Parameter<VmName>,
    Parameters(asked): Parameters<Times>,
) -> Result<Json<Recorded>, Failure> {
    let (from, until) = times(asked.from, asked.until, RECORD_SPAN);
    Ok(Json(recorder.recorded(&vm, from, until, asked.step_s).await?))
}

async fn cost(
    Extension(recorder): Extension<Arc<Recorder>>,
    Parameter(vm): Parameter<VmName>,
    Parameters(asked): Parameters<Since>,
) -> Result<Json<VmCost>, Failure> {
    let (since, until) = times(asked.since, asked.until, COST_SPAN);
    Ok(Json(recorder.cost(&vm, since, until).await?))
}

async fn commit_preview(
    State(access): State<Arc<Access>>,
    Extension(recorder): Extension<Arc<Recorder>>,
    Parameter(vm): Parameter<VmName>,
    Body(target): Body<CommitTarget>,
) -> Result<Json<CommitPreview>, Failure> {
    let subject = Subject::Vm(vm.clone());
    let look = async move |daemon: Rc<Daemon>| daemon.commit_preview(&vm, target).await;
    let mut preview = access.core.ask(subject, look).await?;
    recorder.complete(&mut preview).await;
    Ok(Json(preview))
}
