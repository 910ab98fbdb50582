//! Import of OVAs: one that `unstun export` made, and ones that the test builds of QEMU's streamOptimized disks and a
//! descriptor of its own.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::guest::seed;
use crate::programs::{tool, try_tool};
use crate::space::until;
use crate::tools::Twin;

const SIZES: [u64; 2] = [24 << 20, 40 << 20];
const NAMES: [&str; 2] = ["web-disk1.vmdk", "web-disk2.vmdk"];

/// An unpacked OVA.
struct Package {
    folder: PathBuf,
    descriptor: String,
    twins: [Twin; 2],
}

impl Package {
    /// Makes a VM with three disks: the first in the file is on SATA, the second on SCSI, and an empty one on IDE.
    fn new(datastore: &Datastore) -> Package {
        let folder = datastore.beside("package");
        fs::create_dir(&folder).unwrap();
        let mut twins = [0, 1].map(|n| Twin::called(NAMES[n], datastore, SIZES[n], seed() + n as u64));
        for (n, twin) in twins.iter_mut().enumerate() {
            twin.scribble(twin.path.clone().to_str().unwrap(), 20);
            let (raw, to) = (twin.path.to_str().unwrap(), folder.join(NAMES[n]));
            let form = "subformat=streamOptimized";
            tool("qemu-img", &["convert", "-f", "raw", "-O", "vmdk", "-o", form, raw, to.to_str().unwrap()]);
        }
        let sizes = [0, 1].map(|n| fs::metadata(folder.join(NAMES[n])).unwrap().len());
        Package { descriptor: descriptor(sizes), folder, twins }
    }

    /// Returns the manifest with the hashes of all files.
    fn manifest(&self) -> String {
        fs::write(self.folder.join("web.ovf"), &self.descriptor).unwrap();
        let line = |name: &&str| {
            let said = tool("sha256sum", &[self.folder.join(name).to_str().unwrap()]);
            format!("SHA256({name})= {}\n", said.split(' ').next().unwrap())
        };
        ["web.ovf", NAMES[0], NAMES[1]].iter().map(line).collect()
    }

    /// Writes an archive with this manifest.
    fn pack(&self, datastore: &Datastore, name: &str, manifest: &str) -> PathBuf {
        fs::write(self.folder.join("web.ovf"), &self.descriptor).unwrap();
        fs::write(self.folder.join("web.mf"), manifest).unwrap();
        let path = datastore.beside(name);
        let (to, folder) = (path.to_str().unwrap(), self.folder.to_str().unwrap());
        tool("tar", &["--format=ustar", "-cf", to, "-C", folder, "web.ovf", "web.mf", NAMES[0], NAMES[1]]);
        path
    }
}

fn descriptor([first, second]: [u64; 2]) -> String {
    let item = |rest: &str| format!("<Item>{rest}</Item>\n");
    let controller = |id: u32, address: u32, kind: u32, model: &str| {
        item(&format!(
            "<r:Address>{address}</r:Address><r:InstanceID>{id}</r:InstanceID><r:ResourceSubType>{model}</r:ResourceSubType>\
             <r:ResourceType>{kind}</r:ResourceType>"
        ))
    };
    let disk = |id: u32, parent: u32, unit: u32, name: &str| {
        item(&format!(
            "<r:AddressOnParent>{unit}</r:AddressOnParent><r:HostResource>ovf:/disk/{name}</r:HostResource>\
             <r:InstanceID>{id}</r:InstanceID><r:Parent>{parent}</r:Parent><r:ResourceType>17</r:ResourceType>"
        ))
    };
    let hardware = [
        controller(3, 0, 20, "vmware.sata.ahci"),
        controller(4, 1, 6, "VirtualSCSI"),
        controller(5, 0, 5, ""),
        disk(6, 3, 2, "sata"),
        disk(7, 4, 5, "scsi"),
        disk(8, 5, 1, "empty"),
    ];
    format!(
        "<?xml version=\"1.0\"?>\n<Envelope xmlns=\"http://schemas.dmtf.org/ovf/envelope/1\" \
         xmlns:ovf=\"http://schemas.dmtf.org/ovf/envelope/1\" \
         xmlns:r=\"http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData\">\n\
         <References><File ovf:href=\"{}\" ovf:id=\"f1\" ovf:size=\"{first}\"/>\
         <File ovf:href=\"{}\" ovf:id=\"f2\" ovf:size=\"{second}\"/></References>\n<DiskSection><Info/>\
         <Disk ovf:capacity=\"24\" ovf:capacityAllocationUnits=\"byte * 2^20\" ovf:diskId=\"sata\" ovf:fileRef=\"f1\"/>\
         <Disk ovf:capacity=\"40\" ovf:capacityAllocationUnits=\"byte * 2^20\" ovf:diskId=\"scsi\" ovf:fileRef=\"f2\"/>\
         <Disk ovf:capacity=\"5000001\" ovf:diskId=\"empty\"/></DiskSection>\n\
         <VirtualSystem ovf:id=\"vm-1\"><Info/><Name>Web server 7</Name><VirtualHardwareSection><Info/>\n{}\
         </VirtualHardwareSection></VirtualSystem></Envelope>\n",
        NAMES[0],
        NAMES[1],
        hardware.concat()
    )
}

