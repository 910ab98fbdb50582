//! A server over memory on its own thread, with knobs that the test turns.

use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use blk::socket::{Listener, Peer};
use blk::uring::UringReactor;
use blk::volume::{Attachment, ExportEntry, Exports, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Error, ErrorKind, Executor, Local, Result, Slice};
use export::vhost_user::{FrontEnd, serve};
use export::{IoLimits, RateLimit, Resources};

/// What the test changes and sees while the server runs.
#[derive(Default)]
pub(crate) struct Knobs {
    /// Requests wait.
    pub held: AtomicBool,
    /// Changes fail.
    pub full: AtomicBool,
    /// Changes wait for space until their waits are ended.
    pub waits: AtomicBool,
    pub waits_ended: AtomicU64,
    pub read_only: AtomicBool,
    /// Further bytes of the disk.
    pub grown: AtomicU64,
    pub flushes: AtomicU64,
    pub writes: AtomicU64,
    pub reads: AtomicU64,
    pub attached: AtomicU64,
    pub under_way: AtomicU64,
    /// The server's process is gone at once.
    pub killed: AtomicBool,
    pub stopped: AtomicBool,
    /// Has the connections look at the disk's size.
    pub look: AtomicBool,
    /// Requests per second of the VM; 0 for no limit.
    pub iops: AtomicU64,
    /// The limit that applies.
    pub iops_set: AtomicU64,
    pub memory_used: AtomicU64,
    /// Causes of ended connections.
    pub failures: Mutex<Vec<String>>,
    /// Content of the disk, kept over restarts of the server.
    pub content: Mutex<Vec<u8>>,
    /// Offsets of the writes in their order.
    pub order: Mutex<Vec<u64>>,
}

struct Disk(Env, Arc<Knobs>);

impl Disk {
    async fn gate(&self) {
        self.1.under_way.fetch_add(1, Ordering::SeqCst);
        while self.1.held.load(Ordering::SeqCst) {
            self.0.sleep_us(1000).await;
        }
        self.1.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    async fn change(&self, what: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.gate().await;
        let began = self.1.waits_ended.load(Ordering::SeqCst);
        let ended = || self.1.waits_ended.load(Ordering::SeqCst) > began;
        while self.1.waits.load(Ordering::SeqCst) && !ended() {
            self.0.sleep_us(1000).await;
        }
        if self.1.full.load(Ordering::SeqCst) || ended() {
            return Err(Error::new(ErrorKind::NoSpace, "memory", "set to be full"));
        }
        what(&mut self.1.content.lock().unwrap());
        Ok(())
    }
}

impl Volume for Disk {
    fn info(&self) -> VolumeInfo {
        let size_bytes = self.1.content.lock().unwrap().len() as u64 + self.1.grown.load(Ordering::SeqCst);
        let read_only = self.1.read_only.load(Ordering::SeqCst);
        VolumeInfo { size_bytes, read_only, preferred_bytes: 4096, fast_zero: true }
    }

    fn read(self: Rc<Self>, offset: u64, mut buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            self.1.reads.fetch_add(1, Ordering::SeqCst);
            self.gate().await;
            let len = buf.len();
            buf.copy_from_slice(&self.1.content.lock().unwrap()[offset as usize..][..len]);
            (buf, Ok(()))
        })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.1.writes.fetch_add(1, Ordering::SeqCst);
            self.1.order.lock().unwrap().push(offset);
            self.change(|content| content[offset as usize..][..data.len()].copy_from_slice(&data)).await
        })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.gate().await;
            self.1.flushes.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    }

    fn end_waits(&self) {
        self.1.waits_ended.fetch_add(1, Ordering::SeqCst);
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        self.write_zeroes(range, ZeroMode::default())
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, _: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.change(|content| content[range.start as usize..range.end as usize].fill(0)).await
        })
    }
}

struct OneExport(Rc<Disk>);

struct Counted(Arc<Knobs>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.attached.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Exports for OneExport {
    fn list(&self) -> Vec<ExportEntry> {
        Vec::new()
    }

    fn attach<'a>(&'a self, _: &'a str, _: &'a Peer) -> Local<'a, Result<Attachment>> {
        let knobs = self.0.1.clone();
        knobs.attached.fetch_add(1, Ordering::SeqCst);
        let token = Box::new(Counted(knobs));
        Box::pin(async move { Ok(Attachment { volume: self.0.clone(), changes: None, token }) })
    }
}

