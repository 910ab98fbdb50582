//! What the console's forms do: a preview with a confirmation for what loses something, and the operations themselves. Each
//! needs the same right as the route of the API, and has the same entry in the audit.

use std::rc::Rc;
use std::sync::Arc;

use api::error::{Error, Result};
use api::name::{SnapshotRef, VmName};
use api::units::{format_bytes, format_seconds};
use api::{CommitPreview, CommitTarget, Discard, Loss, Reset, Revert, SnapshotTake, VmClone};
use axum::extract::{Extension, Form, Path, State};
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use super::browser::Browser;
use super::page::{Page, form_key};
use crate::access::authorize::Access;
use crate::access::rights;
use crate::access::sessions::Notice;
use crate::daemon::{Daemon, Subject};

/// The fields of all forms. A browser sends each that its form has.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Sent {
    pub form_key: String,
    pub verb: String,
    pub snapshot: String,
    pub name: String,
    pub message: String,
    pub size: String,
    pub store: String,
    /// Entry of the bin.
    pub entry: String,
    /// `yes`: the sessions of the running disks are ended first.
    pub disconnect: String,
    /// `yes`: the preview said that the bin keeps the state, so nothing else may happen.
    pub keep: String,
}

impl Sent {
    fn snapshot(&self) -> Result<SnapshotRef> {
        self.snapshot.parse().map_err(Error::invalid)
    }

    fn target(&self) -> Result<CommitTarget> {
        match self.verb.as_str() {
            "commit" => self.snapshot().map(CommitTarget::Snapshot),
            "commit-all" => Ok(CommitTarget::All),
            _ => Ok(CommitTarget::Unowned),
        }
    }

    fn revert(&self) -> Result<Revert> {
        let (disconnect, keep) = (self.disconnect == "yes", self.keep == "yes");
        Ok(Revert { snapshot: Some(self.snapshot()?), take_first: None, disconnect, purge: false, keep })
    }

    fn discard(&self) -> Result<Discard> {
        let (disconnect, keep) = (self.disconnect == "yes", self.keep == "yes");
        Ok(Discard { snapshot: self.snapshot()?, disconnect, purge: false, keep })
    }

    fn reset(&self) -> Reset {
        Reset { disconnect: self.disconnect == "yes", purge: false, keep: self.keep == "yes" }
    }
}

fn parse_vm(text: &str) -> Result<VmName> {
    text.parse().map_err(Error::invalid)
}

pub(super) async fn take(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Path(vm): Path<String>,
    Form(sent): Form<Sent>,
) -> Response {
    let done = async {
        let vm = parse_vm(&vm)?;
        let request =
            SnapshotTake { name: sent.name.parse().map_err(Error::invalid)?, message: sent.message.clone() };
        api::name::check_message(&request.message).map_err(Error::invalid)?;
        let body = json!(request);
        let operation = async move |d: Rc<Daemon>, vm: VmName| d.snapshot_take(&vm, request).await;
        let taken = act(&access, &browser, &sent, "/vms/{vm}/snapshots", &vm, body, operation).await?;
        let stun = api::units::format_us(taken.stun_us);
        Ok(format!("Snapshot {} is taken; the guest waited {stun}.", taken.snapshot.name))
    };
    browser.back_to(&format!("/vms/{vm}"), &access, done.await)
}

pub(super) async fn clone(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Path(vm): Path<String>,
    Form(sent): Form<Sent>,
) -> Response {
    let done = async {
        let vm = parse_vm(&vm)?;
        let request =
            VmClone { snapshot: sent.snapshot()?, name: sent.name.parse().map_err(Error::invalid)? };
        browser.session.caller.check(&request.name)?;
        let body = json!(request);
        let operation = async move |d: Rc<Daemon>, vm: VmName| d.vm_clone(&vm, request).await;
        let made = act(&access, &browser, &sent, "/vms/{vm}/clone", &vm, body, operation).await?;
        Ok(format!("VM {} is a clone of {vm}.", made.name))
    };
    browser.back_to(&format!("/vms/{vm}"), &access, done.await)
}

/// Carries out an operation on a VM, if the caller may.
async fn act<T: Send + 'static>(
    access: &Access,
    browser: &Browser,
    sent: &Sent,
    route: &str,
    vm: &VmName,
    body: Value,
    operation: impl AsyncFnOnce(Rc<Daemon>, VmName) -> Result<T> + Send + 'static,
) -> Result<T> {
    browser.check(&sent.form_key)?;
    let right = rights::needed(&Method::POST, route);
    let path = route.replace("{vm}", vm.as_str());
    let (subject, name) = (Subject::Vm(vm.clone()), vm.clone());
    let work = access.core.ask(subject, async move |daemon| operation(daemon, name).await);
    access.act(&browser.session.caller, &browser.origin, (right, path, Some(vm.clone())), body, work).await
}

