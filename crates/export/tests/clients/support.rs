//! A server over memory on its own thread, driven from the test's thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use blk::socket::{Listener, Peer};
use blk::sync::Signal;
use blk::uring::UringReactor;
use blk::volume::{
    Attachment, BlockStatus, Changes, ExportEntry, Exports, OtherState, Volume, VolumeInfo, ZeroMode,
};
use blk::{Buf, Error, ErrorKind, Executor, Local, Result, Slice};
use export::nbd::{FrontEnd, Limits, serve};

/// Unit in which the memory disk reports allocation.
pub(crate) const CLUSTER: u64 = 64 << 10;

/// A disk in memory that can hold back its requests, or fail writes.
pub(crate) struct MemoryDisk {
    info: VolumeInfo,
    content: RefCell<Vec<u8>>,
    allocated: RefCell<Vec<bool>>,
    pub held: Cell<bool>,
    released: Signal,
    pub full: Cell<bool>,
    pub flushes: Cell<u64>,
    pub attached: Cell<u64>,
    pub under_way: Cell<u64>,
    /// Payload of the reads and writes under way, now and at most.
    pub bytes: Cell<u64>,
    pub bytes_max: Cell<u64>,
    /// Reads beyond this length fail.
    pub sound_bytes: Cell<u64>,
}

struct Counted(Rc<MemoryDisk>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.attached.set(self.0.attached.get() - 1);
    }
}

impl MemoryDisk {
    fn new(size_bytes: u64, read_only: bool) -> Rc<MemoryDisk> {
        let info = VolumeInfo { size_bytes, read_only, preferred_bytes: 4096, fast_zero: true };
        Rc::new(MemoryDisk {
            info,
            content: RefCell::new(vec![0; size_bytes as usize]),
            allocated: RefCell::new(vec![false; size_bytes.div_ceil(CLUSTER) as usize]),
            held: Cell::new(false),
            released: Signal::default(),
            full: Cell::new(false),
            flushes: Cell::new(0),
            attached: Cell::new(0),
            under_way: Cell::new(0),
            bytes: Cell::new(0),
            bytes_max: Cell::new(0),
            sound_bytes: Cell::new(size_bytes),
        })
    }

    pub(crate) fn starts_with(&self, content: &[u8]) -> bool {
        self.content.borrow().starts_with(content)
    }

    pub(crate) fn release(&self) {
        self.held.set(false);
        self.released.notify();
    }

    async fn gate_with(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes as u64);
        self.bytes_max.set(self.bytes_max.get().max(self.bytes.get()));
        self.gate().await;
        self.bytes.set(self.bytes.get() - bytes as u64);
    }

    async fn gate(&self) {
        self.under_way.set(self.under_way.get() + 1);
        while self.held.get() {
            self.released.wait().await;
        }
        self.under_way.set(self.under_way.get() - 1);
    }

    fn mark(&self, range: Range<u64>, allocated: bool) {
        let clusters = range.start / CLUSTER..range.end.div_ceil(CLUSTER);
        let mut map = self.allocated.borrow_mut();
        clusters.for_each(|cluster| map[cluster as usize] = allocated);
    }

    fn clear(&self, range: Range<u64>, punch: bool) {
        self.content.borrow_mut()[range.start as usize..range.end as usize].fill(0);
        let whole = range.start.next_multiple_of(CLUSTER)..range.end / CLUSTER * CLUSTER;
        if punch && whole.start < whole.end {
            self.mark(whole, false);
        }
    }

    fn pieces(&self, range: Range<u64>) -> Vec<BlockStatus> {
        let map = self.allocated.borrow();
        let piece = |cluster: u64| {
            let end = ((cluster + 1) * CLUSTER).min(range.end);
            let hole = !map[cluster as usize];
            BlockStatus { len: end - (cluster * CLUSTER).max(range.start), hole, zero: hole }
        };
        (range.start / CLUSTER..range.end.div_ceil(CLUSTER)).map(piece).collect()
    }
}

impl Volume for MemoryDisk {
    fn info(&self) -> VolumeInfo {
        self.info
    }

