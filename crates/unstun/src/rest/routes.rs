//! The routes under `/api/v1`, each with its call of the daemon.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use api::name::DatastoreName;
use api::{Disconnect, DiskGrow, DiskSetMode, JobLimit, SharedWriters, VmOpen};
use axum::Router;
use axum::extract::{Json, State};
use axum::routing::{delete, get, post, put};
use serde::Deserialize;

use super::{Body, DiskParameter, Failure, Parameter, Parameters};
use crate::control::{Control, Reply};

type Calls = dyn Control;
type Shared = State<Arc<Calls>>;
type Routes = Router<Arc<Calls>>;
/// Answer of a route. Success is JSON with status 200; failure is an `ErrorBody` with the kind's status.
type Answer<T> = Pin<Box<dyn Future<Output = Result<Json<T>, Failure>> + Send>>;

/// Query that names a datastore. Null or absent means the main one, or for the bin all of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    #[serde(default)]
    datastore: Option<DatastoreName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskRemove {
    #[serde(default)]
    delete_files: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct After {
    #[serde(default)]
    after: u64,
}

pub(super) fn all() -> Routes {
    Router::new().merge(datastores()).merge(vms()).merge(disks()).merge(snapshots()).merge(jobs())
}

fn datastores() -> Routes {
    Router::new()
        .route("/status", get(none(Calls::status)))
        .route("/datastores", get(none(Calls::datastore_list)).post(body(Calls::datastore_add)))
        .route("/datastores/{name}", delete(path(Calls::datastore_remove)))
        .route("/datastores/{name}/remove/preview", post(path(Calls::datastore_remove_preview)))
        .route("/bin", get(datastore(Calls::bin_list)))
        .route("/bin/restore", post(body(Calls::bin_restore)))
        .route("/bin/empty", post(body(Calls::bin_empty)))
        .route("/bin/empty/preview", post(body(Calls::bin_empty_preview)))
        .route("/check", post(datastore(Calls::store_check)))
        .route("/scrub", get(datastore(Calls::store_scrubbed)).post(datastore(Calls::store_scrub)))
}

fn vms() -> Routes {
    Router::new()
        .route("/import", post(body(Calls::vm_import)))
        .route("/vms", get(none(Calls::vm_list)).post(body(Calls::vm_create)))
        .route(
            "/vms/{vm}",
            get(path(Calls::vm_show)).delete(two(|c, Parameter(vm), Parameters(of)| c.vm_remove(vm, of))),
        )
        .route("/vms/{vm}/remove/preview", post(path_and_body(Calls::vm_remove_preview)))
        .route("/vms/{vm}/space", get(path(Calls::vm_space)))
        .route("/vms/{vm}/clone", post(path_and_body(Calls::vm_clone)))
        .route("/vms/{vm}/move", post(path_and_body(Calls::vm_move)))
        .route(
            "/vms/{vm}/close",
            post(two(|c, Parameter(vm), Body(of): Body<Disconnect>| c.vm_close(vm, of.disconnect))),
        )
        .route(
            "/vms/{vm}/open",
            post(two(|c, Parameter(vm), Body(of): Body<VmOpen>| c.vm_open(vm, of.take_over))),
        )
        .route("/vms/{vm}/snapshot-dir", put(path_and_body(Calls::vm_set_snapshot_dir)))
        .route(
            "/vms/{vm}/shared-writers",
            put(two(|c, Parameter(vm), Body(of): Body<SharedWriters>| {
                c.vm_set_shared_writers(vm, of.shared)
            })),
        )
        .route("/vms/{vm}/reset", post(path_and_body(Calls::vm_reset)))
        .route("/vms/{vm}/reset/preview", post(path_and_body(Calls::reset_preview)))
        .route(
            "/vms/{vm}/events",
            get(two(|c, Parameter(vm), Parameters(of): Parameters<After>| c.events(vm, of.after))),
        )
}

fn disks() -> Routes {
    Router::new()
        .route("/vms/{vm}/disks", post(path_and_body(Calls::disk_add)))
        .route(
            "/vms/{vm}/disks/{number}",
            delete(two(|c, DiskParameter(vm, number), Parameters(of): Parameters<DiskRemove>| {
                c.disk_remove(vm, number, of.delete_files)
            })),
        )
        .route(
            "/vms/{vm}/disks/{number}/size",
            put(two(|c, DiskParameter(vm, number), Body(of): Body<DiskGrow>| {
                c.disk_grow(vm, number, of.size_bytes)
            })),
        )
        .route(
            "/vms/{vm}/disks/{number}/mode",
            put(two(|c, DiskParameter(vm, number), Body(of): Body<DiskSetMode>| {
                c.disk_set_mode(vm, number, of.mode)
            })),
        )
}

fn snapshots() -> Routes {
    Router::new()
        .route(
            "/vms/{vm}/snapshots",
            get(path(Calls::snapshot_tree)).post(path_and_body(Calls::snapshot_take)),
        )
        .route("/vms/{vm}/diff", post(path_and_body(Calls::snapshot_diff)))
        .route("/vms/{vm}/commit", post(path_and_body(Calls::snapshot_commit)))
        .route("/vms/{vm}/commit/preview", post(path_and_body(Calls::commit_preview)))
        .route("/vms/{vm}/revert", post(path_and_body(Calls::snapshot_revert)))
        .route("/vms/{vm}/revert/preview", post(path_and_body(Calls::revert_preview)))
        .route("/vms/{vm}/discard", post(path_and_body(Calls::snapshot_discard)))
        .route("/vms/{vm}/discard/preview", post(path_and_body(Calls::discard_preview)))
        .route("/vms/{vm}/undo", post(path_and_body(Calls::snapshot_undo)))
        .route("/vms/{vm}/undo/preview", post(path_and_body(Calls::undo_preview)))
}

fn jobs() -> Routes {
    Router::new()
        .route("/jobs", get(none(Calls::job_list)))
        .route("/jobs/{id}", get(path(Calls::job_show)))
        .route("/jobs/{id}/pause", post(path(Calls::job_pause)))
        .route("/jobs/{id}/resume", post(path(Calls::job_resume)))
        .route("/jobs/{id}/cancel", post(path(Calls::job_cancel)))
        .route(
            "/jobs/{id}/limit",
            put(two(|c, Parameter(id), Body(of): Body<JobLimit>| c.job_limit(id, of.limit_bytes_s))),
        )
}

/// A call without arguments.
fn none<T: 'static>(call: fn(&Calls) -> Reply<'_, T>) -> impl Fn(Shared) -> Answer<T> + Clone {
    move |State(control): Shared| -> Answer<T> {
        Box::pin(async move { call(&*control).await.map(Json).map_err(Failure) })
    }
}