/// What a preview says.
enum Preview {
    Commit(CommitPreview),
    Loss(Loss),
}

/// Shows what an operation would do, with the form that carries it out.
pub(super) async fn preview(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Path(vm): Path<String>,
    Form(sent): Form<Sent>,
) -> Response {
    let looked = async {
        let vm = parse_vm(&vm)?;
        Ok((look(&access, &browser, &sent, &vm).await?, vm))
    };
    match looked.await {
        Ok((preview, vm)) => {
            let (title, body) =
                (format!("{} {vm}?", verb_shown(&sent.verb)), question(&preview, &sent, &vm, &browser));
            let page = Page { title: &title, session: &browser.session, is_live: false, notice: None };
            page.with(&body).into_response()
        }
        Err(error) => browser.back_to(&format!("/vms/{vm}"), &access, Err(error)),
    }
}

async fn look(access: &Access, browser: &Browser, sent: &Sent, vm: &VmName) -> Result<Preview> {
    match sent.verb.as_str() {
        "commit" | "commit-all" | "consolidate" => {
            let (target, body) = (sent.target()?, json!(null));
            let operation = async move |d: Rc<Daemon>, vm: VmName| d.commit_preview(&vm, target).await;
            act(access, browser, sent, "/vms/{vm}/commit/preview", vm, body, operation)
                .await
                .map(Preview::Commit)
        }
        "revert" => {
            let request = sent.revert()?;
            let operation = async move |d: Rc<Daemon>, vm: VmName| d.revert_preview(&vm, request).await;
            act(access, browser, sent, "/vms/{vm}/revert/preview", vm, json!(null), operation)
                .await
                .map(Preview::Loss)
        }
        "discard" => {
            let request = sent.discard()?;
            let operation = async move |d: Rc<Daemon>, vm: VmName| d.discard_preview(&vm, request).await;
            act(access, browser, sent, "/vms/{vm}/discard/preview", vm, json!(null), operation)
                .await
                .map(Preview::Loss)
        }
        "undo" => {
            let request = sent.reset();
            let operation = async move |d: Rc<Daemon>, vm: VmName| d.undo_preview(&vm, request).await;
            act(access, browser, sent, "/vms/{vm}/undo/preview", vm, json!(null), operation)
                .await
                .map(Preview::Loss)
        }
        other => Err(Error::invalid(format!("{other:?}: expected commit, revert, discard or undo"))),
    }
}

fn verb_shown(verb: &str) -> &'static str {
    match verb {
        "commit" => "Commit a snapshot of",
        "commit-all" => "Commit all snapshots of",
        "consolidate" => "Consolidate",
        "revert" => "Revert",
        "discard" => "Discard a snapshot of",
        _ => "Undo the last loss of",
    }
}

fn question(preview: &Preview, sent: &Sent, vm: &VmName, browser: &Browser) -> Markup {
    let (keeps, clients) = match preview {
        Preview::Commit(_) => (false, &[][..]),
        Preview::Loss(loss) => (loss.kept_until.is_some(), loss.clients.as_slice()),
    };
    html! {
        @match preview {
            Preview::Commit(commit) => (commit_facts(commit)),
            Preview::Loss(loss) => (loss_facts(loss)),
        }
        form.row method="post" action=(format!("/vms/{vm}/confirm")) {
            (form_key(&browser.session))
            input type="hidden" name="verb" value=(sent.verb);
            input type="hidden" name="snapshot" value=(sent.snapshot);
            @if keeps { input type="hidden" name="keep" value="yes"; }
            @if !clients.is_empty() {
                label { span { input type="checkbox" name="disconnect" value="yes" required; " Disconnect these clients first" } }
            }
            button.loss { (verb_shown(&sent.verb)) " " (vm) }
            a href=(format!("/vms/{vm}")) { "Change nothing" }
        }
    }
}

fn commit_facts(preview: &CommitPreview) -> Markup {
    html! {
        dl {
            dt { "Snapshots" } dd { (preview.snapshots.join(", ")) }
            dt { "To move" } dd { (format_bytes(preview.bytes_to_move)) }
            dt { "To free" } dd { (format_bytes(preview.bytes_freed)) }
            dt { "Time" } dd { (preview.estimated_s.map_or("unknown before this daemon's first commit".to_owned(), |s| {
                format!("about {}", format_seconds(s))
            })) }
        }
        @for stays in &preview.stays { p.notice { (stays) } }
        p.notice { strong { (preview.warning) } }
    }
}

