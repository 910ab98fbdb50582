//! Disks that are added, grown, changed and removed.

use std::os::unix::fs::PermissionsExt;

use crate::daemon::Datastore;
use crate::guest::seed;
use crate::nbd::Nbd;
use crate::programs::tool;
use crate::tools::{Twin, assert_same, run_script};

const MIB: u64 = 1 << 20;

fn size_of(uri: &str) -> u64 {
    tool("nbdinfo", &["--size", uri]).trim().parse().unwrap()
}

/// A guest can write any header into its raw disk, and name a file of the host in it.
#[test]
fn an_image_that_names_other_files_fills_no_disk() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let [secret, hidden, plain] =
        ["secret", "hidden.img", "plain.qcow2"].map(|name| datastore.beside(name).display().to_string());
    std::fs::write(&secret, [7; 1 << 20]).unwrap();
    for image in [&hidden, &plain] {
        tool("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &secret, "-F", "raw", image, "1M"]);
    }
    let (code, said) = datastore.fails(&format!("vm create web --from {hidden}"));
    assert!(code == 3 && said.contains("looks like qcow2") && said.contains("--from-format raw"), "{said}");
    for line in [plain.clone(), format!("{hidden} --from-format qcow2")] {
        let (code, said) = datastore.fails(&format!("vm create web --from {line}"));
        assert!(code == 3 && said.contains(&secret), "{line}: {code}: {said}");
    }
    assert_eq!(datastore.json("vm list"), serde_json::json!([]));
    datastore.json(&format!("vm create web --disk 1M --from {hidden} --from-format raw"));
    run_script(&datastore.uri("web/disk0"), &["read -P 0x51 0 1".to_owned()]);
    daemon.stop();
}

#[test]
fn a_disk_is_filled_from_another_image() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let image = datastore.beside("old.qcow2");
    let path = image.to_str().unwrap();
    tool("qemu-img", &["create", "-q", "-f", "qcow2", path, "24M"]);
    let twin = Twin::new(&datastore, 24 * MIB, seed());
    let script = ["write -P 3 1M 5M", "write -P 4 23M 1M"].map(str::to_owned);
    run_script(twin.path.to_str().unwrap(), &script);
    let convert = ["convert", "-f", "raw", "-O", "qcow2", twin.path.to_str().unwrap(), path];
    tool("qemu-img", &convert);

    let vm = datastore.json(&format!("vm create web --store redo --from {path}"));
    assert_eq!(vm["disks"][0]["size_bytes"], 24 * MIB, "{vm}");
    // Holes of the image stay holes.
    assert_eq!(vm["disks"][0]["layers"][0]["allocated_bytes"], 6 * MIB, "{vm}");
    twin.assert_same_as("raw", &datastore.uri("web/disk0"));

    let added = datastore.json(&format!("vm disk add web 32M,mode=independent-nonpersistent --from {path}"));
    assert_eq!(
        (&added["number"], &added["mode"]),
        (&1.into(), &"independent_nonpersistent".into()),
        "{added}"
    );
    let uri = datastore.uri("web/disk1");
    run_script(&uri, &["read -P 3 1M 5M".to_owned(), "write -P 9 0 32M".to_owned()]);
    // A reset returns the disk to the content with which it was filled.
    datastore.json("vm reset web --yes");
    datastore.json("vm open web");
    run_script(&uri, &["read -P 3 1M 5M", "read -P 0 0 1M", "read -P 0 24M 8M"].map(str::to_owned));

    let (code, said) = datastore.fails(&format!("vm disk add web 16M --from {path}"));
    assert!(code == 3 && said.contains("larger than the 16 MiB"), "{said}");
    assert_eq!(datastore.fails(&format!("vm create small --disk 16M --from {path}")).0, 3);
    let broken = datastore.beside("broken.qcow2");
    std::fs::write(&broken, b"QFI\xfb and no more").unwrap();
    assert_eq!(datastore.fails(&format!("vm create small --from {}", broken.display())).0, 1);
    assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 1, "no half VM is left");
    daemon.stop();
}

