//! Filling a new disk from an image: `qemu-img` reads it, and writes it through the disk's own door.
//!
//! Through the door, because the daemon has the disk's files open: it is then a client like any other, and
//! whatever the daemon keeps about the disk (counters, content ids, the mode's rules) stays right.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::{Disk, DiskCreate, DiskMode, DiskSetMode};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::name::{DiskRef, VmName};
use crate::units;
use crate::units::format_bytes;

const QEMU_IMG: &str = "qemu-img";

/// An image that qemu-img can read.
pub struct Source {
    path: PathBuf,
    info: Info,
}

/// Of `qemu-img info --output=json`.
#[derive(Deserialize)]
struct Info {
    #[serde(rename = "virtual-size")]
    size_bytes: u64,
    format: String,
}

impl Source {
    pub fn look(path: &Path) -> Result<Source> {
        std::fs::metadata(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::not_found(format!("--from {}: no such file", path.display()))
            }
            _ => Error::failed(format!("--from {}: {e}", path.display())),
        })?;
        // Absolute, so that a colon in it is not taken for a protocol's name.
        let path = std::path::absolute(path)
            .map_err(|e| Error::failed(format!("--from {}: {e}", path.display())))?;
        let output = qemu_img(&["info".as_ref(), "--output=json".as_ref(), path.as_os_str()])?;
        let info = serde_json::from_slice(&output.stdout)
            .map_err(|e| Error::failed(format!("{QEMU_IMG} info {}: {e}", path.display())))?;
        Ok(Source { path, info })
    }

    /// Makes the last of `disks` fit to be filled, and answers the mode it is to have in the end. A
    /// nonpersistent disk is filled while it is none: what is written to one is what a reset drops.
    pub fn prepare(&self, disks: &mut Vec<DiskCreate>) -> Result<DiskMode> {
        let size_bytes = self.info.size_bytes;
        if disks.is_empty() {
            units::check_disk_size(size_bytes)
                .map_err(|e| Error::refused(format!("{}: {e}", self.path.display())))?;
            disks.push(DiskCreate::new(size_bytes));
        }
        let last = disks.last_mut().ok_or_else(|| Error::invalid("no disk to fill"))?;
        if size_bytes > last.size_bytes {
            return Err(Error::refused(format!(
                "{} holds a disk of {} ({size_bytes} bytes), larger than the {} ({} bytes) of the disk it is to fill",
                self.path.display(),
                format_bytes(size_bytes),
                format_bytes(last.size_bytes),
                last.size_bytes
            )));
        }
        let mode = last.mode;
        if mode == DiskMode::IndependentNonpersistent {
            last.mode = DiskMode::IndependentPersistent;
        }
        Ok(mode)
    }

    /// Answers the disk once it is filled and of `mode`.
    pub async fn fill(&self, client: &Client, vm: &VmName, disk: &Disk, mode: DiskMode) -> Result<Disk> {
        let arguments = [
            "convert".as_ref(),
            // The new disk reads as zeros: holes of the source need not be written.
            "-n".as_ref(),
            "--target-is-zero".as_ref(),
            "-f".as_ref(),
            self.info.format.as_ref(),
            "-O".as_ref(),
            "raw".as_ref(),
            self.path.as_os_str(),
            disk.nbd_uri.as_ref(),
        ];
        // Held while qemu-img runs: Ctrl-C ends that one, and this one goes on to take the half disk away.
        let _interrupted =
            signal(SignalKind::interrupt()).map_err(|e| Error::failed(format!("signal handler: {e}")))?;
        qemu_img(&arguments)?;
        if disk.mode != mode {
            let disk = DiskRef { vm: vm.clone(), number: disk.number };
            return client.disk_set_mode(&disk, &DiskSetMode { mode }).await;
        }
        let shown = client.vm_show(vm).await?;
        let gone = || Error::failed(format!("{vm}/disk{} is gone", disk.number));
        shown.disks.into_iter().find(|shown| shown.number == disk.number).ok_or_else(gone)
    }
}

fn qemu_img(arguments: &[&std::ffi::OsStr]) -> Result<Output> {
    let output = Command::new(QEMU_IMG).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::failed(
            "--from needs qemu-img, which is not installed (Debian: qemu-utils, Fedora: qemu-img)",
        ),
        _ => Error::failed(format!("{QEMU_IMG}: {e}")),
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::failed(format!("{}: {}", said.trim().lines().last().unwrap_or(QEMU_IMG), output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(size_bytes: u64) -> Source {
        Source { path: "/old.qcow2".into(), info: Info { size_bytes, format: "qcow2".to_owned() } }
    }

    #[test]
    fn without_a_disk_the_image_decides_the_size() {
        let mut disks = Vec::new();
        assert_eq!(source(5 << 20).prepare(&mut disks).unwrap(), DiskMode::Persistent);
        assert_eq!(disks, [DiskCreate::new(5 << 20)]);
    }

    #[test]
    fn the_last_disk_is_filled_if_the_image_fits() {
        let mut disks = vec![DiskCreate::new(512), DiskCreate::new(5 << 20)];
        assert!(source(4 << 20).prepare(&mut disks).is_ok());
        let error = source(6 << 20).prepare(&mut disks).unwrap_err();
        assert!(
            error.message.contains("6 MiB") && error.message.contains("larger than the 5 MiB"),
            "{error}"
        );
    }

    #[test]
    fn a_nonpersistent_disk_is_filled_before_it_is_one() {
        let mut disks = vec![DiskCreate { mode: DiskMode::IndependentNonpersistent, ..DiskCreate::new(512) }];
        assert_eq!(source(512).prepare(&mut disks).unwrap(), DiskMode::IndependentNonpersistent);
        assert_eq!(disks[0].mode, DiskMode::IndependentPersistent);
    }
}
