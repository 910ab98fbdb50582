//! What the console's forms do: a preview with a confirmation for what loses something, and the operations themselves. Each
//! needs the same right as the route of the API, and has the same entry in the audit.

use std::rc::Rc;
use std::sync::Arc;

use api::error::{Error, Result};
use api::name::{SnapshotRef, VmName};
use api::units::format_bytes;
use api::{CommitPreview, CommitTarget, Discard, Loss, Quiesce, Reset, Revert, SnapshotTake, VmClone};
use axum::extract::{Extension, Form, Path, State};
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use super::browser::Browser;
use super::page::{Page, form_key};
use super::shown::Shown;
use crate::access::authorize::Access;
use crate::access::rights;
use crate::access::sessions::Notice;
use crate::daemon::{Daemon, SnapshotLabel, Subject};

/// The fields of all forms. A browser sends each that its form has.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Sent {
    pub form_key: String,
    pub verb: String,
    pub snapshot: String,
    pub name: String,
    pub message: String,
    pub quiesce: String,
    /// `yes`: the guest's memory is saved too.
    pub memory: String,
    pub size: String,
    pub store: String,
    pub note: String,
    /// Parts of a new policy.
    pub schedule: String,
    pub days: String,
    pub vms: String,
    /// How long an alarm is muted.
    pub time: String,
    /// Entry of the bin.
    pub entry: String,
    /// `yes`: the sessions of the running disks are ended first.
    pub disconnect: String,
    /// `yes`: the preview said that the bin keeps the state, so nothing else may happen.
    pub keep: String,
}

/// What a preview shows and a confirmation carries out.
enum Change {
    Commit(CommitTarget),
    Revert(Revert),
    Discard(Discard),
    Undo(Reset),
}

/// What a preview says.
enum Preview {
    Commit(CommitPreview),
    Loss(Loss),
}

impl Sent {
    fn snapshot(&self) -> Result<SnapshotRef> {
        self.snapshot.parse().map_err(Error::invalid)
    }

    /// Returns whether guests are to be frozen; a form without the field does not ask for it.
    pub(super) fn quiesce(&self) -> Result<Quiesce> {
        match self.quiesce.as_str() {
            "" | "no" => Ok(Quiesce::No),
            "try" => Ok(Quiesce::Try),
            "require" => Ok(Quiesce::Require),
            other => Err(Error::invalid(format!("quiesce: found {other:?}, expected no, try or require"))),
        }
    }

    fn change(&self) -> Result<Change> {
        let (disconnect, keep, purge) = (self.disconnect == "yes", self.keep == "yes", false);
        Ok(match self.verb.as_str() {
            "commit" => Change::Commit(CommitTarget::Snapshot(self.snapshot()?)),
            "commit-all" => Change::Commit(CommitTarget::All),
            "consolidate" => Change::Commit(CommitTarget::Unowned),
            "revert" => {
                let snapshot = Some(self.snapshot()?);
                Change::Revert(Revert { snapshot, take_first: None, disconnect, purge, keep })
            }
            "discard" => Change::Discard(Discard { snapshot: self.snapshot()?, disconnect, purge, keep }),
            "undo" => Change::Undo(Reset { disconnect, purge, keep }),
            other => {
                let expected = "expected commit, commit-all, consolidate, revert, discard or undo";
                return Err(Error::invalid(format!("{other:?}: {expected}")));
            }
        })
    }
}

impl Change {
    /// Returns the route of the API that does the same, and its body.
    fn route(&self) -> (&'static str, Value) {
        match self {
            Change::Commit(target) => ("/vms/{vm}/commit", json!(target)),
            Change::Revert(request) => ("/vms/{vm}/revert", json!(request)),
            Change::Discard(request) => ("/vms/{vm}/discard", json!(request)),
            Change::Undo(request) => ("/vms/{vm}/undo", json!(request)),
        }
    }

    async fn preview(self, daemon: Rc<Daemon>, vm: VmName) -> Result<Preview> {
        match self {
            Change::Commit(target) => daemon.commit_preview(&vm, target).await.map(Preview::Commit),
            Change::Revert(request) => daemon.revert_preview(&vm, request).await.map(Preview::Loss),
            Change::Discard(request) => daemon.discard_preview(&vm, request).await.map(Preview::Loss),
            Change::Undo(request) => daemon.undo_preview(&vm, request).await.map(Preview::Loss),
        }
    }

    /// Carries the change out, and returns what was done.
    async fn carry_out(self, daemon: Rc<Daemon>, vm: VmName, label: SnapshotLabel) -> Result<String> {
        let loss = match self {
            Change::Commit(target) => {
                return daemon
                    .snapshot_commit(&vm, target)
                    .await
                    .map(|job| format!("Job {} commits.", job.id));
            }
            Change::Revert(request) => daemon.snapshot_revert(&vm, request, label).await?,
            Change::Discard(request) => daemon.snapshot_discard(&vm, request).await?,
            Change::Undo(request) => daemon.snapshot_undo(&vm, request).await?,
        };
        Ok(loss.warning)
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
        let (name, message) = (sent.name.parse().map_err(Error::invalid)?, sent.message.clone());
        let request = SnapshotTake { name, message, quiesce: sent.quiesce()?, memory: sent.memory == "yes" };
        request.check().map_err(Error::invalid)?;
        let body = json!(request);
        let label = SnapshotLabel::of_caller(&browser.session.caller.who);
        let operation = async move |d: Rc<Daemon>, vm: VmName| d.snapshot_take(&vm, request, label).await;
        let taken = act(&access, &browser, &sent, ("/vms/{vm}/snapshots", body), &vm, operation).await?;
        let stun = api::units::format_us(taken.stun_us);
        let guest =
            taken.quiesced.map_or(String::new(), |quiesced| format!(" Guest: {}.", quiesced.sentence()));
        Ok(format!("Snapshot {} is taken; the guest waited {stun}.{guest}", taken.snapshot.name))
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
        let made = act(&access, &browser, &sent, ("/vms/{vm}/clone", body), &vm, operation).await?;
        Ok(format!("VM {} is a clone of {vm}.", made.name))
    };
    browser.back_to(&format!("/vms/{vm}"), &access, done.await)
}

