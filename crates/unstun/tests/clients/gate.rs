//! Admission of clients to a running disk: no client that cached other content, and one writer at a time.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::daemon::Datastore;
use crate::nbd::Nbd;
use crate::programs::tool;
use crate::tools::run_script;

/// Returns the export of a VM's first disk as `attach` prints it.
fn attached(datastore: &Datastore, vm: &str) -> String {
    datastore.json(&format!("attach {vm}"))["disks"][0]["export"].as_str().unwrap().to_owned()
}

fn qemu_io(datastore: &Datastore, export: &str, options: &[&str]) -> Output {
    let uri = datastore.uri(export);
    Command::new("qemu-io")
        .args(["-f", "raw"])
        .args(options)
        .arg(uri)
        .output()
        .expect("qemu-io; `make setup` installs it")
}

/// Returns the standard error of a client that is refused.
fn refusal(datastore: &Datastore, export: &str) -> String {
    let output = qemu_io(datastore, export, &["-c", "read 0 512"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{export} was served: {said}");
    said
}

fn write(datastore: &Datastore, export: &str, pattern: u8) {
    run_script(&datastore.uri(export), &[format!("write -P {pattern} 0 1M")]);
}

fn reads(datastore: &Datastore, export: &str, pattern: u8) {
    run_script(&datastore.uri(export), &[format!("read -P {pattern} 0 1M")]);
}

fn has_event(datastore: &Datastore, words: &[&str]) -> bool {
    let events = datastore.json("events web");
    let message = |event: &Value| event["message"].as_str().unwrap_or_default().to_owned();
    events.as_array().unwrap().iter().map(message).any(|said| words.iter().all(|word| said.contains(word)))
}

fn a_client_of_before_is_refused_for_ever(store: &str) {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json(&format!("vm create web --store {store} --disk 16M"));
    let before = attached(&datastore, "web");
    write(&datastore, &before, 1);
    datastore.json("snapshot take web a");
    write(&datastore, "web/disk0", 2);
    daemon.kill();

    let daemon = datastore.start();
    assert_eq!(attached(&datastore, "web"), before, "nothing was replaced");
    let mut live = Nbd::attach(&datastore.nbd_socket(), &before).unwrap();
    datastore.json("snapshot revert web a --yes --disconnect");
    assert!(live.flush().is_err());
    let now = attached(&datastore, "web");
    assert_ne!(now, before);
    let refused = || {
        let said = refusal(&datastore, &before);
        assert!(said.contains("replaced by a revert to a") && said.contains("power-cycled"), "{said}");
        assert!(refusal(&datastore, "web/disk0").contains("unstun vm open web"));
        reads(&datastore, &now, 1);
    };
    refused();
    daemon.kill();
    let daemon = datastore.start();
    refused();
    let listed = tool("qemu-nbd", &["--list", "-k", datastore.nbd_socket().to_str().unwrap()]);
    assert!(listed.contains(&now) && !listed.contains("'web/disk0'"), "{listed}");

    let opened = datastore.json("vm open web");
    assert_eq!(
        (&opened["fenced"], &opened["generation"]),
        (&false.into(), &datastore.json("vm show web")["generation"])
    );
    write(&datastore, "web/disk0", 3);
    reads(&datastore, &now, 3);
    assert!(refusal(&datastore, &before).contains("power-cycled"));
    assert!(refusal(&datastore, "web/disk0.g99999999999").contains("the disk has no generation"));
    datastore.json("snapshot discard web a --yes");
    assert!(refusal(&datastore, &now).contains("replaced by a discard"));
    daemon.stop();
    let daemon = datastore.start();
    assert!(refusal(&datastore, "web/disk0").contains("unstun vm open web"), "fenced through a restart");
    daemon.stop();
}

#[test]
fn a_client_of_before_is_refused_for_ever_by_files() {
    a_client_of_before_is_refused_for_ever("redo");
}

#[test]
fn a_client_of_before_is_refused_for_ever_by_the_store() {
    a_client_of_before_is_refused_for_ever("native");
}

/// The content is another if a new VM has the same name, or if others could change the files of a closed VM.
#[test]
fn a_name_that_comes_to_mean_other_content_is_another_name() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for store in ["native", "redo"] {
        datastore.json(&format!("vm create web --store {store} --disk 16M"));
        let first = attached(&datastore, "web");
        datastore.json("vm remove web --delete-disks --purge --yes");
        datastore.json(&format!("vm create web --store {store} --disk 16M"));
        refusal(&datastore, &first);
        let second = attached(&datastore, "web");
        datastore.json("vm close web");
        datastore.json("vm open web");
        // No other process writes the store.
        assert_eq!(attached(&datastore, "web") == second, store == "native");
        datastore.json("vm remove web --delete-disks --purge --yes");
    }
    daemon.stop();
}

#[test]
fn a_move_keeps_the_names() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    let name = attached(&datastore, "web");
    write(&datastore, &name, 1);
    // The other side gets this tree by reverts of its own.
    for snapshot in ["a", "b"] {
        datastore.json(&format!("snapshot take web {snapshot}"));
    }
    datastore.json("snapshot revert web a --take-first c --yes");
    let name = attached(&datastore, "web");
    for store in ["native", "redo"] {
        datastore.json(&format!("vm move web --store {store}"));
        assert_eq!(attached(&datastore, "web"), name);
        refusal(&datastore, "web/disk0");
        reads(&datastore, &name, 1);
    }
    daemon.stop();
}

