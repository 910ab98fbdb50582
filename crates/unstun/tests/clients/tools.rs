//! A raw file that gets the same writes as the disk, and comparisons of both by QEMU.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::daemon::{Datastore, copy};
use crate::guest::seed;
use crate::programs::tool;
use crate::random::Random;

pub(crate) fn assert_same(raw: &Path, format: &str, other: &str) {
    tool("qemu-img", &["compare", "-f", "raw", "-F", format, raw.to_str().unwrap(), other]);
}

/// A raw file that gets every write of the disk, through the same program.
pub(crate) struct Twin {
    pub path: PathBuf,
    size_bytes: u64,
    random: Random,
}

/// Maximum bytes of one step of `scribble`; each step is one line for qemu-io.
const STEP_BYTES_MAX: u64 = 3 << 20;

impl Twin {
    pub(crate) fn new(datastore: &Datastore, size_bytes: u64, seed: u64) -> Twin {
        Twin::called("twin.raw", datastore, size_bytes, seed)
    }

    /// Creates a twin beside others.
    pub(crate) fn called(name: &str, datastore: &Datastore, size_bytes: u64, seed: u64) -> Twin {
        let path = datastore.beside(name);
        std::fs::File::create(&path).unwrap().set_len(size_bytes).unwrap();
        Twin { path, size_bytes, random: Random(seed) }
    }

    /// Makes `steps` random writes, zeroings and flushes, 512-byte aligned, on the disk and on the twin.
    pub(crate) fn scribble(&mut self, uri: &str, steps: usize) {
        let mut script = Vec::new();
        for _ in 0..steps {
            let length = (1 + self.random.below(STEP_BYTES_MAX / 512)) * 512;
            let offset = self.random.below((self.size_bytes - length) / 512) * 512;
            let pattern = 1 + self.random.below(255);
            script.push(match self.random.below(8) {
                0 => format!("write -z {offset} {length}"),
                1 => "flush".to_owned(),
                2 => format!("write -f -P {pattern} {offset} {length}"),
                _ => format!("write -P {pattern} {offset} {length}"),
            });
        }
        for target in [self.path.to_str().unwrap(), uri] {
            run_script(target, &script);
        }
    }

    pub(crate) fn assert_same_as(&self, format: &str, other: &str) {
        assert_same(&self.path, format, other);
    }
}

/// Client that has a disk open for writing until it is dropped.
pub(crate) struct HeldOpen(Child);

impl HeldOpen {
    pub(crate) fn new(datastore: &Datastore, vm: &str) -> HeldOpen {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-c", "sleep 3600000", &datastore.uri(&format!("{vm}/disk0"))]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        while datastore.json(&format!("vm show {vm}"))["nbd_clients"] == 0 {}
        HeldOpen(child)
    }
}

impl Drop for HeldOpen {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a script of qemu-io. Its exit code is 0 even if a command failed, so its output is checked.
pub(crate) fn run_script(target: &str, script: &[String]) {
    let mut arguments = vec!["-f", "raw"];
    for line in script {
        arguments.extend(["-c", line]);
    }
    arguments.push(target);
    let said = tool("qemu-io", &arguments);
    assert!(!said.contains("failed") && !said.contains("error"), "{target}: {said}");
}

/// Returns the names in the tree's order, and whether each is the current one.
pub(crate) fn snapshots(datastore: &Datastore, vm: &str) -> Vec<(String, bool)> {
    let tree = datastore.json(&format!("snapshot tree {vm}"));
    let snapshots = tree["snapshots"].as_array().unwrap();
    snapshots.iter().map(|s| (s["name"].as_str().unwrap().to_owned(), s["current"] == true)).collect()
}

/// A VM `web` of files that has continued from its snapshot `a` twice.
pub(crate) struct Branched {
    /// Twin of its disk.
    pub twin: Twin,
    /// Content of `a`, raw.
    pub then: PathBuf,
    /// URI of its disk.
    pub uri: String,
}

impl Branched {
    pub(crate) fn web(datastore: &Datastore) -> Branched {
        datastore.json("vm create web --disk 64M --store redo");
        let uri = datastore.uri("web/disk0");
        let mut twin = Twin::new(datastore, 64 << 20, seed());
        twin.scribble(&uri, 30);
        datastore.json("snapshot take web a");
        let then = datastore.beside("then.raw");
        copy(&twin.path, &then);
        twin.scribble(&uri, 30);
        datastore.json("snapshot take web b");
        datastore.json("snapshot revert web a --take-first c --yes");
        datastore.json("vm open web");
        copy(&then, &twin.path);
        Branched { twin, then, uri }
    }
}