#[test]
fn a_disk_without_deltas_grows_under_its_guest() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    let uri = datastore.uri("web/disk0");
    let mut guest = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    let grown = datastore.json("vm disk grow web/disk0 40M");
    assert_eq!(
        (&grown["disk"]["size_bytes"], &grown["reconnect"][0]["disk"]),
        (&(40 * MIB).into(), &0.into()),
        "{grown}"
    );
    let events = datastore.json("events web");
    let says_reconnect = |event: &serde_json::Value| {
        event["message"].as_str().is_some_and(|m| m.contains("after they reconnect"))
    };
    assert!(events.as_array().unwrap().iter().any(says_reconnect), "{events}");
    assert_eq!(guest.read(0, 512).unwrap(), [0; 512], "a connected client continues");
    drop(guest);
    assert_eq!(size_of(&uri), 40 * MIB);
    run_script(&uri, &["write -P 7 39M 1M".to_owned()]);
    let (code, said) = datastore.fails("vm disk grow web/disk0 20M");
    assert!(code == 2 && said.contains("web/disk0 from 40 MiB to 20 MiB: a disk can only grow"), "{said}");
    datastore.json("snapshot take web a");
    let (code, said) = datastore.fails("vm disk grow web/disk0 80M");
    assert!(code == 3 && said.contains("snapshot commit"), "{code}: {said}");
    daemon.stop();
    let daemon = datastore.start();
    assert_eq!(size_of(&uri), 40 * MIB);
    run_script(&uri, &["read -P 7 39M 1M".to_owned()]);
    daemon.stop();
}

#[test]
fn disks_in_other_folders_modes_and_their_removal() {
    let datastore = Datastore::new();
    let fast = datastore.beside("fast");
    std::fs::create_dir(&fast).unwrap();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    let disk = datastore.json(&format!("vm disk add web 16M,dir={}", fast.display()));
    assert!(disk["descriptor"].as_str().unwrap().starts_with(fast.to_str().unwrap()), "{disk}");
    assert_eq!(disk["number"], 1);
    assert_eq!(datastore.fails("vm disk add web 16M,dir=/nowhere/at/all").0, 4);
    let uri = datastore.uri("web/disk1");
    let mut twin = Twin::new(&datastore, 16 * MIB, seed());
    twin.scribble(&uri, 10);
    datastore.json("vm disk set web/disk1 --mode independent-persistent");
    datastore.json("snapshot take web a");
    twin.scribble(&uri, 10);
    // The clone's notices name the disk that it does not have.
    let clone = datastore.json("vm clone web@a test1");
    assert!(clone["notices"][0].as_str().unwrap().contains("disk1"), "{clone}");
    datastore.json("vm remove test1 --delete-disks --purge --yes");
    // The disk is no part of the snapshot, so the revert does not change it.
    datastore.json("snapshot revert web a --yes");
    datastore.json("vm open web");
    twin.assert_same_as("raw", &uri);
    daemon.stop();

    let daemon = datastore.start();
    twin.assert_same_as("raw", &uri);
    datastore.json(&format!("vm set web --snapshot-dir {}", fast.display()));
    datastore.json("snapshot take web b");
    let top = datastore.descriptor("web");
    assert_eq!(top.parent(), Some(fast.as_path()));
    datastore.json("vm set web --no-snapshot-dir");
    assert_eq!(datastore.json("vm show web")["snapshot_dir"], serde_json::Value::Null);
    let removed = datastore.json("vm disk remove web/disk1");
    let stays = removed["layers"][0].as_str().unwrap().to_owned();
    daemon.stop();
    twin.assert_same_as("vmdk", &stays);
    let raw = datastore.beside("converted.raw");
    datastore.json(&format!("convert {stays} {}", raw.display()));
    assert_eq!(raw.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_same(&twin.path, "raw", raw.to_str().unwrap());

    let daemon = datastore.start();
    assert_eq!(datastore.fails("vm disk set web/disk1 --mode persistent").0, 4);
    datastore.json("vm remove web --delete-disks --purge --yes");
    assert!(!top.exists(), "its deltas go wherever they lie");
    assert!(std::path::Path::new(&stays).exists(), "what was taken out before is not its own any more");
    daemon.stop();
}
