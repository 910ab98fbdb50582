//! Datastores in images of Ceph's RBD, in a cluster of one node that the test makes: two hosts, of which one is killed or
//! stands still while the other takes its image over.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::daemon::Datastore;
use crate::guest::seed;
use crate::programs::tool;
use crate::skip::skip;
use crate::space::until;
use crate::tools::{Twin, assert_same};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/ceph-cluster.sh");
const SIZE: u64 = 64 << 20;

/// A cluster with the pool `vms`, until this is dropped.
struct Cluster {
    folder: TempDir,
}

impl Cluster {
    /// Returns None, and says so, where Ceph is not installed.
    fn start() -> Option<Cluster> {
        Cluster::start_with("none")
    }

    /// `auth` is `none`, or `cephx` for clients with keys.
    fn start_with(auth: &str) -> Option<Cluster> {
        if Command::new("ceph-osd").arg("--version").output().is_err() {
            skip("no ceph-osd; `make test-all` installs it");
            return None;
        }
        let cluster = Cluster { folder: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        tool(SCRIPT, &["start", cluster.path().to_str().unwrap(), auth]);
        Some(cluster)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("ceph")
    }

    fn config(&self) -> String {
        self.path().join("ceph.conf").display().to_string()
    }

    /// Returns the name of an image for unstun.
    fn image(&self, name: &str) -> String {
        format!("rbd:vms/{name}:conf={}", self.config())
    }

    /// Returns the name of an image for unstun as a client with these capabilities.
    fn image_as(&self, client: &str, caps: &[&str], name: &str) -> String {
        let keyring = self.path().join(format!("ceph.client.{client}.keyring")).display().to_string();
        let entity = format!("client.{client}");
        self.ceph(&[&["auth", "get-or-create", &entity], caps, &["-o", &keyring]].concat());
        format!("rbd:vms/{name}:id={client}:conf={}", self.config())
    }

    fn ceph(&self, arguments: &[&str]) -> String {
        tool("ceph", &[&["-c", &self.config()], arguments].concat())
    }

    /// Sets how full an OSD may be: before a warning, before it takes no more copies, and before it takes no more writes.
    fn set_full_ratios(&self, ratios: [&str; 3]) {
        // The monitor wants them in order at any time.
        let names = ["set-nearfull-ratio", "set-backfillfull-ratio", "set-full-ratio"];
        let mut steps: Vec<_> = names.into_iter().zip(ratios).collect();
        if ratios[0] > "0.5" {
            steps.reverse();
        }
        steps.iter().for_each(|(name, ratio)| _ = self.ceph(&["osd", name, ratio]));
    }

    /// Sends a signal to the OSD.
    fn osd(&self, signal: &str) {
        let process = std::fs::read_to_string(self.path().join("osd.pid")).unwrap();
        tool("kill", &[signal, process.trim()]);
    }

    fn rbd(&self, arguments: &[&str]) -> String {
        tool("rbd", &[&["-c", &self.config()], arguments].concat())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = Command::new(SCRIPT).args(["stop", self.path().to_str().unwrap()]).status();
    }
}

/// A datastore of another host: one that shares nothing in memory.
fn host(name: &'static str) -> Datastore {
    Datastore::called(name).with_own_memory()
}

#[test]
fn clients_with_keys_need_what_fences_the_other_host() {
    let Some(cluster) = Cluster::start_with("cephx") else { return };
    let (one, two) = (host("one"), host("two"));
    let pool = "profile rbd pool=vms";
    let image = cluster.image_as("unstun", &["mon", "profile rbd", "osd", pool], "store");
    let reader = cluster.image_as("reader", &["mon", "profile rbd", "osd", "profile rbd-read-only"], "other");
    let blunt = cluster.image_as("blunt", &["mon", "allow r", "osd", pool], "other");
    for (image, words) in [
        (&reader, ["creating the image", "ceph auth caps client.reader mon 'profile rbd'"]),
        (&blunt, ["permission to blocklist", "ceph auth caps client.blunt mon 'profile rbd'"]),
        (&image.replace("=unstun", "=absent"), ["connecting to Ceph as client.absent", "keyring"]),
    ] {
        let (code, said) = one.fails(&format!("datastore create {image} --size 1G"));
        assert!(code != 0 && words.iter().all(|word| said.contains(word)), "{image}: {code}: {said}");
    }
    assert!(!cluster.rbd(&["ls", "vms"]).contains("other"), "nothing is left of what was refused");
    one.json(&format!("datastore create {image} --size 1G"));
    let (first, second) = (one.start(), two.start());
    one.json(&format!("datastore add {image}"));
    one.json_at("store", &format!("vm create web --disk {SIZE}"));
    let mut twin = Twin::new(&one, SIZE, seed());
    twin.scribble(&one.uri("web/disk0"), 20);
    tool("qemu-io", &["-f", "raw", "-c", "flush", &one.uri("web/disk0")]);
    // A daemon of the same host, which shares its folder of locks, is the wrong one to ask: nothing is fenced.
    let neighbour = Datastore::called("near");
    let near = neighbour.start_with(&[("RUNTIME_DIRECTORY", &one.memory())]);
    let (code, said) = neighbour.fails(&format!("datastore take-over {image} --yes"));
    assert!(code == 5 && said.contains("another unstun daemon on this host"), "{code}: {said}");
    twin.scribble(&one.uri("web/disk0"), 5);
    tool("qemu-io", &["-f", "raw", "-c", "flush", &one.uri("web/disk0")]);
    near.stop();
    first.pause();
    two.json(&format!("datastore take-over {image} --yes"));
    two.json("vm open web");
    twin.assert_same_as("raw", &two.uri("web/disk0"));
    first.resume();
    first.kill();
    second.stop();
}

/// A pool that is full holds writes back, as Ceph does, and lets them go on when it has space again.
#[test]
fn writes_wait_while_the_pool_is_full() {
    let Some(cluster) = Cluster::start() else { return };
    let one = host("one");
    let image = cluster.image("store");
    one.json(&format!("datastore create {image} --size 2G"));
    let daemon = one.start();
    one.json(&format!("datastore add {image}"));
    one.json_at("store", "vm create web --disk 512M");
    let write = |byte: u8| {
        let line = format!("write -P {byte} 0 32M");
        Command::new("qemu-io").args(["-f", "raw", "-c", &line, "-c", "flush", &one.uri("web/disk0")]).spawn()
    };
    assert!(write(1).unwrap().wait().unwrap().success());
    cluster.set_full_ratios(["0.0001", "0.0001", "0.0001"]);
    until("the pool to be full", || cluster.ceph(&["osd", "dump"]).contains(",full,").then_some(()));
    let mut waiting = write(2).unwrap();
    until("the datastore to hang", || {
        let said = String::from_utf8(one.run("status").stdout).unwrap();
        (said.starts_with("HUNG") && said.contains("full pool")).then_some(())
    });
    assert!(waiting.try_wait().unwrap().is_none(), "the write waits");
    cluster.set_full_ratios(["0.97", "0.98", "0.99"]);
    assert!(waiting.wait().unwrap().success());
    let line = "read -P 2 0 32M";
    let said = tool("qemu-io", &["-r", "-f", "raw", "-c", line, &one.uri("web/disk0")]);
    assert!(!said.contains("failed"), "{said}");
    daemon.stop();
}

#[test]
fn an_image_is_a_datastore_that_another_host_serves_after_a_crash() {
    let Some(cluster) = Cluster::start() else { return };
    let (one, two) = (host("one"), host("two"));
    let image = cluster.image("store");
    let made = one.json(&format!("datastore create {image} --size 2G"));
    assert_eq!(made["size_bytes"], json!(2u64 << 30), "{made}");
    let (code, said) = one.fails(&format!("datastore create {image}"));
    assert!(code == 3 && said.contains("a store of unstun"), "{code}: {said}");
    let (first, second) = (one.start(), two.start());
    let added = one.json(&format!("datastore add {image}"));
    assert_eq!((&added["name"], &added["is_device"]), (&json!("store"), &json!(true)), "{added}");
    one.json_at("store", &format!("vm create web --disk {SIZE}"));
    let uri = one.uri("web/disk0");
    let mut twin = Twin::new(&one, SIZE, seed());
    twin.scribble(&uri, 30);
    one.json("snapshot take web a");
    one.json("vm clone web@a twin");
    twin.scribble(&uri, 30);
    tool("qemu-io", &["-f", "raw", "-c", "discard 1M 8M", "-c", "flush", &uri]);
    tool("qemu-io", &["-f", "raw", "-c", "write -z 1M 8M", twin.path.to_str().unwrap()]);
    twin.assert_same_as("raw", &uri);
    assert_eq!(one.json_at("store", "check")["findings"], json!([]));
    // Another host cannot have it meanwhile, and a check without its daemon neither.
    for line in [
        format!("datastore add {image}"),
        format!("check {image}"),
        format!("datastore create {image} --force"),
    ] {
        let (code, said) = two.fails(&line);
        assert!(code == 5 && said.contains("exclusive lock"), "{line}: {code}: {said}");
    }
    tool("qemu-io", &["-f", "raw", "-c", "flush", &uri]);
    first.kill();
    // The owner's process has ended for certain, so no word of the user is needed, and no wait.
    two.json(&format!("datastore add {image}"));
    // Its guest may still run.
    two.json("vm open web");
    twin.assert_same_as("raw", &two.uri("web/disk0"));
    twin.scribble(&two.uri("web/disk0"), 10);
    let first = one.start();
    let (code, said) = one.fails("vm show web");
    assert!(code != 0, "{said}");
    let listed = one.json("datastore list").to_string();
    assert!(listed.contains("exclusive lock"), "{listed}");
    // An orderly end gives the image up at once.
    second.stop();
    one.json("datastore remove store --yes");
    one.json(&format!("datastore add {image}"));
    twin.assert_same_as("raw", &one.uri("web/disk0"));
    first.stop();
    let checked = two.json(&format!("check {image}"));
    assert_eq!(checked["findings"], json!([]), "{checked}");
    let copy = two.beside("rebuilt");
    let rebuilt = two.json(&format!("datastore rebuild {image} --into {}", copy.display()));
    assert_eq!(rebuilt["complete"], true, "{rebuilt}");
}

#[test]
fn a_host_that_stood_still_writes_nothing_after_a_take_over() {
    let Some(cluster) = Cluster::start() else { return };
    let (one, two) = (host("one"), host("two"));
    let image = cluster.image("store");
    one.json(&format!("datastore create {image} --size 2G"));
    let (first, second) = (one.start(), two.start());
    one.json(&format!("datastore add {image}"));
    one.json_at("store", &format!("vm create web --disk {SIZE},{SIZE}"));
    let mut twin = Twin::new(&one, SIZE, seed());
    twin.scribble(&one.uri("web/disk0"), 30);
    tool("qemu-io", &["-f", "raw", "-c", "flush", &one.uri("web/disk0")]);
    // A client whose writes are under way when its daemon stands still.
    let mut late = Command::new("qemu-io");
    late.args(["-f", "raw", "-t", "none", &one.uri("web/disk1")]);
    for n in 0..2000 {
        late.args(["-c", &format!("aio_write -P {} {}M 1M", 1 + n % 200, n % 64)]);
    }
    let mut late = late.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the first of its writes", || (one.json("vm show web")["clients"] != json!([])).then_some(()));
    first.pause();
    let (code, said) = two.fails(&format!("datastore add {image}"));
    assert!(code == 5 && said.contains("datastore take-over"), "{code}: {said}");
    two.json(&format!("datastore take-over {image} --yes"));
    // Writes were under way that no flush covers, and the guest may still run.
    two.json("vm open web");
    twin.assert_same_as("raw", &two.uri("web/disk0"));
    let then = two.beside("then.raw");
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &two.uri("web/disk1"), then.to_str().unwrap()]);
    twin.scribble(&two.uri("web/disk0"), 20);
    first.resume();
    // It hears that it has lost the image, and ends its clients.
    until("the former owner to say so", || {
        one.json("datastore list").to_string().contains("serves the store now").then_some(())
    });
    let _ = late.wait();
    twin.scribble(&two.uri("web/disk0"), 20);
    twin.assert_same_as("raw", &two.uri("web/disk0"));
    assert_same(&then, "raw", &two.uri("web/disk1"));
    assert_eq!(two.json_at("store", "check")["findings"], json!([]));
    drop(first);
    second.stop();
}

