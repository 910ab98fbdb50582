//! Routes of a VM's snapshots.

use api::name::VmName;
use api::{CommitTarget, Diff, Discard, Reset, Revert, SnapshotTake};
use axum::extract::State;
use serde::Serialize;

use super::{Answer, Body, Parameter, Shared, answer};

pub async fn tree(State(control): Shared, Parameter(vm): Parameter<VmName>) -> Answer<impl Serialize> {
    answer(control.snapshot_tree(vm).await)
}

pub async fn take(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<SnapshotTake>,
) -> Answer<impl Serialize> {
    answer(control.snapshot_take(vm, request).await)
}

pub async fn diff(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Diff>,
) -> Answer<impl Serialize> {
    answer(control.snapshot_diff(vm, request).await)
}

pub async fn commit_preview(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(target): Body<CommitTarget>,
) -> Answer<impl Serialize> {
    answer(control.commit_preview(vm, target).await)
}

pub async fn commit(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(target): Body<CommitTarget>,
) -> Answer<impl Serialize> {
    answer(control.snapshot_commit(vm, target).await)
}

pub async fn revert_preview(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Revert>,
) -> Answer<impl Serialize> {
    answer(control.revert_preview(vm, request).await)
}

pub async fn revert(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Revert>,
) -> Answer<impl Serialize> {
    answer(control.snapshot_revert(vm, request).await)
}

pub async fn discard_preview(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Discard>,
) -> Answer<impl Serialize> {
    answer(control.discard_preview(vm, request).await)
}

pub async fn discard(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Discard>,
) -> Answer<impl Serialize> {
    answer(control.snapshot_discard(vm, request).await)
}

pub async fn undo_preview(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Reset>,
) -> Answer<impl Serialize> {
    answer(control.undo_preview(vm, request).await)
}

pub async fn undo(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<Reset>,
) -> Answer<impl Serialize> {
    answer(control.snapshot_undo(vm, request).await)
}
