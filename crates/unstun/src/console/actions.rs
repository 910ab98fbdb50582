//! Forms that lose nothing: snapshots are taken, renamed and cloned, jobs paused, limited and cancelled.

use std::rc::Rc;

use api::error::Error;
use api::units::{format_rate, format_us, parse_rate};
use api::{JobLimit, SnapshotRename, SnapshotTake, VmClone};
use axum::extract::Path;
use axum::response::Response;
use serde_json::Value;

use super::request::{FormRequest, Route, parse_vm};
use super::sent::invalid;
use crate::daemon::{Daemon, SnapshotLabel, Subject};

pub(super) async fn take(Path(vm): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let vm = parse_vm(&vm)?;
        let (name, message) = (form.sent.parsed("name")?, form.sent.text("message").to_owned());
        let (quiesce, memory) = (form.sent.quiesce()?, form.sent.is_ticked("memory"));
        let request = SnapshotTake { message, quiesce, memory, ..SnapshotTake::named(name) };
        request.check().map_err(invalid)?;
        let label = SnapshotLabel::of_caller(&form.page.session().caller.who);
        let take = async move |d: Rc<Daemon>, vm, of| d.snapshot_take(&vm, of, label).await;
        let taken = form.on_vm("/vms/{vm}/snapshots", &vm, request, take).await?;
        let stun = format_us(taken.stun_us);
        let guest =
            taken.quiesced.map_or(String::new(), |quiesced| format!(" Guest: {}.", quiesced.sentence()));
        let memory = taken.memory.map_or(String::new(), |memory| format!(" Memory: {}.", memory.sentence()));
        Ok(format!("Snapshot {} is taken; the guest waited {stun}.{guest}{memory}", taken.snapshot.name))
    };
    form.answer(&format!("/vms/{vm}"), done).await
}

/// Gives a snapshot another name, another description, or both.
pub(super) async fn rename(Path(vm): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let vm = parse_vm(&vm)?;
        let (snapshot, name) = (form.sent.parsed("snapshot")?, Some(form.sent.parsed("name")?));
        let request = SnapshotRename { snapshot, name, message: Some(form.sent.text("message").to_owned()) };
        request.check().map_err(invalid)?;
        let rename = async |d: Rc<Daemon>, vm, of| d.snapshot_rename(&vm, of).await;
        let renamed = form.on_vm("/vms/{vm}/snapshots/rename", &vm, request, rename).await?;
        Ok(format!("The snapshot has the name {}.", renamed.name))
    };
    form.answer(&format!("/vms/{vm}"), done).await
}

pub(super) async fn clone(Path(vm): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let vm = parse_vm(&vm)?;
        let request = VmClone { snapshot: form.sent.parsed("snapshot")?, name: form.sent.parsed("name")? };
        form.page.session().caller.check(&request.name)?;
        let clone = async |d: Rc<Daemon>, vm, of| d.vm_clone(&vm, of).await;
        let made = form.on_vm("/vms/{vm}/clone", &vm, request, clone).await?;
        Ok(format!("VM {} is a clone of {vm}.", made.name))
    };
    form.answer(&format!("/vms/{vm}"), done).await
}

/// Pauses, resumes or cancels a job.
pub(super) async fn job(Path(id): Path<u64>, form: FormRequest) -> Response {
    let done = async {
        let verb = form.sent.text("verb").to_owned();
        let name = format!("/jobs/{{id}}/{verb}");
        let change = async move |daemon: Rc<Daemon>| match verb.as_str() {
            "pause" => daemon.job_do(id, |job| job.pause()).await,
            "resume" => daemon.job_do(id, |job| job.resume()).await,
            "cancel" => daemon.job_cancel(id).await,
            other => Err(Error::invalid(format!("{other:?}: expected pause, resume or cancel"))),
        };
        let work = form.page.ask(Subject::Job(id), change);
        let job = form.act(Route::to(&name, "{id}", &id.to_string()), &Value::Null, work).await?;
        Ok(format!("Job {id} is {}.", job.state.as_str()))
    };
    form.answer("/", done).await
}

/// Limits the rate of a job, or lifts the limit.
pub(super) async fn limit_job(Path(id): Path<u64>, form: FormRequest) -> Response {
    let done = async {
        let limit_bytes_s = parse_rate(form.sent.text("rate")).map_err(invalid)?;
        let limit = async move |daemon: Rc<Daemon>| {
            daemon.job_do(id, |job| job.set_limit(limit_bytes_s.unwrap_or(0))).await
        };
        let work = form.page.ask(Subject::None, limit);
        let route = Route::to("PUT /jobs/{id}/limit", "{id}", &id.to_string());
        let job = form.act(route, &JobLimit { limit_bytes_s }, work).await?;
        Ok(match job.limit_bytes_s {
            Some(limit) => format!("Job {id} is limited to {}.", format_rate(limit)),
            None => format!("Job {id} has no limit."),
        })
    };
    form.answer("/", done).await
}
