//! Routes of a VM's disks.

use api::name::VmName;
use api::{DiskCreate, DiskGrow, DiskSetMode};
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::{Answer, Body, DiskParameter, Parameter, Parameters, Shared, answer};

pub async fn add(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(disk): Body<DiskCreate>,
) -> Answer<impl Serialize> {
    answer(control.disk_add(vm, disk).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    #[serde(default)]
    delete_files: bool,
}

pub async fn remove(
    State(control): Shared,
    DiskParameter(vm, number): DiskParameter,
    Parameters(remove): Parameters<Remove>,
) -> Answer<impl Serialize> {
    answer(control.disk_remove(vm, number, remove.delete_files).await)
}

pub async fn grow(
    State(control): Shared,
    DiskParameter(vm, number): DiskParameter,
    Body(request): Body<DiskGrow>,
) -> Answer<impl Serialize> {
    answer(control.disk_grow(vm, number, request.size_bytes).await)
}

pub async fn set_mode(
    State(control): Shared,
    DiskParameter(vm, number): DiskParameter,
    Body(request): Body<DiskSetMode>,
) -> Answer<impl Serialize> {
    answer(control.disk_set_mode(vm, number, request.mode).await)
}
