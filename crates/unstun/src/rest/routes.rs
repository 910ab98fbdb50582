//! The routes under `/api/v1`, each with its operation of the daemon.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;

use api::error::{Error, Result};
use api::name::{DatastoreName, PolicyName, SnapshotRef, TokenName, VmName};
use api::{
    AuditEntry, BinEmpty, BinRestore, ConsoleLink, Disconnect, DiskGrow, DiskSetMode, JobLimit, Policy,
    Revert, SharedWriters, SnapshotTake, Token, TokenCreate, TokenCreated, VmClone, VmMove, VmOpen, VmRename,
};
use axum::Router;
use axum::extract::{Extension, FromRequest, Json, State};
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post, put};
use serde::{Deserialize, Serialize};

use super::{Body, Failure, Parameter, Parameters, PartParameter, alarms, malformed};
use crate::access::audit::ENTRIES_MAX;
use crate::access::authorize::Access;
use crate::access::callers::{Caller, token_name};
use crate::daemon::{CoreHandle, Daemon, SnapshotLabel, Subject};

type Core = Arc<CoreHandle>;

/// Query that names a datastore. Null or absent means the main one, or for the bin all of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    datastore: Option<DatastoreName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskRemove {
    #[serde(default)]
    delete_files: bool,
}

/// Query for a part of a list, whose order is that of the keys: at most `limit` entries, from the first after `after`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part<K> {
    limit: Option<NonZeroUsize>,
    after: Option<K>,
}

