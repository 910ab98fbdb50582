//! Texts of `attach` for QEMU, libvirt and Proxmox.

use std::path::Path;

use api::listen::NbdListen;

use super::Attached;
use super::quote::quoted;

/// Seconds for which a guest's I/O waits while the daemon restarts, before it fails.
const RECONNECT_S: u32 = 60;
/// Identifier of the certificates in QEMU.
const CREDENTIALS: &str = "unstun-tls";
const INDENT: &str = "  ";
/// Controllers for guests without virtio drivers, as comments of a shell.
const OTHER_CONTROLLERS: &str = "\
# A guest without virtio drivers, such as Windows, needs another controller instead of virtio-scsi-pci:
#   SATA: -device ahci,id=unstun, and for each disk -device ide-hd,bus=unstun.N,drive=unstun-diskN
#   IDE (machine i440fx): no controller, and for disk 0 -device ide-hd,bus=ide.0,unit=0,drive=unstun-disk0
#   a guest from VMware: -device pvscsi,id=unstun or -device lsi53c895a,id=unstun; the scsi-hd parts stay
# Keep bootindex=1 on disk 0.";

/// Arguments to be put behind those of a `qemu-system-*` that has a `virtio-scsi-pci` controller named
/// `scsi0`.
pub(super) fn qemu(disks: &[Attached]) -> String {
    let mut lines = vec!["-device virtio-scsi-pci,id=unstun".to_owned()];
    lines.extend(credentials(disks));
    lines.extend(
        disks.iter().flat_map(|disk| [format!("-blockdev {}", quoted(&blockdev(disk))), device(disk)]),
    );
    let text = lines.join(" \\\n");
    format!("{text}\n\n{OTHER_CONTROLLERS}")
}

/// Returns one VM's arguments, which Proxmox passes to QEMU unchanged.
pub(super) fn proxmox(disks: &[Attached]) -> String {
    let mut arguments = vec!["-device virtio-scsi-pci,id=unstun".to_owned()];
    arguments.extend(credentials(disks));
    arguments.extend(
        disks.iter().flat_map(|disk| [format!("-blockdev {}", quoted(&blockdev(disk))), device(disk)]),
    );
    let text = arguments.join(" ").replace('\'', "'\\''");
    format!(
        "qm set VMID --args '{text}'\n\n# VMID is the VM's number; `qm set VMID --delete args` detaches the disks.\n\
         # Proxmox does not back up, snapshot or migrate these disks: use unstun for that.\n{OTHER_CONTROLLERS}"
    )
}

/// Returns the arguments for the port of QEMU's guest agent.
pub(super) fn agent(socket: &Path) -> String {
    let path = escape(&socket.to_string_lossy());
    let chardev = quoted(&format!("socket,id=unstun-agent,path={path},server=on,wait=off"));
    format!(
        "# the port of the guest agent, for `snapshot take --quiesce`:\n-device virtio-serial-pci \\\n-chardev \
         {chardev} \\\n-device \
         virtserialport,chardev=unstun-agent,name=org.qemu.guest_agent.0"
    )
}

/// Returns the argument for the certificates of QEMU as a client, where the disks are served with TLS.
fn credentials(disks: &[Attached]) -> Option<String> {
    let has_tls = disks.iter().any(|disk| matches!(disk.listen, NbdListen::Tls(_)));
    has_tls.then(|| format!("-object tls-creds-x509,id={CREDENTIALS},dir=/etc/pki/qemu,endpoint=client"))
}

fn blockdev(disk: &Attached) -> String {
    let server = match &disk.listen {
        NbdListen::Unix(path) => format!("server.type=unix,server.path={}", escape(&path.to_string_lossy())),
        NbdListen::Tcp(address) => {
            format!("server.type=inet,server.host={},server.port={}", address.ip(), address.port())
        }
        NbdListen::Tls(address) => format!(
            "server.type=inet,server.host={},server.port={},tls-creds={CREDENTIALS}",
            address.ip(),
            address.port()
        ),
    };
    let (node, export) = (node(disk), escape(&disk.export));
    format!(
        "driver=nbd,node-name={node},{server},export={export},reconnect-delay={RECONNECT_S},discard=unmap"
    )
}

fn device(disk: &Attached) -> String {
    // QEMU gives the kernel of `-kernel` bootindex 0, which must come before the disk.
    let boot = if disk.number == 0 { ",bootindex=1" } else { "" };
    format!("-device scsi-hd,bus=unstun.0,scsi-id={},drive={}{boot}", disk.number, node(disk))
}

/// Returns a node name. QEMU's node names have at most 31 bytes, and letters, digits, `-`, `.` and `_`.
fn node(disk: &Attached) -> String {
    format!("unstun-disk{}", disk.number)
}

/// Escapes a value: a comma in it is written twice.
pub(super) fn escape(value: &str) -> String {
    value.replace(',', ",,")
}

