//! The bin: a removed VM is restored sector for sector, and the bin frees its space when others need it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::{Daemon, Datastore};
use crate::import::foreign_vm;
use crate::nbd::Nbd;
use crate::programs::tool;
use crate::space::{Mounted, until};
use crate::tools::{Twin, run_script};

const STORES: [&str; 2] = ["redo", "native"];
/// The bin keeps entries as long as any space is free.
const KEEP: [&str; 2] = ["--bin-free-percent", "0"];
const REMOVE: &str = "vm remove web --delete-disks --yes";
const MIB: u32 = 1 << 20;

fn kept(datastore: &Datastore) -> Vec<Value> {
    datastore.json("bin list").as_array().unwrap().clone()
}

fn names(datastore: &Datastore) -> Vec<String> {
    let vms = datastore.json("vm list");
    vms.as_array().unwrap().iter().map(|vm| vm["name"].as_str().unwrap().to_owned()).collect()
}

/// Creates a VM `web` with content before and after a snapshot. Returns the same content in files.
fn scribbled(datastore: &Datastore, store: &str) -> (Twin, PathBuf) {
    datastore.json(&format!("vm create web --disk 48M --store {store}"));
    let mut twin = Twin::new(datastore, 48 << 20, 7);
    let uri = datastore.uri("web/disk0");
    twin.scribble(&uri, 12);
    datastore.json("snapshot take web a");
    let then = datastore.beside("then.raw");
    fs::copy(&twin.path, &then).unwrap();
    twin.scribble(&uri, 12);
    (twin, then)
}

fn assert_content(datastore: &Datastore, vm: &str, twin: &Twin, then: &Path) {
    datastore.json(&format!("vm open {vm}"));
    twin.assert_same_as("raw", &datastore.uri(&format!("{vm}/disk0")));
    let at = datastore.uri(&format!("{vm}/disk0@a"));
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", then.to_str().unwrap(), &at]);
}

/// Restores a VM after a restart and a kill, and while its name is in use.
fn comes_back(store: &str) {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&KEEP);
    let (twin, then) = scribbled(&datastore, store);
    let export = datastore.json("vm show web")["disks"][0]["nbd_uri"].as_str().unwrap().to_owned();
    let removed = datastore.json(REMOVE);
    assert_eq!(
        (&removed["disks_deleted"], &removed["bin"]["vm"]),
        (&json!(false), &json!("web")),
        "{removed}"
    );
    assert!(removed["bin"]["bytes"].as_u64().unwrap() > 1 << 20, "{removed}");
    assert_eq!(names(&datastore), Vec::<String>::new());
    assert_eq!(datastore.json("datastore list")[0]["bin_bytes"], removed["bin"]["bytes"]);

    // The name is free, and another VM may use it.
    datastore.json(&format!("vm create web --disk 16M --store {store}"));
    run_script(&datastore.uri("web/disk0"), &["write -P 9 0 1M".to_owned()]);
    let (code, said) = datastore.fails("bin restore web");
    assert!(code == 3 && said.contains("--name"), "{code}: {said}");
    daemon.kill();
    let daemon = datastore.start_as(&KEEP);
    assert_eq!((names(&datastore), kept(&datastore).len()), (vec!["web".to_owned()], 1));
    daemon.stop();
    let daemon = datastore.start_as(&KEEP);
    let restored = datastore.json("bin restore web --name web2");
    assert_eq!((&restored["vm"], &restored["condition"]), (&json!("web2"), &json!("open")), "{restored}");
    assert_eq!(kept(&datastore), Vec::<Value>::new());
    assert_content(&datastore, "web2", &twin, &then);
    run_script(&datastore.uri("web/disk0"), &["read -P 9 0 1M".to_owned()]);

    // The VM is also restored under its own name, after the other VM was removed for good.
    datastore.json(&format!("{REMOVE} --purge"));
    datastore.json("vm remove web2 --delete-disks --yes");
    datastore.json("bin restore web2 --name web");
    assert!(!datastore.run("vm show web").stdout.is_empty());
    assert_ne!(
        datastore.json("vm show web")["disks"][0]["nbd_uri"],
        json!(export),
        "earlier clients are refused"
    );
    assert_content(&datastore, "web", &twin, &then);
    datastore.json("snapshot revert web a --yes");
    datastore.json("vm open web");
    let uri = datastore.uri("web/disk0");
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", then.to_str().unwrap(), &uri]);
    daemon.stop();
}