fn sources(datastore: &Datastore) -> Vec<Value> {
    datastore.json("source list").as_array().unwrap().clone()
}

/// Waits for sources with these results of the comparison.
fn await_hashes(datastore: &Datastore, hashes: [&str; 2]) -> Vec<Value> {
    until(&format!("hashes {hashes:?}"), || {
        let all = sources(datastore);
        let is_it = |(source, hash): (&Value, &str)| source["hash"] == hash;
        (all.len() == 2 && all.iter().zip(hashes).all(is_it)).then_some(all)
    })
}

fn slots(vm: &Value) -> Vec<&str> {
    vm["disks"].as_array().unwrap().iter().map(|disk| disk["slot"].as_str().unwrap()).collect()
}

#[test]
fn an_ova_of_another_program_runs_at_once_with_its_hardware_and_outlives_its_file() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut package = Package::new(&datastore);
    let manifest = package.manifest();
    let ova = package.pack(&datastore, "old.ova", &manifest);
    let vm = datastore.json(&format!("vm import {}", ova.display()));
    assert_eq!(
        (&vm["name"], slots(&vm)),
        (&json!("Web-server-7"), vec!["scsi1:5", "sata0:2", "ide0:1"]),
        "{vm}"
    );
    let sizes: Vec<_> =
        vm["disks"].as_array().unwrap().iter().map(|disk| disk["size_bytes"].clone()).collect();
    assert_eq!(sizes, [json!(SIZES[1]), json!(SIZES[0]), json!(5_001_216)], "{vm}");
    let notices = vm["notices"].to_string();
    for expected in [
        "Web server 7",
        "disk0 40 MiB scsi1:5 (VirtualSCSI); disk1 24 MiB sata0:2 (vmware.sata.ahci)",
        "ide0:1, empty",
    ] {
        assert!(notices.contains(expected), "{expected}: {notices}");
    }
    let uri = |disk: usize| datastore.uri(&format!("Web-server-7/disk{disk}"));
    // The order of the VM is that of the controllers, not that of the file.
    package.twins[1].assert_same_as("raw", &uri(0));
    package.twins[0].assert_same_as("raw", &uri(1));
    let zeros = try_tool("qemu-io", &["-r", "-f", "raw", "-c", "read -P 0 0 5000001", &uri(2)]);
    assert!(String::from_utf8_lossy(&zeros.stdout).contains("5000001/5000001"), "{zeros:?}");
    package.twins[1].scribble(&uri(0), 15);
    datastore.json("snapshot take Web-server-7 first");
    until("the copies", || sources(&datastore).iter().all(|one| one["state"] == "copied").then_some(()));
    let events = datastore.json("events Web-server-7").to_string();
    for disk in [0, 1] {
        let expected = format!("disk {disk} of {} has the hash", ova.display());
        assert!(events.contains(&expected), "{expected}: {events}");
    }
    daemon.stop();
    fs::remove_file(&ova).unwrap();
    let daemon = datastore.start();
    package.twins[1].assert_same_as("raw", &uri(0));
    package.twins[0].assert_same_as("raw", &uri(1));
    assert_eq!(datastore.json("check")["findings"], json!([]));
    datastore.json("vm move Web-server-7 --store redo");
    package.twins[1].assert_same_as("raw", &uri(0));
    daemon.stop();
}