pub(crate) struct Server {
    folder: Arc<tempfile::TempDir>,
    pub knobs: Arc<Knobs>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(size_bytes: u64) -> Server {
        let knobs = Arc::new(Knobs::default());
        knobs.content.lock().unwrap().resize(size_bytes as usize, 0);
        Server::over(knobs, Arc::new(tempfile::tempdir().unwrap()))
    }

    fn over(knobs: Arc<Knobs>, folder: Arc<tempfile::TempDir>) -> Server {
        let (shared, path) = (knobs.clone(), folder.path().join("disk.sock"));
        let (ready, listening) = mpsc::channel();
        let thread = std::thread::spawn(move || run(&path, &shared, &ready));
        listening.recv().expect("the server starts");
        Server { folder, knobs, thread: Some(thread) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("disk.sock")
    }

    /// Ends the server as a kill does: without answers, flushes or goodbyes. Then starts another one.
    pub(crate) fn kill_and_restart(mut self) -> Server {
        self.knobs.killed.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().expect("no panic");
        self.knobs.killed.store(false, Ordering::SeqCst);
        self.knobs.attached.store(0, Ordering::SeqCst);
        self.knobs.under_way.store(0, Ordering::SeqCst);
        Server::over(self.knobs.clone(), self.folder.clone())
    }

    /// Waits until the condition is true; fails after a generous time.
    #[expect(clippy::disallowed_methods, reason = "a test's patience is in real time")]
    pub(crate) fn until(&self, what: &str, condition: impl Fn(&Knobs) -> bool) {
        let patience = std::time::Instant::now();
        while !condition(&self.knobs) {
            assert!(patience.elapsed().as_secs() < 60, "never came true: {what}");
            std::thread::yield_now();
        }
    }

    pub(crate) fn failure(&self) -> String {
        self.until("a connection failed", |knobs| !knobs.failures.lock().unwrap().is_empty());
        self.knobs.failures.lock().unwrap().last().cloned().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.knobs.stopped.store(true, Ordering::SeqCst);
        self.knobs.held.store(false, Ordering::SeqCst);
        let ended = thread.join();
        assert!(std::thread::panicking() || ended.is_ok(), "the server panicked");
        let used = self.knobs.memory_used.load(Ordering::SeqCst);
        assert!(std::thread::panicking() || used == 0, "{used} bytes of memory are not returned");
    }
}

fn run(path: &Path, knobs: &Arc<Knobs>, ready: &mpsc::Sender<()>) {
    let reactor = Rc::new(UringReactor::new().expect("io_uring is there"));
    let handle = reactor.listen_unix(&path.display().to_string()).expect("a free path");
    let executor = Executor::new(reactor);
    let env = executor.env();
    let resources = Resources::new(64 << 20);
    let limiter = resources.limiter("disk");
    let front_end = FrontEnd::new(&resources, Rc::new(()));
    let disk = Rc::new(Disk(env.clone(), knobs.clone()));
    let exports: Rc<dyn Exports> = Rc::new(OneExport(disk));
    let listener = Listener::new(env.clone(), handle, path.display().to_string());
    let serving = serve(&env, listener, &exports, ("disk", "serial-0"), &front_end);
    ready.send(()).expect("the test waits");
    let knobs = knobs.clone();
    let set = RefCell::new(0);
    executor.run(async move {
        while !knobs.killed.load(Ordering::SeqCst) && !knobs.stopped.load(Ordering::SeqCst) {
            env.sleep_us(1000).await;
            if knobs.look.swap(false, Ordering::SeqCst) {
                front_end.sizes_changed();
            }
            let rate = knobs.iops.load(Ordering::SeqCst);
            if set.replace(rate) != rate {
                let ios = (rate > 0).then_some(RateLimit { rate, burst: None });
                limiter.set(IoLimits { ios, ..IoLimits::default() });
                knobs.iops_set.store(rate, Ordering::SeqCst);
            }
            let causes = front_end.failures().into_iter().map(|failure| failure.cause).collect();
            *knobs.failures.lock().unwrap() = causes;
        }
        drop(serving);
        if !knobs.killed.load(Ordering::SeqCst) {
            front_end.stop();
            front_end.ended(&env).await;
            // The tasks of the queues end in the next turn.
            env.sleep_us(1000).await;
            knobs.memory_used.store(resources.memory().used(), Ordering::SeqCst);
        }
    });
}