#[test]
fn an_osd_that_stands_still_is_a_pause() {
    let Some(cluster) = Cluster::start() else { return };
    let datastore = host("one");
    let image = cluster.image("store");
    datastore.json(&format!("datastore create {image} --size 1G"));
    let daemon = datastore.start();
    datastore.json(&format!("datastore add {image}"));
    datastore.json_at("store", &format!("vm create web --disk {SIZE}"));
    let uri = datastore.uri("web/disk0");
    let mut twin = Twin::new(&datastore, SIZE, seed());
    twin.scribble(&uri, 10);
    cluster.osd("-STOP");
    let mut waits = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write -P 7 1M 1M", "-c", "flush", &uri])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the datastore to be reported", || {
        let listed = datastore.json("datastore list");
        listed.as_array().unwrap().iter().any(|one| one["condition"] == "hung").then_some(())
    });
    assert!(waits.try_wait().unwrap().is_none(), "nothing was answered");
    cluster.osd("-CONT");
    assert!(waits.wait().unwrap().success());
    tool("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 1M", twin.path.to_str().unwrap()]);
    twin.assert_same_as("raw", &uri);
    twin.scribble(&uri, 10);
    twin.assert_same_as("raw", &uri);
    daemon.stop();
}

#[test]
fn what_is_wrong_with_an_image_is_said() {
    let Some(cluster) = Cluster::start() else { return };
    let datastore = host("one");
    cluster.rbd(&["create", "vms/small", "--size", "64M"]);
    cluster.rbd(&["create", "vms/open", "--size", "1G", "--image-feature", "layering"]);
    cluster.rbd(&["create", "vms/full", "--size", "1G"]);
    let daemon = datastore.start();
    let none = format!("rbd:vms/x:conf={}/none.conf", cluster.path().display());
    for (line, expected, says) in [
        ("datastore create rbd:vms".to_owned(), 2, "expected rbd:POOL/IMAGE"),
        (format!("datastore create {}", cluster.image("none")), 4, "--size SIZE"),
        // Nothing is made that the next line finds.
        (format!("datastore create {} --size 64M", cluster.image("none")), 3, "a store needs at least"),
        (format!("datastore add {}", cluster.image("none")), 4, "opening the image"),
        (format!("datastore create rbd:none/x:conf={}", cluster.config()), 4, "opening the pool"),
        (format!("datastore create {none}"), 4, "reading the configuration of Ceph"),
        (format!("datastore create {}", cluster.image("small")), 3, "a store needs at least"),
        (
            format!("datastore create {}", cluster.image("open")),
            3,
            "rbd feature enable vms/open exclusive-lock",
        ),
        (format!("datastore create {} --size 1G", cluster.image("full")), 3, "creating the image"),
        (format!("datastore add {}", cluster.image("full")), 2, "datastore create"),
    ] {
        let (code, said) = datastore.fails(&line);
        assert!(code == expected && said.contains(says), "{line}: {code}: {said}");
    }
    daemon.stop();
}
