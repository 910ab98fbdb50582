//! Routes of datastores, and of the stores in them.

use api::DatastoreAdd;
use api::name::DatastoreName;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::{Answer, Body, Parameter, Parameters, Shared, answer};

/// Query that names a datastore. Null or absent means the main one, or for the bin all of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    #[serde(default)]
    pub datastore: Option<DatastoreName>,
}

pub async fn check(State(control): Shared, Parameters(which): Parameters<Which>) -> Answer<impl Serialize> {
    answer(control.store_check(which.datastore).await)
}

pub async fn scrub(State(control): Shared, Parameters(which): Parameters<Which>) -> Answer<impl Serialize> {
    answer(control.store_scrub(which.datastore).await)
}

pub async fn scrubbed(
    State(control): Shared,
    Parameters(which): Parameters<Which>,
) -> Answer<impl Serialize> {
    answer(control.store_scrubbed(which.datastore).await)
}

pub async fn list(State(control): Shared) -> Answer<impl Serialize> {
    answer(control.datastore_list().await)
}

pub async fn add(State(control): Shared, Body(request): Body<DatastoreAdd>) -> Answer<impl Serialize> {
    answer(control.datastore_add(request).await)
}

pub async fn remove(
    State(control): Shared,
    Parameter(name): Parameter<DatastoreName>,
) -> Answer<impl Serialize> {
    answer(control.datastore_remove(name).await)
}

pub async fn remove_preview(
    State(control): Shared,
    Parameter(name): Parameter<DatastoreName>,
) -> Answer<impl Serialize> {
    answer(control.datastore_remove_preview(name).await)
}
