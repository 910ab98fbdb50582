//! `unstun vm`.

use api::client::{Client, Within};
use api::error::{Error, Result};
use api::name::{self, Tag, VmName};
use api::output::{Output, align_right, fields, table};
use api::progress::watch;
use api::units::format_bytes;
use api::{
    DiskCreate, SnapshotDir, Space, Vm, VmClone, VmClosed, VmCondition, VmCreate, VmDefragment, VmImport,
    VmLimits, VmMove, VmMovePreview, VmOpen, VmRemove, VmRename, VmSummary,
};

use crate::cli::{
    CloneArgs, DefragmentArgs, ImportArgs, MoveArgs, OnOff, OrNone, SetArgs, SetGuest, VmCommand,
    VmCreateArgs,
};
use crate::command::{commit, disk, fill, labels, limits, loss};

pub(super) async fn run(command: &VmCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        VmCommand::Create(args) => create(args, client, output).await,
        VmCommand::Import(args) => {
            let request = VmImport { datastore: client.within().await?, ..import(args)? };
            output.result(&client.vm_import(&request).await?, |vm| titled("imported", vm))
        }
        VmCommand::List => output.result(&listed(client).await?, |vms| list(vms)),
        VmCommand::Show { vm } => output.result(&client.vm_show(vm).await?, describe),
        VmCommand::Disk(command) => disk::run(command, client, output).await,
        VmCommand::Set(args) => set(args, client, output).await,
        VmCommand::Rename { vm, name } => {
            let renamed = client.vm_rename(vm, &VmRename { name: name.clone() }).await?;
            output.result(&renamed, |renamed| titled(&format!("renamed from {vm}"), renamed))
        }
        VmCommand::Clone(args) => clone(args, client, output).await,
        VmCommand::Move(args) => relocate(args, client, output).await,
        VmCommand::Defragment(args) => defragment(args, client, output).await,
        VmCommand::Close { vm, disconnect } => {
            output.result(&client.vm_close(vm, *disconnect).await?, closed)
        }
        VmCommand::Open { vm, take_over } => open(vm, VmOpen { take_over: *take_over }, client, output).await,
        VmCommand::Reset(args) => loss::reset(args, client, output).await,
        VmCommand::Remove(args) => loss::remove(args, client, output).await,
    }
}

async fn open(vm: &VmName, request: VmOpen, client: &Client, output: Output) -> Result<()> {
    // A closed VM cannot be shown.
    let fenced = client.vm_show(vm).await.is_ok_and(|shown| shown.fenced);
    let title = match fenced {
        true => {
            "its plain export names are served again; an earlier client that is still running would corrupt the \
             guest's file systems"
        }
        false => "opened",
    };
    output.result(&client.vm_open(vm, &request).await?, |vm| titled(title, vm))
}

async fn create(args: &VmCreateArgs, client: &Client, output: Output) -> Result<()> {
    let mut disks: Vec<DiskCreate> = args.disks.iter().flat_map(|list| list.0.clone()).collect();
    let source = args.from.as_deref();
    let source = source.map(|path| fill::Source::look(path, args.from_format.as_deref())).transpose()?;
    let mode = match &source {
        Some(source) => Some(source.prepare(&mut disks)?),
        None => None,
    };
    let request = VmCreate {
        name: args.vm.clone(),
        disks,
        store: args.store,
        when_full: args.when_full,
        datastore: client.within().await?,
    };
    let mut vm = client.vm_create(&request).await?;
    if let (Some(source), Some(mode)) = (source, mode) {
        let filled = async {
            let disk = vm.disks.last().ok_or_else(|| Error::failed(format!("VM {} has no disk", vm.name)))?;
            source.fill(client, &vm.name, disk, mode).await
        };
        if let Err(error) = filled.await {
            // A VM with a partly filled disk is of no use. The next attempt names what could not be removed.
            let _ =
                client.remove_vm(&vm.name, &VmRemove { delete_disks: true, purge: true, keep: false }).await;
            return Err(error);
        }
        vm = client.vm_show(&vm.name).await?;
    }
    output.result(&vm, |vm| titled("created", vm))
}

