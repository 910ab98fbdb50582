//! The recorder on a real daemon: what it has is what the guest did, also after a stop and after a kill; and a record that
//! cannot be written holds up nothing.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::daemon::Datastore;
use crate::programs::tool;
use crate::space::until;
use crate::tools::run_script;

/// Returns the requests of a direction, `read` or `write`, in all steps, of the guest and of the files.
fn recorded(datastore: &Datastore, vm: &str, direction: &str) -> (u64, u64) {
    let answer = tool(
        "curl",
        &[
            "-s",
            "--unix-socket",
            datastore.path().join(".unstun/api.sock").to_str().unwrap(),
            &format!("http://unstun/api/v1/vms/{vm}/record?step_s=1"),
        ],
    );
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let steps = answer["steps"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let sum = |field: &str| {
        let of = |step: &Value| step[field].as_f64().unwrap() * step["observed_s"].as_f64().unwrap();
        steps.iter().map(of).sum::<f64>().round() as u64
    };
    (sum(&format!("{direction}s_s")), sum(&format!("host_{direction}s_s")))
}

fn shown(datastore: &Datastore, vm: &str) -> (u64, u64) {
    let io = datastore.json(&format!("vm show {vm}"))["disks"][0]["io"].clone();
    (io["guest_reads"].as_u64().unwrap(), io["guest_writes"].as_u64().unwrap())
}

fn write(datastore: &Datastore, vm: &str, pattern: u64) {
    let writes = (0..64).map(|n| format!("write -P {pattern} {}k 4k", 64 * n));
    run_script(&datastore.uri(&format!("{vm}/disk0")), &writes.collect::<Vec<_>>());
}

#[test]
fn a_snapshot_has_its_cost_by_what_the_guest_did() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for store in ["redo", "native"] {
        datastore.json(&format!("vm create {store} --disk 64M --store {store}"));
        write(&datastore, store, 1);
        let all = shown(&datastore, store);
        until("all requests are recorded", || {
            (recorded(&datastore, store, "read").0 == all.0
                && recorded(&datastore, store, "write").0 == all.1)
                .then_some(())
        });
        let cost = |line: &str| datastore.json(&format!("cost {store} {line}"));
        // A second belongs to one time only, and the take is within one.
        until("a second after the writes", || {
            (cost("--since 1h")["without"]["observed_s"].as_u64()? > 2).then_some(())
        });
        datastore.json(&format!("snapshot take {store} a"));
        write(&datastore, store, 2);
        let with = until("the writes with the snapshot", || {
            let cost = cost("--since 1h");
            let snapshot = cost["snapshots"][0].clone();
            let writes = snapshot["with"]["writes_s"].as_f64()? * snapshot["with"]["observed_s"].as_f64()?;
            (writes.round() as u64 == 64).then_some(cost)
        });
        assert_eq!((&with["takes"], &with["commits"]), (&1.into(), &0.into()));
        let snapshot = &with["snapshots"][0];
        assert_eq!(snapshot["name"], "a");
        assert!(snapshot["take_stun_us"].as_u64().unwrap() > 0);
        let (before, with) = (&snapshot["before"], &snapshot["with"]);
        assert!(before["observed_s"].as_u64().unwrap() > 0, "{snapshot}");
        assert!(with["write_latency"]["p99_us"].as_f64().unwrap() > 0.0, "{snapshot}");
        assert!(with["longest_us"].as_f64().unwrap() > 0.0, "{snapshot}");
        assert_eq!(with["layers"], if store == "redo" { 2 } else { 0 });
        assert!(with["host_writes_s"].as_f64().unwrap() > 0.0, "{snapshot}");
        let tree = String::from_utf8(datastore.run(&format!("snapshot tree {store} --cost")).stdout).unwrap();
        assert!(tree.contains("cost: stun ") && tree.contains("host/guest"), "{tree}");
        datastore.json(&format!("snapshot commit {store} a --yes"));
        let ended = until("the end of the commit", || {
            let cost = cost("--since 1h");
            cost["snapshots"][0]["ended"].is_string().then_some(cost)
        });
        assert_eq!((&ended["commits"], &ended["snapshots"][0]["end"]), (&1.into(), &"commit".into()));
    }
    let (code, message) = datastore.fails("cost redo --since 2099-01-01T00:00:00Z");
    assert!(code == 2 && message.contains("is not before"), "{code}: {message}");
    let page = datastore.beside("report.html");
    datastore.run(&format!(
        "lab report --vm redo --since 10m -o {} --xlsx {}",
        page.display(),
        datastore.beside("report.xlsx").display()
    ));
    let text = fs::read_to_string(page).unwrap();
    assert!(text.contains("VM redo") && text.contains("with a"), "{text}");
    daemon.stop();
}

/// Returns the files of the record of the finest tier.
fn finest(datastore: &Datastore) -> Vec<PathBuf> {
    let folders = fs::read_dir(datastore.path().join(".unstun/record")).into_iter().flatten().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).unwrap()).flatten();
    files
        .map(|file| file.path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("1s."))
        .collect()
}

#[test]
fn a_record_outlives_the_daemon() {
    let datastore = Datastore::new();
    let mut daemon = datastore.start();
    datastore.json("vm create web --disk 64M --store redo");
    write(&datastore, "web", 1);
    let writes = shown(&datastore, "web").1;
    let all = |expected: u64| {
        until("all writes are in the record", || {
            let found = recorded(&datastore, "web", "write").0;
            assert!(found <= expected, "{found} of {expected}");
            (found == expected).then_some(())
        });
    };
    all(writes);
    // A stop writes what is in memory.
    daemon.stop();
    daemon = datastore.start();
    all(writes);
    // Ten seconds are on file after a while.
    write(&datastore, "web", 2);
    all(2 * writes);
    let size = || finest(&datastore).iter().map(|file| file.metadata().unwrap().len()).sum::<u64>();
    let before = size();
    until("a block on file", || (size() > before).then_some(()));
    daemon.kill();
    // What a crash cut off is left out.
    for file in finest(&datastore) {
        use std::io::Write;
        fs::OpenOptions::new().append(true).open(file).unwrap().write_all(&[9; 100]).unwrap();
    }
    let daemon = datastore.start();
    all(2 * writes);
    write(&datastore, "web", 3);
    all(3 * writes);
    daemon.stop();
}

#[test]
fn a_record_that_cannot_be_written_holds_up_nothing() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    daemon.stop();
    fs::write(datastore.path().join(".unstun/record"), "not a folder").unwrap();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    write(&datastore, "web", 1);
    datastore.json("snapshot take web a");
    write(&datastore, "web", 2);
    let (code, message) = datastore.fails("cost web");
    assert!(code == 1 && message.contains(".unstun/record"), "{code}: {message}");
    daemon.stop();

    fs::remove_file(datastore.path().join(".unstun/record")).unwrap();
    let daemon = datastore.start_as(&["--no-recorder"]);
    let (code, message) = datastore.fails("cost web");
    assert!(message.contains("--no-recorder"), "{code}: {message}");
    assert!(!datastore.path().join(".unstun/record").exists());
    daemon.stop();
}
