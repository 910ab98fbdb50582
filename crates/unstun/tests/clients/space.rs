//! A datastore that really fills up: an ext4 of its own, small enough to fill in seconds.
//!
//! The tests need root and a loop device; without them they say so and pass.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::daemon::{Daemon, Datastore};
use crate::nbd::{Command as Request, Nbd};
use crate::skip::skip;

const IMAGE_BYTES: u64 = 96 << 20;
/// Space that can be freed while the daemon runs.
const FILLER_BYTES: u64 = 24 << 20;
const CHUNK: u64 = 64 << 10;
/// Number of chunks of the guest's data: more than fits beside the filler (about 78 MiB of file system, less 24, less
/// the reserve), and less than fits without it.
const CHUNKS: u64 = (60 << 20) / CHUNK;
/// Number of these chunks that are written before the take.
const BASE_CHUNKS: u64 = (8 << 20) / CHUNK;
/// About half of what fits: a commit begun here runs out of space.
const NEARLY_FULL_CHUNKS: u64 = (32 << 20) / CHUNK;
const ENOSPC: u32 = 28;
/// Several times the duration of any step on a slow device.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// A file system in a file, mounted as a datastore.
pub(crate) struct Mounted {
    datastore: Datastore,
}

impl Mounted {
    /// Returns `None`, and prints the reason, if this machine cannot mount.
    pub(crate) fn new() -> Option<Mounted> {
        Mounted::of(IMAGE_BYTES)
    }

    /// Mounts a file system of that size.
    pub(crate) fn of(image_bytes: u64) -> Option<Mounted> {
        let mounted = Mounted::empty("ext4", image_bytes)?;
        let filler = std::fs::File::create(mounted.filler()).unwrap();
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, FILLER_BYTES).unwrap();
        Some(mounted)
    }

    /// Mounts an empty `ext4` or `xfs`.
    pub(crate) fn empty(kind: &str, image_bytes: u64) -> Option<Mounted> {
        if !rustix::process::geteuid().is_root() {
            skip("not root: cannot mount a file system");
            return None;
        }
        let datastore = Datastore::new();
        let image = datastore.beside("image");
        std::fs::File::create(&image).unwrap().set_len(image_bytes).unwrap();
        let (image, folder) = (image.to_str().unwrap(), datastore.path());
        // No blocks are reserved for root, because the daemon under test is root.
        let make = match kind {
            "ext4" => vec!["-q", "-F", "-m", "0", image],
            _ => vec!["-q", "-f", image],
        };
        let mount = ["-o", "loop", image, folder.to_str().unwrap()];
        for (program, arguments) in [(&*format!("mkfs.{kind}"), &make[..]), ("mount", &mount[..])] {
            let why = match Command::new(program).args(arguments).output() {
                Ok(output) if output.status.success() => continue,
                Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
                Err(e) => e.to_string(),
            };
            skip(&format!("cannot mount a file system: {program}: {}", why.trim()));
            return None;
        }
        Some(Mounted { datastore })
    }

    pub(crate) fn datastore(&self) -> &Datastore {
        &self.datastore
    }

    fn filler(&self) -> PathBuf {
        self.datastore.path().join("filler")
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.datastore.path()
    }

    /// Returns the file that is mounted.
    pub(crate) fn image(&self) -> PathBuf {
        self.datastore.beside("image")
    }

    /// Allocates all remaining space.
    pub(crate) fn fill(&self) {
        let file = std::fs::File::create(self.path().join("rest")).unwrap();
        let free = || rustix::fs::fstatvfs(&file).map(|space| space.f_bavail * space.f_frsize).unwrap();
        let mut at = 0;
        // The file system needs some of the space for its own metadata.
        let mut step = free();
        while step >= 4096 {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, step) {
                Ok(()) => at += step,
                Err(_) => step /= 2,
            }
        }
    }
}

impl Mounted {
    /// Frees the space that `fill` allocated, and the filler.
    pub(crate) fn give_back(&self) {
        for file in [self.path().join("rest"), self.filler()] {
            // Both files may be removed already.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Drop for Mounted {
    /// Unmounts; the loop device is detached with the mount. The kernel may hold files of a ring for a moment after its
    /// process.
    fn drop(&mut self) {
        let folder = self.datastore.path();
        let began = Instant::now();
        while !Command::new("umount").arg(&folder).output().is_ok_and(|output| output.status.success()) {
            if began.elapsed() > DEADLINE {
                let _ = Command::new("umount").arg("--lazy").arg(&folder).status();
                println!("{} was busy and has been detached", folder.display());
                return;
            }
        }
    }
}

/// Polls until `look` returns a value. Every look sends a request to the daemon, so it is no tight loop.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "still waiting for {what} after {DEADLINE:?}");
    }
}

