//! A guest's memory, saved with a snapshot of its disks. A thread of its own leads QEMU's migration; another one stores the
//! stream. The guest stands still from the snapshot's instant until the rest of the stream is stored.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use api::MemorySaved;
use api::units::{format_bytes, format_us};
use serde_json::json;
use tokio::sync::oneshot;

use super::held::{Busy, HeldGuest, NotHeld, WAITS, Waits, hold, micros};
use super::memory_file::{MemoryFile, MemoryHeader, SavedDisk, Written};
use super::migration::Migration;
use super::monitor::Monitor;
use super::record::Held;

/// Time for the next part of the stream.
const STREAM_WAIT: Duration = Duration::from_secs(120);

/// What is needed to save a guest's memory.
#[derive(Clone)]
pub(crate) struct SaveMemory {
    /// Held through its monitor.
    pub guest: HeldGuest,
    pub file: MemoryFile,
    /// Maximum length of the file: what the datastore can spare.
    pub bytes_max: u64,
    /// The VM's disks by their present names.
    pub disks: Vec<SavedDisk>,
    /// Those that may write the VM's disks.
    pub clients: Vec<DiskClient>,
    /// Time for which the guest stands still and waits for the snapshot.
    pub stopped_max: Duration,
    /// Whether this guest is held already.
    pub busy: Arc<AtomicBool>,
}

/// A client of the VM's disks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskClient {
    /// Its process; None over TCP.
    pub process: Option<u32>,
    /// Whether it has written.
    pub writes: bool,
}

/// A guest that stands still, with all its memory saved but the rest. It runs on when this is dropped, without its memory.
pub(crate) struct StoppedGuest {
    go_on: Sender<()>,
    saved: oneshot::Receiver<Result<MemorySaved, NotHeld>>,
}

impl StoppedGuest {
    /// Saves the rest: the snapshot is taken. Returns once the guest runs on and the file is durable.
    pub(crate) async fn finish(self) -> Result<MemorySaved, NotHeld> {
        let gone = |_| Err("the thread that saves the memory has ended".to_owned().into());
        let _ = self.go_on.send(());
        self.saved.await.unwrap_or_else(gone)
    }
}

type Begun = Result<oneshot::Receiver<Result<MemorySaved, NotHeld>>, NotHeld>;

/// A migration, and the thread that stores its stream.
struct Saving {
    migration: Migration,
    /// What becomes of the file, from before QEMU finds its stream closed.
    stored: Option<Receiver<io::Result<Written>>>,
}

impl SaveMemory {
    /// Saves the guest's memory until the rest is little. Returns when the guest stands still.
    pub(crate) async fn begin(self) -> Result<StoppedGuest, NotHeld> {
        self.begin_with(WAITS).await
    }

    pub(super) async fn begin_with(self, waits: Waits) -> Result<StoppedGuest, NotHeld> {
        let (go_on, told) = channel();
        let flag = self.busy.clone();
        let work = move |busy, begun| self.run(waits, busy, begun, &told);
        let saved = hold("memory", &flag, work).await?;
        Ok(StoppedGuest { go_on, saved })
    }

