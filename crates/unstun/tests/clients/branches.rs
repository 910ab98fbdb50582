//! Revert, discard and clone through the command line, with QEMU's programs as the guest.

use std::path::PathBuf;

use serde_json::Value;

use crate::daemon::{Daemon, Datastore, copy};
use crate::guest::seed;
use crate::nbd::Nbd;
use crate::tools::{Twin, assert_same, run_script};

const SIZE: u64 = 64 << 20;

/// A VM with a twin that gets the same writes, and the content at each snapshot.
struct Scene<'a> {
    datastore: &'a Datastore,
    twin: Twin,
    uri: String,
}

impl<'a> Scene<'a> {
    fn new(datastore: &'a Datastore) -> Self {
        datastore.json("vm create web --store redo --disk 64M");
        Self { datastore, twin: Twin::new(datastore, SIZE, seed()), uri: datastore.uri("web/disk0") }
    }

    fn state(&self, name: &str) -> PathBuf {
        self.datastore.beside(&format!("{name}.raw"))
    }

    fn scribble(&mut self) {
        self.twin.scribble(&self.uri, 20);
    }

    fn take(&self, name: &str) {
        copy(&self.twin.path, &self.state(name));
        self.datastore.json(&format!("snapshot take web {name}"));
    }

    fn scribble_and_take(&mut self, name: &str) {
        self.scribble();
        self.take(name);
    }

    /// Asserts that the running disk shows `name`'s state, and sets the twin to that state.
    fn is_at(&self, name: &str) {
        // Earlier writers have ended.
        self.datastore.json("vm open web");
        assert_same(&self.state(name), "raw", &self.uri);
        copy(&self.state(name), &self.twin.path);
    }

    fn names(&self) -> Vec<String> {
        let tree = self.datastore.json("snapshot tree web");
        let name = |snapshot: &Value| snapshot["name"].as_str().unwrap().to_owned();
        tree["snapshots"].as_array().unwrap().iter().map(name).collect()
    }

    /// Asserts that the files equal the twin, once the daemon has stopped.
    fn ends_as_its_twin(self, daemon: Daemon<'_>) {
        let top = self.datastore.descriptor("web");
        daemon.stop();
        self.twin.assert_same_as("vmdk", top.to_str().unwrap());
    }
}

#[test]
fn revert_goes_back_and_keeps_the_named_state() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut scene = Scene::new(&datastore);
    scene.scribble_and_take("a");
    scene.scribble_and_take("b");
    scene.scribble();
    copy(&scene.twin.path, &scene.state("now"));

    let preview = datastore.json("snapshot revert web a --take-first now --dry-run");
    assert_eq!(
        (&preview["target"], &preview["taken"], &preview["bytes_lost"]),
        (&"a".into(), &"now".into(), &0.into())
    );
    datastore.json("snapshot revert web a --take-first now --yes");
    let tree = datastore.json("snapshot tree web");
    let now = tree["snapshots"].as_array().unwrap().iter().find(|s| s["name"] == "now").unwrap();
    assert!(now["created_by"].as_str().unwrap().starts_with("user "), "{now}");
    scene.is_at("a");
    scene.scribble();
    let lost = datastore.json("snapshot revert web@b --yes");
    assert!(lost["bytes_lost"].as_u64().unwrap() > 0 && lost["snapshots"] == serde_json::json!([]), "{lost}");
    scene.is_at("b");
    for name in ["a", "b", "now"] {
        assert_same(&scene.state(name), "raw", &datastore.uri(&format!("web/disk0@{name}")));
    }
    scene.scribble();
    // Without a name, the VM reverts to the current snapshot.
    datastore.json("snapshot revert web --yes");
    scene.is_at("b");
    assert_eq!(scene.names(), ["a", "b", "now"]);
    scene.scribble();
    scene.ends_as_its_twin(daemon);
}

