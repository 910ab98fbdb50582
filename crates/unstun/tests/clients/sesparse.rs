//! SEsparse deltas that unstun writes: on disks where VMFSsparse ends, on request, and over those of another program.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::guest::seed;
use crate::import::contents;
use crate::programs::tool;
use crate::tools::{Twin, run_script};

const SIZE: u64 = 64 << 20;

fn formats(vm: &Value) -> Vec<&str> {
    let layers = vm["disks"][0]["layers"].as_array().unwrap();
    layers.iter().map(|layer| layer["format"].as_str().unwrap()).collect()
}

/// Reads of qemu-io, each with the byte that every sector of it has.
fn shows(target: &[&str], patterns: &[(u8, &str)]) {
    let mut words = vec!["-r".to_owned()];
    words.extend(patterns.iter().flat_map(|(byte, range)| ["-c".into(), format!("read -P {byte} {range}")]));
    words.extend(target.iter().map(ToString::to_string));
    let said = tool("qemu-io", &words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(!said.contains("failed"), "{target:?}: {said}");
}

#[test]
fn a_disk_of_three_tebibytes_has_snapshots_that_qemu_reads() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 3T");
    let write = |lines: &[&str]| {
        let lines: Vec<String> = lines.iter().map(|line| format!("write -P {line}")).collect();
        run_script(&datastore.uri("web/disk0"), &lines);
    };
    write(&["1 0 1M", "2 2560G 1M"]);
    datastore.json("snapshot take web s1");
    write(&["3 512k 1M", "4 2999G 3M", "5 1000000001536 512"]);
    datastore.json("snapshot take web s2");
    write(&["6 0 4k"]);
    let vm = datastore.json("vm show web");
    assert_eq!(formats(&vm), ["vmfs", "sesparse", "sesparse"], "{vm}");
    let expected = [(6, "0 4k"), (1, "4k 508k"), (3, "512k 1M"), (2, "2560G 1M"), (4, "2999G 3M")];
    let odd = [(5, "1000000001536 512"), (0, "1000000000000 1536")];
    daemon.kill();
    let daemon = datastore.start();
    shows(&["-f", "raw", &datastore.uri("web/disk0")], &[&expected[..], &odd].concat());
    let top = datastore.descriptor("web").with_file_name("web-000002.vmdk");
    datastore.json("vm close web");
    shows(&["-f", "vmdk", top.to_str().unwrap()], &[&expected[..], &odd].concat());
    let found = datastore.run(&format!("check {}", datastore.path().join("web").display()));
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
    datastore.json("vm open web");
    for snapshot in ["s2", "s1"] {
        datastore.json(&format!("snapshot commit web {snapshot} --yes"));
    }
    assert_eq!(formats(&datastore.json("vm show web")), ["vmfs"]);
    shows(&["-f", "raw", &datastore.uri("web/disk0")], &[&expected[..], &odd].concat());
    daemon.stop();
}

#[test]
fn a_take_chooses_the_format_and_the_chain_keeps_it() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 64M");
    let mut twin = Twin::new(&datastore, SIZE, seed());
    let uri = datastore.uri("web/disk0");
    twin.scribble(&uri, 20);
    datastore.json("snapshot take web one");
    twin.scribble(&uri, 20);
    datastore.json("snapshot take web two --delta sesparse");
    twin.scribble(&uri, 20);
    datastore.json("snapshot take web three");
    twin.scribble(&uri, 20);
    let vm = datastore.json("vm show web");
    assert_eq!(formats(&vm), ["vmfs", "vmfssparse", "sesparse", "sesparse"], "{vm}");
    twin.assert_same_as("raw", &uri);
    datastore.json("vm clone web@three copy");
    assert_eq!(formats(&datastore.json("vm show copy")).last(), Some(&"sesparse"));
    datastore.json("vm remove copy --delete-disks --purge --yes");
    // Into VMFSsparse, into SEsparse, and into the base.
    for snapshot in ["two", "three", "one"] {
        datastore.json(&format!("snapshot commit web {snapshot} --yes"));
        twin.assert_same_as("raw", &uri);
    }
    datastore.json("vm create native --disk 1M");
    let (code, said) = datastore.fails("snapshot take native no --delta sesparse");
    assert!(code == 3 && said.contains("native VM has none"), "{code}: {said}");
    daemon.stop();
}