/// A call with what one extractor finds in the request.
fn one<A, T, C>(call: C) -> impl Fn(Shared, A) -> Answer<T> + Clone
where
    A: Send + 'static,
    T: 'static,
    C: Fn(&Calls, A) -> Reply<'_, T> + Copy + Send + Sync + 'static,
{
    move |State(control): Shared, a: A| -> Answer<T> {
        Box::pin(async move { call(&*control, a).await.map(Json).map_err(Failure) })
    }
}

/// A call with what two extractors find in the request.
fn two<A, B, T, C>(call: C) -> impl Fn(Shared, A, B) -> Answer<T> + Clone
where
    A: Send + 'static,
    B: Send + 'static,
    T: 'static,
    C: Fn(&Calls, A, B) -> Reply<'_, T> + Copy + Send + Sync + 'static,
{
    move |State(control): Shared, a: A, b: B| -> Answer<T> {
        Box::pin(async move { call(&*control, a, b).await.map(Json).map_err(Failure) })
    }
}

fn path<P, T>(call: fn(&Calls, P) -> Reply<'_, T>) -> impl Fn(Shared, Parameter<P>) -> Answer<T> + Clone
where
    P: Send + 'static,
    T: 'static,
{
    one(move |control, Parameter(path)| call(control, path))
}

fn body<R, T>(call: fn(&Calls, R) -> Reply<'_, T>) -> impl Fn(Shared, Body<R>) -> Answer<T> + Clone
where
    R: Send + 'static,
    T: 'static,
{
    one(move |control, Body(request)| call(control, request))
}

fn path_and_body<P, R, T>(
    call: fn(&Calls, P, R) -> Reply<'_, T>,
) -> impl Fn(Shared, Parameter<P>, Body<R>) -> Answer<T> + Clone
where
    P: Send + 'static,
    R: Send + 'static,
    T: 'static,
{
    two(move |control, Parameter(path), Body(request)| call(control, path, request))
}

fn datastore<T: 'static>(
    call: fn(&Calls, Option<DatastoreName>) -> Reply<'_, T>,
) -> impl Fn(Shared, Parameters<Which>) -> Answer<T> + Clone {
    one(move |control, Parameters(which): Parameters<Which>| call(control, which.datastore))
}
