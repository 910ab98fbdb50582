//! Disks over images: shown at once, written, snapshotted and copied while the image is below them; and images that change,
//! vanish, or are written by others.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::{Datastore, copy};
use crate::guest::seed;
use crate::programs::{tool, try_tool};
use crate::space::until;
use crate::tools::{Twin, assert_same};

const SIZE: u64 = 96 << 20;

/// Makes a raw image of `SIZE` bytes with random content, and a twin that gets the same later writes as a disk over it.
fn image(datastore: &Datastore, name: &str, by: u64) -> (PathBuf, Twin) {
    let mut twin = Twin::called(&format!("{name}.twin"), datastore, SIZE, seed() + by);
    twin.scribble(twin.path.clone().to_str().unwrap(), 25);
    let path = datastore.beside(name);
    copy(&twin.path, &path);
    (path, twin)
}

/// Writes the raw image in another format beside it.
fn converted(raw: &Path, name: &str, form: &str) -> PathBuf {
    let path = raw.with_file_name(name);
    let form = format!("subformat={form}");
    let (from, to) = (raw.to_str().unwrap(), path.to_str().unwrap());
    tool("qemu-img", &["convert", "-f", "raw", "-O", "vmdk", "-o", &form, from, to]);
    path
}

fn sources(datastore: &Datastore) -> Vec<Value> {
    datastore.json("source list").as_array().unwrap().clone()
}

fn await_state(datastore: &Datastore, state: &str) {
    until(&format!("sources that are {state}"), || {
        sources(datastore).iter().all(|source| source["state"] == state).then_some(())
    });
}

/// Returns whether 4 KiB at an offset can be read.
fn reads(uri: &str, offset: u64) -> bool {
    let said = try_tool("qemu-io", &["-r", "-f", "raw", "-c", &format!("read {offset} 4k"), uri]);
    said.status.success() && !String::from_utf8_lossy(&said.stdout).contains("failed")
}

#[test]
fn disks_over_images_run_at_once_and_outlive_them() {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&["--cores", "2"]);
    let (raw, first) = image(&datastore, "a.raw", 1);
    let (other, second) = image(&datastore, "b.raw", 2);
    let (single, split) =
        (converted(&raw, "c.vmdk", "monolithicSparse"), converted(&other, "d.vmdk", "twoGbMaxExtentSparse"));
    // The first VM is on the store's core, the second one on the other.
    datastore.json(&format!("vm create a --disk from={}", raw.display()));
    let made = datastore.json(&format!(
        "vm create b --disk from={},from={},size=128M",
        single.display(),
        split.display()
    ));
    assert_eq!((&made["core"], &made["disks"][1]["size_bytes"]), (&json!(1), &json!(128 << 20)), "{made}");
    let third = Twin::called("third", &datastore, SIZE, seed() + 3);
    copy(&first.path, &third.path);
    let stream = converted(&raw, "e.vmdk", "streamOptimized");
    datastore.json(&format!("vm create e --disk from={}", stream.display()));
    first.assert_same_as("raw", &datastore.uri("e/disk0"));
    datastore.json("vm remove e --delete-disks --purge --yes");
    let mut disks = [("a/disk0", first), ("b/disk0", third), ("b/disk1", second)];
    for (disk, twin) in &disks {
        let compared =
            ["compare", "-f", "raw", "-F", "raw", twin.path.to_str().unwrap(), &datastore.uri(disk)];
        tool("qemu-img", &compared);
    }
    for vm in ["a", "b"] {
        datastore.json(&format!("snapshot take {vm} begin"));
    }
    let begin = datastore.beside("begin.raw");
    copy(&disks[0].1.path, &begin);
    for (disk, twin) in &mut disks {
        twin.scribble(&datastore.uri(disk), 20);
        twin.assert_same_as("raw", &datastore.uri(disk));
    }
    assert_same(&begin, "raw", &datastore.uri("a/disk0@begin"));
    datastore.json("vm clone a@begin c");
    await_state(&datastore, "copied");
    for source in sources(&datastore) {
        assert_eq!((&source["copied_bytes"], &source["job"]), (&json!(SIZE), &Value::Null), "{source}");
    }
    let events = datastore.json("events a").to_string();
    assert!(events.contains("the image is not needed any more"), "{events}");
    assert!(datastore.json("vm show a")["disks"][0]["source"].is_null());
    daemon.kill();
    for path in [&raw, &other, &single, &split] {
        fs::remove_file(path).unwrap();
    }
    let daemon = datastore.start();
    for (disk, twin) in &disks {
        twin.assert_same_as("raw", &datastore.uri(disk));
    }
    assert_same(&begin, "raw", &datastore.uri("c/disk0"));
    datastore.json("snapshot revert a begin --yes");
    datastore.json("vm open a");
    assert_same(&begin, "raw", &datastore.uri("a/disk0"));
    for vm in ["a", "b", "c"] {
        datastore.json(&format!("vm remove {vm} --delete-disks --purge --yes"));
    }
    until("the sources to go", || sources(&datastore).is_empty().then_some(()));
    assert_eq!(datastore.json("check")["findings"], json!([]));
    daemon.stop();
}

