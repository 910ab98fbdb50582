//! `unstun attach`: the lines that give a VM's disks to QEMU, libvirt or Proxmox, and the lines that give their user
//! access.

mod access;
mod snippet;

use api::client::Client;
use api::error::{Error, Result};
use api::listen::NbdListen;
use api::output::Output;
use api::{Attach, AttachDisk, AttachTo};

use crate::cli::AttachArgs;

pub(super) async fn run(args: &AttachArgs, client: &Client, output: Output) -> Result<()> {
    let vm = client.vm_show(&args.vm).await?;
    let to = args.to;
    let mut disks = Vec::new();
    for disk in &vm.disks {
        let (listen, export) = NbdListen::parse_uri(&disk.nbd_uri).map_err(Error::failed)?;
        disks.push(Attached { number: disk.number, slot: disk.slot.clone(), listen, export });
    }
    let first =
        disks.first().ok_or_else(|| Error::refused(format!("VM {} has no disk to attach", vm.name)))?;
    let socket = match &first.listen {
        NbdListen::Unix(path) => Some(access::look(path)?),
        NbdListen::Tcp(_) => None,
    };
    let attach = Attach {
        snippet: match to {
            AttachTo::Qemu => snippet::qemu(&disks),
            AttachTo::Libvirt => snippet::libvirt(&disks),
            AttachTo::Proxmox => snippet::proxmox(&disks),
        },
        access: access::advice(to, socket.as_ref()),
        vm: vm.name,
        to,
        disks: vm
            .disks
            .iter()
            .zip(&disks)
            .map(|(disk, attached)| AttachDisk {
                number: disk.number,
                export: attached.export.clone(),
                nbd_uri: disk.nbd_uri.clone(),
            })
            .collect(),
        socket,
    };
    output.result(&attach, describe)
}

/// A disk, and the address at which it is served.
struct Attached {
    number: u32,
    /// Controller and unit in the VM's configuration, such as `scsi0:0`.
    slot: String,
    listen: NbdListen,
    export: String,
}

fn describe(attach: &Attach) -> String {
    let mut text = format!("{}\n", attach.snippet.trim_end());
    for line in &attach.access {
        text.push_str(&format!("\n{line}"));
    }
    text
}
