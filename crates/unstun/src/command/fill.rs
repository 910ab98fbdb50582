//! Fills a new disk from an image: `qemu-img` reads the image, and writes it through the disk's own export.
//!
//! `qemu-img` uses the export because the daemon has the disk's files open. It is then a client like any other, and the
//! daemon's data on the disk (counters, content IDs, the mode's rules) stay right.

use std::path::{Path, PathBuf};

use api::client::Client;
use api::error::{Error, Result};
use api::name::{DiskRef, VmName};
use api::units;
use api::units::format_bytes;
use api::{Disk, DiskCreate, DiskMode, DiskSetMode};
use tokio::signal::unix::{SignalKind, signal};

use crate::qemu_img::{self, Info};

/// Formats by the suffix of a file's name. A file with any other name is a raw image.
const FORMATS: [(&str, &str); 8] = [
    ("qcow2", "qcow2"),
    ("qcow", "qcow"),
    ("qed", "qed"),
    ("vmdk", "vmdk"),
    ("vdi", "vdi"),
    ("vhdx", "vhdx"),
    ("vhd", "vpc"),
    ("vpc", "vpc"),
];
const RAW: &str = "raw";

/// An image that qemu-img can read, with all of its data in one place.
pub(super) struct Source {
    path: PathBuf,
    size_bytes: u64,
    format: String,
}

impl Source {
    /// Examines an image. `format` is the format that the user states. Else the file's name decides, never the content
    /// alone: a guest can write the header of another format into its raw disk, and name a file of the host in it.
    pub(super) fn look(path: &Path, format: Option<&str>) -> Result<Source> {
        let shown = path.display();
        path.metadata().map_err(|e| Error::at_path(format!("--from {shown}"), "no such file", &e))?;
        // The path is absolute, so that qemu-img does not take a colon in it for the end of a protocol's name.
        let path = std::path::absolute(path).map_err(|e| Error::failed(format!("--from {shown}: {e}")))?;
        let format = match format.or_else(|| format_by_name(&path)) {
            Some(format) => format.to_owned(),
            None => refuse_hidden_format(&path, &Info::read(&path, None)?.format)?,
        };
        let info = Info::read(&path, Some(&format))?;
        refuse_other_files(&path, &info)?;
        Ok(Source { path, size_bytes: info.virtual_size, format })
    }