#[test]
fn an_image_that_is_not_copied_is_shared_needed_and_copied_on_request() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let (raw, mut web) = image(&datastore, "golden.raw", 4);
    datastore.json(&format!("vm create web --disk from={},copy=no", raw.display()));
    datastore.json(&format!("vm create shop --disk from={},copy=no", raw.display()));
    let [source] = &sources(&datastore)[..] else { panic!("one source") };
    assert_eq!(source["disks"], json!(["shop/disk0", "web/disk0"]), "{source}");
    assert_eq!((&source["copy"], &source["trusted"]), (&json!(false), &json!(false)));
    web.scribble(&datastore.uri("web/disk0"), 15);
    daemon.kill();
    let daemon = datastore.start();
    web.assert_same_as("raw", &datastore.uri("web/disk0"));
    assert_same(&raw, "raw", &datastore.uri("shop/disk0"));
    let (code, said) = datastore.fails("source copy 9");
    assert!(code == 4 && said.contains("source list"), "{code}: {said}");
    let job = datastore.json("source copy 1");
    assert_eq!(
        (&job["operation"], &job["state"], &job["bytes_done"]),
        (&json!("land"), &json!("done"), &json!(SIZE))
    );
    let (code, said) = datastore.fails("source copy 1");
    assert!(code == 3 && said.contains("already"), "{code}: {said}");
    let golden = datastore.beside("golden.copy");
    copy(&raw, &golden);
    fs::remove_file(&raw).unwrap();
    daemon.kill();
    let daemon = datastore.start();
    assert_same(&golden, "raw", &datastore.uri("shop/disk0"));
    // A disk that is added over an image leaves the running one alone.
    copy(&golden, &raw);
    datastore.json(&format!("vm disk add shop from={},mode=independent-persistent", raw.display()));
    assert_same(&golden, "raw", &datastore.uri("shop/disk1"));
    daemon.stop();
}

