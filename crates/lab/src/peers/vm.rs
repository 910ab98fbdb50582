//! A VM of another stack as a subject: its disks behind one gate, its snapshots by name, its stuns.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use blk::sync::Signal;
use blk::volume::{Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Dir, Env, Error, File, Local, Result, Slice};

use crate::run::{Counters, Stun};
use crate::subject::{CommitEnd, CommitProgress, FrozenDisks, LayerSeen, Subject};
use crate::vmware::fifo_lock::FifoLock;
use crate::vmware::gate::Gate;
use crate::vmware::host::Host;

/// Request size that clients are advised to use, bytes.
const PREFERRED_BYTES: u32 = 4096;
/// Bytes of zeros that one write carries.
const ZERO_BYTES: u64 = 1 << 20;

/// One disk of a stack, without the gate that holds its guest's I/O back. Snapshots are numbered from 0, oldest first;
/// the number of a snapshot falls when an older one is committed.
pub(super) trait Disk {
    fn size_bytes(&self) -> u64;

    fn read(&self, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)>;

    fn write(&self, offset: u64, data: Slice) -> Local<'_, Result<()>>;

    /// Resolves when all writes that had completed are durable.
    fn flush(&self) -> Local<'_, Result<()>>;

    /// Does what a take does while the guest runs.
    fn prepare(&self) -> Local<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Takes the next snapshot. Guest I/O is held back, unless the stack takes snapshots under load.
    fn take(&self) -> Local<'_, Result<()>>;

    /// Commits snapshot `number` while the guest runs. Stops where [`Vm::check_stopping`] fails.
    fn commit(&self, number: usize) -> Local<'_, Result<()>>;

    /// Reads the content of snapshot `number`.
    fn read_frozen(&self, number: usize, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)>;

    /// Returns the layers of the disk, base first; empty where the stack has none.
    fn layers(&self) -> Vec<LayerSeen> {
        Vec::new()
    }
}

/// What the disks of a VM share.
pub(super) struct Vm {
    pub env: Env,
    pub dir: Dir,
    pub host: Host,
    pub progress: RefCell<CommitProgress>,
    /// Time of client, export and thread for each request of the guest, nanoseconds; 0: not modelled.
    request_ns: u64,
    thread: FifoLock,
    gate: Gate,
    stuns: RefCell<Vec<Stun>>,
    stopping: Cell<bool>,
    /// Names of the files that exist.
    files: RefCell<Vec<String>>,
}

impl Vm {
    pub(super) fn new(env: Env, dir: Dir, request_ns: u64) -> Vm {
        Vm {
            host: Host::new(env.clone()),
            env,
            dir,
            progress: RefCell::default(),
            request_ns,
            thread: FifoLock::default(),
            gate: Gate::default(),
            stuns: RefCell::default(),
            stopping: Cell::new(false),
            files: RefCell::default(),
        }
    }

    pub(super) async fn create_file(&self, name: &str) -> Result<File> {
        let file = self.dir.create_new(name).await?;
        self.files.borrow_mut().push(name.to_string());
        Ok(file)
    }

    pub(super) async fn remove_file(&self, name: &str) -> Result<()> {
        self.files.borrow_mut().retain(|file| file != name);
        self.dir.unlink(name).await
    }

    /// Does `work` while guest I/O is held back: new I/O waits, and I/O under way has ended.
    pub(super) async fn stunned<T>(&self, cause: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let begin_ns = self.env.now_ns();
        self.gate.close().await;
        let result = work.await;
        self.gate.open();
        self.note_stun(cause, begin_ns);
        result
    }

    /// Records an operation that began then and ends now, with the time in which guest I/O was held back: none if it
    /// began now.
    fn note_stun(&self, cause: &str, begin_ns: u64) {
        let stun_us = (self.env.now_ns() - begin_ns) / 1000;
        self.stuns.borrow_mut().push(Stun {
            at_us: begin_ns / 1000,
            stun_us,
            disk: None,
            cause: cause.to_string(),
        });
    }

    /// Takes the time of a guest's request on its way to the stack, one at a time. A request that waits for that is not
    /// under way: no pause of guest I/O waits for it.
    async fn request(&self) {
        if self.request_ns > 0 {
            let _own = self.thread.lock().await;
            self.env.sleep_until(self.env.now_ns() + self.request_ns).await;
        }
    }

    pub(super) fn check_stopping(&self) -> Result<()> {
        if self.stopping.get() { Err(Error::cancelled("the commit")) } else { Ok(()) }
    }
}

/// The VM of a stack.
pub struct Peer(Rc<Inner>);

struct Inner {
    name: &'static str,
    vm: Rc<Vm>,
    disks: Vec<Rc<dyn Disk>>,
    /// Guest I/O is held back for a take.
    stops: bool,
    /// Oldest first.
    snapshots: RefCell<Vec<String>>,
    committing: Cell<bool>,
    committed: Signal,
    /// Kept by the disks of snapshots that backups have open.
    backups: Rc<()>,
}

impl Peer {
    pub(super) fn new(name: &'static str, vm: Rc<Vm>, disks: Vec<Rc<dyn Disk>>, stops: bool) -> Peer {
        Peer(Rc::new(Inner {
            name,
            vm,
            disks,
            stops,
            snapshots: RefCell::default(),
            committing: Cell::new(false),
            committed: Signal::default(),
            backups: Rc::default(),
        }))
    }
}

impl Inner {
    fn position(&self, name: &str) -> Result<usize> {
        let snapshots = self.snapshots.borrow();
        let found = snapshots.iter().position(|snapshot| snapshot == name);
        found.ok_or_else(|| Error::not_found(name, format!("no such snapshot; there are {snapshots:?}")))
    }

