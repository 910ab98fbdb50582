//! The REST API: routes under `/api/v1` over a `Control`, served on a Unix socket that only its owner can open.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FsPath;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Json, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;

use crate::api::{CommitTarget, JobLimit, SnapshotTake, VmCreate};
use crate::control::Control;
use crate::error::{Error, ErrorBody, Result};
use crate::name::{self, VmName};
use crate::{listen, units};

/// The largest body is a `VmCreate`: 4096 disks of about 40 bytes each would fit.
const BODY_BYTES_MAX: usize = 256 << 10;
/// Of one VM: four SCSI controllers with 15 disks each, as VMware's own limit.
const DISKS_MAX: usize = 60;

type Shared = State<Arc<dyn Control>>;
/// Success is JSON with status 200; failure is an `ErrorBody` with the kind's status.
type Answer<T> = std::result::Result<Json<T>, Failure>;
type Body<T> = std::result::Result<Json<T>, JsonRejection>;
type Parameters<T> = std::result::Result<Query<T>, QueryRejection>;

struct Failure(Error);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(ErrorBody::from(self.0))).into_response()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

pub fn router(control: Arc<dyn Control>) -> Router {
    let v1 = Router::new()
        .route("/status", get(status))
        .route("/vms", get(vm_list).post(vm_create))
        .route("/vms/{vm}", get(vm_show))
        .route("/vms/{vm}", delete(vm_remove))
        .route("/vms/{vm}/snapshots", get(snapshot_tree).post(snapshot_take))
        .route("/vms/{vm}/commit", post(snapshot_commit))
        .route("/vms/{vm}/commit/preview", post(commit_preview))
        .route("/vms/{vm}/events", get(events))
        .route("/jobs", get(job_list))
        .route("/jobs/{id}", get(job_show))
        .route("/jobs/{id}/pause", post(job_pause))
        .route("/jobs/{id}/resume", post(job_resume))
        .route("/jobs/{id}/cancel", post(job_cancel))
        .route("/jobs/{id}/limit", put(job_limit))
        .with_state(control);
    Router::new()
        .nest("/api/v1", v1)
        .fallback(|| async { Failure(Error::not_found("no such route; the API is under /api/v1")) })
        .method_not_allowed_fallback(|| async { Failure(Error::invalid("this route has no such method")) })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// Replaces a socket left by a dead daemon. The caller holds the datastore's lock, so no living one listens there.
pub fn bind(socket: &FsPath) -> Result<UnixListener> {
    let failed = |e: std::io::Error| Error::failed(format!("API socket {}: {e}", socket.display()));
    listen::check_socket_path(socket).map_err(Error::invalid)?;
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(failed)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Serves until `stop` resolves, then completes the requests in flight.
pub async fn serve(
    listener: UnixListener,
    control: Arc<dyn Control>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    axum::serve(listener, router(control))
        .with_graceful_shutdown(stop)
        .await
        .map_err(|e| Error::failed(format!("API server: {e}")))
}

fn vm_name(text: &str) -> Result<VmName> {
    text.parse().map_err(Error::invalid)
}

fn job_id(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::invalid(format!("job {text:?}: expected a number")))
}

fn body<T>(body: Body<T>) -> Result<T> {
    body.map(|Json(value)| value).map_err(|e| Error::invalid(e.body_text()))
}

fn parameters<T>(query: Parameters<T>) -> Result<T> {
    query.map(|Query(value)| value).map_err(|e| Error::invalid(e.body_text()))
}

fn answer<T: Serialize>(result: Result<T>) -> Answer<T> {
    result.map(Json).map_err(Failure)
}

async fn status(State(control): Shared) -> Answer<impl Serialize> {
    answer(control.status().await)
}

async fn vm_list(State(control): Shared) -> Answer<impl Serialize> {
    answer(control.vm_list().await)
}

async fn vm_create(State(control): Shared, request: Body<VmCreate>) -> Answer<impl Serialize> {
    let request = body(request)?;
    if request.disks.is_empty() || request.disks.len() > DISKS_MAX {
        let count = request.disks.len();
        return Err(Error::invalid(format!("VM with {count} disks: expected 1 to {DISKS_MAX}")).into());
    }
    for disk in &request.disks {
        units::check_disk_size(disk.size_bytes).map_err(Error::invalid)?;
    }
    answer(control.vm_create(request).await)
}

async fn vm_show(State(control): Shared, Path(vm): Path<String>) -> Answer<impl Serialize> {
    answer(control.vm_show(vm_name(&vm)?).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    #[serde(default)]
    delete_disks: bool,
}

async fn vm_remove(
    State(control): Shared,
    Path(vm): Path<String>,
    query: Parameters<Remove>,
) -> Answer<impl Serialize> {
    let delete_disks = parameters(query)?.delete_disks;
    answer(control.vm_remove(vm_name(&vm)?, delete_disks).await)
}

async fn snapshot_tree(State(control): Shared, Path(vm): Path<String>) -> Answer<impl Serialize> {
    answer(control.snapshot_tree(vm_name(&vm)?).await)
}

async fn snapshot_take(
    State(control): Shared,
    Path(vm): Path<String>,
    request: Body<SnapshotTake>,
) -> Answer<impl Serialize> {
    let request = body(request)?;
    name::check_message(&request.message).map_err(Error::invalid)?;
    answer(control.snapshot_take(vm_name(&vm)?, request).await)
}

async fn commit_preview(
    State(control): Shared,
    Path(vm): Path<String>,
    target: Body<CommitTarget>,
) -> Answer<impl Serialize> {
    answer(control.commit_preview(vm_name(&vm)?, body(target)?).await)
}

async fn snapshot_commit(
    State(control): Shared,
    Path(vm): Path<String>,
    target: Body<CommitTarget>,
) -> Answer<impl Serialize> {
    answer(control.snapshot_commit(vm_name(&vm)?, body(target)?).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn events(
    State(control): Shared,
    Path(vm): Path<String>,
    query: Parameters<After>,
) -> Answer<impl Serialize> {
    let after = parameters(query)?.after;
    answer(control.events(vm_name(&vm)?, after).await)
}

async fn job_list(State(control): Shared) -> Answer<impl Serialize> {
    answer(control.job_list().await)
}

async fn job_show(State(control): Shared, Path(id): Path<String>) -> Answer<impl Serialize> {
    answer(control.job_show(job_id(&id)?).await)
}

async fn job_pause(State(control): Shared, Path(id): Path<String>) -> Answer<impl Serialize> {
    answer(control.job_pause(job_id(&id)?).await)
}

async fn job_resume(State(control): Shared, Path(id): Path<String>) -> Answer<impl Serialize> {
    answer(control.job_resume(job_id(&id)?).await)
}

async fn job_cancel(State(control): Shared, Path(id): Path<String>) -> Answer<impl Serialize> {
    answer(control.job_cancel(job_id(&id)?).await)
}

async fn job_limit(
    State(control): Shared,
    Path(id): Path<String>,
    limit: Body<JobLimit>,
) -> Answer<impl Serialize> {
    let limit_bytes_s = body(limit)?.limit_bytes_s;
    if limit_bytes_s == Some(0) {
        return Err(Error::invalid("limit of 0 bytes per second: expected more, or null for none").into());
    }
    answer(control.job_limit(job_id(&id)?, limit_bytes_s).await)
}