    fn read(self: Rc<Self>, offset: u64, mut buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            let len = buf.len();
            self.gate_with(len).await;
            if offset + len as u64 > self.sound_bytes.get() {
                return (buf, Err(Error::new(ErrorKind::Io, "memory", "set to fail there")));
            }
            buf.copy_from_slice(&self.content.borrow()[offset as usize..][..len]);
            (buf, Ok(()))
        })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.gate_with(data.len()).await;
            if self.full.get() {
                return Err(Error::new(ErrorKind::NoSpace, "memory", "set to be full"));
            }
            self.content.borrow_mut()[offset as usize..][..data.len()].copy_from_slice(&data);
            self.mark(offset..offset + data.len() as u64, true);
            Ok(())
        })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.gate().await;
            self.flushes.set(self.flushes.get() + 1);
            Ok(())
        })
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.gate().await;
            self.clear(range, true);
            Ok(())
        })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.gate().await;
            if mode.fast_only && mode.no_hole {
                return Err(Error::unsupported("memory", "allocated zeros are written"));
            }
            self.clear(range.clone(), !mode.no_hole);
            if mode.no_hole {
                self.mark(range, true);
            }
            Ok(())
        })
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move { Ok(self.pieces(range)) })
    }
}

/// The exports of a test server, by name.
pub(crate) struct Catalogue(Vec<(&'static str, Rc<MemoryDisk>)>);

impl Catalogue {
    pub(crate) fn disk(&self, name: &str) -> Rc<MemoryDisk> {
        self.0.iter().find(|(n, _)| *n == name).expect("an export of this test").1.clone()
    }
}

/// Bytes from the start that differ from the state `part`, and bytes that one call compares.
pub(crate) const CHANGED: u64 = 64 << 10;
pub(crate) const COMPARED: u64 = 256 << 10;

/// Three states: one from which the start differs, one from which nothing does, and one that is lost.
struct KnownChanges;

impl Changes for KnownChanges {
    fn states(&self) -> Vec<OtherState> {
        let state = |name: &str| OtherState { name: name.to_string(), id: format!("id of {name}") };
        ["part", "none", "lost"].map(state).to_vec()
    }

    fn since<'a>(&'a self, id: &'a str, range: Range<u64>) -> Local<'a, Result<(Vec<Range<u64>>, u64)>> {
        let end = range.end.min(range.start + COMPARED);
        let result = match id {
            "id of part" => {
                Ok((std::iter::once(range.start..CHANGED.clamp(range.start, end)).collect(), end))
            }
            "id of none" => Ok((Vec::new(), end)),
            _ => Err(Error::not_found(id, "no such state")),
        };
        Box::pin(async move { result })
    }
}

impl Exports for Catalogue {
    fn list(&self) -> Vec<ExportEntry> {
        let entry =
            |name: &str| ExportEntry { name: name.to_string(), description: format!("memory {name}") };
        self.0.iter().map(|(name, _)| entry(name)).collect()
    }

    fn attach<'a>(&'a self, name: &'a str, _client: &'a Peer) -> Local<'a, Result<Attachment>> {
        let found = self.0.iter().find(|(n, _)| *n == name);
        let result = match found {
            None => Err(Error::not_found(name, "no such export")),
            Some((_, disk)) => {
                disk.attached.set(disk.attached.get() + 1);
                Ok(Attachment {
                    volume: disk.clone(),
                    changes: Some(Rc::new(KnownChanges)),
                    token: Box::new(Counted(disk.clone())),
                })
            }
        };
        Box::pin(async move { result })
    }
}

type Order = Box<dyn FnOnce(&Catalogue, &FrontEnd) + Send>;

/// Request from the test's thread to the server's thread.
#[derive(Default)]
struct Orders {
    queue: Mutex<(VecDeque<Order>, Option<Waker>)>,
}

impl Orders {
    fn give(&self, order: Order) {
        let mut queue = self.queue.lock().unwrap();
        queue.0.push_back(order);
        if let Some(waker) = queue.1.take() {
            waker.wake();
        }
    }

