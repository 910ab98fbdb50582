//! Commands that throw data away: revert, discard, reset, and the removal of VMs and datastores. Each prints what is
//! lost, and asks for consent.

use api::client::Client;
use api::error::{Error, Result};
use api::name::{DatastoreName, VmName};
use api::output::{Output, fields};
use api::units::format_bytes;
use api::{
    DatastoreClient, DatastoreCondition, DatastoreRemovePreview, DatastoreRemoved, Discard, Loss,
    RemovedDisk, Reset, Revert, VmClient, VmRemove, VmRemovePreview, VmRemoved,
};

use crate::cli::{ConsentArgs, DiscardArgs, LossArgs, RemoveArgs, RevertArgs, VmLossArgs};
use crate::command::consent;

pub(super) async fn revert(args: &RevertArgs, client: &Client, output: Output) -> Result<()> {
    let (vm, snapshot) = args.which.parse()?;
    let LossArgs { disconnect, purge, .. } = args.loss;
    let take_first = args.take_first.clone();
    let request = Revert { snapshot, take_first, disconnect, purge, keep: false };
    let preview = client.revert_preview(&vm, &request).await?;
    let operation = async |keep| client.snapshot_revert(&vm, &Revert { keep, ..request }).await;
    carry_out(&preview, &args.loss, output, operation).await
}

pub(super) async fn discard(args: &DiscardArgs, client: &Client, output: Output) -> Result<()> {
    let (vm, snapshot) = args.which.parse_both()?;
    let LossArgs { disconnect, purge, .. } = args.loss;
    let request = Discard { snapshot, disconnect, purge, keep: false };
    let preview = client.discard_preview(&vm, &request).await?;
    let operation = async |keep| client.snapshot_discard(&vm, &Discard { keep, ..request }).await;
    carry_out(&preview, &args.loss, output, operation).await
}

pub(super) async fn reset(args: &VmLossArgs, client: &Client, output: Output) -> Result<()> {
    let request = reset_request(&args.loss);
    let preview = client.reset_preview(&args.vm, &request).await?;
    let operation = async |keep| client.vm_reset(&args.vm, &Reset { keep, ..request }).await;
    carry_out(&preview, &args.loss, output, operation).await
}

pub(super) async fn undo(args: &VmLossArgs, client: &Client, output: Output) -> Result<()> {
    let request = reset_request(&args.loss);
    let preview = client.undo_preview(&args.vm, &request).await?;
    let operation = async |keep| client.snapshot_undo(&args.vm, &Reset { keep, ..request }).await;
    carry_out(&preview, &args.loss, output, operation).await
}

fn reset_request(args: &LossArgs) -> Reset {
    Reset { disconnect: args.disconnect, purge: args.purge, keep: false }
}

/// Asks for consent to what `preview` says, and carries the operation out. `operation` gets whether the bin must keep the
/// state: if the preview said that it does, the daemon must not remove the state permanently.
async fn carry_out(
    preview: &Loss,
    args: &LossArgs,
    output: Output,
    operation: impl AsyncFnOnce(bool) -> Result<Loss>,
) -> Result<()> {
    match agreed(preview, args, output)? {
        true => output.result(&operation(preview.kept_until.is_some()).await?, done),
        false => Ok(()),
    }
}

/// Removes a VM. Only a removal with its disks is a loss and asks for consent.
pub(super) async fn remove(args: &RemoveArgs, client: &Client, output: Output) -> Result<()> {
    let mut request = VmRemove { delete_disks: args.delete_disks, purge: args.purge, keep: false };
    if args.delete_disks || args.consent.dry_run {
        let preview = client.vm_remove_preview(&args.vm, &request).await?;
        if args.consent.dry_run {
            return output.result(&preview, removal);
        }
        output.note(&removal(&preview));
        if !preview.clients.is_empty() {
            return Err(Error::refused(format!(
                "VM {}: {}; power the guest off, or disconnect the client first",
                preview.vm,
                connected(&preview.clients)
            )));
        }
        if !args.consent.yes {
            consent("Remove?", "removes")?;
        }
        // If the preview said that the bin keeps the VM, the daemon must not remove it permanently.
        request.keep = preview.kept_until.is_some();
    }
    output.result(&client.remove_vm(&args.vm, &request).await?, removed)
}

fn removal(preview: &VmRemovePreview) -> String {
    let sizes = preview.disks.as_ref().map(|disks| {
        let one = |disk: &RemovedDisk| format!("disk{} ({})", disk.number, format_bytes(disk.size_bytes));
        disks.iter().map(one).collect::<Vec<_>>().join(", ")
    });
    let unread = format!("not read: the VM is {}", preview.condition.as_str());
    let mut lines = vec![
        ("remove", preview.vm.to_string()),
        ("home", preview.home.display().to_string()),
        ("disks", sizes.unwrap_or(unread)),
    ];
    if let Some(snapshots) = preview.snapshots.as_ref().filter(|snapshots| !snapshots.is_empty()) {
        lines.push(("snapshots", snapshots.join(", ")));
    }
    if let Some(bytes) = preview.allocated_bytes {
        lines.push(("allocated", format_bytes(bytes)));
    }
    if !preview.clients.is_empty() {
        lines.push(("clients", connected(&preview.clients)));
    }
    format!("{}{}", fields(&lines), fate(preview))
}

