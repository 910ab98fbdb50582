//! `datastore rebuild` with the daemon: a store whose catalogue is damaged, in one copy or in both, in a new datastore.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::daemon::Datastore;
use crate::datastores::folder;
use crate::tools::run_script;

fn io(datastore: &Datastore, export: &str, script: &[&str]) {
    let script: Vec<String> = script.iter().map(|line| (*line).to_owned()).collect();
    run_script(&datastore.uri(export), &script);
}

/// Returns the offsets of pages with this magic.
fn pages(store: &Path, magic: [u8; 8]) -> Vec<u64> {
    let content = fs::read(store).unwrap();
    let all = content.chunks_exact(4096).enumerate().filter(|(_, page)| page[..8] == magic);
    all.map(|(n, _)| n as u64 * 4096).collect()
}

fn damage(store: &Path, at: u64) {
    let file = fs::OpenOptions::new().write(true).open(store).unwrap();
    file.write_all_at(b"damaged!", at + 100).unwrap();
}

/// Compares a disk with a raw file by qemu-img.
fn is_equal(datastore: &Datastore, export: &str, raw: &Path) {
    let mut compare = Command::new("qemu-img");
    compare.args(["compare", "-f", "raw", "-F", "raw"]).arg(datastore.uri(export)).arg(raw);
    let output = compare.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{export}: {}", String::from_utf8_lossy(&said));
}

fn keep(datastore: &Datastore, export: &str, raw: &Path) {
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "raw"]).arg(datastore.uri(export)).arg(raw);
    assert!(convert.status().unwrap().success());
}

/// Makes the datastore `second` with the VM db, whose content goes to raw files, and takes it out of the daemon.
fn make(datastore: &Datastore) -> std::path::PathBuf {
    let second = folder(datastore, "second");
    datastore.json(&format!("datastore add {}", second.display()));
    datastore.json_at("second", "vm create db --disk 64M");
    io(datastore, "db/disk0", &["write -P 1 0 8M", "flush"]);
    datastore.json("snapshot take db monday");
    io(datastore, "db/disk0", &["write -P 2 4M 8M", "write -P 3 512 1024", "write -z 7M 64k", "flush"]);
    keep(datastore, "db/disk0", &datastore.beside("now.raw"));
    keep(datastore, "db/disk0@monday", &datastore.beside("monday.raw"));
    datastore.json("datastore remove second --yes");
    second.join("store.unstun")
}

fn rebuilt(datastore: &Datastore, into: &str) -> (i32, Value) {
    let into = datastore.beside(into);
    let line = format!(
        "datastore rebuild {} --into {} --json",
        datastore.beside("second").display(),
        into.display()
    );
    let output = datastore.run(&line);
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    (output.status.code().unwrap(), report)
}

#[test]
fn a_damaged_store_is_rebuilt_into_a_new_datastore() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let store = make(&datastore);
    let (code, report) = rebuilt(&datastore, "whole");
    assert!(code == 0 && report["complete"] == true, "{report}");
    let all = pages(&store, *b"unstCATA");
    damage(&store, all[0]);
    let (code, said) = datastore.fails(&format!(
        "datastore rebuild {} --into {}",
        datastore.beside("second").display(),
        datastore.beside("whole").display()
    ));
    assert!(code != 0 && said.contains("whole"), "{said}");
    let (_, report) = rebuilt(&datastore, "one-copy");
    assert_eq!(
        (&report["catalogue"], report["states"][0]["lost"].as_array().unwrap().len()),
        (&true.into(), 0)
    );
    datastore.json(&format!("datastore add {}", datastore.beside("one-copy").display()));
    is_equal(&datastore, "db/disk0", &datastore.beside("now.raw"));
    is_equal(&datastore, "db/disk0@monday", &datastore.beside("monday.raw"));
    datastore.json("datastore remove one-copy --yes");
    daemon.stop();
}

