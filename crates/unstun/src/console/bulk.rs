//! Operations on all VMs that are chosen on the overview: one answer with a line for each VM.

use std::collections::BTreeSet;
use std::rc::Rc;

use api::error::{Error, Result};
use api::name::{PolicyName, Tag, VmName};
use api::units::format_us;
use api::{PolicyApply, SnapshotTake, VmLabels, VmSummary};
use axum::response::Response;
use maud::{Markup, html};

use super::page::quiesce_choice;
use super::request::{FormRequest, Route, may, parse_vm};
use super::sent::invalid;
use crate::access::sessions::Session;
use crate::daemon::{Daemon, SnapshotLabel, Subject};

/// What was done with each VM, or why not.
type Outcomes = Vec<(VmName, Result<String>)>;

/// Returns whether the caller may do something with the VMs that it chooses.
pub(super) fn is_offered(session: &Session) -> bool {
    may(session, "/vms/{vm}/snapshots")
}

/// Returns the fields and buttons of the form around the table of VMs.
pub(super) fn fields(policies: &[PolicyName], tags: &BTreeSet<&Tag>, session: &Session) -> Markup {
    html! {
        fieldset {
            legend { "With the chosen VMs" }
            div.row {
                label { "Name of a snapshot" input name="name" maxlength="80"; }
                (quiesce_choice(api::Quiesce::No))
                button formaction="/bulk/take" { "Take a snapshot of each" }
            }
            @if may(session, "/policies/{name}/apply") && !policies.is_empty() {
                div.row {
                    label { "Policy" select name="policy" { @for policy in policies { option { (policy) } } } }
                    button.plain formaction="/bulk/policy" { "Apply it to each" }
                }
            }
            @if may(session, "PUT /vms/{vm}/labels") {
                div.row {
                    label { "Tag" input name="tag" maxlength="64" list="tags"; }
                    datalist id="tags" { @for tag in tags { option value=(tag) {} } }
                    button.plain formaction="/bulk/tag" { "Add the tag" }
                    button.plain formaction="/bulk/untag" { "Take the tag away" }
                }
            }
        }
    }
}

/// Returns the box that chooses a VM.
pub(super) fn choice(vm: &VmSummary) -> Markup {
    html! { input type="checkbox" name="vm" value=(vm.name) aria-label=(format!("Choose {}", vm.name)); }
}

fn chosen(form: &FormRequest) -> Result<Vec<VmName>> {
    let vms: Vec<VmName> = form.sent.all("vm").map(parse_vm).collect::<Result<_>>()?;
    if vms.is_empty() {
        return Err(Error::invalid("no VM is chosen: tick the boxes of the VMs first"));
    }
    Ok(vms)
}

/// Answers with a line for each VM.
async fn report(
    form: &FormRequest,
    title: &str,
    work: impl AsyncFnOnce(Vec<VmName>) -> Result<Outcomes>,
) -> Response {
    let outcomes = async { Ok((title.to_owned(), lines(&work(chosen(form)?).await?))) };
    form.report("/", outcomes).await
}

fn lines(outcomes: &Outcomes) -> Markup {
    let failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
    html! {
        @if failed > 0 { p.notice.fault role="alert" { (failed) " of " (outcomes.len()) " VMs failed." } }
        @else { p.notice.done role="status" { "Done for " (outcomes.len()) " VMs." } }
        div.scroll tabindex="0" role="region" aria-label="Outcome of each VM" {
            table {
                thead { tr { th scope="col" { "VM" } th scope="col" { "Outcome" } } }
                tbody {
                    @for (vm, outcome) in outcomes {
                        tr {
                            th scope="row" { a href=(format!("/vms/{vm}")) { (vm) } }
                            td.text { @match outcome {
                                Ok(done) => span.good { (done) },
                                Err(error) => span.bad { (error.message) },
                            } }
                        }
                    }
                }
            }
        }
        p { a href="/" { "To the overview" } }
    }
}

