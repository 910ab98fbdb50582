//! Routes of the bin.

use api::{BinEmpty, BinRestore};
use axum::extract::State;
use serde::Serialize;

use super::datastores::Which;
use super::{Answer, Body, Parameters, Shared, answer};

pub async fn list(State(control): Shared, Parameters(which): Parameters<Which>) -> Answer<impl Serialize> {
    answer(control.bin_list(which.datastore).await)
}

pub async fn restore(State(control): Shared, Body(request): Body<BinRestore>) -> Answer<impl Serialize> {
    answer(control.bin_restore(request).await)
}

pub async fn empty_preview(State(control): Shared, Body(request): Body<BinEmpty>) -> Answer<impl Serialize> {
    answer(control.bin_empty_preview(request).await)
}

pub async fn empty(State(control): Shared, Body(request): Body<BinEmpty>) -> Answer<impl Serialize> {
    answer(control.bin_empty(request).await)
}