#[test]
fn a_vm_with_files_comes_back_as_it_was() {
    comes_back("redo");
}

#[test]
fn a_native_vm_comes_back_as_it_was() {
    comes_back("native");
}

#[test]
fn a_removal_says_what_goes_and_asks() {
    for store in STORES {
        let datastore = Datastore::new();
        let daemon = datastore.start_as(&KEEP);
        datastore.json(&format!("vm create web --disk 16M,32M --store {store}"));
        datastore.json("snapshot take web before");
        let (code, said) = datastore.fails("vm remove web --delete-disks");
        for word in ["not confirmed", "disk1 (32 MiB)", "before", "the bin keeps it until", "bin restore web"]
        {
            assert!(code == 3 && said.contains(word), "{word}: {code}: {said}");
        }
        let preview = datastore.json("vm remove web --delete-disks --dry-run");
        assert_eq!(
            (&preview["not_kept"], &preview["snapshots"]),
            (&json!(null), &json!(["before"])),
            "{preview}"
        );
        let preview = datastore.json("vm remove web --delete-disks --purge --dry-run");
        assert_eq!(preview["kept_until"], json!(null), "{preview}");
        assert!(preview["not_kept"].as_str().unwrap().contains("--purge"), "{preview}");
        let client = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
        let (code, said) = datastore.fails(REMOVE);
        assert!(code == 3 && said.contains("disk0"), "{code}: {said}");
        drop(client);
        until("the client to be gone", || {
            (datastore.json("vm show web")["nbd_clients"] == json!(0)).then_some(())
        });
        datastore.json(REMOVE);
        let (code, said) = datastore.fails("bin empty");
        assert!(
            code == 3 && said.contains("not confirmed") && said.contains("permanently"),
            "{code}: {said}"
        );
        assert_eq!(datastore.json("bin empty web --dry-run")["entries"][0]["vm"], "web");
        let done = datastore.json("bin empty web --yes");
        assert_eq!((done["entries"].as_array().unwrap().len(), &done["left"]), (1, &json!([])), "{done}");
        assert_eq!(datastore.fails("bin restore web").0, 4);
        assert_eq!(datastore.json("bin empty --yes")["entries"], json!([]));
        daemon.stop();
    }
}

#[test]
fn a_vm_that_was_closed_comes_back_closed() {
    for store in STORES {
        let datastore = Datastore::new();
        let daemon = datastore.start_as(&KEEP);
        let (twin, then) = scribbled(&datastore, store);
        datastore.json("vm close web");
        assert_eq!(datastore.json(REMOVE)["bin"]["vm"], "web");
        daemon.stop();
        let daemon = datastore.start_as(&KEEP);
        assert_eq!(datastore.json("bin restore web")["condition"], "closed");
        assert_content(&datastore, "web", &twin, &then);
        daemon.stop();
    }
}

#[test]
fn a_vm_in_its_own_folder_comes_back_there() {
    let datastore = Datastore::new();
    let (folder, twin) = foreign_vm(&datastore);
    let daemon = datastore.start_as(&KEEP);
    let import = format!("vm import {} --in-place --name web", folder.display());
    datastore.json(&import);
    datastore.json(REMOVE);
    let (code, said) = datastore.fails(&import);
    assert!(code == 3 && said.contains("bin"), "{code}: {said}");
    assert_eq!(datastore.fails(&format!("vm import {} --name again", folder.display())).0, 3);
    datastore.json("vm create web --disk 16M");
    datastore.json("bin restore web --name old");
    datastore.json("vm open old");
    twin.assert_same_as("raw", &datastore.uri("old/disk0"));
    datastore.json("vm remove old --delete-disks --yes");
    daemon.stop();
    let daemon = datastore.start_as(&KEEP);
    datastore.json("bin empty --yes");
    assert!(!folder.join(".unstun").exists() && !folder.join("esx.vmx").exists());
    daemon.stop();
}

