//! A repository in a temporary folder, with a key file and a passphrase, and backups of one VM.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use repo::{Figures, Objects, Origin, Repository, Secret, Session, new_key_file};
use tempfile::TempDir;

use crate::reader::SecretFile;

pub(crate) const CHUNK_BYTES: u64 = 4096;
const PASSPHRASE: &str = "correct horse battery staple";

/// Chunks of a disk by number; None, and absent ones, are holes.
pub(crate) type Content = BTreeMap<u64, Option<Vec<u8>>>;

/// Runs a future to its end. The requests to the store run on a thread of their own.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

pub(crate) fn connect(folder: &Path) -> Arc<dyn Objects> {
    repo::connect(folder.to_str().unwrap(), true, std::iter::empty()).unwrap()
}

/// Returns bytes that compress badly and differ for each seed.
pub(crate) fn bytes(seed: u64, length: u64) -> Vec<u8> {
    let mut x = seed + 1;
    let mut next = || {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (x >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        match from.is_dir() {
            true => copy_folder(&from, &to),
            false => _ = fs::copy(&from, &to).unwrap(),
        }
    }
}

/// A repository and its secrets.
pub(crate) struct Writer {
    files: TempDir,
    folder: PathBuf,
    key_file: PathBuf,
    passphrase_file: PathBuf,
    pub(crate) repository: Repository,
    clock_us: u64,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        let files = tempfile::tempdir().unwrap();
        let folder = files.path().join("repository");
        let key_file = files.path().join("key");
        let passphrase_file = files.path().join("passphrase");
        fs::write(&key_file, new_key_file().unwrap()).unwrap();
        fs::write(&passphrase_file, format!("{PASSPHRASE}\n")).unwrap();
        let secret = secret_of(&key_file);
        let made = Repository::init(connect(&folder), (&secret, "key file"), CHUNK_BYTES as u32, ("test", 1));
        let repository = run(made).unwrap();
        run(repository.add_key(&Secret::Passphrase(PASSPHRASE.into()), "passphrase", 2)).unwrap();
        Writer { files, folder, key_file, passphrase_file, repository, clock_us: 2 }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn secret(&self) -> Secret {
        secret_of(&self.key_file)
    }

    pub(crate) fn key_file(&self) -> SecretFile<'_> {
        ("--key-file", &self.key_file)
    }

    pub(crate) fn passphrase_file(&self) -> SecretFile<'_> {
        ("--passphrase-file", &self.passphrase_file)
    }

    /// Writes a file beside the repository.
    pub(crate) fn write_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.files.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn now_us(&mut self) -> u64 {
        self.clock_us += 1;
        self.clock_us
    }

    /// Makes a backup of disks over the last one: their numbers, sizes and changed chunks.
    pub(crate) fn backup<const N: usize>(&mut self, disks: [(u32, u64, &Content); N]) -> (u32, Figures) {
        let (now_us, cache) = (self.now_us(), self.files.path().join("cache"));
        run(async {
            let mut session = Session::begin(&mut self.repository, Some(&cache), now_us).await.unwrap();
            let parent = session.state().latest("id of web").map(|(_, backup)| backup.clone());
            for (number, size_bytes, content) in disks {
                let parent =
                    parent.iter().flat_map(|parent| &parent.disks).find(|disk| disk.number == number);
                let mut disk = session.disk(number, size_bytes, parent).await.unwrap();
                let mut pages: BTreeMap<u64, Vec<_>> = BTreeMap::new();
                for (n, chunk) in content {
                    pages.entry(n / 256).or_default().push((*n, chunk.clone()));
                }
                for chunks in pages.into_values() {
                    session.write(&mut disk, chunks).await.unwrap();
                }
                session.finish(disk).await.unwrap();
            }
            let origin = Origin {
                vm: "web".into(),
                vm_id: "id of web".into(),
                snapshot: "nightly".into(),
                consistency: "crash".into(),
                ..Origin::default()
            };
            session.commit(origin, now_us, now_us).await.unwrap()
        })
    }

    /// Begins a session that never ends.
    pub(crate) fn begin(&mut self) {
        let now_us = self.now_us();
        run(Session::begin(&mut self.repository, None, now_us)).map(drop).unwrap();
    }

    pub(crate) fn forget(&mut self, backup: u32) {
        let now_us = self.now_us();
        run(self.repository.forget(vec![backup], now_us)).unwrap();
    }

    pub(crate) fn recall(&mut self, backup: u32) {
        let now_us = self.now_us();
        run(self.repository.recall(vec![backup], now_us)).unwrap();
    }
}

fn secret_of(key_file: &Path) -> Secret {
    Secret::key_file("key", &fs::read_to_string(key_file).unwrap()).unwrap()
}
