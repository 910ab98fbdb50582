//! Operations of a stack outside of this process. They block, so they run on a thread of their own.
//!
//! The core sends a closure to that thread and awaits the result; the load never waits for an operation.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Env, Error, ErrorKind, Local, Result};
use export::nbd_client::Negotiated;

use super::open::open_file;
use super::uring_executor::UringExecutor;
use crate::run::{Counters, Stun};
use crate::subject::{CommitEnd, CommitProgress, FrozenDisks, LayerSeen, Subject};

/// State of the operation under way, shared by both threads.
#[derive(Debug, Default)]
pub(super) struct OperationState {
    pub progress: Mutex<CommitProgress>,
    /// The counts that the stack keeps of its files, in total and by layer.
    pub host: Mutex<(Option<Counters>, Vec<LayerSeen>)>,
    /// Stuns as the stack counts them, by the machine's calendar time.
    pub stuns: Mutex<Vec<LoggedStun>>,
    /// The run no longer waits: an operation under way ends as soon as it can.
    pub stopping: AtomicBool,
}

impl OperationState {
    /// Returns `Cancelled` once the run no longer waits.
    pub(super) fn check_cancelled(&self, place: &str) -> Result<()> {
        match self.stopping.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Cancelled, place, "the run is over")),
            false => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoggedStun {
    /// End of the stun, microseconds since 1970: stacks log a stun when it is over.
    pub end_unix_us: i64,
    pub stun_us: u64,
    pub cause: String,
}

/// The disk of a snapshot, at the address where a backup finds it.
pub(super) enum SnapshotDisk {
    Export(Negotiated),
    File(PathBuf),
}

/// Operations of one stack. Each call blocks until the stack has answered or the time limit is reached.
pub(super) trait Operations: Send {
    fn take(&mut self, name: &str, state: &OperationState) -> Result<()>;

    fn commit(&mut self, name: &str, state: &OperationState) -> Result<CommitEnd>;

    /// Returns the snapshot's disks. Readers release them before the snapshot is committed.
    fn frozen(&mut self, name: &str) -> Result<Vec<SnapshotDisk>>;

    /// Fills `state` with the stack's counts, where it has any. The core calls it between operations, once an interval.
    fn update_counters(&mut self, _: &OperationState) {}

    /// Ends operations under way, and removes everything that was made for the run.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The thread's result, and the waker of the task that awaits it.
type Reply<T> = (Option<Result<T>>, Option<Waker>);
type Task = Box<dyn FnOnce(&mut dyn Operations) + Send>;

/// A stack outside of this process, as a subject.
pub(super) struct ExternalStack {
    name: String,
    env: Env,
    disks: RefCell<Vec<Rc<dyn Volume>>>,
    state: Arc<OperationState>,
    tasks: RefCell<Option<Sender<Task>>>,
    thread: RefCell<Option<JoinHandle<()>>>,
    /// Number of operations and updates that wait for their result.
    busy: Cell<u32>,
    this: Weak<ExternalStack>,
}

impl ExternalStack {
    pub(super) fn new(
        name: &str,
        executor: &UringExecutor,
        disks: Vec<Rc<dyn Volume>>,
        mut operations: Box<dyn Operations>,
    ) -> Rc<ExternalStack> {
        let (sender, receiver) = channel::<Task>();
        let thread = std::thread::spawn(move || {
            while let Ok(task) = receiver.recv() {
                task(operations.as_mut());
            }
            // The core may have panicked or stopped waiting without closing the stack. Closing it here leaves no child
            // processes behind.
            let _ = operations.close();
        });
        Rc::new_cyclic(|this| ExternalStack {
            name: name.to_string(),
            env: executor.env(),
            disks: RefCell::new(disks),
            state: Arc::default(),
            tasks: RefCell::new(Some(sender)),
            thread: RefCell::new(Some(thread)),
            busy: Cell::new(0),
            this: this.clone(),
        })
    }