fn import(args: &ImportArgs) -> Result<VmImport> {
    let absolute = |path: &std::path::PathBuf| {
        path.canonicalize().map_err(|e| Error::at_path(path.display(), &e.to_string(), &e))
    };
    // An OVA is known by its name, which a link to it may have alone.
    let path = match args.path.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("ova")) {
        true => std::path::absolute(&args.path).map_err(|e| Error::invalid(format!("PATH: {e}")))?,
        false => absolute(&args.path)?,
    };
    Ok(VmImport {
        path,
        name: args.name.clone(),
        in_place: args.in_place,
        allow_roots: args.allow_roots.iter().map(absolute).collect::<Result<_>>()?,
        ignore_content_ids: args.ignore_content_ids,
        write_sesparse: args.write_sesparse,
        store: args.store,
        copy: !args.no_copy,
        verify: !args.no_verify,
        when_full: args.when_full,
        datastore: None,
    })
}

async fn set(args: &SetArgs, client: &Client, output: Output) -> Result<()> {
    if let Some(limits) = limits::changed(&args.vm, &args.limits, client).await? {
        return output.result(&client.vm_set_limits(&args.vm, &limits).await?, describe);
    }
    if let Some(labels) = labels::changed(&args.vm, &args.labels, client).await? {
        return output.result(&client.vm_set_labels(&args.vm, &labels).await?, describe);
    }
    let SetGuest { guest_agent, qmp, frozen_max } = &args.guest;
    if guest_agent.is_some() || qmp.is_some() || frozen_max.is_some() {
        let mut guest = client.vm_show(&args.vm).await?.guest;
        if let Some(OrNone(access)) = guest_agent {
            guest.access.clone_from(access);
        }
        if let Some(OrNone(monitor)) = qmp {
            guest.qmp.clone_from(monitor);
        }
        guest.frozen_ms_max = frozen_max.unwrap_or(guest.frozen_ms_max);
        return output.result(&client.vm_set_guest(&args.vm, &guest).await?, describe);
    }
    if let Some(shared) = args.change.shared_writers {
        return output.result(&client.vm_set_shared_writers(&args.vm, shared == OnOff::On).await?, describe);
    }
    let dir = args.change.snapshot_dir.as_ref().map(std::path::absolute).transpose();
    let dir = dir.map_err(|e| Error::invalid(format!("--snapshot-dir: {e}")))?;
    output.result(&client.vm_set_snapshot_dir(&args.vm, &SnapshotDir { dir }).await?, describe)
}

async fn clone(args: &CloneArgs, client: &Client, output: Output) -> Result<()> {
    let (vm, snapshot) = name::vm_and_snapshot(&args.state, None).map_err(Error::invalid)?;
    let missing = || Error::invalid(format!("which snapshot of {vm}? expected {vm}@NAME"));
    let request = VmClone { snapshot: snapshot.ok_or_else(missing)?, name: args.new.clone() };
    let made = client.vm_clone(&vm, &request).await?;
    output.result(&made, |made| titled(&format!("cloned from {}", args.state), made))
}

async fn relocate(args: &MoveArgs, client: &Client, output: Output) -> Result<()> {
    let (vm, disk) = vm_and_disk(&args.what)?;
    let datastore = match &args.to {
        Some(to) => Some(client.named(&named(to)?).await?),
        None => None,
    };
    let request = VmMove { disk, store: args.store, datastore };
    if args.dry_run {
        return output.result(&client.vm_move_preview(&vm, &request).await?, describe_move);
    }
    let job = client.vm_move(&vm, &request).await?;
    match args.detach {
        true => output.result(&job, commit::started),
        false => commit::finish(watch(client, job).await?, output),
    }
}