#[test]
fn what_a_vm_in_the_bin_reads_stays() {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&KEEP);
    datastore.json("vm create base --disk 16M --store redo");
    run_script(&datastore.uri("base/disk0"), &["write -P 5 0 1M".to_owned()]);
    datastore.json("snapshot take base a");
    datastore.json("vm clone base@a web");
    datastore.json(REMOVE);
    for line in [
        "vm remove base --delete-disks --yes",
        "vm remove base --delete-disks --purge --yes",
        "snapshot commit base a --yes",
    ] {
        let (code, said) = datastore.fails(line);
        assert!(code == 3 && said.contains("unstun-bin"), "{line}: {code}: {said}");
        assert!(!line.starts_with("vm") || said.contains("`unstun bin empty "), "{said}");
    }
    datastore.json("bin restore web");
    datastore.json("vm open web");
    run_script(&datastore.uri("web/disk0"), &["read -P 5 0 1M".to_owned()]);
    datastore.json(REMOVE);
    datastore.json("bin empty --yes");
    datastore.json("vm remove base --delete-disks --purge --yes");
    daemon.stop();
}

/// The folder and the store both record to which VM an entry belongs.
#[test]
fn a_bin_whose_records_are_lost_or_damaged_is_found_again() {
    for store in STORES {
        for text in [None, Some("state kept\nvm ../x\n")] {
            let datastore = Datastore::new();
            let daemon = datastore.start_as(&KEEP);
            let (twin, then) = scribbled(&datastore, store);
            let entry = datastore.json(REMOVE)["bin"]["id"].as_str().unwrap().to_owned();
            daemon.stop();
            let record = datastore.path().join(".unstun/bin").join(&entry);
            match text {
                Some(text) => fs::write(&record, text).unwrap(),
                None => fs::remove_file(&record).unwrap(),
            }
            let daemon = datastore.start_as(&KEEP);
            assert_eq!(kept(&datastore)[0]["id"], json!(entry));
            datastore.json("bin restore web");
            assert_content(&datastore, "web", &twin, &then);
            daemon.stop();
        }
    }
}

/// The store is the only source of a native VM's metadata.
#[test]
fn a_native_vm_comes_back_without_its_folder() {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&KEEP);
    let (twin, then) = scribbled(&datastore, "native");
    let removed = datastore.json(REMOVE);
    fs::remove_dir_all(removed["bin"]["path"].as_str().unwrap()).unwrap();
    daemon.stop();
    let daemon = datastore.start_as(&KEEP);
    assert_eq!(names(&datastore), Vec::<String>::new());
    datastore.json("bin restore web");
    assert_content(&datastore, "web", &twin, &then);
    daemon.stop();
}

#[test]
fn a_vm_that_would_come_back_torn_is_not_kept_and_the_preview_says_so() {
    let datastore = Datastore::new();
    let fast = datastore.beside("fast");
    fs::create_dir(&fast).unwrap();
    let daemon = datastore.start_as(&KEEP);
    datastore.json("vm create web --disk 16M --store redo");
    datastore.json(&format!("vm set web --snapshot-dir {}", fast.display()));
    datastore.json("snapshot take web a");
    let preview = datastore.json("vm remove web --delete-disks --dry-run");
    assert!(preview["not_kept"].as_str().unwrap().contains("in another folder"), "{preview}");
    assert_eq!(datastore.json(REMOVE)["disks_deleted"], true);
    assert_eq!(fs::read_dir(&fast).unwrap().filter(|one| is_disk(one.as_ref().unwrap())).count(), 0);
    // A VM with all of its disks in another folder is kept.
    datastore.json(&format!("vm create web --disk 16M,dir={} --store redo", fast.display()));
    run_script(&datastore.uri("web/disk0"), &["write -P 5 0 1M".to_owned()]);
    datastore.json("snapshot take web a");
    datastore.json(REMOVE);
    datastore.json(&format!("vm create web --disk 16M,dir={} --store redo", fast.display()));
    datastore.json("bin restore web --name old");
    datastore.json("vm open old");
    run_script(&datastore.uri("old/disk0"), &["read -P 5 0 1M".to_owned()]);
    let (code, said) = datastore.fails("vm create x.0123456789abcdef.unstun-bin --disk 1M");
    assert!(code == 3 && said.contains("bin"), "{code}: {said}");
    daemon.stop();
}

fn is_disk(entry: &fs::DirEntry) -> bool {
    entry.path().extension().is_some_and(|extension| extension == "vmdk")
}

