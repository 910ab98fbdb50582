//! What the tests beside QEMU share: real files through io_uring, and qemu-img, which scripts/setup.sh installs.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub(crate) mod layers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use blk::uring::UringReactor;
use blk::{Env, Executor};
use vmdk::delta::Growth;

pub(crate) const GROWTH: Growth = Growth { step_bytes: 1 << 20, chunk_bytes: 256 << 10 };

pub(crate) fn run<T: 'static, F: Future<Output = T> + 'static>(main: impl FnOnce(Env) -> F) -> T {
    let executor = Executor::new(Rc::new(UringReactor::new().unwrap()));
    let env = executor.env();
    executor.run(main(env)).expect("nothing is under way and the test is not done")
}

/// A folder on a real file system, under the build's.
pub(crate) fn scratch() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("vmdk").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().to_path_buf();
    (folder, path)
}

/// Standard output; fails with what it said otherwise.
pub(crate) fn qemu_img(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("qemu-img").args(arguments).current_dir(folder).output();
    let output = output.expect("qemu-img is installed by scripts/setup.sh");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {}: {errors}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// The whole disk as QEMU reads it.
pub(crate) fn convert(folder: &Path, descriptor: &str) -> Vec<u8> {
    qemu_img(folder, &["convert", "-f", "vmdk", "-O", "raw", descriptor, "out.raw"]);
    std::fs::read(folder.join("out.raw")).unwrap()
}
