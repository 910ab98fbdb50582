//! `unstun pull`: whole copies and increments, compared by QEMU; wrong bases, interruptions, removed snapshots.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::daemon::{Daemon, Datastore, copy};
use crate::guest::seed;
use crate::tools::{Twin, assert_same, run_script};

const MIB: u64 = 1 << 20;

/// Returns the command that pulls the disk of `web`.
fn pull(datastore: &Datastore, arguments: &str) -> String {
    format!("pull {} {arguments} -o {}", datastore.uri("web/disk0"), file(datastore).display())
}

fn file(datastore: &Datastore) -> PathBuf {
    datastore.beside("pulled.raw")
}

fn record(datastore: &Datastore) -> Option<Value> {
    let text = fs::read_to_string(datastore.beside("pulled.raw.unstun")).ok()?;
    serde_json::from_str(&text).ok()
}

/// Returns the state in the record: a word, or an object with one.
fn state(datastore: &Datastore) -> String {
    record(datastore).map_or_else(String::new, |record| record["state"].to_string())
}

fn refused(datastore: &Datastore, arguments: &str, code: i32, parts: &[&str]) {
    let (found, said) = datastore.fails(&pull(datastore, arguments));
    assert!(found == code && parts.iter().all(|part| said.contains(part)), "{arguments}: {found}: {said}");
}

/// A VM with some data, and the raw file that has the same.
fn web(datastore: &Datastore, store: &str) -> Twin {
    datastore.json(&format!("vm create web --store {store} --disk 64M"));
    let mut twin = Twin::new(datastore, 64 * MIB, seed());
    twin.scribble(&datastore.uri("web/disk0"), 20);
    twin
}

#[test]
fn a_copy_follows_the_snapshots() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for store in ["native", "redo"] {
        let mut twin = web(&datastore, store);
        let mut kept = Vec::new();
        for name in ["a", "b", "c", "d"] {
            datastore.json(&format!("snapshot take web {name}"));
            let then = datastore.beside(&format!("{name}.raw"));
            copy(&twin.path, &then);
            kept.push(then);
            twin.scribble(&datastore.uri("web/disk0"), 8);
        }
        let pulled = datastore.json(&pull(&datastore, "--until a"));
        assert_eq!((&pulled["export"], &pulled["snapshot"]), (&"web/disk0".into(), &"a".into()), "{store}");
        assert_same(&kept[0], "raw", file(&datastore).to_str().unwrap());
        assert_eq!(fs::metadata(file(&datastore)).unwrap().permissions().mode() & 0o777, 0o600);
        // One snapshot at a time, over one, and back.
        for (since, until, expected) in [("a", "b", 1), ("b", "d", 3), ("d", "c", 2)] {
            let pulled = datastore.json(&pull(&datastore, &format!("--since {since} --until {until}")));
            assert_eq!(pulled["since"], since);
            assert!(pulled["bytes_read"].as_u64().unwrap() <= 64 * MIB, "{pulled}");
            assert_same(&kept[expected], "raw", file(&datastore).to_str().unwrap());
        }
        assert_eq!(state(&datastore), "\"whole\"");
        datastore.json("vm remove web --delete-disks --purge --yes");
        for name in ["pulled.raw", "pulled.raw.unstun"] {
            fs::remove_file(datastore.beside(name)).unwrap();
        }
    }
    daemon.stop();
}

#[test]
fn only_what_differs_is_read_and_holes_stay_holes() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    let write = |script: &str| run_script(&datastore.uri("web/disk0"), &[script.to_owned()]);
    write("write -P 1 0 8M");
    datastore.json("snapshot take web a");
    write("write -P 2 40M 1M");
    write("write -z -u 2M 2M");
    datastore.json("snapshot take web b");
    datastore.json("vm disk grow web/disk0 96M");
    write("write -P 3 80M 1M");
    datastore.json("snapshot take web c");
    let whole = datastore.json(&pull(&datastore, "--until a"));
    assert_eq!((&whole["bytes_read"], &whole["size_bytes"]), (&(8 * MIB).into(), &(64 * MIB).into()));
    let blocks = |file: &Path| fs::metadata(file).unwrap().blocks() * 512;
    assert!(blocks(&file(&datastore)) < 9 * MIB);
    let next = datastore.json(&pull(&datastore, "--since a --until b"));
    assert_eq!(next["bytes_read"], MIB);
    assert!(blocks(&file(&datastore)) < 8 * MIB, "the zeros are a hole");
    let grown = datastore.json(&pull(&datastore, "--since b --until c"));
    assert_eq!((&grown["bytes_read"], &grown["size_bytes"]), (&MIB.into(), &(96 * MIB).into()));
    assert_same(&file(&datastore), "raw", &datastore.uri("web/disk0@c"));
    refused(&datastore, "--since c --until a", 3, &["100663296 bytes", "67108864"]);
    daemon.stop();
}