/// Returns `<disk>` elements for `virsh edit`.
pub(super) fn libvirt(disks: &[Attached]) -> String {
    let mut text = String::from("<!-- for `virsh edit DOMAIN`, under <devices> -->\n");
    text.push_str("<controller type='scsi' index='0' model='virtio-scsi'/>\n");
    for (at, disk) in disks.iter().enumerate() {
        let host = match &disk.listen {
            NbdListen::Unix(path) => format!("transport='unix' socket='{}'", xml(&path.to_string_lossy())),
            NbdListen::Tcp(address) | NbdListen::Tls(address) => {
                format!("name='{}' port='{}'", address.ip(), address.port())
            }
        };
        let lines = [
            format!("<disk type='network' device='disk'> <!-- {} -->", disk.slot),
            format!("{INDENT}<driver name='qemu' type='raw' cache='none' discard='unmap'/>"),
            format!("{INDENT}<source protocol='nbd' name='{}'{}>", xml(&disk.export), tls(&disk.listen)),
            format!("{INDENT}{INDENT}<host {host}/>"),
            format!(
                "{INDENT}{INDENT}<reconnect delay='{RECONNECT_S}'/> <!-- remove this line for libvirt before 9.1 -->"
            ),
            format!("{INDENT}</source>"),
            format!("{INDENT}<target dev='sd{}' bus='scsi'/>", letters(at)),
            "</disk>\n".to_owned(),
        ];
        text.push_str(&lines.join("\n"));
    }
    text
}

/// Returns libvirt's attribute for TLS, whose certificates are in `nbd_tls_x509_cert_dir` of its qemu.conf.
fn tls(listen: &NbdListen) -> &'static str {
    if matches!(listen, NbdListen::Tls(_)) { " tls='yes'" } else { "" }
}

/// Returns the letters by which the kernel names its disks: a, b, ... z, aa, ab.
pub(super) fn letters(mut at: usize) -> String {
    let mut name = Vec::new();
    loop {
        name.push(b'a' + (at % 26) as u8);
        if at < 26 {
            break;
        }
        at = at / 26 - 1;
    }
    name.iter().rev().map(|&byte| char::from(byte)).collect()
}

pub(super) fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(listen: &str) -> Vec<Attached> {
        let listen: NbdListen = listen.parse().unwrap();
        let disk = |number: u32| Attached {
            number,
            slot: format!("scsi0:{number}"),
            listen: listen.clone(),
            export: format!("web/disk{number}"),
            vhost_user: None,
        };
        vec![disk(0), disk(1)]
    }

    #[test]
    fn qemu_gets_a_node_and_a_device_a_disk() {
        let text = qemu(&disks("unix:/run/a,b/nbd.sock"));
        assert!(
            text.contains(
                "-blockdev driver=nbd,node-name=unstun-disk0,server.type=unix,server.path=/run/a,,b/nbd.sock,\
                 export=web/disk0,reconnect-delay=60,discard=unmap \\\n\
                 -device scsi-hd,bus=unstun.0,scsi-id=0,drive=unstun-disk0,bootindex=1"
            ),
            "{text}"
        );
        assert!(text.contains("scsi-id=1,drive=unstun-disk1") && !text.contains("unstun-disk1,bootindex"));
        let spaced = qemu(&disks("unix:/run/a b/nbd.sock"));
        assert!(
            spaced.contains(
                "-blockdev 'driver=nbd,node-name=unstun-disk0,server.type=unix,server.path=/run/a b/nbd.sock,"
            ) && spaced.contains("discard=unmap' \\\n"),
            "{spaced}"
        );
        let tcp = qemu(&disks("127.0.0.1:10809"));
        assert!(
            tcp.contains("server.type=inet,server.host=127.0.0.1,server.port=10809,export=web/disk1"),
            "{tcp}"
        );
    }

    #[test]
    fn the_agents_port_is_three_arguments() {
        let text = agent(Path::new("/run/a,b.sock"));
        assert!(
            text.contains("\\\n-chardev socket,id=unstun-agent,path=/run/a,,b.sock,server=on,wait=off \\\n"),
            "{text}"
        );
    }

    #[test]
    fn libvirt_gets_an_element_a_disk() {
        let text = libvirt(&disks("unix:/run/it's/nbd.sock"));
        assert!(text.contains("<host transport='unix' socket='/run/it&apos;s/nbd.sock'/>"), "{text}");
        assert!(
            text.contains("<source protocol='nbd' name='web/disk1'>") && text.contains("dev='sdb'"),
            "{text}"
        );
        assert!(libvirt(&disks("[::1]:10810")).contains("<host name='::1' port='10810'/>"));
    }

    #[test]
    fn proxmox_gets_one_quoted_command() {
        let text = proxmox(&disks("unix:/run/it's/nbd.sock"));
        assert!(
            text.starts_with(
                "qm set VMID --args '-device virtio-scsi-pci,id=unstun -blockdev '\\''driver=nbd"
            ),
            "{text}"
        );
        // Proxmox divides the text into words as a shell does.
        assert!(text.contains("-blockdev '\\''driver=nbd"), "{text}");
        assert!(text.contains("SATA: -device ahci,id=unstun"), "{text}");
    }

    #[test]
    fn disks_are_lettered_as_the_kernel_does() {
        assert_eq!([0, 25, 26, 27, 59].map(letters), ["a", "z", "aa", "ab", "bh"]);
    }
}
