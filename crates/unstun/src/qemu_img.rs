//! `qemu-img`: what it says of an image, and its runs.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use api::error::{Error, Result};
use serde::Deserialize;

const QEMU_IMG: &str = "qemu-img";

/// Output of `qemu-img info --output=json`, of one image without those below it.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Info {
    pub virtual_size: u64,
    pub format: String,
    #[serde(default)]
    pub encrypted: bool,
    backing_filename: Option<String>,
    #[serde(default)]
    format_specific: serde_json::Value,
}

impl Info {
    /// Reads what an image says of itself; without a format, as the one that its content looks like. The path is absolute, so
    /// that a colon in it ends no protocol's name.
    pub(crate) fn read(path: &Path, format: Option<&str>) -> Result<Info> {
        let mut arguments: Vec<&OsStr> = vec!["info".as_ref(), "--output=json".as_ref()];
        if let Some(format) = format {
            arguments.push("-f".as_ref());
            arguments.push(format.as_ref());
        }
        arguments.push(path.as_os_str());
        let output = run(&arguments)?;
        serde_json::from_slice(&output.stdout)
            .map_err(|e| Error::failed(format!("{QEMU_IMG} info {}: {e}", path.display())))
    }

    /// Returns another file that the image at `path` refers to. The content of an image is untrusted: it may name any file of
    /// the host. Extents beside the image are its own.
    pub(crate) fn other_file(&self, path: &Path) -> Option<String> {
        let data = &self.format_specific["data"];
        let extents = data["extents"].as_array().into_iter().flatten().filter_map(|e| e["filename"].as_str());
        let outside = |name: &&str| !lies_beside(path, Path::new(name));
        let other = self.backing_filename.as_deref().or_else(|| data["data-file"].as_str());
        other.or_else(|| extents.into_iter().find(outside)).map(str::to_owned)
    }
}

/// Returns the refusal of an image that refers to another file.
pub(crate) fn names_another(path: &Path, other: &str) -> String {
    let shown = path.display();
    let cause = format!(
        "{shown}: the image refers to another file, {other}, whose content would become part of the guest's disk"
    );
    format!(
        "{cause}; if that is intended, first convert both to one image: {QEMU_IMG} convert -O qcow2 {shown} WHOLE.qcow2"
    )
}

fn lies_beside(path: &Path, other: &Path) -> bool {
    match (path.canonicalize(), other.canonicalize()) {
        (Ok(path), Ok(other)) => path.parent() == other.parent(),
        _ => false,
    }
}

/// Returns the error of a program of QEMU's that could not be started.
pub(crate) fn not_started(program: &str, e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::NotFound => {
            let remedy = "install it (Debian: qemu-utils, Fedora: qemu-img), and try again";
            Error::failed(format!("this needs {program}, which is not installed; {remedy}"))
        }
        _ => Error::failed(format!("{program}: {e}")),
    }
}

/// Runs `qemu-img`; the last line of what it says is the error.
pub(crate) fn run(arguments: &[&OsStr]) -> Result<Output> {
    let output = Command::new(QEMU_IMG).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|e| not_started(QEMU_IMG, &e))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::failed(format!("{}: {}", said.trim().lines().last().unwrap_or(QEMU_IMG), output.status)))
}