    /// Prepares the last of `disks` for the fill, and returns its final mode. A nonpersistent disk is filled in
    /// persistent mode, because a reset drops what is written to a nonpersistent disk.
    pub(super) fn prepare(&self, disks: &mut Vec<DiskCreate>) -> Result<DiskMode> {
        let size_bytes = self.size_bytes;
        if disks.is_empty() {
            units::check_disk_size(size_bytes)
                .map_err(|e| Error::refused(format!("{}: {e}", self.path.display())))?;
            disks.push(DiskCreate::new(size_bytes));
        }
        let last = disks.last_mut().ok_or_else(|| Error::invalid("no disk to fill"))?;
        if size_bytes > last.size_bytes {
            return Err(Error::refused(format!(
                "{} holds a disk of {} ({size_bytes} bytes), larger than the {} ({} bytes) of the disk that it is to \
                 fill",
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

    /// Fills the disk, and returns it with its mode set to `mode`.
    pub(super) async fn fill(
        &self,
        client: &Client,
        vm: &VmName,
        disk: &Disk,
        mode: DiskMode,
    ) -> Result<Disk> {
        if disk.nbd_uri.starts_with("nbds:") {
            return Err(Error::refused(format!(
                "{vm}/disk{} is served with TLS, and qemu-img has no certificates here; start the daemon with a Unix \
                 socket as its first --nbd",
                disk.number
            )));
        }
        let arguments = [
            "convert".as_ref(),
            // The new disk reads as zeros, so holes of the source need not be written.
            "-n".as_ref(),
            "--target-is-zero".as_ref(),
            "-f".as_ref(),
            self.format.as_ref(),
            "-O".as_ref(),
            "raw".as_ref(),
            self.path.as_os_str(),
            disk.nbd_uri.as_ref(),
        ];
        // The handler stays while qemu-img runs: Ctrl-C ends qemu-img, and this process goes on to remove the partly
        // filled disk.
        let _interrupted =
            signal(SignalKind::interrupt()).map_err(|e| Error::failed(format!("signal handler: {e}")))?;
        qemu_img::run(&arguments)?;
        if disk.mode != mode {
            let disk = DiskRef { vm: vm.clone(), number: disk.number };
            return client.set_disk_mode(&disk, &DiskSetMode { mode }).await;
        }
        let shown = client.vm_show(vm).await?;
        let gone = || Error::failed(format!("{vm}/disk{} was removed", disk.number));
        shown.disks.into_iter().find(|shown| shown.number == disk.number).ok_or_else(gone)
    }
}

fn format_by_name(path: &Path) -> Option<&'static str> {
    let suffix = path.extension()?.to_str()?.to_ascii_lowercase();
    FORMATS.iter().find(|(known, _)| *known == suffix).map(|(_, format)| *format)
}

fn refuse_hidden_format(path: &Path, found: &str) -> Result<String> {
    if found == RAW {
        return Ok(found.to_owned());
    }
    let cause = format!(
        "--from {}: its content looks like {found}, but its file name does not say so",
        path.display()
    );
    let remedy = format!(
        "state the format: --from-format {found}, or --from-format raw if a guest may have written this content"
    );
    Err(Error::refused(format!("{cause}; {remedy}")))
}

/// Refuses an image that refers to other files. They would be read with the rights of the user who fills the disk, and
/// become part of the guest's disk.
fn refuse_other_files(path: &Path, info: &Info) -> Result<()> {
    match info.other_file(path) {
        None => Ok(()),
        Some(other) => Err(Error::refused(format!("--from {}", qemu_img::names_another(path, &other)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(size_bytes: u64) -> Source {
        Source { path: "/old.qcow2".into(), size_bytes, format: "qcow2".to_owned() }
    }

    fn info(text: &str) -> Info {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_name_says_the_format_and_content_alone_does_not() {
        for (name, format) in [("a.qcow2", "qcow2"), ("a.VMDK", "vmdk"), ("a.vhd", "vpc")] {
            assert_eq!(format_by_name(Path::new(name)), Some(format));
        }
        assert_eq!(format_by_name(Path::new("a.img")), None);
        assert_eq!(refuse_hidden_format(Path::new("a.img"), "raw").unwrap(), "raw");
        let error = refuse_hidden_format(Path::new("a.img"), "qcow2").unwrap_err();
        assert!(error.message.contains("--from-format raw"), "{error}");
    }

    #[test]
    fn an_image_that_reads_other_files_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (image, beside) = (folder.path().join("a.vmdk"), folder.path().join("a-flat.vmdk"));
        for file in [&image, &beside] {
            std::fs::write(file, "").unwrap();
        }
        let of = |specific: &str| {
            let text = format!(
                r#"{{"virtual-size": 1, "format": "vmdk", "format-specific": {{"data": {specific}}}}}"#
            );
            refuse_other_files(&image, &info(&text))
        };
        of(&format!(r#"{{"extents": [{{"filename": "{}"}}]}}"#, beside.display())).unwrap();
        for hostile in [r#"{"extents": [{"filename": "/etc/passwd"}]}"#, r#"{"data-file": "/etc/passwd"}"#] {
            let error = of(hostile).unwrap_err();
            assert!(error.message.contains("/etc/passwd"), "{error}");
        }
        let backed = info(r#"{"virtual-size": 1, "format": "qcow2", "backing-filename": "/etc/passwd"}"#);
        assert!(refuse_other_files(&image, &backed).unwrap_err().message.contains("/etc/passwd"));
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