fn describe_move(preview: &VmMovePreview) -> String {
    let clients: String =
        preview.clients.iter().map(|client| format!("stays connected: {client}\n")).collect();
    let lines = fields(&[
        ("move", preview.vm.to_string()),
        ("to", format!("datastore {}, the {} store", preview.datastore, preview.store.as_str())),
        ("folder", preview.home.display().to_string()),
        ("snapshots", preview.snapshots.to_string()),
        (
            "to copy",
            format!("{} at most, and what the guest writes meanwhile", format_bytes(preview.bytes_to_copy)),
        ),
        ("free there", format_bytes(preview.free_bytes)),
    ]);
    format!("{lines}{clients}")
}

async fn defragment(args: &DefragmentArgs, client: &Client, output: Output) -> Result<()> {
    let (vm, disk) = vm_and_disk(&args.what)?;
    let job = client.vm_defragment(&vm, &VmDefragment { disk, copy_shared: args.copy_shared }).await?;
    match args.detach {
        true => output.result(&job, commit::started),
        false => commit::finish(watch(client, job).await?, output),
    }
}

/// Returns the VM that a text such as `web` or `web/disk0` names, and the number of its only disk.
fn vm_and_disk(what: &str) -> Result<(VmName, Option<u32>)> {
    if !what.contains('/') {
        return Ok((what.parse().map_err(Error::invalid)?, None));
    }
    let disk: name::DiskRef = what.parse().map_err(Error::invalid)?;
    Ok((disk.vm, Some(disk.number)))
}

/// Returns the VMs of the datastore that the command names, or else all VMs.
async fn listed(client: &Client) -> Result<Vec<VmSummary>> {
    let (within, mut vms) = (client.within().await?, client.vm_list().await?);
    vms.retain(|vm| within.as_ref().is_none_or(|name| vm.datastore == *name));
    Ok(vms)
}

fn named(to: &std::path::Path) -> Result<Within> {
    let nowhere = || Error::not_found(format!("{}: no folder and no datastore has this name", to.display()));
    api::client::within(to).ok_or_else(nowhere)
}

fn titled(title: &str, vm: &Vm) -> String {
    format!("{title}\n{}", describe(vm))
}

fn closed(closed: &VmClosed) -> String {
    let (name, home) = (&closed.name, closed.home.display());
    let mut text =
        format!("{name} is closed; other tools can use its files in {home} until `unstun vm open {name}`");
    if !closed.clients.is_empty() {
        text.push_str(&format!("\ndisconnected: {}", loss::connected(&closed.clients)));
    }
    text
}

fn list(vms: &[VmSummary]) -> String {
    if vms.is_empty() {
        return "no VMs; create one with `unstun vm create NAME --disk 20G`".to_owned();
    }
    let mut table =
        table(&["VM", "state", "disks", "size", "allocated", "snapshots", "clients", "datastore"]);
    let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_bytes);
    for vm in vms {
        table.add_row([
            vm.name.to_string(),
            vm.condition.as_str().to_owned(),
            count(vm.disks),
            bytes(vm.size_bytes),
            bytes(vm.allocated_bytes),
            count(vm.snapshots),
            vm.nbd_clients.to_string(),
            vm.datastore.to_string(),
        ]);
    }
    align_right(&mut table, &[2, 3, 4, 5, 6]);
    let with_cause = vms.iter().filter(|vm| vm.condition != VmCondition::Closed && vm.message.is_some());
    let causes = with_cause.map(|vm| format!("\n{}: {}", vm.name, vm.message.as_deref().unwrap_or_default()));
    let waiting = vms.iter().filter(|vm| vm.waiting_writes > 0).map(|vm| format!("\n{}: {WAITS}", vm.name));
    format!("{table}{}{}", causes.collect::<String>(), waiting.collect::<String>())
}

const WAITS: &str = "guest writes wait: the datastore is full; `unstun status` shows how to free space";