#[test]
fn an_image_that_changes_or_vanishes_is_an_error_and_an_alarm() {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&["--alarms-every", "1s"]);
    let (raw, _) = image(&datastore, "a.raw", 5);
    let kept = datastore.beside("kept.raw");
    tool("cp", &["--preserve=timestamps", raw.to_str().unwrap(), kept.to_str().unwrap()]);
    datastore.json(&format!("vm create web --disk from={},copy=no", raw.display()));
    let uri = datastore.uri("web/disk0");
    tool("qemu-io", &["-f", "raw", "-c", "write -P 5 0 1M", &uri]);
    assert!(reads(&uri, 0) && reads(&uri, 50 << 20));

    // A byte changes, and the time with it.
    let file = File::options().write(true).open(&raw).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", 60 << 20).unwrap();
    assert!(!reads(&uri, 50 << 20), "what was read may be the new content");
    assert!(reads(&uri, 0), "what the disk has itself is read");
    let [source] = &sources(&datastore)[..] else { panic!("one source") };
    assert!(source["message"].as_str().unwrap().contains("was changed while"), "{source}");
    let alarm = until("the alarm", || {
        let alarms = datastore.json("alarm list");
        alarms.as_array().unwrap().iter().find(|alarm| alarm["rule"] == "source").cloned()
    });
    assert!(
        alarm["severity"] == "critical" && alarm["message"].as_str().unwrap().contains("web/disk0"),
        "{alarm}"
    );
    daemon.stop();
    let daemon = datastore.start();
    assert!(!reads(&uri, 50 << 20) && reads(&uri, 0));
    let [source] = &sources(&datastore)[..] else { panic!("one source") };
    assert_eq!(source["state"], "unavailable");
    assert!(source["message"].as_str().unwrap().contains("other sizes or times"), "{source}");
    daemon.stop();

    // The file as it was, with its time, is the same image.
    tool("cp", &["--preserve=timestamps", kept.to_str().unwrap(), raw.to_str().unwrap()]);
    let daemon = datastore.start();
    assert!(reads(&uri, 50 << 20));
    daemon.stop();
    fs::remove_file(&raw).unwrap();
    let daemon = datastore.start();
    assert!(!reads(&uri, 50 << 20) && reads(&uri, 0));
    // It is found again without a restart.
    tool("cp", &["--preserve=timestamps", kept.to_str().unwrap(), raw.to_str().unwrap()]);
    until("the image to be open again", || reads(&uri, 50 << 20).then_some(()));
    datastore.json("source copy 1");
    daemon.stop();
}

#[test]
fn images_that_cannot_be_below_a_disk_are_refused_and_leave_nothing() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let (raw, _) = image(&datastore, "a.raw", 6);
    let shown = raw.display();
    let odd = datastore.beside("odd.raw");
    fs::write(&odd, [1; 1000]).unwrap();
    let unnamed = datastore.beside("unnamed");
    copy(&raw, &unnamed);
    datastore.json("vm create redo --disk 1M --store redo");
    let own = datastore.path().join("redo/redo.vmdk");
    for (disk, code, word) in [
        (format!("from={}x", raw.display()), 4, "no such file"),
        (format!("from={}", datastore.path().display()), 2, "expected a file"),
        (format!("from={}", unnamed.display()), 2, "format=raw"),
        (format!("from={}", odd.display()), 2, "1000 bytes"),
        (format!("from={shown},size=1M"), 2, "expected 100663296 or more"),
        (format!("from={shown},format=vmdk"), 6, "read as a VMware disk"),
        (format!("from={shown},dir={}", datastore.path().display()), 3, "datastore"),
        (format!("from={}", own.display()), 3, "`.unstun` folder"),
    ] {
        let (found, said) = datastore.fails(&format!("vm create web --disk {disk}"));
        assert!(found == code && said.contains(word), "{disk}: {found}: {said}");
    }
    let (code, said) = datastore.fails(&format!("vm create web --disk from={shown} --store redo"));
    assert!(code == 3 && said.contains("native"), "{code}: {said}");
    // QEMU's locks keep writers away, in both directions.
    until("the image to be free", || {
        let writer = try_tool("qemu-io", &["-f", "raw", "-c", "read 0 4k", raw.to_str().unwrap()]);
        writer.status.success().then_some(())
    });
    datastore.json(&format!("vm create web --disk from={shown},copy=no"));
    let writer = try_tool("qemu-io", &["-f", "raw", "-c", "read 0 4k", raw.to_str().unwrap()]);
    assert!(!writer.status.success(), "QEMU writes an image that is below a disk");
    datastore.json("vm remove web --delete-disks --purge --yes");
    until("the source to go", || sources(&datastore).is_empty().then_some(()));
    // A file that is being written has the time of this moment, again and again.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&raw).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                file.set_times(FileTimes::new().set_modified(std::time::SystemTime::now())).unwrap();
                std::thread::yield_now();
            }
        });
        let (code, said) = datastore.fails(&format!("vm create web --disk from={shown}"));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(code == 5 && said.contains("is writing this file"), "{code}: {said}");
    });
    daemon.stop();
}

/// A server of QEMU's for one file, until it is dropped.
struct Server(std::process::Child);