    async fn next(&self) -> Order {
        poll_fn(|cx| {
            let mut queue = self.queue.lock().unwrap();
            match queue.0.pop_front() {
                Some(order) => Poll::Ready(order),
                None => {
                    queue.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

pub(crate) struct Server {
    folder: tempfile::TempDir,
    tcp: SocketAddr,
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) const MIB: u64 = 1 << 20;

impl Server {
    /// Starts a server with one writable export, `disk`.
    pub(crate) fn start(size_bytes: u64) -> Server {
        Server::with_exports(&[("disk", size_bytes, false)])
    }

    /// Starts a server with exports: (name, size in bytes, read-only).
    pub(crate) fn with_exports(exports: &[(&'static str, u64, bool)]) -> Server {
        Server::with_limits(exports, Limits::default())
    }

    pub(crate) fn with_limits(exports: &[(&'static str, u64, bool)], limits: Limits) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd.sock");
        let orders = Arc::new(Orders::default());
        let (exports, queue) = (exports.to_vec(), orders.clone());
        let (ready, listening) = mpsc::channel();
        let thread = std::thread::spawn(move || run(&path, &exports, limits, &queue, &ready));
        let tcp = listening.recv().expect("the server starts");
        Server { folder, tcp, orders, thread: Some(thread) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd.sock")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    pub(crate) fn tcp(&self) -> SocketAddr {
        self.tcp
    }

    pub(crate) fn tcp_uri(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.tcp)
    }

    /// Runs a function on the server's thread, between two polls.
    pub(crate) fn with<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Catalogue, &FrontEnd) -> T + Send + 'static,
    ) -> T {
        let (send, answer) = mpsc::channel();
        self.orders.give(Box::new(move |catalogue, front_end| {
            let _ = send.send(what(catalogue, front_end));
        }));
        answer.recv().expect("the server answers")
    }

    /// Waits until the condition is true on the server's thread; fails after a generous time.
    #[expect(clippy::disallowed_methods, reason = "a test's patience is in real time")]
    pub(crate) fn until(&self, what: &str, condition: fn(&Catalogue, &FrontEnd) -> bool) {
        let patience = std::time::Instant::now();
        while !self.with(condition) {
            assert!(patience.elapsed().as_secs() < 60, "never came true: {what}");
            std::thread::yield_now();
        }
    }

    /// Stops the front end and waits for the thread.
    pub(crate) fn stop(mut self) {
        self.orders.give(Box::new(|_, front_end| front_end.stop()));
        self.thread.take().unwrap().join().expect("the server ends without a panic");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.orders.give(Box::new(|_, front_end| front_end.stop()));
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the server panicked");
        }
    }
}

/// Serves on a Unix socket and on TCP, with one front end.
fn run(
    path: &Path,
    exports: &[(&'static str, u64, bool)],
    limits: Limits,
    orders: &Arc<Orders>,
    ready: &mpsc::Sender<SocketAddr>,
) {
    let reactor = Rc::new(UringReactor::new().expect("io_uring is there"));
    let unix = reactor.listen_unix(&path.display().to_string()).expect("a fresh socket path");
    let tcp = reactor.listen_tcp("127.0.0.1:0").expect("a free port");
    let port = reactor.local_address(tcp).expect("it listens");
    let executor = Executor::new(reactor);
    let env = executor.env();
    let disks = exports.iter().map(|&(name, size, read_only)| (name, MemoryDisk::new(size, read_only)));
    let catalogue = Rc::new(Catalogue(disks.collect()));
    let front_end = FrontEnd::with_limits(limits);
    let (queue, shared, control) = (orders.clone(), catalogue.clone(), front_end.clone());
    env.spawn_detached(Box::pin(async move {
        loop {
            queue.next().await(&shared, &control);
        }
    }));
    let listen = |handle, name: &str| {
        let listener = Listener::new(env.clone(), handle, name.to_string());
        env.spawn(serve(env.clone(), listener, catalogue.clone(), front_end.clone(), None))
    };
    let (over_unix, over_tcp) = (listen(unix, "unix"), listen(tcp, "tcp"));
    ready.send(port).expect("the test waits");
    executor.run(async move {
        over_unix.join().await;
        over_tcp.join().await;
    });
}
