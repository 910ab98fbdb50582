//! `Memory` in a folder of a tmpfs.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::open::is_in_memory;
use crate::error::{Errno, Error, Result};
use crate::memory::Memory;

/// Files that are kept open, so that an append is one system call. With more disks than that under first writes, some
/// files are opened repeatedly.
const OPEN_MAX: usize = 256;
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";
const MACHINE_ID_PATH: &str = "/etc/machine-id";
const HOST_NAME_PATH: &str = "/proc/sys/kernel/hostname";

/// Function that is called with the first failure.
pub(super) type FailureListener = Box<dyn Fn(&Error)>;

/// The files of one process. Only the core's thread uses them.
pub struct MemoryFolder {
    /// None if there is no such folder: nothing is kept then, and every append fails.
    path: Option<PathBuf>,
    boot: u64,
    machine: u64,
    open: RefCell<HashMap<String, File>>,
    /// Number of files that are kept open.
    open_max: usize,
    on_failure: Option<FailureListener>,
    has_failed: Cell<bool>,
}

impl MemoryFolder {
    /// Creates a folder that keeps nothing. `remote`: clients on other hosts may be served.
    pub fn absent(remote: bool) -> MemoryFolder {
        MemoryFolder {
            path: None,
            boot: boot(remote),
            machine: machine(),
            open: RefCell::default(),
            open_max: OPEN_MAX,
            on_failure: None,
            has_failed: Cell::new(false),
        }
    }

    /// Sets the function that is called with the first failure to keep something. Later failures have the same cause
    /// and are not reported.
    pub fn on_failure(self, tell: FailureListener) -> MemoryFolder {
        MemoryFolder { on_failure: Some(tell), ..self }
    }

    /// Keeps fewer files open: the part of one of `cores` cores, each of which has the folder for itself.
    pub fn for_one_of(self, cores: usize) -> MemoryFolder {
        MemoryFolder { open_max: OPEN_MAX / cores, ..self }
    }

    /// Keeps files in the folder `path`. The folder is created for this user alone; its parent must exist.
    ///
    /// # Errors
    /// `Refused` if it is not a folder of this user in a tmpfs; `Io` and others if it cannot be created.
    pub fn open(path: &Path, remote: bool) -> Result<MemoryFolder> {
        let place = path.display().to_string();
        let failed = |doing| move |e: std::io::Error| Errno::from(e).at(&place, doing);
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(failed("making the folder")(e));
            }
            _ => {}
        }
        check(path)?;
        Ok(MemoryFolder { path: Some(path.to_owned()), ..MemoryFolder::absent(remote) })
    }

    fn folder(&self) -> std::result::Result<&Path, Errno> {
        self.path.as_deref().ok_or(Errno::EOPNOTSUPP)
    }

    fn with_file<T>(
        &self,
        name: &str,
        act: impl FnOnce(&mut File) -> std::io::Result<T>,
    ) -> std::result::Result<T, Errno> {
        let folder = self.folder()?;
        self.act_on(folder, name, act).inspect_err(|errno| {
            if let (false, Some(tell)) = (self.has_failed.replace(true), &self.on_failure) {
                tell(&errno.at(folder.join(name).display().to_string(), "writing to it"));
            }
        })
    }

    fn act_on<T>(
        &self,
        folder: &Path,
        name: &str,
        act: impl FnOnce(&mut File) -> std::io::Result<T>,
    ) -> std::result::Result<T, Errno> {
        let mut open = self.open.borrow_mut();
        if let Some(file) = open.get_mut(name) {
            return Ok(act(file)?);
        }
        if open.len() >= self.open_max {
            open.clear();
        }
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(folder.join(name))?;
        Ok(act(open.entry(name.to_owned()).or_insert(file))?)
    }
}

/// Checks the folder. Another user who could write there could decide where a guest's blocks are.
fn check(path: &Path) -> Result<()> {
    let place = path.display().to_string();
    let refuse = |cause: &str| Err(Error::refused(&*place, cause));
    let found = std::fs::symlink_metadata(path).map_err(|e| Errno::from(e).at(&place, "looking at it"))?;
    if !found.is_dir() {
        return refuse("it is not a folder; remove it");
    }
    if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return refuse("it is another user's, or open to others; remove it, or make it yours with mode 0700");
    }
    let folder = File::open(path).map_err(|e| Errno::from(e).at(&place, "opening it"))?;
    match is_in_memory(&folder) {
        true => Ok(()),
        false => refuse("it is not in a tmpfs, so that its files would outlive a loss of power"),
    }
}

