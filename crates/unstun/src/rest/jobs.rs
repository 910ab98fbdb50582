//! Routes of jobs.

use api::JobLimit;
use axum::extract::State;
use serde::Serialize;

use super::{Answer, Body, Parameter, Shared, answer};

pub async fn list(State(control): Shared) -> Answer<impl Serialize> {
    answer(control.job_list().await)
}

pub async fn show(State(control): Shared, Parameter(id): Parameter<u64>) -> Answer<impl Serialize> {
    answer(control.job_show(id).await)
}

pub async fn pause(State(control): Shared, Parameter(id): Parameter<u64>) -> Answer<impl Serialize> {
    answer(control.job_pause(id).await)
}

pub async fn resume(State(control): Shared, Parameter(id): Parameter<u64>) -> Answer<impl Serialize> {
    answer(control.job_resume(id).await)
}

pub async fn cancel(State(control): Shared, Parameter(id): Parameter<u64>) -> Answer<impl Serialize> {
    answer(control.job_cancel(id).await)
}

pub async fn limit(
    State(control): Shared,
    Parameter(id): Parameter<u64>,
    Body(limit): Body<JobLimit>,
) -> Answer<impl Serialize> {
    answer(control.job_limit(id, limit.limit_bytes_s).await)
}