fn describe(vm: &Vm) -> String {
    let mut lines = vec![
        ("VM", vm.name.to_string()),
        ("id", vm.id.clone()),
        ("datastore", vm.datastore.to_string()),
        ("home", vm.home.display().to_string()),
        ("core", vm.core.to_string()),
        ("snapshots", snapshots(vm)),
        ("clients", clients(vm)),
        ("space", space(&vm.space)),
    ];
    if vm.waiting_writes > 0 {
        lines.insert(1, ("FULL", format!("{} {WAITS}", vm.waiting_writes)));
    }
    if vm.delayed_requests > 0 {
        lines.insert(1, ("DELAYED", limits::delayed(vm)));
    }
    if vm.limits != VmLimits::default() {
        lines.push(("limits", vm.limits.describe()));
    }
    if let Some(access) = &vm.guest.access {
        lines.push(("guest", format!("{access}, frozen for at most {} ms", vm.guest.frozen_ms_max)));
    }
    if let Some(qmp) = &vm.guest.qmp {
        lines.push(("QEMU", format!("monitor at {qmp}")));
    }
    if !vm.tags.is_empty() {
        let tags: Vec<_> = vm.tags.iter().map(Tag::as_str).collect();
        lines.insert(2, ("tags", tags.join(", ")));
    }
    if !vm.note.is_empty() {
        lines.insert(1, ("about", vm.note.clone()));
    }
    if let Some(dir) = &vm.snapshot_dir {
        lines.push(("deltas in", dir.display().to_string()));
    }
    for notice in &vm.notices {
        lines.push(("note", notice.clone()));
    }
    if vm.shared_writers {
        lines.push(("note", "several clients may write one disk at a time".to_owned()));
    }
    if vm.fenced {
        let name = &vm.name;
        lines.push((
            "note",
            format!(
                "the content was replaced: {name}/diskN is refused until `unstun vm open {name}`, earlier names \
                 permanently; `unstun attach {name}` prints the current names"
            ),
        ));
    }
    if vm.needs_consolidation {
        lines.push((
            "note",
            format!("deltas remain that no snapshot owns: `unstun snapshot consolidate {}`", vm.name),
        ));
    }
    let disks: String = vm.disks.iter().map(disk::describe_disk).collect();
    format!("{}{disks}", fields(&lines))
}

fn snapshots(vm: &Vm) -> String {
    match &vm.current_snapshot {
        Some(current) => format!("{}, running on {current}", vm.snapshots),
        None => vm.snapshots.to_string(),
    }
}

fn clients(vm: &Vm) -> String {
    if vm.clients.is_empty() { "none".to_owned() } else { loss::connected(&vm.clients) }
}

/// Returns a text with the bytes in the bin, and the bytes that are freed but not in use again yet.
pub(super) fn bin(space: &Space) -> String {
    let (bin, reclaimable) = (format_bytes(space.bin_bytes), format_bytes(space.reclaimable_bytes));
    format!("{bin} in the bin, freed when the space is needed; {reclaimable} reclaimable")
}

/// Returns a text with the free space, and the bytes by which the datastore's disks and deltas can still grow.
pub(super) fn space(space: &Space) -> String {
    let (free, growth) = (format_bytes(space.free_bytes), format_bytes(space.worst_growth_bytes));
    if space.is_enough() {
        return format!("{free} free; disks and deltas can grow by {growth} at worst, which fits");
    }
    let short = format_bytes(space.worst_growth_bytes - space.free_bytes);
    format!(
        "{free} free, but disks and deltas can grow by {growth} at worst: {short} short if guests rewrite everything"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Space = Space { free_bytes: 0, worst_growth_bytes: 0, bin_bytes: 0, reclaimable_bytes: 0 };

    #[test]
    fn space_says_how_much_is_short() {
        let tight = Space { free_bytes: 100 << 30, worst_growth_bytes: 220 << 30, ..NONE };
        assert_eq!(
            space(&tight),
            "100 GiB free, but disks and deltas can grow by 220 GiB at worst: 120 GiB short if guests rewrite \
             everything"
        );
        let enough = Space { free_bytes: 100 << 30, worst_growth_bytes: 20 << 30, ..NONE };
        assert_eq!(space(&enough), "100 GiB free; disks and deltas can grow by 20 GiB at worst, which fits");
    }
}