fn loss_facts(loss: &Loss) -> Markup {
    html! {
        dl {
            @if let Some(target) = &loss.target { dt { "Target" } dd { (target) } }
            @if !loss.snapshots.is_empty() { dt { "Removed snapshots" } dd { (loss.snapshots.join(", ")) } }
            dt { "Bytes" } dd { (format_bytes(loss.bytes_lost)) }
            @if let Some(cause) = &loss.not_kept { dt { "Not kept" } dd { (cause) } }
        }
        p.notice { strong { (loss.warning) } }
        @if !loss.clients.is_empty() {
            p.notice.fault { "Clients use the running disks. Power the guest off, or disconnect them:" }
            ul { @for client in &loss.clients { li { (client) } } }
        }
    }
}

/// Carries out what a preview has shown.
pub(super) async fn confirm(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Path(vm): Path<String>,
    Form(sent): Form<Sent>,
) -> Response {
    let done = async {
        let vm = parse_vm(&vm)?;
        carry_out(&access, &browser, &sent, &vm).await
    };
    browser.back_to(&format!("/vms/{vm}"), &access, done.await)
}

async fn carry_out(access: &Access, browser: &Browser, sent: &Sent, vm: &VmName) -> Result<String> {
    match sent.verb.as_str() {
        "commit" | "commit-all" | "consolidate" => {
            let target = sent.target()?;
            let body = json!(target);
            let operation = async move |d: Rc<Daemon>, vm: VmName| d.snapshot_commit(&vm, target).await;
            let job = act(access, browser, sent, "/vms/{vm}/commit", vm, body, operation).await?;
            Ok(format!("Job {} commits.", job.id))
        }
        "revert" => {
            let (request, body) = (sent.revert()?, json!(sent.revert()?));
            let operation = async move |d: Rc<Daemon>, vm: VmName| d.snapshot_revert(&vm, request).await;
            act(access, browser, sent, "/vms/{vm}/revert", vm, body, operation).await.map(|loss| loss.warning)
        }
        "discard" => {
            let (request, body) = (sent.discard()?, json!(sent.discard()?));
            let operation = async move |d: Rc<Daemon>, vm: VmName| d.snapshot_discard(&vm, request).await;
            act(access, browser, sent, "/vms/{vm}/discard", vm, body, operation)
                .await
                .map(|loss| loss.warning)
        }
        "undo" => {
            let (request, body) = (sent.reset(), json!(sent.reset()));
            let operation = async move |d: Rc<Daemon>, vm: VmName| d.snapshot_undo(&vm, request).await;
            act(access, browser, sent, "/vms/{vm}/undo", vm, body, operation).await.map(|loss| loss.warning)
        }
        other => Err(Error::invalid(format!("{other:?}: expected commit, revert, discard or undo"))),
    }
}

/// Pauses, resumes or cancels a job.
pub(super) async fn job(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Path(id): Path<u64>,
    Form(sent): Form<Sent>,
) -> Response {
    let done = async {
        browser.check(&sent.form_key)?;
        let route = format!("/jobs/{{id}}/{}", sent.verb);
        let right = rights::needed(&Method::POST, &route);
        let (verb, subject) = (sent.verb.clone(), Subject::Job(id));
        let change = async move |daemon: Rc<Daemon>| match verb.as_str() {
            "pause" => daemon.job_do(id, |job| job.pause()).await,
            "resume" => daemon.job_do(id, |job| job.resume()).await,
            "cancel" => daemon.job_cancel(id).await,
            other => Err(Error::invalid(format!("{other:?}: expected pause, resume or cancel"))),
        };
        let (path, work) = (route.replace("{id}", &id.to_string()), access.core.ask(subject, change));
        let caller = &browser.session.caller;
        let job = access.act(caller, &browser.origin, (right, path, None), json!(null), work).await?;
        Ok(format!("Job {id} is {}.", job.state.as_str()))
    };
    browser.back_to("/", &access, done.await)
}

impl Browser {
    /// Answers a form: the next page shows what was done, or why nothing was.
    pub(super) fn back_to(&self, page: &str, access: &Access, done: Result<String>) -> Response {
        let notice = done.map_or_else(|error| Notice::Fault(error.message), Notice::Done);
        access.sessions.tell(&self.secret, notice);
        Redirect::to(page).into_response()
    }
}
