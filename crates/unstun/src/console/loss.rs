//! Operations that lose something: a preview first, with the form that carries the operation out.

use std::rc::Rc;

use api::error::{Error, Result};
use api::name::VmName;
use api::units::format_bytes;
use api::{CommitPreview, CommitTarget, Discard, Loss, Reset, Revert};
use axum::extract::{Extension, Path};
use axum::response::Response;
use maud::{Markup, html};
use serde::Serialize;

use super::page::form_key;
use super::request::{FormRequest, parse_vm};
use super::sent::Sent;
use super::shown::Shown;
use crate::access::sessions::Session;
use crate::daemon::{Daemon, SnapshotLabel};

/// What a preview shows and a confirmation carries out.
#[derive(Serialize)]
#[serde(untagged)]
enum Change {
    Commit(CommitTarget),
    Revert(Revert),
    Discard(Discard),
    Undo(Reset),
    Reset(Reset),
}

/// What a preview says.
enum Preview {
    Commit(CommitPreview),
    Loss(Loss),
}

/// Returns what a form asks for. `keep`: the preview said that the bin keeps the state, so nothing else may happen.
fn change(sent: &Sent) -> Result<Change> {
    let (disconnect, keep, purge) = (sent.is_ticked("disconnect"), sent.is_ticked("keep"), false);
    Ok(match sent.text("verb") {
        "commit" => Change::Commit(CommitTarget::Snapshot(sent.parsed("snapshot")?)),
        "commit-all" => Change::Commit(CommitTarget::All),
        "consolidate" => Change::Commit(CommitTarget::Unowned),
        "revert" => {
            let (snapshot, take_first) = (Some(sent.parsed("snapshot")?), sent.optional("take_first")?);
            Change::Revert(Revert { snapshot, take_first, disconnect, purge, keep })
        }
        "discard" => Change::Discard(Discard { snapshot: sent.parsed("snapshot")?, disconnect, purge, keep }),
        "undo" => Change::Undo(Reset { disconnect, purge, keep }),
        "reset" => Change::Reset(Reset { disconnect, purge, keep }),
        other => {
            let expected = "expected commit, commit-all, consolidate, revert, discard, undo or reset";
            return Err(Error::invalid(format!("{other:?}: {expected}")));
        }
    })
}

impl Change {
    /// Returns the route of the API that does the same.
    fn route(&self) -> &'static str {
        match self {
            Change::Commit(_) => "/vms/{vm}/commit",
            Change::Revert(_) => "/vms/{vm}/revert",
            Change::Discard(_) => "/vms/{vm}/discard",
            Change::Undo(_) => "/vms/{vm}/undo",
            Change::Reset(_) => "/vms/{vm}/reset",
        }
    }

    async fn preview(self, daemon: Rc<Daemon>, vm: VmName) -> Result<Preview> {
        match self {
            Change::Commit(target) => daemon.commit_preview(&vm, target).await.map(Preview::Commit),
            Change::Revert(request) => daemon.revert_preview(&vm, request).await.map(Preview::Loss),
            Change::Discard(request) => daemon.discard_preview(&vm, request).await.map(Preview::Loss),
            Change::Undo(request) => daemon.undo_preview(&vm, request).await.map(Preview::Loss),
            Change::Reset(request) => daemon.reset_preview(&vm, request).await.map(Preview::Loss),
        }
    }

    /// Carries the change out, and returns what was done.
    async fn carry_out(self, daemon: Rc<Daemon>, vm: VmName, label: SnapshotLabel) -> Result<String> {
        let loss = match self {
            Change::Commit(target) => {
                let job = daemon.snapshot_commit(&vm, target).await?;
                return Ok(format!("Job {} commits.", job.id));
            }
            Change::Revert(request) => daemon.snapshot_revert(&vm, request, label).await?,
            Change::Discard(request) => daemon.snapshot_discard(&vm, request).await?,
            Change::Undo(request) => daemon.snapshot_undo(&vm, request).await?,
            Change::Reset(request) => daemon.vm_reset(&vm, request).await?,
        };
        Ok(loss.warning)
    }
}

/// Shows what an operation would do, with the form that carries it out.
pub(super) async fn preview(
    Extension(Shown { recorder, .. }): Extension<Shown>,
    Path(vm): Path<String>,
    form: FormRequest,
) -> Response {
    let looked = async {
        let (vm, change) = (parse_vm(&vm)?, change(&form.sent)?);
        let route = format!("{}/preview", change.route());
        let preview = async |daemon, vm, change: Change| change.preview(daemon, vm).await;
        let mut preview = form.on_vm(&route, &vm, change, preview).await?;
        if let Preview::Commit(commit) = &mut preview {
            recorder.complete(commit).await;
        }
        let title = format!("{} {vm}?", verb_shown(form.sent.text("verb")));
        Ok((title, question(&preview, &form.sent, &vm, form.page.session())))
    };
    form.report(&format!("/vms/{vm}"), looked).await
}

fn verb_shown(verb: &str) -> &'static str {
    match verb {
        "commit" => "Commit a snapshot of",
        "commit-all" => "Commit all snapshots of",
        "consolidate" => "Consolidate",
        "revert" => "Revert",
        "discard" => "Discard a snapshot of",
        "reset" => "Reset the nonpersistent disks of",
        _ => "Undo the last loss of",
    }
}

fn question(preview: &Preview, sent: &Sent, vm: &VmName, session: &Session) -> Markup {
    let (keeps, clients) = match preview {
        Preview::Commit(_) => (false, &[][..]),
        Preview::Loss(loss) => (loss.kept_until.is_some(), loss.clients.as_slice()),
    };
    let (verb, snapshot) = (sent.text("verb"), sent.text("snapshot"));
    html! {
        @match preview {
            Preview::Commit(commit) => (commit_facts(commit)),
            Preview::Loss(loss) => (loss_facts(loss)),
        }
        form.row method="post" action=(format!("/vms/{vm}/confirm")) {
            (form_key(session))
            input type="hidden" name="verb" value=(verb);
            input type="hidden" name="snapshot" value=(snapshot);
            @if keeps { input type="hidden" name="keep" value="yes"; }
            @if verb == "revert" {
                label { "First take a snapshot of the running state, if this has a name" input name="take_first" maxlength="80"; }
            }
            @if !clients.is_empty() {
                label { span { input type="checkbox" name="disconnect" value="yes" required; " Disconnect these clients first" } }
            }
            button.loss { (verb_shown(verb)) " " (vm) }
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
pub(super) async fn confirm(Path(vm): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let (vm, change) = (parse_vm(&vm)?, change(&form.sent)?);
        let (route, label) = (change.route(), SnapshotLabel::of_caller(&form.page.session().caller.who));
        let operation = async move |daemon, vm, change: Change| change.carry_out(daemon, vm, label).await;
        form.on_vm(route, &vm, change, operation).await
    };
    form.answer(&format!("/vms/{vm}"), done).await
}