/// Returns `Memory::boot`. If the kernel has no boot ID, all boots count as one, and clients are refused more often
/// than necessary.
fn boot(remote: bool) -> u64 {
    let id = std::fs::read_to_string(BOOT_ID_PATH).unwrap_or_default();
    (hash(id.trim()) & !1).max(2) | u64::from(remote)
}

/// Returns `Memory::machine`. Cloned machines have the same ID.
fn machine() -> u64 {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (id, name) = (read(MACHINE_ID_PATH), read(HOST_NAME_PATH));
    match (id.trim(), name.trim()) {
        ("", "") => 0,
        (id, name) => hash(&format!("{id} {name}")).max(1),
    }
}

/// Returns the FNV-1a hash of 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Memory for MemoryFolder {
    fn boot(&self) -> u64 {
        self.boot
    }

    fn machine(&self) -> u64 {
        self.machine
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path.as_ref()?.join(name)).ok()
    }

    fn append(&self, name: &str, bytes: &[u8]) -> std::result::Result<(), Errno> {
        self.with_file(name, |file| file.write_all(bytes))
    }

    fn clear(&self, name: &str) -> std::result::Result<(), Errno> {
        self.with_file(name, |file| file.set_len(0))
    }

    fn remove(&self, name: &str) {
        self.open.borrow_mut().remove(name);
        if let Some(path) = &self.path {
            // If it cannot be removed this does no harm: its content does not fit its subject any more, which every
            // reader checks.
            let _ = std::fs::remove_file(path.join(name));
        }
    }

    fn list(&self) -> Vec<String> {
        let Some(entries) = self.path.as_ref().and_then(|path| std::fs::read_dir(path).ok()) else {
            return Vec::new();
        };
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// /dev/shm is a tmpfs wherever glibc runs.
    fn path(name: &str) -> PathBuf {
        PathBuf::from(format!("/dev/shm/unstun-memory-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_new_process_reads_what_the_previous_one_appended() {
        let path = path("next");
        let first = MemoryFolder::open(&path, false).unwrap();
        first.append("a", b"one").unwrap();
        first.append("a", b"two").unwrap();
        first.append("b", b"").unwrap();
        let second = MemoryFolder::open(&path, true).unwrap();
        assert_eq!(second.read("a").unwrap(), b"onetwo");
        assert_eq!(second.read("b").unwrap(), b"");
        assert_eq!(second.read("c"), None);
        assert_eq!((first.boot() & 1, first.boot() | 1), (0, second.boot()));
        second.clear("a").unwrap();
        first.append("a", b"three").unwrap();
        assert_eq!(second.read("a").unwrap(), b"three");
        for name in second.list() {
            second.remove(&name);
        }
        assert!(second.list().is_empty() && second.read("a").is_none());
        std::fs::remove_dir(path).unwrap();
    }

    #[test]
    fn only_the_first_failure_is_reported() {
        let path = path("reported");
        let reported = std::rc::Rc::new(RefCell::new(Vec::new()));
        let into = reported.clone();
        let memory = MemoryFolder::open(&path, false).unwrap();
        let memory = memory.on_failure(Box::new(move |e| into.borrow_mut().push(e.to_string())));
        memory.append("a", b"one").unwrap();
        assert!(reported.borrow().is_empty());
        std::fs::remove_dir_all(&path).unwrap();
        for name in ["b", "c"] {
            memory.append(name, b"two").unwrap_err();
        }
        let reported = reported.borrow();
        assert!(reported.len() == 1 && reported[0].contains("/b"), "{reported:?}");
    }

    #[test]
    fn a_folder_that_others_may_write_or_that_survives_a_power_loss_is_refused() {
        let path = path("open");
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o770)).unwrap();
        let refused = MemoryFolder::open(&path, false).err().unwrap();
        assert!(refused.to_string().contains("open to others"), "{refused}");
        std::fs::remove_dir(&path).unwrap();
        let refused = MemoryFolder::open(Path::new("/proc/self"), false).err().unwrap();
        assert_eq!(refused.kind, crate::ErrorKind::Refused);
        let absent = MemoryFolder::absent(false);
        assert!(absent.append("a", b"1").is_err() && absent.read("a").is_none());
    }
}
