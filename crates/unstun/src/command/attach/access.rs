//! Access to the daemon's socket: the present permissions, and lines that give QEMU's user access.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use api::error::{Error, Result};
use api::listen::NbdListen;
use api::{AttachSocket, AttachTo, AttachVia};

use super::quote::quoted;

/// Permission bit that lets all users pass through a folder.
const SEARCHABLE_BY_ALL: u32 = 0o001;
const PERMISSION_BITS: u32 = 0o777;

pub(super) fn look(path: &Path) -> Result<AttachSocket> {
    let metadata = path.metadata().map_err(|e| Error::failed(format!("socket {}: {e}", path.display())))?;
    Ok(AttachSocket {
        path: path.to_owned(),
        owner: named("/etc/passwd", metadata.uid()),
        group: named("/etc/group", metadata.gid()),
        mode: format!("{:o}", metadata.mode() & PERMISSION_BITS),
    })
}

/// Returns the name of a user or group, or its number if the file does not list it. Both files have
/// `NAME:PASSWORD:NUMBER:...` lines.
fn named(file: &str, id: u32) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| id.to_string())
}

/// Returns what to know of a disk over TCP, as comments for a shell.
pub(super) fn over_tcp(listen: &NbdListen) -> Vec<String> {
    let line = match listen {
        NbdListen::Tls(_) => {
            "# the folder `dir` has ca-cert.pem, client-cert.pem and client-key.pem, with a certificate that reaches this VM"
        }
        _ => {
            "# NBD over TCP has no access control: every client that reaches the address can write the disks"
        }
    };
    vec![line.to_owned()]
}

/// Returns lines for a shell, with comments.
pub(super) fn advice(to: AttachTo, via: AttachVia, socket: &AttachSocket) -> Vec<String> {
    let shown = socket.path.display();
    let mut lines = vec![format!(
        "# {shown} belongs to {}:{}, mode {}: QEMU's user must be able to read and write it",
        socket.owner, socket.group, socket.mode
    )];
    match to {
        AttachTo::Proxmox => {
            lines.push("# Proxmox runs QEMU as root: no rights are needed".to_owned());
            return lines;
        }
        AttachTo::Libvirt => lines.push(
            "# USER: libvirt-qemu on Debian and Ubuntu, qemu on Fedora; if QEMU runs as root, no rights are needed"
                .to_owned(),
        ),
        AttachTo::Qemu => lines.push("# USER: the user that starts QEMU".to_owned()),
        AttachTo::CloudHypervisor => lines.push("# USER: the user that starts cloud-hypervisor".to_owned()),
    }
    lines.extend(grants(&socket.path));
    if via == AttachVia::VhostUser {
        lines.push("# the same for the sockets of the other disks, and again after a revert, which replaces the sockets".to_owned());
    }
    lines.push(format!(
        "# without ACLs: chgrp GROUP {}, with a group that USER is in",
        quoted(&socket.path.to_string_lossy())
    ));
    lines.push(
        "# the daemon creates the socket anew at each start; for permanent rights, use a separate folder:"
            .to_owned(),
    );
    lines.push(
        "# `unstun up --nbd unix:/run/unstun/nbd.sock`, and setfacl -m u:USER:x,d:u:USER:rwx /run/unstun"
            .to_owned(),
    );
    if to == AttachTo::Libvirt {
        lines.push(
            "# where AppArmor confines QEMU, in /etc/apparmor.d/local/abstractions/libvirt-qemu:".to_owned(),
        );
        lines.push(format!("#   \"{shown}\" rw,"));
    }
    lines
}

/// Returns the lines that grant access to the socket, and to every folder above it that not all users may pass.
fn grants(socket: &Path) -> Vec<String> {
    let closed = |folder: &&Path| folder.metadata().is_ok_and(|m| m.mode() & SEARCHABLE_BY_ALL == 0);
    let mut folders: Vec<&Path> = socket.ancestors().skip(1).filter(closed).collect();
    folders.reverse();
    let mut lines: Vec<String> = folders
        .iter()
        .map(|folder| format!("setfacl -m u:USER:x {}", quoted(&folder.to_string_lossy())))
        .collect();
    lines.push(format!("setfacl -m u:USER:rw {}", quoted(&socket.to_string_lossy())));
    lines
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_socket_and_the_folders_on_the_way_are_granted() {
        let folder = tempfile::tempdir().unwrap();
        let private = folder.path().join("it's mine");
        std::fs::create_dir(&private).unwrap();
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700)).unwrap();
        let path = private.join("nbd.sock");
        std::fs::write(&path, "").unwrap();
        let socket = look(&path).unwrap();
        let lines = advice(AttachTo::Libvirt, AttachVia::Nbd, &socket);
        assert!(
            lines.iter().any(|l| l.starts_with("setfacl -m u:USER:x '") && l.ends_with("it'\\''s mine'"))
        );
        assert!(lines.iter().any(|l| l.starts_with("setfacl -m u:USER:rw")), "{lines:?}");
        let apparmor = format!("#   \"{}\" rw,", path.display());
        assert!(lines.contains(&apparmor), "{lines:?}");
        assert!(!advice(AttachTo::Qemu, AttachVia::Nbd, &socket).contains(&apparmor));
    }

    #[test]
    fn owners_are_named_where_they_have_a_name() {
        assert_eq!(named("/etc/passwd", 0), "root");
        assert_eq!(named("/nowhere", 4711), "4711");
    }

    #[test]
    fn over_tcp_there_is_a_warning() {
        let address = "127.0.0.1:10809".parse().unwrap();
        assert!(over_tcp(&NbdListen::Tcp(address))[0].contains("no access control"));
        assert!(over_tcp(&NbdListen::Tls(address))[0].contains("client-cert.pem"));
    }
}