/// Makes a folder as ESXi leaves it: no mark of unstun in a descriptor or in a delta, where ESXi leaves what its memory held.
fn as_esxi_leaves_it(home: &Path) -> Vec<PathBuf> {
    if home.join(".unstun").exists() {
        std::fs::remove_dir_all(home.join(".unstun")).unwrap();
    }
    let files = std::fs::read_dir(home).unwrap().map(|entry| entry.unwrap().path());
    let (deltas, others): (Vec<PathBuf>, Vec<PathBuf>) =
        files.partition(|path| path.to_str().unwrap().ends_with("-sesparse.vmdk"));
    for path in others.iter().filter(|path| !path.to_str().unwrap().ends_with("-flat.vmdk")) {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("# unstun"));
        std::fs::write(path, lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    }
    for delta in &deltas {
        let file = File::options().write(true).open(delta).unwrap();
        file.write_all_at(&[0xA5; 488], 2 * 512 + 24).unwrap();
    }
    deltas
}

/// Makes the first grain of data in a delta one that was unmapped: type 1 in place of 3.
fn unmap_one(delta: &Path) {
    let file = File::options().read(true).write(true).open(delta).unwrap();
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    };
    let tables = word(144) * 512;
    let at = (tables..tables + (4 << 20)).step_by(8).find(|at| word(*at) >> 60 == 3).expect("a grain");
    file.write_all_at(&(word(at) & !(2 << 60)).to_le_bytes(), at).unwrap();
}

#[test]
fn deltas_of_esxi_are_written_only_if_the_user_admits_it() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 64M");
    let mut twin = Twin::new(&datastore, SIZE, seed());
    let uri = datastore.uri("web/disk0");
    twin.scribble(&uri, 10);
    datastore.json("snapshot take web one --delta sesparse");
    twin.scribble(&uri, 10);
    datastore.json("snapshot take web two");
    twin.scribble(&uri, 10);
    datastore.json("vm remove web");
    let (home, folder) = (datastore.path().join("web"), datastore.beside("esx"));
    std::fs::rename(&home, &folder).unwrap();
    assert_eq!(as_esxi_leaves_it(&folder).len(), 2);
    let beside = datastore.beside("esx2");
    tool("cp", &["-r", folder.to_str().unwrap(), beside.to_str().unwrap()]);

    let (code, said) = datastore.fails(&format!("vm import {} --in-place", folder.display()));
    assert!(code == 3 && said.contains("--write-sesparse"), "{code}: {said}");
    let (code, _) = datastore.fails(&format!("vm import {} --write-sesparse", folder.display()));
    assert_eq!(code, 2, "it is about a folder that is written");
    // A default import reads them, and nothing is committed into them.
    datastore.json(&format!("vm import {} --name read", beside.display()));
    twin.assert_same_as("raw", &datastore.uri("read/disk0"));
    let (code, said) = datastore.fails("snapshot commit read two --yes");
    assert!(code != 0 && !said.is_empty(), "{said}");

    // The guest of another copy has unmapped a block: no word of the user makes it one that is written.
    let unmapped = datastore.beside("esx3");
    tool("cp", &["-r", folder.to_str().unwrap(), unmapped.to_str().unwrap()]);
    unmap_one(&unmapped.join("web-000002-sesparse.vmdk"));
    let before = contents(&unmapped);
    let (code, said) =
        datastore.fails(&format!("vm import {} --in-place --write-sesparse", unmapped.display()));
    assert!(code == 3 && said.contains("web-000002.vmdk can be read and not written"), "{code}: {said}");
    assert_eq!(contents(&unmapped), before);

    datastore.json(&format!("vm import {} --in-place --write-sesparse", folder.display()));
    twin.scribble(&uri, 10);
    twin.assert_same_as("raw", &uri);
    datastore.json("snapshot commit web two --yes");
    twin.scribble(&uri, 10);
    daemon.kill();
    let daemon = datastore.start();
    twin.assert_same_as("raw", &uri);
    datastore.json("snapshot commit web one --yes");
    twin.assert_same_as("raw", &uri);
    assert_eq!(datastore.json("vm show web")["snapshots"], json!(0));
    daemon.stop();
}