    fn run(mut self, waits: Waits, busy: Busy, begun: oneshot::Sender<Begun>, told: &Receiver<()>) {
        let began = Instant::now();
        let migration = match self.prepare(waits) {
            Ok(migration) => migration,
            Err(cause) => {
                drop(busy);
                return drop(begun.send(Err(cause.into())));
            }
        };
        let mut saving = Saving { migration, stored: None };
        let stopped = self.start(&mut saving).and_then(|()| saving.migration.until_stopped());
        if let Err(cause) = stopped {
            return self.give_up(waits, busy, saving, cause, |error| drop(begun.send(Err(error))));
        }
        let (tell, saved) = oneshot::channel();
        let is_taken = begun.send(Ok(saved)).is_ok();
        let told = match told.recv_timeout(self.stopped_max) {
            Ok(()) if is_taken => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                let max = format_us(micros(self.stopped_max));
                Err(format!("the snapshot was not taken within {max}, after which the guest runs on"))
            }
            _ => Err("the snapshot was not taken".to_owned()),
        };
        match told.and_then(|()| saving.migration.complete()) {
            Ok(stopped_us) => {
                let saved = self.finish(saving, began, stopped_us);
                drop(busy);
                let _ = tell.send(saved.map_err(Into::into));
            }
            Err(cause) => self.give_up(waits, busy, saving, cause, |error| drop(tell.send(Err(error)))),
        }
    }

    /// Reaches the guest and checks that its memory can be saved. Changes nothing but the record.
    fn prepare(&mut self, waits: Waits) -> Result<Migration, String> {
        let Held::Stopped { monitor: path, .. } = self.guest.record.held.clone() else {
            unreachable!("a guest whose memory is saved is held by its monitor")
        };
        self.guest.release_earlier(waits)?;
        let until = Instant::now() + waits.reach;
        let mut monitor = Monitor::connect(&path, until)?;
        let is_ours = self.refuse_others(&mut monitor, until);
        is_ours.map_err(|cause| format!("{}: {cause}", path.display()))?;
        let migration = Migration::prepare(monitor)?;
        if migration.ram_bytes > self.bytes_max {
            let (ram, free) = (format_bytes(migration.ram_bytes), format_bytes(self.bytes_max));
            let folder = self.file.folder.display();
            return Err(format!(
                "the guest has {ram} of memory, and the file system of {folder} can spare {free}"
            ));
        }
        self.guest.record.held = Held::Stopped { monitor: path, paused: migration.pauses_first };
        self.guest.record.write(&self.guest.datastore)?;
        Ok(migration)
    }

    /// Refuses the monitor of a QEMU that has no disk of the VM, and disks that another process writes, too: the snapshot would
    /// have the memory of one guest and the disks of two.
    fn refuse_others(&self, monitor: &mut Monitor, until: Instant) -> Result<(), String> {
        let qemu = monitor.process();
        let known: BTreeSet<u32> = self.clients.iter().filter_map(|client| client.process).collect();
        let is_known = qemu.is_some_and(|process| known.contains(&process));
        let may_be_unknown = qemu.is_none() || self.clients.iter().any(|client| client.process.is_none());
        let has_disk = is_known || (may_be_unknown && self.has_disk(monitor, until)?);
        if !has_disk {
            let known = known.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            let expected =
                if known.is_empty() { "a client over TCP".to_owned() } else { format!("process {known}") };
            return Err(format!(
                "this is the monitor of process {}, which has no disk of this VM open; expected that of {expected}",
                qemu.map_or("unknown".to_owned(), |process| process.to_string())
            ));
        }
        // Where QEMU is known by its nodes alone, it is one of the clients over TCP.
        let may_be_qemu =
            |client: &DiskClient| client.process == qemu || (!is_known && client.process.is_none());
        let writes = |client: &&DiskClient| client.writes && !may_be_qemu(client);
        match self.clients.iter().find(writes) {
            Some(other) => {
                let who = other.process.map_or("a client over TCP".to_owned(), |id| format!("process {id}"));
                Err(format!("{who} writes the disks of this VM, too; its memory would be missing"))
            }
            None => Ok(()),
        }
    }

    /// Returns whether QEMU has a node that is open on a disk of the VM over NBD.
    fn has_disk(&self, monitor: &mut Monitor, until: Instant) -> Result<bool, String> {
        let nodes = monitor.call("query-named-block-nodes", json!({}), until)?;
        let files = nodes.as_array().into_iter().flatten().filter_map(|node| node["file"].as_str());
        let files: Vec<&str> = files.collect();
        Ok(self.disks.iter().any(|disk| files.iter().any(|file| disk.is_named_in(file))))
    }

    fn start(&self, saving: &mut Saving) -> Result<(), String> {
        let migration = &mut saving.migration;
        let (qemus, mut ours) = UnixStream::pair().map_err(|e| format!("a socket for the memory: {e}"))?;
        let header = MemoryHeader {
            vm: self.guest.record.vm.clone(),
            snapshot: format!("{:032x}", self.file.snapshot),
            ram_bytes: migration.ram_bytes,
            qemu: migration.monitor.version.clone(),
            paused: migration.pauses_first,
            command_line: migration.monitor.process().map_or_else(Vec::new, command_line),
            disks: self.disks.clone(),
        };
        let (file, bytes_max) = (self.file.clone(), self.bytes_max);
        let (tell, stored) = channel();
        let store = move || {
            let limited = ours.set_read_timeout(Some(STREAM_WAIT));
            let written = limited.and_then(|()| file.write(&header, &mut ours, bytes_max));
            // Before the stream is closed, which QEMU reports as its own failure.
            let _ = tell.send(written);
        };
        let spawned = thread::Builder::new().name("memory-file".to_owned()).spawn(store);
        spawned.map_err(|e| format!("a thread to store the memory: {e}"))?;
        saving.stored = Some(stored);
        migration.start(&qemus)
    }

    fn not_stored(&self, cause: &io::Error) -> String {
        format!("storing the memory in {}: {cause}", self.file.folder.display())
    }

    /// The guest runs on. Waits until the file is durable.
    fn finish(&self, saving: Saving, began: Instant, stopped_us: u64) -> Result<MemorySaved, String> {
        let Saving { mut migration, stored } = saving;
        self.guest.forget();
        migration.restore_settings();
        let stored = stored.expect("a migration that has completed is stored").recv();
        let stored = stored.map_err(|_| "the thread that stores the memory has panicked".to_owned())?;
        let published = stored.and_then(|written| self.file.publish().map(|()| written));
        let written = published.map_err(|e| {
            self.file.remove();
            self.not_stored(&e)
        })?;
        let Written { stream_bytes, stored_bytes } = written;
        let (ram_bytes, saved_us) = (migration.ram_bytes, micros(began.elapsed()));
        Ok(MemorySaved { ram_bytes, stream_bytes, stored_bytes, stopped_us, saved_us })
    }

    /// Ends the migration and lets the guest run on. Tells `cause`, at once; a guest that does not answer is tried further.
    fn give_up(
        &self,
        waits: Waits,
        busy: Busy,
        mut saving: Saving,
        cause: String,
        tell: impl FnOnce(NotHeld),
    ) {
        let not_stored = saving.stored.as_ref().and_then(|stored| stored.try_recv().ok()?.err());
        let cause = not_stored.map_or(cause, |e| self.not_stored(&e));
        let released = saving.migration.run_on(Instant::now() + waits.thaw);
        if released.is_ok() {
            saving.migration.restore_settings();
            self.guest.forget();
            drop(busy);
            tell(cause.into());
        } else {
            // QEMU's monitor has one client at a time.
            drop(saving.migration);
            let (end, later) = oneshot::channel();
            tell(NotHeld { cause, later: Some(later) });
            let report = self.guest.report(self.guest.thaw_until(waits));
            drop(busy);
            let _ = end.send(report);
        }
        // The stream ends with the migration; the file that it has made until then may come after that.
        if let Some(stored) = saving.stored {
            let _ = stored.recv();
        }
        self.file.remove();
    }
}

/// Returns the command line of a process; empty where the kernel does not show it.
fn command_line(process: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    text.split(|byte| *byte == 0)
        .filter(|_| !text.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}
