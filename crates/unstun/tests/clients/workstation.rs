//! Import of a VM of Workstation or Fusion: hosted sparse disks, split and with the descriptor inside, below a snapshot.

use std::path::{Path, PathBuf};

use crate::daemon::Datastore;
use crate::guest::seed;
use crate::import::contents;
use crate::programs::tool;
use crate::space::until;
use crate::tools::{Twin, run_script};

const SIZE: u64 = 48 << 20;

const VMX: &str = r#".encoding = "UTF-8"
config.version = "8"
virtualHW.version = "19"
displayName = "ws"
scsi0.present = "TRUE"
scsi0:0.present = "TRUE"
scsi0:0.fileName = "ws-000001.vmdk"
nvme0.present = "TRUE"
nvme0:0.present = "TRUE"
nvme0:0.fileName = "data.vmdk"
"#;

/// Creates the folder: disk0 has a base and a snapshot's delta, disk1 is split. QEMU writes them as the twins.
fn workstation_vm(datastore: &Datastore) -> (PathBuf, [Twin; 2]) {
    let folder = datastore.beside("workstation");
    std::fs::create_dir(&folder).unwrap();
    let twins = [("disk0", 1), ("disk1", 2)].map(|(name, by)| {
        let mut twin = Twin::called(name, datastore, SIZE, seed() + by);
        twin.scribble(twin.path.clone().to_str().unwrap(), 20);
        twin
    });
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let made = [("ws.vmdk", "monolithicSparse"), ("data.vmdk", "twoGbMaxExtentSparse")];
    for (twin, (name, form)) in twins.iter().zip(made) {
        let form = format!("subformat={form}");
        let raw = twin.path.to_str().unwrap();
        tool("qemu-img", &["convert", "-f", "raw", "-O", "vmdk", "-o", &form, raw, &path(name)]);
    }
    let parent = "backing_file=ws.vmdk,backing_fmt=vmdk,subformat=monolithicSparse";
    tool("qemu-img", &["create", "-q", "-f", "vmdk", "-o", parent, &path("ws-000001.vmdk")]);
    // The delta's own writes.
    let script = ["write -P 7 1M 3M", "write -P 8 40000k 512", "write -z 5M 64k"].map(str::to_owned);
    run_script(twins[0].path.to_str().unwrap(), &script);
    let mut words = vec!["-f", "vmdk"];
    script.iter().for_each(|line| words.extend(["-c", line]));
    let child = path("ws-000001.vmdk");
    words.push(&child);
    let said = tool("qemu-io", &words);
    assert!(!said.contains("failed"), "{said}");
    twins[0].assert_same_as("vmdk", &child);
    std::fs::write(folder.join("ws.vmx"), VMX).unwrap();
    (folder, twins)
}

fn assert_both(twins: &[Twin; 2], datastore: &Datastore) {
    for (disk, twin) in twins.iter().enumerate() {
        twin.assert_same_as("raw", &datastore.uri(&format!("ws/disk{disk}")));
    }
}

#[test]
fn a_vm_of_workstation_runs_and_moves_and_its_folder_stays() {
    let datastore = Datastore::new();
    let (folder, mut twins) = workstation_vm(&datastore);
    let before = contents(&folder);
    let daemon = datastore.start();
    let (code, said) = datastore.fails(&format!("vm import {} --in-place", folder.display()));
    assert!(code == 3 && said.contains("without --in-place"), "{code}: {said}");
    assert_eq!(contents(&folder), before);
    // There is no list of snapshots for the delta; the disks are sound.
    let found = datastore.json(&format!("check {}", folder.display()))["findings"].clone();
    assert!(found.as_array().unwrap().len() == 1 && found[0]["field"] == "snapshot.numSnapshots", "{found}");
    let vm = datastore.json(&format!("vm import {} --name ws", folder.display()));
    let formats = |disk: usize| -> Vec<String> {
        let layers = vm["disks"][disk]["layers"].as_array().unwrap();
        layers.iter().map(|layer| layer["format"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(formats(0), ["monolithicsparse", "monolithicsparse", "vmfssparse"], "{vm}");
    assert_eq!(formats(1), ["twogbmaxextentsparse", "vmfssparse"], "{vm}");
    assert_both(&twins, &datastore);
    for (disk, twin) in twins.iter_mut().enumerate() {
        twin.scribble(&datastore.uri(&format!("ws/disk{disk}")), 15);
    }
    datastore.json("snapshot take ws ours");
    datastore.json("snapshot commit ws ours --yes");
    let (code, said) = datastore.fails("snapshot commit ws as-imported --yes");
    assert_eq!(code, 3, "{said}");
    assert_both(&twins, &datastore);
    datastore.json("vm move ws --store native");
    assert_both(&twins, &datastore);
    daemon.stop();
    assert_eq!(contents(&folder), before);

    // It runs without the folder.
    std::fs::remove_dir_all(&folder).unwrap();
    let daemon = datastore.start();
    assert_both(&twins, &datastore);
    daemon.stop();
}

#[test]
fn a_vm_of_workstation_runs_in_a_native_store_at_once() {
    let datastore = Datastore::new();
    let (folder, mut twins) = workstation_vm(&datastore);
    let before = contents(&folder);
    let daemon = datastore.start();
    let import = format!("vm import {} --name ws --store native", folder.display());
    let (code, said) = datastore.fails(&format!("{import} --ignore-content-ids"));
    assert!(code == 2 && said.contains("as they are"), "{code}: {said}");
    let vm = datastore.json(&import);
    assert_eq!(
        (&vm["store"], vm["disks"].as_array().unwrap().len()),
        (&serde_json::json!("native"), 2),
        "{vm}"
    );
    assert_both(&twins, &datastore);
    datastore.json("snapshot take ws a");
    for (disk, twin) in twins.iter_mut().enumerate() {
        twin.scribble(&datastore.uri(&format!("ws/disk{disk}")), 15);
    }
    assert_both(&twins, &datastore);
    let copied = || {
        let sources = datastore.json("source list");
        sources.as_array().unwrap().iter().all(|source| source["state"] == "copied").then_some(())
    };
    until("the images to be copied", copied);
    assert_eq!(contents(&folder), before);
    daemon.stop();
    std::fs::remove_dir_all(&folder).unwrap();
    let daemon = datastore.start();
    assert_both(&twins, &datastore);
    daemon.stop();
}

#[test]
fn a_chain_of_workstation_becomes_a_raw_file() {
    let datastore = Datastore::new();
    let (folder, twins) = workstation_vm(&datastore);
    for (name, twin) in ["ws-000001.vmdk", "data.vmdk"].iter().zip(&twins) {
        let raw = datastore.beside("out.raw");
        convert(&datastore, &folder.join(name), &raw);
        twin.assert_same_as("raw", raw.to_str().unwrap());
        std::fs::remove_file(raw).unwrap();
    }
}

fn convert(datastore: &Datastore, chain: &Path, raw: &Path) {
    datastore.json(&format!("convert {} {}", chain.display(), raw.display()));
}