/// A copy of a folder in the bin is no VM, and foreign files in the folder are not removed with it.
#[test]
fn a_folder_of_the_bin_is_no_vm_and_takes_no_strange_file_along() {
    for store in STORES {
        let datastore = Datastore::new();
        let daemon = datastore.start_as(&KEEP);
        let (twin, then) = scribbled(&datastore, store);
        fs::write(datastore.path().join("web/notes.txt"), b"mine").unwrap();
        let removed = datastore.json(REMOVE);
        let folder = PathBuf::from(removed["bin"]["path"].as_str().unwrap());
        daemon.stop();
        let copied = datastore.path().join("copy");
        tool("cp", &["-r", folder.to_str().unwrap(), copied.to_str().unwrap()]);
        let daemon = datastore.start_as(&KEEP);
        let (code, said) = datastore.fails("vm show copy");
        assert!(code != 0 && said.contains("is a copy of"), "{code}: {said}");
        datastore.json("vm remove copy --yes");
        datastore.json("bin restore web");
        assert_content(&datastore, "web", &twin, &then);
        datastore.json(REMOVE);
        datastore.json("bin empty --yes");
        assert_eq!(fs::read(datastore.path().join("web/notes.txt")).unwrap(), b"mine");
        daemon.stop();
    }
}

#[test]
fn what_is_past_its_time_goes() {
    for store in STORES {
        let datastore = Datastore::new();
        let daemon = datastore.start_as(&KEEP);
        datastore.json(&format!("vm create web --disk 16M --store {store}"));
        datastore.json(REMOVE);
        daemon.stop();
        // A daemon without a bin treats every entry as expired.
        let daemon = datastore.start_as(&["--bin-hours", "0"]);
        until("the entry to go", || kept(&datastore).is_empty().then_some(()));
        datastore.json(&format!("vm create web --disk 16M --store {store}"));
        let removed = datastore.json(REMOVE);
        assert_eq!((&removed["bin"], &removed["disks_deleted"]), (&json!(null), &json!(true)), "{removed}");
        daemon.stop();
        let left: Vec<_> =
            fs::read_dir(datastore.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert!(
            left.iter().all(|name| [".unstun", "store.unstun"].contains(&name.to_str().unwrap())),
            "{left:?}"
        );
    }
}

#[test]
fn a_datastore_takes_its_bin_along() {
    let datastore = Datastore::new();
    let (first, second) = (datastore.beside("first"), datastore.beside("second"));
    fs::create_dir(&first).unwrap();
    let daemon = datastore.start_as(&KEEP);
    datastore.json(&format!("datastore add more={}", first.display()));
    datastore.json_at("more", "vm create web --disk 16M");
    datastore.json_at("more", "vm create other --disk 16M");
    run_script(&datastore.uri("web/disk0"), &["write -P 5 0 1M".to_owned()]);
    datastore.json(REMOVE);
    let (code, said) = datastore.fails("datastore remove more");
    assert!(code == 3 && said.contains("other") && said.contains("not confirmed"), "{code}: {said}");
    let preview = datastore.json("datastore remove more --dry-run");
    assert_eq!((&preview["vms"], &preview["bin_entries"]), (&json!(["other"]), &json!(1)), "{preview}");
    datastore.json("datastore remove more --yes");
    assert_eq!(kept(&datastore), Vec::<Value>::new());
    fs::rename(&first, &second).unwrap();
    datastore.json(&format!("datastore add more={}", second.display()));
    assert_eq!(kept(&datastore)[0]["datastore"], "more");
    datastore.json_at("more", "bin restore web");
    datastore.json("vm open web");
    run_script(&datastore.uri("web/disk0"), &["read -P 5 0 1M".to_owned()]);
    daemon.stop();
}

/// The store of a device records its bin for every daemon, and also the changes that another daemon makes to it.
#[test]
fn a_device_takes_its_bin_along() {
    for restores in [true, false] {
        let (datastore, other) = (Datastore::new(), Datastore::new());
        let device = datastore.beside("device");
        fs::File::create(&device).unwrap().set_len(1 << 30).unwrap();
        datastore.json(&format!("datastore create {}", device.display()));
        let add = format!("datastore add raw={}", device.display());
        let daemon = datastore.start_as(&KEEP);
        datastore.json(&add);
        datastore.json_at("raw", "vm create web --disk 16M");
        run_script(&datastore.uri("web/disk0"), &["write -P 5 0 1M".to_owned()]);
        let entry = datastore.json(REMOVE)["bin"]["id"].as_str().unwrap().to_owned();
        datastore.json("datastore remove raw --yes");
        let apart = other.start_as(&KEEP);
        other.json(&add);
        assert_eq!(kept(&other)[0]["id"], json!(entry));
        match restores {
            true => {
                other.json("bin restore web");
                other.json("vm open web");
                run_script(
                    &other.uri("web/disk0"),
                    &["read -P 5 0 1M".to_owned(), "write -P 6 0 1M".to_owned()],
                );
            }
            false => drop(other.json("bin empty --yes")),
        }
        apart.stop();
        datastore.json(&add);
        assert_eq!(kept(&datastore), Vec::<Value>::new());
        assert_eq!(names(&datastore).len(), usize::from(restores));
        if restores {
            run_script(&datastore.uri("web/disk0"), &["read -P 6 0 1M".to_owned()]);
        }
        for one in datastore.json("datastore list").as_array().unwrap() {
            assert_eq!(one["notices"], json!([]), "{one}");
        }
        daemon.stop();
    }
}

/// A small datastore, with 120 MiB in the bin that a guest needs later.
struct Small {
    small: Mounted,
    datastore: Datastore,
}

impl Small {
    fn new() -> Option<Small> {
        Some(Small { small: Mounted::of(1 << 30)?, datastore: Datastore::new() })
    }

    fn start(&self, store: &str, options: &[&str]) -> Daemon<'_> {
        let daemon = self.datastore.start_as(options);
        self.datastore.json(&format!("datastore add small={}", self.small.path().display()));
        for vm in ["first", "web"] {
            self.datastore.json_at("small", &format!("vm create {vm} --disk 512M --store {store}"));
            let mut nbd = Nbd::attach(&self.datastore.nbd_socket(), &format!("{vm}/disk0")).unwrap();
            for at in 0..120 {
                assert_eq!(nbd.write(at * u64::from(MIB), &[1; MIB as usize]).unwrap(), 0);
            }
            nbd.flush().unwrap();
        }
        until("the clients to be gone", || {
            let gone = |vm: &str| self.datastore.json(&format!("vm show {vm}"))["nbd_clients"] == json!(0);
            (gone("first") && gone("web")).then_some(())
        });
        self.datastore.json(&REMOVE.replace("web", "first"));
        daemon
    }
}

