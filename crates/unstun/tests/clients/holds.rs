//! One daemon serves a home, wherever the home is, and no other process can have its disks open meanwhile.

use std::fs;

use crate::daemon::Datastore;
use crate::import::{Qemu, foreign_vm};
use crate::tools::run_script;

#[test]
fn a_home_that_another_daemon_serves_is_refused() {
    let (here, above, elsewhere) = (Datastore::new(), Datastore::new(), Datastore::new());
    let (folder, _twin) = foreign_vm(&here);
    let home = above.path().join("web");
    fs::rename(&folder, &home).unwrap();
    let serving = here.start();
    here.json(&format!("vm import {} --in-place --name web", home.display()));
    run_script(&here.uri("web/disk0"), &["write -P 1 0 1M".to_owned()]);

    // The home's folder is in this daemon's datastore.
    let looking = above.start();
    let list = above.json("vm list");
    assert_eq!(list[0]["condition"], "broken", "{list}");
    assert!(list[0]["message"].as_str().unwrap().contains("web/.unstun/lock"), "{list}");
    for line in ["vm open web", "vm remove web", "vm remove web --delete-disks --purge --yes"] {
        let (code, said) = above.fails(line);
        assert!(code == 5 && said.contains("web/.unstun/lock"), "{line}: {code}: {said}");
    }
    // An import would read files that are being written.
    let importing = elsewhere.start();
    for how in ["", "--in-place"] {
        let (code, said) = elsewhere.fails(&format!("vm import {} {how}", home.display()));
        assert!(code == 5 && said.contains("web/.unstun/lock"), "{how}: {code}: {said}");
    }
    assert_eq!(elsewhere.json("vm list"), serde_json::json!([]));
    assert!(!elsewhere.path().join("web").exists(), "nothing is left behind");
    run_script(&here.uri("web/disk0"), &["read -P 1 0 1M".to_owned(), "write -P 2 0 1M".to_owned()]);

    // After `vm close` any daemon may open the VM, until one does. A change of its snapshot folder reopens the VM,
    // which stays with its daemon.
    here.json("vm close web");
    above.json("vm open web");
    run_script(&above.uri("web/disk0"), &["read -P 2 0 1M".to_owned()]);
    assert_eq!(here.fails("vm open web").0, 5);
    let deltas = above.beside("deltas");
    fs::create_dir(&deltas).unwrap();
    above.json(&format!("vm set web --snapshot-dir {}", deltas.display()));
    assert_eq!(here.fails("vm open web").0, 5);
    above.json("vm close web");
    here.json("vm open web");
    [serving, looking, importing].into_iter().for_each(|daemon| daemon.stop());
}

#[test]
fn a_start_leaves_out_a_vm_whose_disk_is_open_elsewhere() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    datastore.json("vm create free --store redo --disk 16M");
    daemon.stop();
    let qemu = Qemu::open(&datastore.path().join("web/web-flat.vmdk"));
    let daemon = datastore.start();
    let list = datastore.json("vm list");
    assert_eq!((&list[0]["condition"], &list[1]["condition"]), (&"open".into(), &"broken".into()), "{list}");
    assert!(list[1]["message"].as_str().unwrap().contains("web-flat.vmdk"), "{list}");
    for line in ["vm open web", "vm remove web --delete-disks --purge --yes"] {
        assert_eq!(datastore.fails(line).0, 5, "{line}");
    }
    drop(qemu);
    datastore.json("vm open web");
    run_script(&datastore.uri("web/disk0"), &["write -P 1 0 1M".to_owned()]);
    daemon.stop();
}

#[test]
fn in_place_asks_who_reads_what_a_reset_goes_back_to() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create esx --store redo --disk 16M,mode=independent-nonpersistent");
    datastore.json("vm remove esx");
    let folder = datastore.beside("vmware");
    fs::rename(datastore.path().join("esx"), &folder).unwrap();
    datastore.json(&format!("vm import {} --name reader", folder.display()));
    let line = format!("vm import {} --in-place --name esx", folder.display());
    let (code, said) = datastore.fails(&line);
    assert!(code == 3 && said.contains("reader"), "{code}: {said}");
    datastore.json("vm remove reader --delete-disks --purge --yes");
    datastore.json(&line);
    daemon.stop();
}
