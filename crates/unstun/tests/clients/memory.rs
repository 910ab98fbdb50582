//! Files with the memory of guests at snapshots: found when a VM is opened, moved with it, and removed after their snapshots.
//! A guest whose memory is saved and resumed is in the tests of the guest.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::datastores::two;
use crate::nbd::Nbd;
use crate::programs::try_tool;
use crate::space::until;

const STREAM: usize = 100_000;

/// Puts a file with `STREAM` zeros beside the labels of a closed VM, as LZ4's frame format has them: not compressed.
fn put(home: &Path, id: &str) -> PathBuf {
    let text = json!({"vm": "web", "snapshot": id, "ram_bytes": 1 << 20, "qemu": "7.2.1"}).to_string();
    let mut file = 0x184D_2A50_u32.to_le_bytes().to_vec();
    file.extend((text.len() as u32).to_le_bytes());
    file.extend(text.as_bytes());
    // Version 1, blocks of at most 4 MiB, no checksums; the header's own checksum is that of these two bytes.
    file.extend([0x04, 0x22, 0x4D, 0x18, 0x60, 0x70, 0x73]);
    file.extend((STREAM as u32 | 1 << 31).to_le_bytes());
    file.extend(vec![0; STREAM]);
    file.extend([0; 4]);
    let path = home.join(format!(".unstun/memory-{id}.lz4"));
    fs::write(&path, file).unwrap();
    path
}

fn home(datastore: &Datastore) -> PathBuf {
    PathBuf::from(datastore.json("vm show web")["home"].as_str().unwrap())
}

#[test]
fn memory_moves_with_its_vm_and_goes_with_its_snapshot() {
    let datastore = Datastore::new();
    let (daemon, _second) = two(&datastore);
    datastore.json("vm create web --store native --disk 16M");
    datastore.json("snapshot take web a");
    datastore.json("snapshot take web b");
    let tree = datastore.json("snapshot tree web");
    let ids: Vec<&str> = (0..2).map(|at| tree["snapshots"][at]["id"].as_str().unwrap()).collect();
    let (code, said) = datastore.fails("snapshot memory web a");
    assert!(code == 4 && said.contains("has no memory of its guest"), "{code}: {said}");
    let folder = home(&datastore);
    datastore.json("vm close web");
    let (first, _) = (put(&folder, ids[0]), put(&folder, ids[1]));
    // What a daemon leaves that dies while it saves memory.
    let torn = PathBuf::from(format!("{}.unstun-tmp", first.display()));
    fs::write(&torn, "half").unwrap();
    datastore.json("vm open web");
    assert!(!torn.exists());
    let space = datastore.json("space web");
    assert_eq!(space["memory_bytes"], json!(2 * fs::metadata(&first).unwrap().len()), "{space}");
    let streamed = datastore.run("snapshot memory web a --stream");
    assert_eq!(streamed.stdout, vec![0; STREAM], "{}", String::from_utf8_lossy(&streamed.stderr));

    for (to, store) in [("second", "native"), ("ds", "redo"), ("ds", "native")] {
        datastore.json(&format!("vm move web --to {to} --store {store}"));
        let memory = datastore.json("snapshot memory web a");
        assert!(memory["file"].as_str().unwrap().starts_with(home(&datastore).to_str().unwrap()), "{memory}");
        assert_eq!(datastore.run("snapshot memory web a --stream").stdout, vec![0; STREAM]);
    }
    let resume = datastore.json("attach web --resume b")["resume"].clone();
    assert_eq!((resume.as_array().unwrap().len(), &resume[0]), (2, &json!("-incoming")), "{resume}");
    let words = resume[1].as_str().unwrap();
    assert!(words.contains(&format!("snapshot memory web {} --stream --unchanged", ids[1])), "{words}");
    let unchanged = datastore.run("snapshot memory web b --stream --unchanged");
    assert_eq!(unchanged.stdout, vec![0; STREAM], "{}", String::from_utf8_lossy(&unchanged.stderr));
    // A guest that has run has written: the same command does not start it with that memory again.
    crate::tools::run_script(&datastore.uri("web/disk0"), &["write -P 7 4k 4k".to_owned()]);
    let changed = datastore.run("snapshot memory web b --stream --unchanged");
    let said = String::from_utf8_lossy(&changed.stderr);
    assert!(changed.status.code() == Some(3) && changed.stdout == b"no stream\n", "{said}");
    assert!(said.contains("differs from snapshot b") && said.contains("snapshot revert web b"), "{said}");
    // QEMU ends, and does not wait for a stream that never comes. The limit is against a hang only.
    let qemu = ["60", "qemu-system-x86_64", "-machine", "pc,accel=tcg", "-nodefaults", "-display", "none"];
    let ended = try_tool("timeout", &[&qemu[..], &["-incoming", words]].concat());
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("differs from snapshot b"), "{said}");

    let file = home(&datastore).join(format!(".unstun/memory-{}.lz4", ids[0]));
    assert!(file.exists());
    datastore.json("snapshot commit web a --yes");
    // The daemon looks every five seconds.
    until("the removal of the memory", || {
        datastore.json("vm show web");
        (!file.exists()).then_some(())
    });
    assert!(datastore.json("snapshot memory web b")["stored_bytes"].as_u64().unwrap() > 0);
    // The bin keeps what it may have to return.
    datastore.json("vm remove web --delete-disks --yes");
    let entry = datastore.json("bin list")[0]["id"].as_str().unwrap().to_owned();
    datastore.json(&format!("bin restore {entry}"));
    assert_eq!(datastore.run("snapshot memory web b --stream").stdout, vec![0; STREAM]);
    daemon.stop();
}

/// A monitor that greets and never answers again, and one of a QEMU that has none of the disks.
#[test]
fn a_take_with_memory_is_refused_and_leaves_nothing() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    let (code, said) = datastore.fails("snapshot take web a --memory --quiesce");
    assert!(code == 2 && said.contains("cannot be used with"), "{code}: {said}");
    let client = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    let (code, said) = datastore.fails("snapshot take web a --memory");
    assert!(code == 3 && said.contains("unstun vm set web --qmp"), "{code}: {said}");
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qmp.sock");
    datastore.json(&format!("vm set web --qmp unix:{}", socket.display()));
    let (code, said) = datastore.fails("snapshot take web a --memory");
    assert!(code == 3 && said.contains("-qmp unix:PATH"), "{code}: {said}");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let version = json!({"qemu": {"major": 7, "minor": 2, "micro": 1}});
            writeln!(stream, "{}", json!({"QMP": {"version": version, "capabilities": []}})).unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            assert_eq!(first["execute"], "qmp_capabilities");
            writeln!(stream, "{}", json!({"return": {}})).unwrap();
            // Without an answer to what comes next.
            let _ = lines.next().map(|line| line.unwrap_or_default());
            let _ = lines.next();
        }
    });
    let (code, said) = datastore.fails("snapshot take web a --memory");
    assert!(code == 3 && said.contains("query-status: no answer in time"), "{code}: {said}");
    assert_eq!(datastore.json("snapshot tree web")["snapshots"], json!([]));
    assert!(datastore.json("thaw").as_array().unwrap().is_empty());
    drop(client);
    daemon.stop();
}