#[test]
fn a_wrong_hash_ends_the_reads_of_its_disk_and_of_no_other() {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&["--alarms-every", "1s"]);
    datastore.json("vm create web --disk 24M --disk 40M");
    let twins = [0, 1].map(|n| {
        let mut twin = Twin::called(NAMES[n], &datastore, SIZES[n], seed() + n as u64);
        twin.scribble(&datastore.uri(&format!("web/disk{n}")), 12);
        twin
    });
    let ova = datastore.beside("web.ova");
    datastore.json(&format!("export web {}", ova.display()));
    let line = format!("vm import {}", ova.display());
    let (code, said) = datastore.fails(&line);
    assert!(code == 3 && said.contains("exists already") && said.contains("--name"), "{code}: {said}");
    let whole = datastore.json(&format!("{line} --name whole --no-copy"));
    assert_eq!(slots(&whole), ["scsi0:0", "scsi0:1"]);
    assert!(await_hashes(&datastore, ["matches"; 2]).iter().all(|source| source["state"] == "open"));
    for (disk, twin) in twins.iter().enumerate() {
        twin.assert_same_as("raw", &datastore.uri(&format!("whole/disk{disk}")));
    }
    datastore.json("vm remove whole --delete-disks --purge --yes");
    until("the sources to go", || sources(&datastore).is_empty().then_some(()));

    // A byte of the first disk's header that no reader of disks looks at: without the manifest nothing would show it.
    let mut bytes = fs::read(&ova).unwrap();
    let header = bytes.windows(4).position(|part| part == b"KDMV").unwrap();
    bytes[header + 400] ^= 1;
    fs::write(&ova, &bytes).unwrap();
    datastore.json(&format!("{line} --name bent"));
    let found = await_hashes_or_copied(&datastore);
    let message = found["message"].as_str().unwrap();
    for expected in ["member web-disk0.vmdk", "its SHA256 is ", ", expected ", "--no-verify"] {
        assert!(message.contains(expected), "{expected}: {message}");
    }
    assert_eq!(
        (&found["state"], &found["disks"]),
        (&json!("unavailable"), &json!(["bent/disk0"])),
        "{found}"
    );
    assert!(!reads(&datastore.uri("bent/disk0")), "nothing more is read of it");
    twins[1].assert_same_as("raw", &datastore.uri("bent/disk1"));
    let alarm = until("the alarm", || {
        let alarms = datastore.json("alarm list");
        alarms.as_array().unwrap().iter().find(|alarm| alarm["rule"] == "source").cloned()
    });
    assert!(alarm["message"].as_str().unwrap().contains("web-disk0.vmdk"), "{alarm}");
    assert!(datastore.json("events bent").to_string().contains("its SHA256 is "));
    let (code, said) = datastore.fails(&format!("vm create more --disk from={}", ova.display()));
    assert!(code == 6 && said.contains("its SHA256 is "), "a second disk over it: {code}: {said}");
    // The next start finds it again.
    daemon.kill();
    let daemon = datastore.start();
    assert_eq!(await_hashes_or_copied(&datastore)["message"], json!(message));
    assert!(!reads(&datastore.uri("bent/disk0")));
    datastore.json("vm remove bent --delete-disks --purge --yes");
    datastore.json(&format!("{line} --name bent --no-verify"));
    twins[0].assert_same_as("raw", &datastore.uri("bent/disk0"));
    assert!(sources(&datastore).iter().all(|source| source["hash"].is_null()));
    daemon.stop();
}