/// Writes more than is free inside the store; the data fit once the bin has freed its space.
fn a_guest_gets_the_space_of_the_bin(store: &str, mib: u64) {
    let Some(small) = Small::new() else { return };
    let daemon = small.start(store, &KEEP);
    assert_eq!(kept(&small.datastore).len(), 1);
    small.small.fill();
    let mut nbd = Nbd::attach(&small.datastore.nbd_socket(), "web/disk0").unwrap();
    for at in 120..120 + mib {
        assert_eq!(nbd.write(at * u64::from(MIB), &[3; MIB as usize]).unwrap(), 0, "MiB {at}");
    }
    nbd.flush().unwrap();
    for (at, expected) in [(0, 1), (119, 1), (120, 3), (119 + mib, 3)] {
        assert!(nbd.read(at * u64::from(MIB), MIB).unwrap().iter().all(|byte| *byte == expected), "MiB {at}");
    }
    drop(nbd);
    assert_eq!(kept(&small.datastore), Vec::<Value>::new());
    daemon.stop();
}

#[test]
fn a_guest_that_writes_deltas_gets_the_space_of_the_bin() {
    a_guest_gets_the_space_of_the_bin("redo", 100);
}

#[test]
fn a_guest_of_a_native_store_gets_the_space_of_the_bin() {
    a_guest_gets_the_space_of_the_bin("native", 200);
}

#[test]
fn a_new_vm_gets_the_space_of_the_bin() {
    let Some(small) = Small::new() else { return };
    let daemon = small.start("redo", &KEEP);
    small.small.fill();
    small.datastore.json_at("small", "vm create more --disk 16M --store redo");
    assert_eq!(kept(&small.datastore), Vec::<Value>::new());
    daemon.stop();
}

/// The bin keeps the configured share of space free without a request for space.
#[test]
fn the_bin_keeps_nothing_where_little_is_free() {
    let Some(small) = Small::new() else { return };
    let daemon = small.start("redo", &["--bin-free-percent", "10"]);
    assert_eq!(kept(&small.datastore).len(), 1);
    let preview = small.datastore.json("vm remove web --delete-disks --dry-run");
    assert_eq!(preview["not_kept"], json!(null), "{preview}");
    small.small.fill();
    // The entry is no longer listed while its files are being removed.
    until("its files to go", || {
        let left = fs::read_dir(small.small.path()).unwrap().map(|one| one.unwrap().file_name());
        let gone = !left.into_iter().any(|name| name.to_str().unwrap().contains("unstun-bin"));
        (gone && kept(&small.datastore).is_empty()).then_some(())
    });
    small.small.fill();
    let preview = small.datastore.json("vm remove web --delete-disks --dry-run");
    assert!(preview["not_kept"].as_str().unwrap().contains("more than 10 %"), "{preview}");
    assert_eq!(small.datastore.json(REMOVE)["disks_deleted"], true);
    daemon.stop();
}