#[test]
fn a_wrong_base_is_refused_with_both_names() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut twin = web(&datastore, "native");
    for name in ["a", "b", "c"] {
        datastore.json(&format!("snapshot take web {name}"));
        twin.scribble(&datastore.uri("web/disk0"), 3);
    }
    refused(&datastore, "--since a --until b", 4, &["No such file"]);
    datastore.json(&pull(&datastore, "--until a"));
    refused(&datastore, "--until a", 3, &["exists already", "--force"]);
    refused(&datastore, "--since b --until c", 3, &["holds web/disk0@a", "since web/disk0@b", "--since a"]);
    refused(&datastore, "--since nope --until b", 4, &["\"nope\"", "pull all of it"]);
    refused(&datastore, "--since a --until nope", 4, &["nope"]);
    refused(&datastore, "--since a --until a", 2, &["both"]);
    assert_eq!(state(&datastore), "\"whole\"");
    // A renamed snapshot is the same one; a later one of its name is not.
    datastore.json("snapshot rename web a first");
    datastore.json(&pull(&datastore, "--since first --until b"));
    datastore.json("snapshot commit web b --yes");
    refused(&datastore, "--since b --until c", 4, &["\"b\""]);
    datastore.json("snapshot take web b");
    refused(&datastore, "--since b --until c", 3, &["another snapshot of the name b"]);
    // Without its record a file is a stranger, unless the user vouches for it.
    datastore.json(&pull(&datastore, "--until c --force"));
    fs::remove_file(datastore.beside("pulled.raw.unstun")).unwrap();
    refused(&datastore, "--since c --until b", 3, &["has no record", "--force"]);
    datastore.json(&pull(&datastore, "--since c --until b --force"));
    assert_same(&file(&datastore), "raw", &datastore.uri("web/disk0@b"));
    fs::write(datastore.beside("pulled.raw.unstun"), "garbage").unwrap();
    refused(&datastore, "--since b --until c", 3, &["no record of a pull"]);
    daemon.stop();
}

#[test]
fn a_running_disk_is_no_base() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut twin = web(&datastore, "native");
    datastore.json("snapshot take web a");
    twin.scribble(&datastore.uri("web/disk0"), 3);
    let said = datastore.run(&pull(&datastore, ""));
    assert!(said.status.success() && String::from_utf8_lossy(&said.stderr).contains("running disk"));
    twin.assert_same_as("raw", file(&datastore).to_str().unwrap());
    refused(&datastore, "--since a", 3, &["holds the running disk"]);
    datastore.json(&pull(&datastore, "--until a --force"));
    let pulled = datastore.json(&pull(&datastore, "--since a"));
    assert!(pulled["snapshot"].is_null() && pulled["since"] == "a", "{pulled}");
    twin.assert_same_as("raw", file(&datastore).to_str().unwrap());
    daemon.stop();
}

/// Kills a pull while its record says that it is at work. Returns false if it was too quick for that.
fn killed(datastore: &Datastore, daemon: &Daemon<'_>, arguments: &str, at_work: &str) -> bool {
    let mut begun = datastore.begin(&pull(datastore, arguments));
    let is_at_work = || state(datastore).contains(at_work) && file(datastore).exists();
    while !is_at_work() && begun.try_wait().unwrap().is_none() {}
    daemon.pause();
    let ended = begun.try_wait().unwrap().is_some();
    begun.kill().unwrap();
    begun.wait().unwrap();
    daemon.resume();
    !ended && is_at_work()
}

#[test]
fn an_interrupted_pull_is_completed_by_the_same_command() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut twin = web(&datastore, "redo");
    datastore.json("snapshot take web a");
    twin.scribble(&datastore.uri("web/disk0"), 20);
    datastore.json("snapshot take web b");
    datastore.json("snapshot take web c");
    let mut tries = 0;
    while !killed(&datastore, &daemon, "--until a --force", "copying") {
        tries += 1;
        assert!(tries < 100, "a pull is too quick to be interrupted");
    }
    refused(&datastore, "--since a --until b", 3, &["incomplete copy"]);
    datastore.json(&pull(&datastore, "--until a"));
    assert_same(&file(&datastore), "raw", &datastore.uri("web/disk0@a"));
    let mut tries = 0;
    while !killed(&datastore, &daemon, "--since a --until b", "updating") {
        tries += 1;
        assert!(tries < 100, "a pull is too quick to be interrupted");
        datastore.json(&pull(&datastore, "--since b --until a"));
    }
    refused(&datastore, "--since a --until c", 3, &["from a to b"]);
    refused(&datastore, "--since b --until c", 3, &["from a to b"]);
    datastore.json(&pull(&datastore, "--since a --until b"));
    assert_same(&file(&datastore), "raw", &datastore.uri("web/disk0@b"));
    daemon.stop();
}