#[test]
fn a_writing_client_is_named_and_disconnected_only_on_request() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut scene = Scene::new(&datastore);
    scene.scribble_and_take("a");
    scene.scribble();
    let mut guest = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    guest.flush().unwrap();
    for line in
        ["snapshot revert web a --yes", "snapshot discard web a --yes", "vm close web", "vm remove web"]
    {
        let (code, said) = datastore.fails(line);
        assert_eq!(code, 3, "{line}: {said}");
        assert!(
            said.contains("disk0") && said.contains(&format!("pid {}", std::process::id())),
            "{line} does not name the client: {said}"
        );
    }
    assert!(guest.flush().is_ok(), "who was only named is still there");
    let reverted = datastore.json("snapshot revert web a --yes --disconnect");
    assert_eq!(reverted["clients"][0]["disk"], 0, "{reverted}");
    assert!(guest.flush().is_err(), "sent away");
    scene.is_at("a");
    daemon.stop();
}

#[test]
fn discard_drops_a_side_branch_and_leads_back_on_the_running_one() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut scene = Scene::new(&datastore);
    scene.scribble_and_take("a");
    scene.scribble_and_take("side");
    scene.scribble();
    datastore.json("snapshot revert web a --yes");
    scene.is_at("a");
    scene.scribble_and_take("b");
    // The side branch is not the running one, so a guest may stay connected.
    let guest = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    datastore.json("snapshot discard web side --yes");
    drop(guest);
    scene.is_at("b");
    assert_eq!(scene.names(), ["a", "b"]);
    scene.scribble();
    // The daemon notices the guest's end asynchronously; --disconnect waits for it.
    datastore.json("snapshot discard web a --yes --disconnect");
    scene.is_at("a");
    assert!(scene.names().is_empty());
    scene.ends_as_its_twin(daemon);
}

#[test]
fn a_clone_protects_its_ground_and_consolidate_folds_what_it_leaves() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut scene = Scene::new(&datastore);
    scene.scribble_and_take("a");
    scene.scribble_and_take("b");
    let clone = datastore.json("vm clone web@b test1");
    assert_eq!(clone["needs_consolidation"], false, "{clone}");
    let twin_of_clone = datastore.uri("test1/disk0");
    assert_same(&scene.state("b"), "raw", &twin_of_clone);
    run_script(&twin_of_clone, &["write -P 77 0 1M".to_owned(), "flush".to_owned()]);
    scene.scribble();
    for line in [
        "snapshot commit web a --yes",
        "snapshot commit web b --yes",
        "vm remove web --delete-disks --purge --yes",
    ] {
        let (code, said) = datastore.fails(line);
        assert_eq!(code, 3, "{line}: {said}");
        assert!(said.contains("test1"), "{line} does not name the clone: {said}");
    }
    // The snapshot's name is removed; the layers under it stay for the clone.
    datastore.json("snapshot discard web b --yes");
    scene.is_at("b");
    scene.scribble();
    assert_eq!(datastore.json("vm show web")["needs_consolidation"], true);
    assert_eq!(datastore.json("snapshot tree web")["unowned"][0]["disk"], 0);
    assert_eq!(datastore.fails("snapshot consolidate web --yes").0, 3, "the clone reads the layer below it");
    run_script(&twin_of_clone, &["read -P 77 0 1M".to_owned()]);

    datastore.json("vm remove test1 --delete-disks --purge --yes");
    let job = datastore.json("snapshot consolidate web --yes");
    assert_eq!(job["operation"], "consolidate", "{job}");
    assert_eq!(job["state"], "done", "{job}");
    assert_eq!(datastore.json("vm show web")["needs_consolidation"], false);
    scene.twin.assert_same_as("raw", &scene.uri);
    assert_eq!(datastore.fails("snapshot consolidate web --yes").0, 3, "nothing is left");
    assert_eq!(scene.names(), ["a"]);
    scene.ends_as_its_twin(daemon);
}