/// Returns the content of a chunk: its number, repeated.
fn content(chunk: u64) -> Vec<u8> {
    (chunk + 1).to_le_bytes().repeat(CHUNK as usize / 8)
}

/// Writes a chunk, and returns the error of the write.
fn write_chunk(nbd: &mut Nbd, chunk: u64) -> std::io::Result<u32> {
    nbd.send(Request::Write, chunk, chunk * CHUNK, CHUNK as u32, &content(chunk))?;
    let (cookie, error) = nbd.reply()?;
    assert_eq!(cookie, chunk);
    Ok(error)
}

fn check_chunks(socket: &Path, chunks: impl IntoIterator<Item = u64>) {
    let mut nbd = Nbd::attach(socket, "web/disk0").unwrap();
    for chunk in chunks {
        let data = nbd.read(chunk * CHUNK, CHUNK as u32).unwrap();
        assert!(data == content(chunk), "chunk {chunk} is not what was written: {:?}...", &data[..16]);
    }
}

/// A guest that writes one chunk after the other, and waits if necessary.
struct Writer {
    written: Arc<AtomicU64>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Writer {
    fn start(socket: PathBuf, first: u64) -> Writer {
        let written = Arc::new(AtomicU64::new(first));
        let counter = written.clone();
        // The thread is not scoped: it ends when the daemon does, even if the test has failed.
        let thread = thread::spawn(move || {
            let mut nbd = Nbd::attach(&socket, "web/disk0")?;
            for chunk in first..CHUNKS {
                assert_eq!(write_chunk(&mut nbd, chunk)?, 0, "chunk {chunk}");
                counter.store(chunk + 1, Ordering::SeqCst);
            }
            nbd.flush()
        });
        Writer { written, thread }
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }
}

fn has_event(datastore: &Datastore, operation: &str) -> Option<()> {
    let events = datastore.json("events web");
    events.as_array().unwrap().iter().any(|e| e["operation"] == operation).then_some(())
}

/// Returns the space of the deltas on the device.
fn delta_bytes(datastore: &Datastore) -> u64 {
    let entries = std::fs::read_dir(datastore.path().join("web")).unwrap().map(Result::unwrap);
    let deltas = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with("-delta.vmdk"));
    // A delta may be removed while they are listed.
    deltas.filter_map(|entry| entry.metadata().ok()).map(|facts| facts.blocks() * 512).sum()
}

/// Creates a VM with data in its base and an empty delta on top of it.
fn prepare(datastore: &Datastore, options: &str) {
    datastore.json(&format!("vm create web --store redo --disk 256M {options}"));
    let mut nbd = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    for chunk in 0..BASE_CHUNKS {
        assert_eq!(write_chunk(&mut nbd, chunk).unwrap(), 0);
    }
    nbd.flush().unwrap();
    datastore.json("snapshot take web before");
}

/// A commit needs no more space in total than a full datastore has.
fn commit_when_full(datastore: &Datastore) {
    let started = datastore.json("snapshot commit web before --yes --detach");
    let ended = until("the commit", || {
        let jobs = datastore.json("job list");
        let job = jobs.as_array().unwrap().iter().find(|job| job["id"] == started["id"]);
        job.filter(|job| job["state"] != "running").cloned()
    });
    assert_eq!(ended["state"], "done", "{ended}");
    assert_eq!(delta_bytes(datastore), 0, "the delta is gone");
}

/// Removes the filler. Then the waiting writes complete, and all data are present, also after a restart.
fn goes_on_with_space(mounted: &Mounted, daemon: Daemon<'_>, writer: Writer) {
    let datastore = &mounted.datastore;
    assert!(writer.written() < CHUNKS, "it had nothing to wait for");
    std::fs::remove_file(mounted.filler()).unwrap();
    until("the event", || has_event(datastore, "space_returned"));
    until("the waiting writes", || {
        datastore.json("status");
        writer.thread.is_finished().then_some(())
    });
    writer.thread.join().unwrap().unwrap();
    check_chunks(&datastore.nbd_socket(), 0..CHUNKS);
    daemon.stop();

    let daemon = datastore.start();
    check_chunks(&datastore.nbd_socket(), 0..CHUNKS);
    daemon.stop();
}