/// Takes a snapshot of each VM, one after the other. All have the same name.
pub(super) async fn take(form: FormRequest) -> Response {
    let work = async |vms: Vec<VmName>| {
        let quiesce = form.sent.quiesce()?;
        let request = SnapshotTake { quiesce, ..SnapshotTake::named(form.sent.parsed("name")?) };
        let mut outcomes = Outcomes::new();
        for vm in vms {
            let label = SnapshotLabel::of_caller(&form.page.session().caller.who);
            let take = async move |d: Rc<Daemon>, vm, of| d.snapshot_take(&vm, of, label).await;
            let taken = form.on_vm("/vms/{vm}/snapshots", &vm, request.clone(), take).await;
            let said = taken.map(|taken| format!("taken; the guest waited {}", format_us(taken.stun_us)));
            outcomes.push((vm, said));
        }
        Ok(outcomes)
    };
    report(&form, "Snapshots of the chosen VMs", work).await
}

/// Applies a policy to each VM: a snapshot is taken now, by the policy's rules.
pub(super) async fn policy(form: FormRequest) -> Response {
    let work = async |vms: Vec<VmName>| {
        let policy: PolicyName = form.sent.parsed("policy")?;
        let mut outcomes = Outcomes::new();
        for vm in vms {
            let said = apply_to(&form, &policy, &vm).await;
            outcomes.push((vm, said));
        }
        Ok(outcomes)
    };
    report(&form, "Policy for the chosen VMs", work).await
}

async fn apply_to(form: &FormRequest, policy: &PolicyName, vm: &VmName) -> Result<String> {
    let route = Route::to("/policies/{name}/apply", "{name}", policy.as_str());
    let (policy, request) = (policy.clone(), PolicyApply { vms: vec![vm.clone()] });
    let body = request.clone();
    let apply = async move |daemon: Rc<Daemon>| daemon.policy_apply(&policy, request).await;
    let applied = form.act(route, &body, form.page.ask(Subject::None, apply)).await?;
    match (applied.problems.first(), applied.taken.first()) {
        (Some(problem), _) => Err(Error::failed(problem.cause.clone())),
        (None, Some(taken)) => Ok(format!("snapshot {} is taken", taken.snapshot)),
        (None, None) => Ok("nothing was to be taken".to_owned()),
    }
}

pub(super) async fn tag(form: FormRequest) -> Response {
    label(&form, "Tag for the chosen VMs", |tags, tag| {
        if !tags.contains(tag) {
            tags.push(tag.clone());
        }
    })
    .await
}

pub(super) async fn untag(form: FormRequest) -> Response {
    label(&form, "Tag of the chosen VMs", |tags, tag| tags.retain(|one| one != tag)).await
}

/// Changes the tags of each VM.
async fn label(form: &FormRequest, title: &str, change: fn(&mut Vec<Tag>, &Tag)) -> Response {
    let work = async |vms: Vec<VmName>| {
        let tag: Tag = form.sent.parsed("tag")?;
        let mut outcomes = Outcomes::new();
        for vm in vms {
            let said = label_one(form, &vm, &tag, change).await;
            outcomes.push((vm, said));
        }
        Ok(outcomes)
    };
    report(form, title, work).await
}

async fn label_one(
    form: &FormRequest,
    vm: &VmName,
    tag: &Tag,
    change: fn(&mut Vec<Tag>, &Tag),
) -> Result<String> {
    let (subject, name) = (Subject::Vm(vm.clone()), vm.clone());
    form.page.permit("GET /vms/{vm}", Some(vm))?;
    let now = form.page.ask(subject, async move |daemon| daemon.vm_show(&name).await).await?;
    let mut request = VmLabels { tags: now.tags, note: now.note };
    change(&mut request.tags, tag);
    request.check().map_err(invalid)?;
    let set = async |d: Rc<Daemon>, vm, of| d.vm_set_labels(&vm, of).await;
    let set = form.on_vm("PUT /vms/{vm}/labels", vm, request, set).await?;
    let tags: Vec<_> = set.tags.iter().map(Tag::as_str).collect();
    Ok(if tags.is_empty() { "no tags".to_owned() } else { format!("tags: {}", tags.join(", ")) })
}