    fn refuse_while_committing(&self, name: &str) -> Result<()> {
        match self.committing.get() {
            true => Err(Error::refused(name, "a commit is under way")),
            false => Ok(()),
        }
    }

    async fn take(&self, name: &str) -> Result<()> {
        self.refuse_while_committing(name)?;
        if self.position(name).is_ok() {
            return Err(Error::refused(name, "there is a snapshot of this name"));
        }
        for disk in &self.disks {
            disk.prepare().await?;
        }
        let take = async {
            for disk in &self.disks {
                disk.take().await?;
            }
            Ok(())
        };
        match self.stops {
            true => self.vm.stunned("take", take).await?,
            false => {
                take.await?;
                self.vm.note_stun("take", self.vm.env.now_ns());
            }
        }
        self.snapshots.borrow_mut().push(name.to_string());
        Ok(())
    }

    async fn commit(&self, number: usize) -> Result<CommitEnd> {
        *self.vm.progress.borrow_mut() = CommitProgress::default();
        for disk in &self.disks {
            disk.commit(number).await?;
        }
        self.snapshots.borrow_mut().remove(number);
        Ok(CommitEnd::Done)
    }

    async fn close(&self) -> Result<()> {
        self.vm.stopping.set(true);
        while self.committing.get() {
            self.committed.wait().await;
        }
        for name in self.vm.files.take() {
            self.vm.dir.unlink_if_present(&name).await?;
        }
        Ok(())
    }
}

impl Subject for Peer {
    fn name(&self) -> &str {
        self.0.name
    }

    fn disks(&self) -> Vec<Rc<dyn Volume>> {
        let guest = |disk: &Rc<dyn Disk>| -> Rc<dyn Volume> {
            Rc::new(Guest { vm: self.0.vm.clone(), disk: disk.clone() })
        };
        self.0.disks.iter().map(guest).collect()
    }

    fn counters(&self) -> Option<Counters> {
        Some(self.0.vm.host.counters())
    }

    fn layers(&self) -> Vec<LayerSeen> {
        self.0.disks.iter().flat_map(|disk| disk.layers()).collect()
    }

    fn take_stuns(&self) -> Vec<Stun> {
        self.0.vm.stuns.take()
    }

    fn take<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>> {
        Box::pin(self.0.take(name))
    }

    fn commit<'a>(&'a self, name: &'a str) -> Local<'a, Result<CommitEnd>> {
        Box::pin(async move {
            self.0.refuse_while_committing(name)?;
            if Rc::strong_count(&self.0.backups) > 1 {
                return Err(Error::refused(name, "a backup reads a snapshot; end it first"));
            }
            let number = self.0.position(name)?;
            self.0.committing.set(true);
            let inner = self.0.clone();
            let task = self.0.vm.env.spawn(async move {
                let end = inner.commit(number).await;
                inner.committing.set(false);
                inner.committed.notify();
                end
            });
            task.join().await
        })
    }

    fn progress(&self) -> CommitProgress {
        self.0.vm.progress.borrow().clone()
    }

    fn frozen<'a>(&'a self, name: &'a str) -> Local<'a, Result<FrozenDisks>> {
        Box::pin(async move {
            self.0.refuse_while_committing(name)?;
            let number = self.0.position(name)?;
            let frozen = |disk: &Rc<dyn Disk>| -> Rc<dyn Volume> {
                Rc::new(Frozen { disk: disk.clone(), number, _backup: self.0.backups.clone() })
            };
            Ok((self.0.disks.iter().map(frozen).collect(), Box::new(()) as Box<dyn Any>))
        })
    }

    fn close(&self) -> Local<'_, Result<()>> {
        Box::pin(self.0.close())
    }
}

/// A disk as its guest sees it.
struct Guest {
    vm: Rc<Vm>,
    disk: Rc<dyn Disk>,
}

/// A discard has no effect, and zeros are written.
impl Volume for Guest {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.disk.size_bytes(),
            read_only: false,
            preferred_bytes: PREFERRED_BYTES,
            fast_zero: false,
        }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            self.vm.request().await;
            let _inside = self.vm.gate.enter().await;
            self.disk.read(offset, buf).await
        })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.vm.request().await;
            let _inside = self.vm.gate.enter().await;
            self.disk.write(offset, data).await
        })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            let _inside = self.vm.gate.enter().await;
            self.disk.flush().await
        })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move {
            if mode.fast_only {
                return Err(Error::unsupported("a modelled disk", "zeros are written here, byte by byte"));
            }
            for at in range.clone().step_by(ZERO_BYTES as usize) {
                let len = ZERO_BYTES.min(range.end - at) as usize;
                self.clone().write(at, Buf::zeroed(len).freeze()).await?;
            }
            Ok(())
        })
    }
}

/// A disk as a snapshot has it.
struct Frozen {
    disk: Rc<dyn Disk>,
    number: usize,
    _backup: Rc<()>,
}

fn refusal<T: 'static>() -> Local<'static, Result<T>> {
    Box::pin(async { Err(Error::refused("a modelled snapshot", "a snapshot cannot be changed")) })
}

impl Volume for Frozen {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.disk.size_bytes(),
            read_only: true,
            preferred_bytes: PREFERRED_BYTES,
            fast_zero: false,
        }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move { self.disk.read_frozen(self.number, offset, buf).await })
    }

    fn write(self: Rc<Self>, _: u64, _: Slice) -> Local<'static, Result<()>> {
        refusal()
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn discard(self: Rc<Self>, _: Range<u64>) -> Local<'static, Result<()>> {
        refusal()
    }

    fn write_zeroes(self: Rc<Self>, _: Range<u64>, _: ZeroMode) -> Local<'static, Result<()>> {
        refusal()
    }
}
