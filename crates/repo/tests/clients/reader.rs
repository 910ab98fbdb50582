//! The independent reader as a program, and what it restores compared with a model.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::writer::{CHUNK_BYTES, Content};

/// Debian's Python has Debian's modules.
const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/restore_backup.py");

/// Reports that the running test cannot run here. `scripts/test.sh` counts it as skipped, and not as passed.
fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    // Unlike `println!`, this is not captured. With one test at a time the line has the test's name before it.
    let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {reason}");
}

/// The option of a secret, and its file.
pub(crate) type SecretFile<'a> = (&'static str, &'a Path);

/// The program of the independent reader.
pub(crate) struct Reader(());

impl Reader {
    /// Returns the reader. None, and skips the test, if its modules are not installed.
    pub(crate) fn find() -> Option<Reader> {
        let cause = match Command::new(PYTHON).args(["-c", "import argon2, nacl, zstandard"]).output() {
            Ok(output) if output.status.success() => return Some(Reader(())),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                text.lines().last().unwrap_or_default().to_owned()
            }
            Err(e) => e.to_string(),
        };
        skip(&format!("{PYTHON}: {cause}; scripts/setup.sh installs what it needs"));
        None
    }

    /// Runs the reader. Returns what it prints, or its message if it refuses.
    pub(crate) fn run(
        &self,
        folder: &Path,
        (option, secret): SecretFile<'_>,
        command: &[&str],
        output: Option<&Path>,
    ) -> Result<String, String> {
        let mut process = Command::new(PYTHON);
        process.arg(SCRIPT).arg(folder).arg(option).arg(secret).args(command).args(output);
        let done = process.output().unwrap();
        let (out, err) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
        assert!(!err.contains("Traceback"), "{err}");
        if done.status.success() {
            return Ok(out);
        }
        assert_eq!(done.status.code(), Some(1), "{err}");
        assert!(err.starts_with("restore_backup: "), "{err}");
        Err(err)
    }

    pub(crate) fn list(&self, folder: &Path, secret: SecretFile<'_>) -> String {
        self.run(folder, secret, &["list"], None).unwrap()
    }

    /// Restores the disk `(backup, disk)`, which must be refused and leave no file. Returns the message.
    pub(crate) fn refused(&self, folder: &Path, secret: SecretFile<'_>, disk: (u32, u32)) -> String {
        let to = tempfile::tempdir().unwrap();
        let output = to.path().join("disk.raw");
        let refused =
            self.restore(folder, secret, disk, &output).expect_err("the reader restores a damaged backup");
        assert!(!output.exists(), "{refused}");
        refused
    }

    /// Restores the disk `(backup, disk)`, and compares it with `content`.
    pub(crate) fn expect(
        &self,
        folder: &Path,
        secret: SecretFile<'_>,
        disk: (u32, u32),
        size_bytes: u64,
        content: &Content,
    ) {
        let to = tempfile::tempdir().unwrap();
        let output = to.path().join("disk.raw");
        self.restore(folder, secret, disk, &output).unwrap();
        let found = fs::metadata(&output).unwrap();
        assert_eq!(found.len(), size_bytes);
        // Holes are kept: at most a block of the file system more for each chunk.
        assert!(
            found.blocks() * 512 <= (content.len() as u64 + 1) * 2 * CHUNK_BYTES,
            "{} blocks",
            found.blocks()
        );
        let mut file = File::open(&output).unwrap();
        let mut chunk = vec![0; CHUNK_BYTES as usize];
        let zeros = chunk.clone();
        for n in 0..size_bytes.div_ceil(CHUNK_BYTES) {
            let length = CHUNK_BYTES.min(size_bytes - n * CHUNK_BYTES) as usize;
            file.read_exact(&mut chunk[..length]).unwrap();
            let is_right = match content.get(&n).and_then(Option::as_ref) {
                Some(expected) => chunk[..length] == expected[..],
                None => chunk[..length] == zeros[..length],
            };
            assert!(is_right, "backup {}, disk {}: chunk {n}", disk.0, disk.1);
        }
    }

    fn restore(
        &self,
        folder: &Path,
        secret: SecretFile<'_>,
        (backup, disk): (u32, u32),
        output: &Path,
    ) -> Result<String, String> {
        self.run(folder, secret, &["restore", &backup.to_string(), &disk.to_string()], Some(output))
    }
}