impl Server {
    fn new(datastore: &Datastore, file: &Path) -> Server {
        let socket = datastore.beside("other.sock");
        let _ = fs::remove_file(&socket);
        let mut command = std::process::Command::new("qemu-nbd");
        command.args(["--read-only", "--persistent", "--shared", "4", "--format", "raw", "--socket"]);
        let child = command.arg(&socket).arg(file).stdin(std::process::Stdio::null()).spawn().unwrap();
        until("the server", || std::os::unix::net::UnixStream::connect(&socket).ok());
        Server(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_export_below_a_disk_goes_away_and_comes_back() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let (raw, mut twin) = image(&datastore, "a.raw", 7);
    let server = Server::new(&datastore, &raw);
    let socket = datastore.beside("other.sock");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let made = datastore.json(&format!("vm create web --disk from={uri},copy=no"));
    assert_eq!(made["disks"][0]["source"]["trusted"], json!(true), "{made}");
    let disk = datastore.uri("web/disk0");
    twin.assert_same_as("raw", &disk);
    twin.scribble(&disk, 15);
    twin.assert_same_as("raw", &disk);
    drop(server);
    assert!(!reads(&disk, 95 << 20), "the server has gone");
    let [source] = &sources(&datastore)[..] else { panic!("one source") };
    assert_eq!(source["state"], "unavailable", "{source}");
    let server = Server::new(&datastore, &raw);
    until("the export to be open again", || reads(&disk, 95 << 20).then_some(()));
    twin.assert_same_as("raw", &disk);
    daemon.kill();
    let daemon = datastore.start();
    twin.assert_same_as("raw", &disk);
    datastore.json("source copy 1");
    drop(server);
    twin.assert_same_as("raw", &disk);
    let (code, said) = datastore.fails(&format!("vm create other --disk from={uri}"));
    assert!(code != 0 && said.contains("other.sock"), "{code}: {said}");
    let (code, said) = datastore.fails("vm create other --disk from=nbds://127.0.0.1/x");
    assert!(code != 0 && said.contains("TLS"), "{code}: {said}");
    daemon.stop();
}

#[test]
fn images_of_other_programs_and_our_own_exports_run_at_once() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let (raw, twin) = image(&datastore, "a.raw", 8);
    let (from, disks) = (raw.to_str().unwrap(), ["qcow2", "vhdx", "vdi", "vpc"]);
    let mut specs = Vec::new();
    for format in disks {
        let path = datastore.beside(&format!("b.{format}"));
        // The size of a VHD is rounded to cylinders unless it is forced.
        let options = if format == "vpc" { vec!["-o", "force_size=on"] } else { Vec::new() };
        let mut arguments = vec!["convert", "-f", "raw", "-O", format];
        arguments.extend(options);
        arguments.extend([from, path.to_str().unwrap()]);
        tool("qemu-img", &arguments);
        specs.push(format!("from={}", path.display()));
    }
    datastore.json(&format!("vm create web --disk {}", specs.join(",")));
    for number in 0..disks.len() {
        twin.assert_same_as("raw", &datastore.uri(&format!("web/disk{number}")));
    }
    await_state(&datastore, "copied");
    // A state of a VM of our own, which may as well be another daemon's.
    datastore.json("snapshot take web a");
    datastore.json(&format!("vm create copy --disk from={}", datastore.uri("web/disk0@a")));
    twin.assert_same_as("raw", &datastore.uri("copy/disk0"));
    await_state(&datastore, "copied");
    // An image that names another file of the host.
    let (base, over) = (datastore.beside("b.qcow2"), datastore.beside("over.qcow2"));
    let backing = format!("backing_file={},backing_fmt=qcow2", base.display());
    tool("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &backing, over.to_str().unwrap()]);
    let (code, said) = datastore.fails(&format!("vm create other --disk from={}", over.display()));
    assert!(code == 3 && said.contains("b.qcow2"), "{code}: {said}");
    let (code, said) = datastore.fails(&format!("vm create other --disk from={from},format=qcow2"));
    assert!(code == 1 && said.contains("qcow2"), "{code}: {said}");
    daemon.stop();
    twin.assert_same_as("qcow2", base.to_str().unwrap());
}