#[test]
fn a_disk_has_one_writer() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    // This client connects before any client has written.
    let mut early = Command::new("qemu-io")
        .args(["-f", "raw", &datastore.uri("web/disk0")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(early.stdout.take().unwrap()).lines();
    let mut ask = |command: &str, until: &str| {
        writeln!(early.stdin.as_mut().unwrap(), "{command}").unwrap();
        said.by_ref().map(Result::unwrap).find(|line| line.contains(until))
    };
    assert!(ask("read 0 512", "read 512/512").is_some());

    let mut writer = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    assert_eq!(writer.write(0, &[7; 512]).unwrap(), 0);
    let mut second = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    assert_eq!(second.write(512, &[7; 512]).unwrap(), 0, "of the same process");
    drop(writer);
    let me = format!("pid {} (", std::process::id());

    assert!(ask("write -P 1 0 512", "write failed: Operation not permitted").is_some());
    assert!(has_event(&datastore, &["(qemu-io) was refused a write: web/disk0 is written by", &me]));
    let late = qemu_io(&datastore, "web/disk0", &["-c", "write 0 512"]);
    assert!(!late.status.success(), "{late:?}");
    assert!(has_event(&datastore, &["(qemu-io) can read but not write: web/disk0 is written by", &me]));
    assert!(qemu_io(&datastore, "web/disk0", &["-r", "-c", "read -P 7 0 1k"]).status.success());
    let info = tool("nbdinfo", &[&datastore.uri("web/disk0")]);
    assert!(info.contains("is_read_only: true"), "{info}");

    let shown = datastore.json("vm show web");
    let clients = shown["clients"].as_array().unwrap();
    let does = |name: &str| {
        let of = |client: &&Value| client["client"].as_str().unwrap().contains(name);
        clients.iter().find(of).map(|client| client["access"].clone())
    };
    assert_eq!((does(&me), does("(qemu-io)")), (Some("writes".into()), Some("read_only".into())), "{shown}");

    datastore.json("vm set web --shared-writers on");
    assert!(qemu_io(&datastore, "web/disk0", &["-c", "write 0 512"]).status.success());
    datastore.json("vm set web --shared-writers off");
    drop(second);
    writeln!(early.stdin.as_mut().unwrap(), "quit").unwrap();
    early.wait().unwrap();
    // The write claims ended with their connections.
    write(&datastore, "web/disk0", 3);
    daemon.stop();
}

/// The daemon waits for the writes of a killed program, and does not refuse the next writer because of them.
#[test]
fn the_next_writer_waits_for_the_last_requests_of_a_dead_one() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 256M");
    for _ in 0..3 {
        let mut dying = Command::new("qemu-io")
            .args(["-f", "raw", "-c", "aio_write 0 128M", "-c", "aio_flush", &datastore.uri("web/disk0")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while datastore.json("vm show web")["clients"].as_array().unwrap().is_empty()
            && dying.try_wait().unwrap().is_none()
        {}
        dying.kill().unwrap();
        dying.wait().unwrap();
        write(&datastore, "web/disk0", 5);
    }
    daemon.stop();
}