fn latest_entry(datastore: &Datastore) -> Value {
    kept(datastore).pop().expect("something is in the bin")
}

/// Restores the states that a revert and a discard threw away, after a kill and a restart.
fn states_come_back(store: &str) {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&KEEP);
    let (twin, then) = scribbled(&datastore, store);
    let uri = datastore.uri("web/disk0");
    let shows = |file: &Path| {
        datastore.json("vm open web");
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", file.to_str().unwrap(), &uri]);
    };
    let preview = datastore.json("snapshot revert web a --dry-run");
    assert!(preview["warning"].as_str().unwrap().contains("unstun snapshot undo web"), "{preview}");
    let reverted = datastore.json("snapshot revert web a --yes");
    assert!(reverted["kept_until"].is_string() && reverted["not_kept"].is_null(), "{reverted}");
    shows(&then);
    let entry = latest_entry(&datastore);
    let expected = (&json!("state"), &json!("revert"), &json!("a"));
    assert_eq!((&entry["kind"], &entry["operation"], &entry["subject"]), expected, "{entry}");
    assert!(entry["bytes"].as_u64().unwrap() > 0, "{entry}");
    assert_eq!(datastore.json("space web")["space"]["bin_bytes"], entry["bytes"]);
    daemon.kill();

    let daemon = datastore.start_as(&KEEP);
    assert_eq!(datastore.json("snapshot undo web --yes")["operation"], "restore");
    shows(&twin.path);
    datastore.json("snapshot discard web a --yes");
    shows(&then);
    assert_eq!(datastore.json("snapshot tree web")["snapshots"], json!([]));
    daemon.stop();

    let daemon = datastore.start_as(&KEEP);
    let entry = latest_entry(&datastore);
    assert_eq!((&entry["operation"], &entry["subject"]), (&json!("discard"), &json!("a")), "{entry}");
    datastore.json("vm open web");
    let client = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    let restore = format!("bin restore {}", entry["id"].as_str().unwrap());
    let (code, said) = datastore.fails(&restore);
    assert!(code == 3 && said.contains("attached"), "{code}: {said}");
    datastore.json(&format!("{restore} --disconnect"));
    drop(client);
    assert_content(&datastore, "web", &twin, &then);
    // These are the states that the two restores threw away.
    assert_eq!(datastore.json("bin empty --yes")["entries"].as_array().unwrap().len(), 2);
    assert_eq!(kept(&datastore), Vec::<Value>::new());
    let (code, said) = datastore.fails("snapshot undo web --yes");
    assert!(code == 3 && said.contains("nothing was thrown away"), "{code}: {said}");

    let purged = datastore.json("snapshot revert web a --purge --yes");
    assert!(purged["kept_until"].is_null(), "{purged}");
    assert_eq!(kept(&datastore), Vec::<Value>::new());
    shows(&then);
    datastore.json("snapshot revert web a --yes");
    datastore.json("snapshot commit web --all --yes");
    // A native commit changes nothing in the bin.
    assert_eq!(kept(&datastore).len(), usize::from(store == "native"));
    shows(&then);
    datastore.json("bin empty --yes");
    states_go_with_their_vm(&datastore);
    if store == "native" {
        assert_eq!(datastore.json("check")["findings"], json!([]));
    }
    daemon.stop();
}

/// Removing a VM for good also removes its states from the bin.
fn states_go_with_their_vm(datastore: &Datastore) {
    datastore.json("snapshot take web last");
    datastore.json("vm open web");
    run_script(&datastore.uri("web/disk0"), &["write -P 5 0 1M".to_owned()]);
    datastore.json("snapshot revert web last --yes");
    let home = PathBuf::from(datastore.json("vm show web")["home"].as_str().unwrap());
    datastore.json("vm remove web --delete-disks --purge --yes");
    assert!(!home.exists(), "{:?}", fs::read_dir(&home).map(|names| names.flatten().collect::<Vec<_>>()));
    assert_eq!(kept(datastore), Vec::<Value>::new());
}

#[test]
fn what_a_revert_or_a_discard_threw_away_comes_back() {
    STORES.into_iter().for_each(states_come_back);
}