    async fn call<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn Operations, &OperationState) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let closed_error = || Error::new(ErrorKind::Cancelled, &self.name, "the subject was closed");
        let reply: Arc<Mutex<Reply<T>>> = Arc::new(Mutex::new((None, None)));
        let (out, state) = (reply.clone(), self.state.clone());
        let task: Task = Box::new(move |operations| {
            let result = operation(operations, &state);
            let mut out = out.lock().expect("no panic inside");
            out.0 = Some(result);
            out.1.take().into_iter().for_each(Waker::wake);
        });
        let sent = self.tasks.borrow().as_ref().is_some_and(|sender| sender.send(task).is_ok());
        if !sent {
            return Err(closed_error());
        }
        self.busy.set(self.busy.get() + 1);
        let result = poll_fn(|cx| {
            let mut reply = reply.lock().expect("no panic inside");
            if let Some(result) = reply.0.take() {
                return Poll::Ready(result);
            }
            reply.1 = Some(cx.waker().clone());
            Poll::Pending
        });
        let result = result.await;
        self.busy.set(self.busy.get() - 1);
        result
    }

    /// Reads the stack's counts, unless an operation is under way.
    fn update_counters(&self) {
        if self.busy.get() > 0 {
            return;
        }
        let Some(this) = self.this.upgrade() else { return };
        self.env.spawn_detached(Box::pin(async move {
            // A failed update leaves the previous values.
            let updated = this.call(|operations, state| {
                operations.update_counters(state);
                Ok(())
            });
            let _ = updated.await;
        }));
    }
}

impl Drop for ExternalStack {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::Relaxed);
        self.tasks.take();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed there.
            let _ = thread.join();
        }
    }
}

impl Subject for ExternalStack {
    fn name(&self) -> &str {
        &self.name
    }

    fn disks(&self) -> Vec<Rc<dyn Volume>> {
        self.disks.borrow().clone()
    }

    /// Returns the counts of the last update, which the previous call started: a result takes time.
    fn counters(&self) -> Option<Counters> {
        self.update_counters();
        self.state.host.lock().expect("no panic inside").0
    }

    /// Returns the layers of the same update as `counters`.
    fn layers(&self) -> Vec<LayerSeen> {
        self.state.host.lock().expect("no panic inside").1.clone()
    }

    fn take_stuns(&self) -> Vec<Stun> {
        let stuns = std::mem::take(&mut *self.state.stuns.lock().expect("no panic inside"));
        let now_us = (self.env.now_ns() / 1000) as i64;
        let began_unix_us = self.env.unix_us() - now_us;
        let on_our_clock = |stun: LoggedStun| {
            let begin = stun.end_unix_us - began_unix_us - stun.stun_us as i64;
            Stun { at_us: begin.max(0) as u64, stun_us: stun.stun_us, disk: None, cause: stun.cause }
        };
        stuns.into_iter().map(on_our_clock).collect()
    }

    fn take<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>> {
        let name = name.to_string();
        Box::pin(self.call(move |operations, state| {
            operations.take(&name, state)?;
            operations.update_counters(state);
            Ok(())
        }))
    }

    fn commit<'a>(&'a self, name: &'a str) -> Local<'a, Result<CommitEnd>> {
        let name = name.to_string();
        Box::pin(self.call(move |operations, state| operations.commit(&name, state)))
    }

    fn frozen<'a>(&'a self, name: &'a str) -> Local<'a, Result<FrozenDisks>> {
        Box::pin(async move {
            let wanted = name.to_string();
            let mut disks: Vec<Rc<dyn Volume>> = Vec::new();
            for frozen in self.call(move |operations, _| operations.frozen(&wanted)).await? {
                disks.push(match frozen {
                    SnapshotDisk::Export(negotiated) => negotiated.serve(&self.env)?,
                    SnapshotDisk::File(path) => Rc::new(open_file(&self.env, &path, OpenMode::Read).await?),
                });
            }
            Ok((disks, Box::new(()) as Box<dyn Any>))
        })
    }

    fn progress(&self) -> CommitProgress {
        self.state.progress.lock().expect("no panic inside").clone()
    }

    fn close(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.state.stopping.store(true, Ordering::Relaxed);
            self.disks.borrow_mut().clear();
            let closed = self.call(|operations, _| operations.close()).await;
            self.tasks.take();
            closed
        })
    }
}