impl<K: Ord> Part<K> {
    fn of<T>(self, mut all: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
        all.retain(|one| self.after.as_ref().is_none_or(|after| key(one) > *after));
        all.sort_by_key(key);
        all.truncate(self.limit.map_or(usize::MAX, NonZeroUsize::get));
        all
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Last {
    #[serde(default = "entries_shown")]
    last: usize,
}

/// Number of entries of an answer that asks for no number.
fn entries_shown() -> usize {
    100
}

pub(super) fn all(access: Arc<Access>) -> Router {
    let core = access.core.clone();
    let of_core = Router::new()
        .merge(datastores())
        .merge(vms())
        .merge(disks())
        .merge(snapshots())
        .merge(jobs())
        .merge(policies());
    of_core.with_state(core).merge(access_routes().merge(alarms::routes()).with_state(access))
}

/// Status 201 in place of 200.
fn created(method: MethodRouter<Core>) -> MethodRouter<Core> {
    method.layer(map_response(async |response| with_status(response, StatusCode::CREATED)))
}

/// Status 202 in place of 200: a job has begun.
fn accepted(method: MethodRouter<Core>) -> MethodRouter<Core> {
    method.layer(map_response(async |response| with_status(response, StatusCode::ACCEPTED)))
}

fn with_status(mut response: Response, status: StatusCode) -> Response {
    if response.status() == StatusCode::OK {
        *response.status_mut() = status;
    }
    response
}

fn datastores() -> Router<Core> {
    let added = |Parameter(name): &Parameter<DatastoreName>| Subject::Added(name.clone());
    let which = |Parameters(of): &Parameters<Which>| Subject::Datastore(of.datastore.clone());
    let entry = |Body(of): &Body<BinRestore>| Subject::Bin(of.datastore.clone(), vec![of.entry.clone()]);
    let entries = |Body(of): &Body<BinEmpty>| Subject::Bin(of.datastore.clone(), of.entries.clone());
    let list = get(ask(async |d, ()| Ok(d.datastore_list().await)));
    let bin =
        get(ask(async |d, (Extension(caller), Parameters(of)): (Extension<Caller>, Parameters<Which>)| {
            let mut all = d.bin_list(of.datastore).await?;
            all.retain(|entry| caller.reaches(entry.vm.as_str()));
            Ok(all)
        }));
    let of_copy =
        |(_, Parameters(of)): &(Parameter<u64>, Parameters<Which>)| Subject::Datastore(of.datastore.clone());
    let copied = accepted(post(about(of_copy, async |d, (Parameter(number), Parameters(of))| {
        d.source_copy(of.datastore, number).await
    })));
    let scrubbed = get(ask(async |d, Parameters(Which { datastore })| d.store_scrubbed(datastore)));
    Router::new()
        .route("/status", get(ask(async |d, ()| d.status().await)))
        .route("/datastores", list.merge(created(post(prepared(|core, Body(of)| core.datastore_add(of))))))
        .route(
            "/datastores/{name}",
            delete(about(added, async |d, Parameter(name)| d.datastore_remove(&name).await)),
        )
        .route(
            "/datastores/{name}/remove/preview",
            post(about(added, async |d, Parameter(name)| d.datastore_remove_preview(&name).await)),
        )
        .route("/sources", get(ask(async |d, ()| Ok(d.source_list()))))
        .route("/sources/{number}/copy", copied)
        .route("/bin", bin)
        .route("/bin/restore", post(about(entry, async |d, Body(of)| d.bin_restore(of).await)))
        .route("/bin/empty", post(about(entries, async |d, Body(of)| d.bin_empty(&of).await)))
        .route("/bin/empty/preview", post(about(entries, async |d, Body(of)| d.bin_empty_preview(&of).await)))
        .route("/check", post(about(which, async |d, Parameters(of)| d.store_check(of.datastore).await)))
        .route(
            "/scrub",
            scrubbed.merge(accepted(post(about(which, async |d, Parameters(of)| {
                d.store_scrub(of.datastore).await
            })))),
        )
}

fn vms() -> Router<Core> {
    let list = get(ask(
        async |d, (Extension(caller), Parameters(part)): (Extension<Caller>, Parameters<Part<VmName>>)| {
            let mut all = d.vm_list().await?;
            all.retain(|vm| caller.reaches(vm.name.as_str()));
            Ok(part.of(all, |vm| vm.name.clone()))
        },
    ));
    let show = get(vm(async |d, vm, ()| d.vm_show(&vm).await));
    let moving = |(Parameter(vm), Body(of)): &(Parameter<VmName>, Body<VmMove>)| {
        Subject::VmTo(vm.clone(), of.datastore.clone())
    };
    Router::new()
        .route("/import", created(post(prepared(|core, Body(of)| core.vm_import(of)))))
        .route("/vms", list.merge(created(post(prepared(|core, Body(of)| core.vm_create(of))))))
        .route(
            "/vms/{vm}",
            show.delete(prepared(|core, (Parameter(vm), Parameters(of))| core.vm_remove(vm, of))),
        )
        .route("/vms/{vm}/remove/preview", post(vm(async |d, vm, Body(of)| d.remove_preview(&vm, of).await)))
        .route("/vms/{vm}/space", get(vm(async |d, vm, ()| d.vm_space(&vm).await)))
        .route(
            "/vms/{vm}/clone",
            created(post(vm(
                async |d, vm, (Extension(caller), Body(of)): (Extension<Caller>, Body<VmClone>)| {
                    caller.check(&of.name)?;
                    d.vm_clone(&vm, of).await
                },
            ))),
        )
        .route(
            "/vms/{vm}/rename",
            post(vm(async |d, vm, (Extension(caller), Body(of)): (Extension<Caller>, Body<VmRename>)| {
                caller.check(&of.name)?;
                d.vm_rename(&vm, of).await
            })),
        )
        .route(
            "/vms/{vm}/defragment",
            accepted(post(vm(async |d, vm, Body(of)| d.vm_defragment(&vm, of).await))),
        )
        .route(
            "/vms/{vm}/move",
            accepted(post(about(moving, async |d, (Parameter(vm), Body(of))| d.vm_move(&vm, of).await))),
        )
        .route(
            "/vms/{vm}/move/preview",
            post(about(moving, async |d, (Parameter(vm), Body(of))| d.move_preview(&vm, &of).await)),
        )
        .route(
            "/vms/{vm}/close",
            post(vm(async |d, vm, Body(Disconnect { disconnect })| d.vm_close(&vm, disconnect).await)),
        )
        .route(
            "/vms/{vm}/open",
            post(prepared(|core, (Parameter(vm), Body(VmOpen { take_over }))| core.vm_open(vm, take_over))),
        )
        .route(
            "/vms/{vm}/snapshot-dir",
            put(prepared(|core, (Parameter(vm), Body(of))| core.vm_set_snapshot_dir(vm, of))),
        )
        .route(
            "/vms/{vm}/shared-writers",
            put(vm(async |d, vm, Body(SharedWriters { shared })| d.vm_set_shared_writers(&vm, shared).await)),
        )
        .route("/vms/{vm}/limits", put(vm(async |d, vm, Body(of)| d.vm_set_limits(&vm, of).await)))
        .route("/vms/{vm}/labels", put(vm(async |d, vm, Body(of)| d.vm_set_labels(&vm, of).await)))
        .route("/vms/{vm}/guest", put(vm(async |d, vm, Body(of)| d.vm_set_guest(&vm, of).await)))
        .route("/vms/{vm}/reset", post(vm(async |d, vm, Body(of)| d.vm_reset(&vm, of).await)))
        .route("/vms/{vm}/reset/preview", post(vm(async |d, vm, Body(of)| d.reset_preview(&vm, of).await)))
        .route(
            "/vms/{vm}/events",
            get(ask(async |d, (Parameter(vm), Parameters(part)): (_, Parameters<Part<u64>>)| {
                Ok(part.of(d.events(&vm)?, |event| event.id))
            })),
        )
}

fn disks() -> Router<Core> {
    Router::new()
        .route(
            "/vms/{vm}/disks",
            created(post(prepared(|core, (Parameter(vm), Body(of))| core.disk_add(vm, of)))),
        )
        .route(
            "/vms/{vm}/disks/{number}",
            delete(about(
                disk,
                async |d, (PartParameter(vm, number), Parameters(DiskRemove { delete_files }))| {
                    d.disk_remove(&vm, number, delete_files).await
                },
            )),
        )
        .route(
            "/vms/{vm}/disks/{number}/size",
            put(about(disk, async |d, (PartParameter(vm, number), Body(DiskGrow { size_bytes }))| {
                d.disk_grow(&vm, number, size_bytes).await
            })),
        )
        .route(
            "/vms/{vm}/disks/{number}/mode",
            put(about(disk, async |d, (PartParameter(vm, number), Body(DiskSetMode { mode }))| {
                d.disk_set_mode(&vm, number, mode).await
            })),
        )
}

fn disk<B>((PartParameter(vm, _), _): &(PartParameter<u32>, B)) -> Subject {
    Subject::Vm(vm.clone())
}

fn snapshots() -> Router<Core> {
    let tree = get(vm(async |d, vm, ()| d.snapshot_tree(&vm).await));
    Router::new()
        .route(
            "/vms/{vm}/snapshots",
            tree.merge(created(post(vm(
                async |d, vm, (Extension(caller), Body(of)): (Extension<Caller>, Body<SnapshotTake>)| {
                    d.snapshot_take(&vm, of, SnapshotLabel::of_caller(&caller.who)).await
                },
            )))),
        )
        .route(
            "/vms/{vm}/snapshots/rename",
            post(vm(async |d, vm, Body(of)| d.snapshot_rename(&vm, of).await)),
        )
        .route(
            "/vms/{vm}/memory/{snapshot}",
            get(about(
                |PartParameter(vm, _): &PartParameter<SnapshotRef>| Subject::Vm(vm.clone()),
                async |d, PartParameter(vm, snapshot)| d.snapshot_memory(&vm, &snapshot).await,
            )),
        )
        .route("/vms/{vm}/diff", post(vm(async |d, vm, Body(of)| d.snapshot_diff(&vm, of).await)))
        .route(
            "/vms/{vm}/commit",
            accepted(post(vm(async |d, vm, Body(of)| d.snapshot_commit(&vm, of).await))),
        )
        .route(
            "/vms/{vm}/revert",
            post(vm(async |d, vm, (Extension(caller), Body(of)): (Extension<Caller>, Body<Revert>)| {
                d.snapshot_revert(&vm, of, SnapshotLabel::of_caller(&caller.who)).await
            })),
        )
        .route("/vms/{vm}/revert/preview", post(vm(async |d, vm, Body(of)| d.revert_preview(&vm, of).await)))
        .route("/vms/{vm}/discard", post(vm(async |d, vm, Body(of)| d.snapshot_discard(&vm, of).await)))
        .route(
            "/vms/{vm}/discard/preview",
            post(vm(async |d, vm, Body(of)| d.discard_preview(&vm, of).await)),
        )
        .route("/vms/{vm}/undo", post(vm(async |d, vm, Body(of)| d.snapshot_undo(&vm, of).await)))
        .route("/vms/{vm}/undo/preview", post(vm(async |d, vm, Body(of)| d.undo_preview(&vm, of).await)))
}

fn jobs() -> Router<Core> {
    Router::new()
        .route(
            "/jobs",
            get(
                ask(
                    async |d,
                           (Extension(caller), Parameters(part)): (
                        Extension<Caller>,
                        Parameters<Part<u64>>,
                    )| {
                        let mut all = d.job_list().await;
                        all.retain(|job| caller.reaches_job(job));
                        Ok(part.of(all, |job| job.id))
                    },
                ),
            ),
        )
        .route(
            "/jobs/{id}",
            get(ask(async |d, (Extension(caller), Parameter(id)): (Extension<Caller>, Parameter<u64>)| {
                let job = d.job_do(id, |_| Ok(())).await?;
                if caller.reaches_job(&job) {
                    Ok(job)
                } else {
                    Err(caller.forbidden("the job is of another VM"))
                }
            })),
        )
        .route("/jobs/{id}/pause", post(ask(async |d, Parameter(id)| d.job_do(id, |job| job.pause()).await)))
        .route(
            "/jobs/{id}/resume",
            post(ask(async |d, Parameter(id)| d.job_do(id, |job| job.resume()).await)),
        )
        .route(
            "/jobs/{id}/cancel",
            post(about(|Parameter(id)| Subject::Job(*id), async |d, Parameter(id)| d.job_cancel(id).await)),
        )
        .route(
            "/jobs/{id}/limit",
            put(ask(async |d, (Parameter(id), Body(JobLimit { limit_bytes_s }))| {
                d.job_do(id, |job| job.set_limit(limit_bytes_s.unwrap_or(0))).await
            })),
        )
}

/// The policies are on file in the main datastore.
fn main_datastore<Q>(_: &Q) -> Subject {
    Subject::Datastore(None)
}

fn policies() -> Router<Core> {
    let create =
        about(main_datastore, async |d, (Extension(caller), Body(of)): (Extension<Caller>, Body<Policy>)| {
            d.policy_create(of, caller.who).await
        });
    let set = about(
        main_datastore,
        async |d: Rc<Daemon>, of: (Parameter<PolicyName>, Extension<Caller>, Body<Policy>)| {
            let (Parameter(name), Extension(caller), Body(policy)) = of;
            d.policy_set(&name, policy, caller.who).await
        },
    );
    let show = get(ask(async |d, Parameter(name)| d.policy_show(&name).await));
    Router::new()
        .route("/policies", get(ask(async |d, ()| d.policy_list().await)).merge(created(post(create))))
        .route("/policies/preview", post(ask(async |d, Body(of)| d.policy_preview(of).await)))
        .route(
            "/policies/{name}",
            show.put(set).delete(about(
                |_| Subject::Datastore(None),
                async |d, Parameter(name)| d.policy_remove(&name).await,
            )),
        )
        .route(
            "/policies/{name}/apply",
            post(ask(async |d, (Parameter(name), Body(of))| d.policy_apply(&name, of).await)),
        )
}

fn access_routes() -> Router<Arc<Access>> {
    Router::new()
        .route("/tokens", get(token_list).post(token_create))
        .route("/tokens/{name}", delete(token_revoke))
        .route("/audit", get(audit))
        .route("/console", post(console_link))
}

/// Makes a link that logs in a browser as the caller, once and within a minute.
async fn console_link(
    State(access): State<Arc<Access>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ConsoleLink>, Failure> {
    answer(access.console_link(caller).await)
}

async fn token_list(State(access): State<Arc<Access>>) -> Result<Json<Vec<Token>>, Failure> {
    answer(access.tokens.list())
}

async fn token_create(
    State(access): State<Arc<Access>>,
    Extension(caller): Extension<Caller>,
    Body(of): Body<TokenCreate>,
) -> Result<(StatusCode, Json<TokenCreated>), Failure> {
    let created = access.tokens.create(&access.core, of, caller.who).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

async fn token_revoke(
    State(access): State<Arc<Access>>,
    Parameter(name): Parameter<TokenName>,
) -> Result<Json<Token>, Failure> {
    let revoked = access.tokens.revoke(&access.core, &name).await?;
    access.sessions.end_all_of(&token_name(&name));
    Ok(Json(revoked))
}

async fn audit(
    State(access): State<Arc<Access>>,
    Parameters(Last { last }): Parameters<Last>,
) -> Result<Json<Vec<AuditEntry>>, Failure> {
    if last > ENTRIES_MAX {
        return Err(malformed(format!("last={last}: expected at most {ENTRIES_MAX}")));
    }
    // It reads files.
    let read = tokio::task::spawn_blocking(move || access.audit.last(last)).await;
    answer(read.unwrap_or_else(|e| Err(Error::failed(format!("reading the audit: {e}")))))
}

/// Handler that answers with what `operation` returns on the core's thread. `Q` is what the request says, and `subject`
/// is what the operation needs for its answer.
fn about<M: 'static, Q: FromRequest<Core, M> + Send + 'static, T: Serialize + Send + 'static>(
    subject: fn(&Q) -> Subject,
    operation: impl AsyncFn(Rc<Daemon>, Q) -> Result<T> + Copy + Send + Sync + 'static,
) -> impl Handler<(M, State<Core>, Q), Core> {
    prepared(move |core, of| async move {
        core.ask(subject(&of), async move |daemon| operation(daemon, of).await).await
    })
}

/// Handler of an operation that needs nothing that may hang.
fn ask<M: 'static, Q: FromRequest<Core, M> + Send + 'static, T: Serialize + Send + 'static>(
    operation: impl AsyncFn(Rc<Daemon>, Q) -> Result<T> + Copy + Send + Sync + 'static,
) -> impl Handler<(M, State<Core>, Q), Core> {
    about(|_| Subject::None, operation)
}

/// Handler of an operation on a VM.
fn vm<M: 'static, Q: FromRequest<Core, M> + Send + 'static, T: Serialize + Send + 'static>(
    operation: impl AsyncFn(Rc<Daemon>, VmName, Q) -> Result<T> + Copy + Send + Sync + 'static,
) -> impl Handler<(M, State<Core>, Parameter<VmName>, Q), Core> {
    move |State(core): State<Core>, Parameter(vm): Parameter<VmName>, of: Q| async move {
        let subject = Subject::Vm(vm.clone());
        answer(core.ask(subject, async move |daemon| operation(daemon, vm, of).await).await)
    }
}

/// Handler of an operation that is prepared on the API's thread before the core carries it out.
fn prepared<M: 'static, Q: FromRequest<Core, M> + Send + 'static, T: Serialize + Send + 'static, F>(
    operation: impl Fn(Core, Q) -> F + Copy + Send + Sync + 'static,
) -> impl Handler<(M, State<Core>, Q), Core>
where
    F: Future<Output = Result<T>> + Send,
{
    move |State(core): State<Core>, of: Q| async move { answer(operation(core, of).await) }
}

/// Success is JSON with status 200; failure is an `ErrorBody` with the kind's status.
fn answer<T>(result: Result<T>) -> Result<Json<T>, Failure> {
    result.map(Json).map_err(Failure)
}
