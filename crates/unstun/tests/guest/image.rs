//! File systems made and checked on the host, with an administrator's programs.

use std::fs::File;
use std::path::PathBuf;

use crate::daemon::Datastore;
use crate::programs::tool;

/// Fills an unwritten disk with an empty file system.
pub(crate) fn make_file_system(datastore: &Datastore, export: &str, kind: &str, size_bytes: u64) {
    let path = datastore.beside("new.raw");
    File::create(&path).unwrap().set_len(size_bytes).unwrap();
    let raw = path.to_str().unwrap();
    match kind {
        "ext4" => tool("mke2fs", &["-q", "-F", "-t", "ext4", raw]),
        "xfs" => tool("mkfs.xfs", &["-q", "-f", raw]),
        other => panic!("no file system {other}"),
    };
    let onto_zeros = ["convert", "-n", "--target-is-zero", "-f", "raw", "-O", "raw"];
    tool("qemu-img", &[&onto_zeros[..], &[raw, &datastore.uri(export)]].concat());
    std::fs::remove_file(path).unwrap();
}

/// Copies the whole disk or snapshot into a raw file.
pub(crate) fn copy_out(datastore: &Datastore, export: &str, name: &str) -> PathBuf {
    let path = datastore.beside(name);
    tool("nbdcopy", &[&datastore.uri(export), path.to_str().unwrap()]);
    path
}

/// Asserts that an unmounted file system has nothing to repair, and no journal to replay.
pub(crate) fn assert_clean(datastore: &Datastore, export: &str, kind: &str) {
    let path = copy_out(datastore, export, "copy.raw");
    let raw = path.to_str().unwrap();
    match kind {
        "ext4" => {
            let said = tool("e2fsck", &["-f", "-n", raw]);
            assert!(!said.contains("recover"), "{export}: a journal to replay: {said}");
        }
        "xfs" => drop(tool("xfs_repair", &["-n", "-f", raw])),
        other => panic!("no file system {other}"),
    }
    std::fs::remove_file(path).unwrap();
}