#[test]
fn writes_wait_for_space_and_a_commit_ends_without_it() {
    let Some(mounted) = Mounted::new() else { return };
    let datastore = &mounted.datastore;
    let daemon = datastore.start();
    prepare(datastore, "--when-full wait");

    let writer = Writer::start(datastore.nbd_socket(), BASE_CHUNKS);
    until("the datastore to be full", || has_event(datastore, "space_exhausted"));
    let full_at = writer.written();
    assert!(full_at > BASE_CHUNKS && full_at < CHUNKS, "{full_at} chunks of {CHUNKS} fitted");
    check_chunks(&datastore.nbd_socket(), 0..full_at);
    commit_when_full(datastore);
    check_chunks(&datastore.nbd_socket(), 0..full_at);
    goes_on_with_space(&mounted, daemon, writer);
}

/// The guest continues to write, but must not get the space that a commit needs to end.
#[test]
fn a_commit_ends_while_a_guest_uses_the_space_up() {
    let Some(mounted) = Mounted::new() else { return };
    let datastore = &mounted.datastore;
    let daemon = datastore.start();
    prepare(datastore, "--when-full wait");

    let writer = Writer::start(datastore.nbd_socket(), BASE_CHUNKS);
    until("the delta to hold most of what fits", || {
        datastore.json("status");
        (writer.written() > NEARLY_FULL_CHUNKS).then_some(())
    });
    commit_when_full(datastore);
    until("the datastore to be full", || has_event(datastore, "space_exhausted"));
    goes_on_with_space(&mounted, daemon, writer);
}

#[test]
fn writes_fail_for_lack_of_space_on_request() {
    let Some(mounted) = Mounted::new() else { return };
    let datastore = &mounted.datastore;
    let daemon = datastore.start();
    prepare(datastore, "--when-full error");

    let mut nbd = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    let refused = (BASE_CHUNKS..CHUNKS).find_map(|chunk| match write_chunk(&mut nbd, chunk).unwrap() {
        0 => None,
        error => Some((chunk, error)),
    });
    let (full_at, error) = refused.expect("not everything fits");
    assert_eq!(error, ENOSPC);
    // A block that is already allocated needs no space, and the earlier error does not persist.
    assert_eq!(write_chunk(&mut nbd, full_at - 1).unwrap(), 0);
    nbd.flush().unwrap();
    check_chunks(&datastore.nbd_socket(), 0..full_at);

    std::fs::remove_file(mounted.filler()).unwrap();
    for chunk in full_at..CHUNKS {
        assert_eq!(write_chunk(&mut nbd, chunk).unwrap(), 0, "chunk {chunk}, with space returned");
    }
    nbd.flush().unwrap();
    drop(nbd);
    check_chunks(&datastore.nbd_socket(), 0..CHUNKS);
    daemon.stop();
    let daemon = datastore.start();
    check_chunks(&datastore.nbd_socket(), 0..CHUNKS);
    daemon.stop();
}

#[test]
fn no_vm_is_made_where_nothing_can_be_written() {
    let Some(mounted) = Mounted::new() else { return };
    let datastore = &mounted.datastore;
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    datastore.json("snapshot take web a");
    mounted.fill();
    for line in ["vm create new --disk 16M", "vm create new --store redo --disk 16M", "vm clone web@a new"] {
        let (code, said) = datastore.fails(line);
        assert!(code == 1 && said.contains("are free") && said.contains("--datastore"), "{line}: {said}");
        assert!(!datastore.path().join("new").exists(), "{line} left something");
    }
    assert!(!datastore.path().join("store.unstun").exists());
    daemon.stop();
}

/// The attempt must not take the space that is left, because other VMs write their files there.
#[test]
fn a_store_that_does_not_fit_leaves_nothing() {
    let Some(mounted) = Mounted::empty("ext4", 64 << 20) else { return };
    let datastore = &mounted.datastore;
    let daemon = datastore.start();
    let free = || datastore.json("status")["free_bytes"].as_u64().unwrap();
    let before = free();
    let (code, said) = datastore.fails("vm create web --disk 16M");
    assert!(code == 1 && said.contains("No space left"), "{said}");
    assert!(free() + (1 << 20) > before, "{} bytes are free of {before}", free());
    datastore.json("vm create web --disk 16M --store redo");
    daemon.stop();
}
