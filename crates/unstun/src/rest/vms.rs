//! Routes of VMs.

use api::name::VmName;
use api::{
    Disconnect, Reset, SharedWriters, SnapshotDir, VmClone, VmCreate, VmImport, VmMove, VmOpen, VmRemove,
};
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::{Answer, Body, Parameter, Parameters, Shared, answer};

pub async fn list(State(control): Shared) -> Answer<impl Serialize> {
    answer(control.vm_list().await)
}

pub async fn create(State(control): Shared, Body(request): Body<VmCreate>) -> Answer<impl Serialize> {
    answer(control.vm_create(request).await)
}

pub async fn import(State(control): Shared, Body(request): Body<VmImport>) -> Answer<impl Serialize> {
    answer(control.vm_import(request).await)
}

pub async fn show(State(control): Shared, Parameter(vm): Parameter<VmName>) -> Answer<impl Serialize> {
    answer(control.vm_show(vm).await)
}

pub async fn space(State(control): Shared, Parameter(vm): Parameter<VmName>) -> Answer<impl Serialize> {
    answer(control.vm_space(vm).await)
}

pub async fn clone(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<VmClone>,
) -> Answer<impl Serialize> {
    answer(control.vm_clone(vm, request).await)
}

pub async fn relocate(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<VmMove>,
) -> Answer<impl Serialize> {
    answer(control.vm_move(vm, request).await)
}

pub async fn close(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Disconnect>,
) -> Answer<impl Serialize> {
    answer(control.vm_close(vm, request.disconnect).await)
}

pub async fn open(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<VmOpen>,
) -> Answer<impl Serialize> {
    answer(control.vm_open(vm, request.take_over).await)
}

pub async fn set_snapshot_dir(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<SnapshotDir>,
) -> Answer<impl Serialize> {
    answer(control.vm_set_snapshot_dir(vm, request).await)
}

pub async fn set_shared_writers(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<SharedWriters>,
) -> Answer<impl Serialize> {
    answer(control.vm_set_shared_writers(vm, request.shared).await)
}

pub async fn reset_preview(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Reset>,
) -> Answer<impl Serialize> {
    answer(control.reset_preview(vm, request).await)
}

pub async fn reset(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Reset>,
) -> Answer<impl Serialize> {
    answer(control.vm_reset(vm, request).await)
}

pub async fn remove(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Parameters(request): Parameters<VmRemove>,
) -> Answer<impl Serialize> {
    answer(control.vm_remove(vm, request).await)
}

pub async fn remove_preview(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<VmRemove>,
) -> Answer<impl Serialize> {
    answer(control.vm_remove_preview(vm, request).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    #[serde(default)]
    after: u64,
}

pub async fn events(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Parameters(query): Parameters<After>,
) -> Answer<impl Serialize> {
    answer(control.events(vm, query.after).await)
}