/// Waits for the source that has a wrong hash, and for the copy of all others.
fn await_hashes_or_copied(datastore: &Datastore) -> Value {
    until("a wrong hash", || {
        let (wrong, others): (Vec<_>, Vec<_>) =
            sources(datastore).into_iter().partition(|source| source["hash"] == "wrong");
        let is_over = others.iter().all(|source| source["state"] == "copied");
        wrong.into_iter().next().filter(|_| is_over)
    })
}

/// Returns whether the begin of a disk can be read.
fn reads(uri: &str) -> bool {
    let said = try_tool("qemu-io", &["-r", "-f", "raw", "-c", "read 0 1M", uri]);
    said.status.success() && !String::from_utf8_lossy(&said.stdout).contains("failed")
}

#[test]
fn what_is_no_sound_ova_is_refused_and_leaves_nothing() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut package = Package::new(&datastore);
    let (manifest, descriptor) = (package.manifest(), package.descriptor.clone());
    let whole = package.pack(&datastore, "whole.ova", &manifest);
    let refused = |path: &Path, options: &str, code: i32, expected: &str| {
        let (found, said) = datastore.fails(&format!("vm import {} {options}", path.display()));
        assert!(found == code && said.contains(expected), "{expected}: {found}: {said}");
        assert_eq!((datastore.json("vm list"), sources(&datastore)), (json!([]), Vec::new()), "{expected}");
    };
    for (options, code, expected) in [
        ("--store redo", 3, "vm move VM --store redo"),
        ("--in-place", 2, "without --in-place"),
        ("--allow-root /tmp", 2, "without --allow-root"),
        ("--ignore-content-ids", 2, "without --ignore-content-ids"),
    ] {
        refused(&whole, options, code, expected);
    }
    let bytes = fs::read(&whole).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = datastore.beside(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    refused(&file("half.ova", &bytes[..bytes.len() / 2]), "", 6, "half.ova");
    refused(&file("noise.ova", &[7; 100_000]), "", 6, "noise.ova");
    refused(&file("empty.ova", &[]), "", 6, "empty.ova");
    refused(&datastore.beside("none.ova"), "", 4, "no such file");
    let disk_alone = datastore.beside("disk.ova");
    let folder = package.folder.clone();
    tool("tar", &["-cf", disk_alone.to_str().unwrap(), "-C", folder.to_str().unwrap(), NAMES[0]]);
    refused(&disk_alone, "", 6, "OVF descriptor");
    refused(
        &package.pack(&datastore, "swapped.ova", &manifest.replacen("web.ovf)= ", "web.ovf)= 0", 1)),
        "",
        6,
        "line 1",
    );
    package.descriptor = descriptor.replace("Web server 7", "Web server 8");
    refused(&package.pack(&datastore, "edited.ova", &manifest), "", 6, "member web.ovf): its SHA256 is");
    package.descriptor = descriptor.replace("Web server 7", "\u{7f51}");
    refused(&package.pack(&datastore, "named.ova", ""), "", 2, "choose a name with --name");
    package.descriptor =
        descriptor.replace("</VirtualSystem>", "</VirtualSystem><VirtualSystem ovf:id=\"b\"/>");
    refused(&package.pack(&datastore, "two.ova", ""), "", 3, "export each VM on its own");
    package.descriptor = descriptor.clone();
    // The second disk of the file is a raw one.
    let raw = vec![7; fs::metadata(folder.join(NAMES[1])).unwrap().len() as usize];
    fs::write(folder.join(NAMES[1]), raw).unwrap();
    refused(&package.pack(&datastore, "raw.ova", ""), "", 3, "expected a streamOptimized disk");
    assert_eq!(datastore.json("check")["findings"], json!([]));
    // A name that fits, and no manifest.
    let vm = datastore.json(&format!("vm import {} --name web --no-copy", whole.display()));
    assert_eq!(vm["name"], "web");
    daemon.stop();
}