fn fate(preview: &VmRemovePreview) -> String {
    match (&preview.kept_until, &preview.not_kept) {
        _ if !preview.disks_deleted => "its files stay; the VM is removed from unstun's list".to_owned(),
        (Some(until), _) => format!(
            "the bin keeps it until {until:.0}, or until its space is needed; `unstun bin restore {}` restores it",
            preview.vm
        ),
        (None, why) => {
            let why = why.as_deref().unwrap_or("the bin does not keep the VM");
            format!("the VM is removed permanently, which cannot be undone: {why}")
        }
    }
}

fn removed(removed: &VmRemoved) -> String {
    let (name, home) = (&removed.name, removed.home.display());
    match &removed.bin {
        Some(bin) => format!(
            "{name} removed; the bin keeps it until {:.0}; `unstun bin restore {name}` restores it (entry {})",
            bin.kept_until, bin.id
        ),
        None if removed.disks_deleted => format!("{name} removed, its files deleted"),
        None => format!("{name} removed; its files stay in {home}"),
    }
}

pub(super) async fn remove_datastore(
    name: &DatastoreName,
    args: &ConsentArgs,
    client: &Client,
    output: Output,
) -> Result<()> {
    let preview = client.datastore_remove_preview(name).await?;
    if args.dry_run {
        return output.result(&preview, datastore_removal);
    }
    output.note(&datastore_removal(&preview));
    if let Some(one) = preview.clients.first() {
        let cause = format!("VM {}: {}", one.vm, one.client);
        return Err(Error::refused(format!("datastore {name}: {cause}; disconnect its clients first")));
    }
    if !args.yes {
        consent("Stop serving the datastore?", "stops serving the datastore")?;
    }
    output.result(&client.datastore_remove(name).await?, datastore_removed)
}

fn datastore_removal(preview: &DatastoreRemovePreview) -> String {
    let names = |vms: &[VmName]| vms.iter().map(VmName::to_string).collect::<Vec<_>>().join(", ");
    let mut lines =
        vec![("remove", format!("datastore {}", preview.name)), ("path", preview.path.display().to_string())];
    if preview.condition == DatastoreCondition::Broken {
        lines.push(("served", "no: the datastore could not be opened".to_owned()));
    }
    if !preview.vms.is_empty() {
        lines.push(("VMs", format!("{} (no longer served)", names(&preview.vms))));
    }
    if !preview.idle_vms.is_empty() {
        lines.push(("idle VMs", names(&preview.idle_vms)));
    }
    if preview.bin_entries > 0 {
        lines.push(("bin", format!("{} stays in the datastore", format_bytes(preview.bin_bytes))));
    }
    if !preview.clients.is_empty() {
        let one = |one: &DatastoreClient| format!("{}: {}", one.vm, one.client);
        lines.push(("clients", preview.clients.iter().map(one).collect::<Vec<_>>().join(", ")));
    }
    format!("{}its content stays; `unstun datastore add` serves the datastore again", fields(&lines))
}

fn datastore_removed(removed: &DatastoreRemoved) -> String {
    format!("datastore {} is no longer served; its content stays in {}", removed.name, removed.path.display())
}

/// Returns whether the operation may go on; false after a dry run. Clients that prevent the operation are refused
/// before the user is asked; the daemon checks for them again.
fn agreed(preview: &Loss, args: &LossArgs, output: Output) -> Result<bool> {
    if args.consent.dry_run {
        output.result(preview, describe)?;
        return Ok(false);
    }
    output.note(&describe(preview));
    if preview.reverts && !preview.clients.is_empty() && !args.disconnect {
        return Err(Error::refused(format!(
            "cannot {} {}: {}; a disk that changes under a running guest corrupts the guest's file systems; power the \
             guest off, or end the sessions with --disconnect",
            preview.operation.as_str(),
            preview.vm,
            connected(&preview.clients)
        )));
    }
    if !args.consent.yes {
        let verb = preview.operation.as_str();
        consent(&format!("{}{}?", verb[..1].to_uppercase(), &verb[1..]), &format!("{verb}s"))?;
    }
    Ok(true)
}