/// Carries out an operation on a VM, if the caller may.
async fn act<T: Send + 'static>(
    access: &Access,
    browser: &Browser,
    sent: &Sent,
    (route, body): (&str, Value),
    vm: &VmName,
    operation: impl AsyncFnOnce(Rc<Daemon>, VmName) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (subject, name) = (Subject::Vm(vm.clone()), vm.clone());
    let work = access.core.ask(subject, async move |daemon| operation(daemon, name).await);
    let path = route.replace("{vm}", vm.as_str());
    browser.act(access, sent, (route, path, Some(vm.clone())), body, work).await
}

/// Shows what an operation would do, with the form that carries it out.
pub(super) async fn preview(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Extension(Shown { recorder, .. }): Extension<Shown>,
    Path(vm): Path<String>,
    Form(sent): Form<Sent>,
) -> Response {
    let looked = async {
        let vm = parse_vm(&vm)?;
        let mut preview = look(&access, &browser, &sent, &vm).await?;
        if let Preview::Commit(commit) = &mut preview {
            recorder.complete(commit).await;
        }
        Ok((preview, vm))
    };
    match looked.await {
        Ok((preview, vm)) => {
            let (title, body) =
                (format!("{} {vm}?", verb_shown(&sent.verb)), question(&preview, &sent, &vm, &browser));
            let page = Page { title: &title, browser: &browser, is_live: false, notice: None };
            page.with(&body).into_response()
        }
        Err(error) => browser.back_to(&format!("/vms/{vm}"), &access, Err(error)),
    }
}

async fn look(access: &Access, browser: &Browser, sent: &Sent, vm: &VmName) -> Result<Preview> {
    let change = sent.change()?;
    let route = format!("{}/preview", change.route().0);
    act(access, browser, sent, (&route, Value::Null), vm, async move |daemon, vm| {
        change.preview(daemon, vm).await
    })
    .await
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
            dt { "Time" } dd { (preview.time_text()) }
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
        let (vm, change) = (parse_vm(&vm)?, sent.change()?);
        let route = change.route();
        let label = SnapshotLabel::of_caller(&browser.session.caller.who);
        let operation = async move |daemon, vm| change.carry_out(daemon, vm, label).await;
        act(&access, &browser, &sent, route, &vm, operation).await
    };
    browser.back_to(&format!("/vms/{vm}"), &access, done.await)
}

/// Pauses, resumes or cancels a job.
pub(super) async fn job(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Path(id): Path<u64>,
    Form(sent): Form<Sent>,
) -> Response {
    let done = async {
        let route = format!("/jobs/{{id}}/{}", sent.verb);
        let (verb, subject) = (sent.verb.clone(), Subject::Job(id));
        let change = async move |daemon: Rc<Daemon>| match verb.as_str() {
            "pause" => daemon.job_do(id, |job| job.pause()).await,
            "resume" => daemon.job_do(id, |job| job.resume()).await,
            "cancel" => daemon.job_cancel(id).await,
            other => Err(Error::invalid(format!("{other:?}: expected pause, resume or cancel"))),
        };
        let (path, work) = (route.replace("{id}", &id.to_string()), access.core.ask(subject, change));
        let job = browser.act(&access, &sent, (&route, path, None), Value::Null, work).await?;
        Ok(format!("Job {id} is {}.", job.state.as_str()))
    };
    browser.back_to("/", &access, done.await)
}

impl Browser {
    /// Carries out what a form of this session asks for, if the caller has the right of the API's route, which has its method
    /// before it unless that is POST. `path` and `vm` are those of the route.
    pub(super) async fn act<T>(
        &self,
        access: &Access,
        sent: &Sent,
        (route, path, vm): (&str, String, Option<VmName>),
        body: Value,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.check(&sent.form_key)?;
        let (method, route) = route.split_once(' ').unwrap_or(("POST", route));
        let method = Method::from_bytes(method.as_bytes()).unwrap_or(Method::POST);
        let of = (rights::needed(&method, route), path, vm);
        access.act(&self.session.caller, &self.origin, of, body, work).await
    }

    /// Answers a form: the next page shows what was done, or why nothing was.
    pub(super) fn back_to(&self, page: &str, access: &Access, done: Result<String>) -> Response {
        let notice = done.map_or_else(|error| Notice::Fault(error.message), Notice::Done);
        access.sessions.tell(&self.secret, notice);
        Redirect::to(page).into_response()
    }
}
