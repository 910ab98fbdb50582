//! `unstun attach`: the lines that give a VM's disks to a hypervisor, and the lines that give its user access.

mod access;
mod quote;
mod resume;
mod snippet;
mod vhost_snippet;

use std::path::PathBuf;

use api::client::Client;
use api::error::{Error, Result};
use api::listen::NbdListen;
use api::output::Output;
use api::{Attach, AttachDisk, AttachTo, AttachVia, GuestAccess, Vm, VmGuest};

use crate::cli::AttachArgs;

pub(super) async fn run(args: &AttachArgs, client: &Client, output: Output) -> Result<()> {
    let vm = client.vm_show(&args.vm).await?;
    let resume = match &args.resume {
        Some(_) if args.to != AttachTo::Qemu => {
            let cause = "a guest is resumed by QEMU itself; leave out --as, or pass --as qemu";
            return Err(Error::refused(cause.to_owned()));
        }
        Some(snapshot) => Some(resume::command(&vm, snapshot, client).await?),
        None => None,
    };
    for note in resume.iter().flat_map(|resume| &resume.notes) {
        output.note(note);
    }
    let resume_paused = resume.as_ref().is_some_and(|resume| resume.paused);
    let resume = resume.map(|resume| resume.words);
    let attach = Attach { resume, resume_paused, ..lines(vm, args.to, args.via)? };
    output.result(&attach, describe)
}

/// Returns the lines for a VM. Looks at the daemon's sockets, which have to be on this host.
pub(crate) fn lines(vm: Vm, to: AttachTo, via: AttachVia) -> Result<Attach> {
    let mut disks = Vec::new();
    for disk in &vm.disks {
        let (listen, export) = NbdListen::parse_uri(&disk.nbd_uri).map_err(Error::failed)?;
        let vhost_user = disk.vhost_user_socket.clone();
        disks.push(Attached { number: disk.number, slot: disk.slot.clone(), listen, export, vhost_user });
    }
    let first =
        disks.first().ok_or_else(|| Error::refused(format!("VM {} has no disk to attach", vm.name)))?;
    let socket = match (via, &first.listen) {
        (AttachVia::VhostUser, _) => Some(access::look(vhost_snippet::socket(first)?)?),
        (AttachVia::Nbd, NbdListen::Unix(path)) => Some(access::look(path)?),
        (AttachVia::Nbd, NbdListen::Tcp(_) | NbdListen::Tls(_)) => None,
    };
    Ok(Attach {
        snippet: snippet(to, via, &disks)? + &agent(to, &vm.guest),
        access: match &socket {
            Some(socket) => access::advice(to, via, socket),
            None => access::over_tcp(&first.listen),
        },
        resume: None,
        resume_paused: false,
        vm: vm.name,
        to,
        via,
        disks: vm
            .disks
            .iter()
            .zip(&disks)
            .map(|(disk, attached)| AttachDisk {
                number: disk.number,
                export: attached.export.clone(),
                nbd_uri: disk.nbd_uri.clone(),
                vhost_user_socket: disk.vhost_user_socket.clone(),
            })
            .collect(),
        socket,
    })
}

/// A disk, and the address at which it is served.
struct Attached {
    number: u32,
    /// Controller and unit in the VM's configuration, such as `scsi0:0`.
    slot: String,
    listen: NbdListen,
    export: String,
    /// Socket for vhost-user clients.
    vhost_user: Option<PathBuf>,
}

fn snippet(to: AttachTo, via: AttachVia, disks: &[Attached]) -> Result<String> {
    Ok(match (via, to) {
        (AttachVia::Nbd, AttachTo::Qemu) => snippet::qemu(disks),
        (AttachVia::Nbd, AttachTo::Libvirt) => snippet::libvirt(disks),
        (AttachVia::Nbd, AttachTo::Proxmox) => snippet::proxmox(disks),
        (AttachVia::Nbd, AttachTo::CloudHypervisor) => {
            let cause = "cloud-hypervisor has no NBD client; add --via vhost-user";
            return Err(Error::refused(cause.to_owned()));
        }
        (AttachVia::VhostUser, AttachTo::Qemu) => vhost_snippet::qemu(disks)?,
        (AttachVia::VhostUser, AttachTo::Libvirt) => vhost_snippet::libvirt(disks)?,
        (AttachVia::VhostUser, AttachTo::CloudHypervisor) => vhost_snippet::cloud_hypervisor(disks)?,
        (AttachVia::VhostUser, AttachTo::Proxmox) => {
            let cause = "vhost-user needs shared guest memory, which a VM of Proxmox does not have; attach the disks \
                         over NBD: leave --via out";
            return Err(Error::refused(cause.to_owned()));
        }
    })
}

/// Returns the lines that give QEMU the port of the guest's agent, where the VM has one.
fn agent(to: AttachTo, guest: &VmGuest) -> String {
    match (to, &guest.access) {
        (AttachTo::Qemu, Some(GuestAccess::Agent(path))) => format!("\n\n{}", snippet::agent(path)),
        _ => String::new(),
    }
}

fn describe(attach: &Attach) -> String {
    if let Some(resume) = &attach.resume {
        return resume::describe(resume);
    }
    let mut text = format!("{}\n", attach.snippet.trim_end());
    for line in &attach.access {
        text.push_str(&format!("\n{line}"));
    }
    text
}