#[test]
fn a_store_without_catalogue_is_rebuilt_from_its_map_pages() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let store = make(&datastore);
    for at in pages(&store, *b"unstCATA") {
        damage(&store, at);
    }
    let (code, report) = rebuilt(&datastore, "rebuilt");
    assert!(code == 6 && report["catalogue"] == false, "{report}");
    let states = report["states"].as_array().unwrap();
    let named = |exact: bool| {
        let is_exact = |state: &&Value| state["name"].as_str().unwrap().contains("-at-") != exact;
        states.iter().find(is_exact).unwrap_or_else(|| panic!("{report}"))["name"].as_str().unwrap()
    };
    let added = datastore.json(&format!("datastore add {}", datastore.beside("rebuilt").display()));
    assert_eq!(added["vms"], states.len(), "{added}");
    is_equal(&datastore, &format!("{}/disk0", named(true)), &datastore.beside("now.raw"));
    is_equal(&datastore, &format!("{}/disk0", named(false)), &datastore.beside("monday.raw"));
    // The states share blocks, and are independent of each other.
    let now = named(true);
    io(&datastore, &format!("{now}/disk0"), &["write -P 9 0 1M", "flush"]);
    is_equal(&datastore, &format!("{}/disk0", named(false)), &datastore.beside("monday.raw"));
    datastore.json(&format!("vm remove {now} --delete-disks --purge --yes"));
    is_equal(&datastore, &format!("{}/disk0", named(false)), &datastore.beside("monday.raw"));
    daemon.stop();
}

/// `check PATH` of a store that no daemon serves: the file, the folder, and one that cannot be opened.
#[test]
fn a_store_that_nothing_serves_is_checked() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let store = make(&datastore);
    let check = |path: &Path| {
        let output = datastore.run(&format!("check {} --json", path.display()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned() + &said)
    };
    let before = fs::read(&store).unwrap();
    for path in [&store, store.parent().unwrap()] {
        let (code, said) = check(path);
        assert!(code == 0 && said.contains("\"findings\": []"), "{code}: {said}");
    }
    assert!(fs::read(&store).unwrap() == before, "the check has changed the store");
    damage(&store, *pages(&store, *b"unstnMAP").last().unwrap());
    let (code, said) = check(&store);
    assert!(code == 6 && said.contains("db/disk0") || said.contains("db@monday"), "{code}: {said}");
    for magic in [*b"unstunSB", *b"unstCATA"] {
        pages(&store, magic).into_iter().for_each(|at| damage(&store, at));
        let (code, said) = check(&store);
        assert!(code == 6 && said.contains("datastore rebuild"), "{code}: {said}");
    }
    let served = folder(&datastore, "served");
    datastore.json(&format!("datastore add {}", served.display()));
    datastore.json_at("served", "vm create web --disk 64M");
    let (code, said) = check(&served);
    assert!(code == 5 && said.contains("without a path"), "{code}: {said}");
    daemon.stop();
}

#[test]
fn lost_blocks_are_errors_until_they_are_written() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let store = make(&datastore);
    for at in pages(&store, *b"unstnMAP") {
        damage(&store, at);
    }
    let (code, report) = rebuilt(&datastore, "rebuilt");
    assert!(code == 6 && report["catalogue"] == true, "{report}");
    assert_eq!(report["states"][0]["lost"][0]["length_bytes"], 64 << 20, "{report}");
    datastore.json(&format!("datastore add {}", datastore.beside("rebuilt").display()));
    let read = |script: &str| {
        let mut io = Command::new("qemu-io");
        io.args(["-f", "raw", "-c", script]).arg(datastore.uri("db/disk0"));
        let output = io.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    assert!(read("read 4M 4k").contains("Input/output error"), "{}", read("read 4M 4k"));
    io(&datastore, "db/disk0", &["write -P 5 4M 1M", "flush", "read -P 5 4M 1M"]);
    assert!(read("read 5M 4k").contains("Input/output error"));
    daemon.stop();
}
