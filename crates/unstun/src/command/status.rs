//! `unstun status`.

use api::client::Client;
use api::error::Result;
use api::output::{Output, fields};
use api::units::format_bytes;
use api::{Core, Datastore, Freeable, FullDatastore, Status};

use crate::command::datastore;

pub(super) async fn run(client: &Client, output: Output) -> Result<()> {
    output.result(&client.status().await?, describe)
}

pub(super) fn describe(status: &Status) -> String {
    let io = if status.direct_io { "direct" } else { "buffered (the file system refuses O_DIRECT)" };
    let summary = fields(&[
        ("datastore", status.datastore.display().to_string()),
        ("daemon", format!("unstun {}, process {}, since {:.0}", status.version, status.pid, status.started)),
        ("space", space(status)),
        ("disk I/O", io.to_owned()),
        ("NBD", status.nbd.join("\n     ")),
        ("API", if status.web.is_empty() { "local only".to_owned() } else { status.web.join("\n     ") }),
        ("clients", status.nbd_clients.to_string()),
        ("cores", cores(status)),
        ("VMs", format!("{} with {} disks, {} snapshots", status.vms, status.disks, status.snapshots)),
        ("open jobs", status.open_jobs.to_string()),
    ]);
    let full: String = status.full.iter().map(full).collect();
    let hung: String = status.datastores.iter().filter_map(hung).collect();
    match status.datastores.as_slice() {
        [main] if main.notices.is_empty() => format!("{hung}{full}{summary}"),
        all => format!("{hung}{full}{summary}{}\n", datastore::list(all)),
    }
}

/// Returns a text with the number of cores, and how many VMs each of several runs.
fn cores(status: &Status) -> String {
    match status.cores.as_slice() {
        [] | [_] => "1".to_owned(),
        all => {
            let one = |core: &Core| format!("core {}: {} VMs", core.number, core.vms);
            let vms: Vec<_> = all.iter().map(one).collect();
            format!("{} ({})", all.len(), vms.join(", "))
        }
    }
}

/// Returns a text with the space of the main datastore.
fn space(status: &Status) -> String {
    let main = status.datastores.first();
    let of = |bytes: Option<u64>| format_bytes(bytes.unwrap_or(0));
    format!(
        "{} free of {}; {} in the bin, {} reclaimable",
        format_bytes(status.free_bytes),
        format_bytes(status.total_bytes),
        of(main.and_then(|main| main.bin_bytes)),
        of(main.and_then(|main| main.reclaimable_bytes))
    )
}

fn hung(datastore: &Datastore) -> Option<String> {
    let hung = datastore.hung.as_ref()?;
    let (name, seconds, doing) = (&datastore.name, hung.for_s, &hung.doing);
    Some(fields(&[
        (
            "HUNG",
            format!("datastore {name} has not answered for {seconds} s ({doing}); the others are served"),
        ),
        (
            "remedy",
            "check its file server or device, or Ceph (OSDs, a full pool); guests and operations continue when it answers".to_owned(),
        ),
    ]))
}

fn full(full: &FullDatastore) -> String {
    let (free, total) = (format_bytes(full.free_bytes), format_bytes(full.total_bytes));
    let waiting: Vec<_> = full.waiting.iter().map(|vm| format!("{} ({})", vm.vm, vm.writes)).collect();
    let remedies = full.freeable.iter().map(Freeable::remedy);
    let remedies: Vec<_> = remedies.chain(["remove a VM, or add space".to_owned()]).collect();
    fields(&[
        (
            "FULL",
            format!(
                "datastore {}, {free} free of {total}: guest writes wait; reads continue",
                full.datastore
            ),
        ),
        ("waiting", waiting.join(", ")),
        ("remedies", remedies.join("\n          ")),
    ])
}
