//! Texts of `attach --via vhost-user` for QEMU, libvirt and cloud-hypervisor.

use std::path::Path;

use api::error::{Error, Result};

use super::Attached;
use super::quote::quoted;
use super::snippet::{escape, letters, xml};

/// Queues of a disk: enough that a few processors of a guest do not wait for one another, within what the daemon offers.
const QUEUES: u32 = 4;
/// Seconds between two attempts to reach the daemon. The guest's requests wait meanwhile.
const RECONNECT_S: u32 = 1;

/// Returns the socket of a disk.
pub(super) fn socket(disk: &Attached) -> Result<&Path> {
    disk.vhost_user.as_deref().ok_or_else(|| {
        Error::refused(format!(
            "disk{} has no vhost-user socket: the daemon serves NBD over TCP alone (start it with --nbd unix:PATH), or \
             could not make the socket (its log has the reason)",
            disk.number
        ))
    })
}

/// Arguments to be put behind those of a `qemu-system-*`.
pub(super) fn qemu(disks: &[Attached]) -> Result<String> {
    let mut lines = vec![
        "-object memory-backend-memfd,id=unstun-memory,size=1G,share=on,prealloc=on".to_owned(),
        "-numa node,memdev=unstun-memory".to_owned(),
    ];
    for disk in disks {
        let path = escape(&socket(disk)?.to_string_lossy());
        let (number, boot) = (disk.number, if disk.number == 0 { ",bootindex=1" } else { "" });
        let chardev = format!("socket,id=unstun-disk{number},path={path},reconnect={RECONNECT_S}");
        lines.push(format!("-chardev {}", quoted(&chardev)));
        lines.push(format!(
            "-device vhost-user-blk-pci,chardev=unstun-disk{number},num-queues={QUEUES}{boot}"
        ));
    }
    let text = lines.join(" \\\n");
    Ok(format!(
        "{text}\n\n# Replace size=1G by the guest's memory, the value of -m. The daemon maps this memory; without\n\
         # prealloc=on the pages that it fills first would count as its own memory.\n\
         # The guest needs virtio drivers. A revert replaces the sockets: power the guest off before it."
    ))
}

/// Returns `<memoryBacking>` and `<disk>` elements for `virsh edit`.
pub(super) fn libvirt(disks: &[Attached]) -> Result<String> {
    let mut text = String::from(
        "<!-- for `virsh edit DOMAIN`, under <domain> -->\n<memoryBacking>\n  <source type='memfd'/>\n  \
         <access mode='shared'/>\n  <allocation mode='immediate'/>\n</memoryBacking>\n<!-- under <devices> -->\n",
    );
    for (at, disk) in disks.iter().enumerate() {
        let lines = [
            format!("<disk type='vhostuser' device='disk'> <!-- {} -->", disk.slot),
            format!("  <driver name='qemu' type='raw' queues='{QUEUES}'/>"),
            format!("  <source type='unix' path='{}'>", xml(&socket(disk)?.to_string_lossy())),
            format!("    <reconnect enabled='yes' timeout='{RECONNECT_S}'/>"),
            "  </source>".to_owned(),
            format!("  <target dev='vd{}' bus='virtio'/>", letters(at)),
            "</disk>\n".to_owned(),
        ];
        text.push_str(&lines.join("\n"));
    }
    Ok(text)
}

/// Returns options of cloud-hypervisor.
pub(super) fn cloud_hypervisor(disks: &[Attached]) -> Result<String> {
    let mut lines = vec!["--memory size=1G,shared=on".to_owned()];
    for (at, disk) in disks.iter().enumerate() {
        let option = if at == 0 { "--disk " } else { "" };
        let path = socket(disk)?.display();
        let disk = quoted(&format!("vhost_user=true,socket={path},num_queues={QUEUES}"));
        lines.push(format!("{option}{disk}"));
    }
    let text = lines.join(" \\\n");
    Ok(format!(
        "{text}\n\n# Replace size=1G by the guest's memory.\n# The daemon accepts only memory that is sealed against \
         shrinking; a cloud-hypervisor that does not seal its memory is refused, and the daemon's log says so."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(sockets: &[Option<&str>]) -> Vec<Attached> {
        let disk = |(number, socket): (usize, Option<&str>)| Attached {
            number: number as u32,
            slot: format!("scsi0:{number}"),
            listen: "unix:/run/nbd.sock".parse().unwrap(),
            export: format!("web/disk{number}.g1"),
            vhost_user: socket.map(Into::into),
        };
        sockets.iter().copied().enumerate().map(disk).collect()
    }

    #[test]
    fn every_hypervisor_gets_shared_memory_and_the_socket_of_each_disk() {
        let disks = disks(&[Some("/run/vhost/a,b.sock"), Some("/run/vhost/it's.sock")]);
        let qemu = qemu(&disks).unwrap();
        assert!(qemu.contains("path=/run/vhost/a,,b.sock,reconnect=1"), "{qemu}");
        assert!(qemu.contains("share=on") && qemu.contains("chardev=unstun-disk1,num-queues=4"), "{qemu}");
        let libvirt = libvirt(&disks).unwrap();
        assert!(
            libvirt.contains("it&apos;s.sock") && libvirt.contains("<access mode='shared'/>"),
            "{libvirt}"
        );
        let other = cloud_hypervisor(&disks).unwrap();
        assert!(other.contains("shared=on") && other.matches("--disk").count() == 1, "{other}");
    }

    #[test]
    fn a_disk_without_a_socket_is_refused_with_the_reason() {
        let error = qemu(&disks(&[None])).unwrap_err();
        assert!(error.to_string().contains("--nbd unix:PATH"), "{error}");
    }
}