fn describe(loss: &Loss) -> String {
    let mut lines = vec![(loss.operation.as_str(), place(loss))];
    if let Some(taken) = &loss.taken {
        lines.push(("taken first", taken.clone()));
    }
    if !loss.snapshots.is_empty() {
        lines.push(("names removed", loss.snapshots.join(", ")));
    }
    let bytes = format_bytes(loss.bytes_lost);
    lines.push((
        if loss.kept_until.is_some() { "into the bin" } else { "lost" },
        match loss.layers.len() {
            // Native disks have no layers.
            0 => bytes,
            1 => format!("{bytes} in 1 layer"),
            layers => format!("{bytes} in {layers} layers"),
        },
    ));
    if !loss.clients.is_empty() {
        lines.push(("clients", connected(&loss.clients)));
    }
    let unkept = loss.not_kept.as_ref().map_or(String::new(), |why| format!(" ({why})"));
    format!("{}{}{unkept}", fields(&lines), loss.warning)
}

fn place(loss: &Loss) -> String {
    match &loss.target {
        Some(target) => format!("{} to {target}", loss.vm),
        None => loss.vm.to_string(),
    }
}

/// Returns a text such as `pid 4711 (qemu-system-x86) writes to disk0, 127.0.0.1:5000 reads disk1`.
pub(super) fn connected(clients: &[VmClient]) -> String {
    let all: Vec<String> = clients.iter().map(ToString::to_string).collect();
    let same: Vec<String> = all
        .chunk_by(|a, b| a == b)
        .map(|same| match same.len() {
            1 => same[0].clone(),
            connections => format!("{} ({connections} connections)", same[0]),
        })
        .collect();
    same.join(", ")
}

fn done(loss: &Loss) -> String {
    let mut text = match &loss.target {
        Some(target) if loss.reverts => format!("{} continues from {target}", loss.vm),
        _ => format!("{}: {} done", loss.vm, loss.operation.as_str()),
    };
    let bytes = format_bytes(loss.bytes_lost);
    match &loss.kept_until {
        Some(until) => text.push_str(&format!(
            "; the bin keeps {bytes} until {until:.0}; `unstun snapshot undo {}` restores the state",
            loss.vm
        )),
        None => text.push_str(&format!("; {bytes} removed permanently")),
    }
    if let Some(taken) = &loss.taken {
        text.push_str(&format!("; the previous state is saved as {taken}"));
    }
    if !loss.clients.is_empty() {
        text.push_str(&format!("; disconnected: {}", connected(&loss.clients)));
    }
    if loss.reverts {
        text.push_str(&next_step(&loss.vm));
    }
    text
}

/// Returns the next step. The disks now have other content, so a former client must not reconnect with cached data.
fn next_step(vm: &VmName) -> String {
    format!(
        "\nthe earlier export names are refused from now on; power the guest off, and start it with the names that \
         `unstun attach {vm}` prints\n(for the plain names, {vm}/diskN: `unstun vm open {vm}`, when no earlier \
         client is running)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{ClientAccess, Operation};

    fn loss(target: Option<&str>, taken: Option<&str>, snapshots: &[&str]) -> Loss {
        let mut loss = Loss {
            vm: "web".parse().unwrap(),
            operation: Operation::Revert,
            target: target.map(str::to_owned),
            taken: taken.map(str::to_owned),
            snapshots: snapshots.iter().map(|&name| name.to_owned()).collect(),
            layers: vec!["/ds/web/web-000002.vmdk".into()],
            bytes_lost: 3 << 20,
            reverts: target.is_some(),
            clients: vec![VmClient {
                disk: Some(0),
                snapshot: None,
                client: "unix".to_owned(),
                access: ClientAccess::Writes,
            }],
            kept_until: None,
            not_kept: None,
            warning: String::new(),
        };
        loss.warning = loss.sentence();
        loss
    }

    fn args(disconnect: bool) -> LossArgs {
        LossArgs { disconnect, purge: false, consent: ConsentArgs { yes: true, dry_run: false } }
    }

    #[test]
    fn the_preview_says_what_is_lost() {
        let text = describe(&loss(Some("a"), None, &["b", "c"]));
        for part in ["web to a", "names removed  b, c", "3 MiB in 1 layer", "unix writes to disk0"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.ends_with("is lost; you cannot revert to b, c afterwards"), "{text}");
        assert!(describe(&loss(Some("a"), Some("now"), &[])).ends_with("the current state is saved as now"));
    }

    #[test]
    fn a_client_in_the_way_is_named_before_anything_is_asked() {
        let error = agreed(&loss(Some("a"), None, &[]), &args(false), Output::new(false)).unwrap_err();
        assert!(
            error.message.contains("unix writes to disk0") && error.message.contains("--disconnect"),
            "{error}"
        );
        assert!(agreed(&loss(Some("a"), None, &[]), &args(true), Output::new(false)).unwrap());
        assert!(agreed(&loss(None, None, &["a"]), &args(false), Output::new(false)).unwrap());
    }
}
