//! Starts qemu-storage-daemon: one node of a graph under an NBD export, and a monitor.

use std::path::{Path, PathBuf};
use std::process::Command;

use blk::Result;

use super::qmp::Qmp;
use super::server::Server;

/// Returns the socket of the exports of the daemon in that folder.
pub(super) fn socket(folder: &Path) -> PathBuf {
    folder.join("nbd.sock")
}

/// Serves the node `exported` of these block devices as the export `disk`, and connects to the monitor.
pub(super) fn start(blockdevs: &[String], exported: &str, folder: &Path) -> Result<(Server, Qmp)> {
    let monitor = folder.join("qmp.sock");
    let mut command = Command::new("qemu-storage-daemon");
    for blockdev in blockdevs {
        command.arg("--blockdev").arg(blockdev);
    }
    command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={}", socket(folder).display()));
    command.arg("--export").arg(format!("type=nbd,id=disk,node-name={exported},name=disk,writable=on"));
    command.arg("--chardev").arg(format!("socket,id=qmp,path={},server=on,wait=off", monitor.display()));
    command.args(["--monitor", "chardev=qmp"]);
    let mut found = None;
    let server = Server::start(&mut command, folder, || {
        found = Qmp::connect(&monitor).ok();
        found.is_some() && socket(folder).exists()
    })?;
    Ok((server, found.expect("ready means that it answered")))
}
