//! The core's thread, and `Control` as requests sent to it.

use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc as ready_channel};
use std::thread::JoinHandle;

use api::error::{Error, ErrorKind, Result};
use api::name::{DatastoreName, VmName};
use api::{
    BinEmptied, BinEmpty, BinEntry, BinRestore, BinRestored, Checked, CommitPreview, CommitTarget,
    Datastore as Listed, DatastoreAdd, DatastoreRemovePreview, DatastoreRemoved, Diff, Differences, Discard,
    Disk, DiskCreate, DiskGrown, DiskMode, DiskRemoved, Event, Job, Loss, Reset, Revert, SnapshotDir,
    SnapshotTake, SnapshotTaken, SnapshotTree, Status, Vm, VmClone, VmClosed, VmCreate, VmImport, VmMove,
    VmRemove, VmRemovePreview, VmRemoved, VmSpace, VmSummary,
};
use engine::native::TakeOver;
use tokio::sync::{mpsc, oneshot};

use crate::control::{Control, Reply};
use crate::daemon::heartbeat::Heartbeat;
use crate::daemon::place::Place;
use crate::daemon::ready::{self, Question};
use crate::daemon::requests::answer::Subject;
use crate::daemon::requests::prepare;
use crate::daemon::state::Daemon;
use crate::daemon::vm::inuse;

pub(crate) struct Bridge {
    questions: mpsc::UnboundedSender<Question>,
    core: Mutex<Option<JoinHandle<()>>>,
}

impl Bridge {
    /// Starts the core. Returns once every VM is open and every listener listens, or with the reason why not.
    pub(crate) fn start(place: Place, heartbeat: Arc<Heartbeat>) -> Result<Bridge> {
        let (questions, inbox) = mpsc::unbounded_channel();
        let (tell, told) = ready_channel::channel();
        let core = std::thread::Builder::new()
            .name("core0".into())
            .spawn(move || ready::run(place, heartbeat, inbox, &tell))
            .map_err(|e| Error::failed(format!("starting the core's thread: {e}")))?;
        let answer = told.recv().map_err(|_| Error::failed("the core's thread ended before it was ready"));
        answer.and_then(|result| result)?;
        Ok(Bridge { questions, core: Mutex::new(Some(core)) })
    }

    /// Sends a question to the core; the calling thread awaits the answer. The answer comes in time even if `subject`
    /// hangs.
    fn ask<T, F, A>(&self, subject: Subject, question: F) -> Reply<'_, T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Daemon>) -> A + Send + 'static,
        A: Future<Output = Result<T>> + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let run: Question = Box::new(move |daemon| {
            let env = daemon.env.clone();
            env.spawn_detached(Box::pin(async move {
                // The caller may have stopped waiting; the operation's effect stays.
                let _ = answer.send(daemon.answer(subject, question(daemon.clone())).await);
            }));
        });
        let sent = self.questions.send(run);
        Box::pin(async move {
            let gone = || Error::new(ErrorKind::Unavailable, "the engine is stopping");
            sent.map_err(|_| gone())?;
            answered.await.map_err(|_| gone())?
        })
    }
}

impl Bridge {
    /// Asks about a VM.
    fn ask_vm<T, F, A>(&self, vm: VmName, question: F) -> Reply<'_, T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Daemon>, VmName) -> A + Send + 'static,
        A: Future<Output = Result<T>> + 'static,
    {
        self.ask(Subject::Vm(vm.clone()), move |daemon| question(daemon, vm))
    }

    /// Runs `prepare` beside the calling thread first, and sends a question about its result.
    fn ask_with<R, T, P, F, A>(&self, subject: Subject, prepare: P, question: F) -> Reply<'_, T>
    where
        R: Send + 'static,
        T: Send + 'static,
        P: FnOnce() -> Result<R> + Send + 'static,
        F: FnOnce(Rc<Daemon>, R) -> A + Send + 'static,
        A: Future<Output = Result<T>> + 'static,
    {
        Box::pin(async move {
            let found = prepare::beside(prepare).await?;
            self.ask(subject, move |daemon| question(daemon, found)).await
        })
    }
}

impl Control for Bridge {
    fn status(&self) -> Reply<'_, Status> {
        self.ask(Subject::None, |daemon| async move { daemon.status().await })
    }

    fn vm_create(&self, request: VmCreate) -> Reply<'_, Vm> {
        let subject = Subject::Datastore(request.datastore.clone());
        self.ask_with(
            subject,
            move || prepare::create(request),
            |daemon, request| async move { daemon.vm_create(request).await },
        )
    }

    fn vm_import(&self, request: VmImport) -> Reply<'_, Vm> {
        let subject = Subject::Datastore(request.datastore.clone());
        self.ask_with(
            subject,
            move || prepare::import(request),
            |daemon, (request, source)| async move { daemon.vm_import(request, source).await },
        )
    }

    fn vm_clone(&self, vm: VmName, request: VmClone) -> Reply<'_, Vm> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.vm_clone(&vm, request).await })
    }

    fn vm_move(&self, vm: VmName, request: VmMove) -> Reply<'_, Job> {
        let subject = Subject::VmTo(vm.clone(), request.datastore.clone());
        self.ask(subject, move |daemon| async move { daemon.vm_move(&vm, request).await })
    }

    fn vm_close(&self, vm: VmName, disconnect: bool) -> Reply<'_, VmClosed> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.vm_close(&vm, disconnect).await })
    }

    fn vm_open(&self, vm: VmName, take_over: bool) -> Reply<'_, Vm> {
        let name = vm.clone();
        let home = self.ask(Subject::None, |daemon| async move {
            Ok(daemon.idle_home(name.as_str()).map(|home| home.path))
        });
        Box::pin(async move {
            if let Some(home) = home.await? {
                prepare::beside(move || inuse::refuse_locked(&[home])).await?;
            }
            let subject = Subject::Vm(vm.clone());
            self.ask(subject, move |daemon| async move { daemon.vm_open(&vm, take_over).await }).await
        })
    }

    fn vm_set_shared_writers(&self, vm: VmName, shared: bool) -> Reply<'_, Vm> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.vm_set_shared_writers(&vm, shared).await })
    }

    fn vm_set_snapshot_dir(&self, vm: VmName, request: SnapshotDir) -> Reply<'_, Vm> {
        let subject = Subject::Vm(vm.clone());
        self.ask_with(
            subject,
            move || prepare::folder(request.dir),
            |daemon, dir| async move { daemon.vm_set_snapshot_dir(&vm, dir).await },
        )
    }

    fn reset_preview(&self, vm: VmName, request: Reset) -> Reply<'_, Loss> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.reset_preview(&vm, request).await })
    }

    fn vm_reset(&self, vm: VmName, request: Reset) -> Reply<'_, Loss> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.vm_reset(&vm, request).await })
    }

    fn vm_list(&self) -> Reply<'_, Vec<VmSummary>> {
        self.ask(Subject::None, |daemon| async move { daemon.vm_list().await })
    }

    fn vm_show(&self, vm: VmName) -> Reply<'_, Vm> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.vm_show(&vm).await })
    }

    fn vm_space(&self, vm: VmName) -> Reply<'_, VmSpace> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.vm_space(&vm).await })
    }

    fn vm_remove_preview(&self, vm: VmName, request: VmRemove) -> Reply<'_, VmRemovePreview> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.remove_preview(&vm, request).await })
    }

    fn bin_list(&self, datastore: Option<DatastoreName>) -> Reply<'_, Vec<BinEntry>> {
        self.ask(Subject::None, |daemon| async move { daemon.bin_list(datastore).await })
    }

    fn bin_restore(&self, request: BinRestore) -> Reply<'_, BinRestored> {
        let subject = Subject::Bin(request.datastore.clone(), vec![request.entry.clone()]);
        self.ask(subject, |daemon| async move { daemon.bin_restore(request).await })
    }

    fn bin_empty_preview(&self, request: BinEmpty) -> Reply<'_, BinEmptied> {
        let subject = Subject::Bin(request.datastore.clone(), request.entries.clone());
        self.ask(subject, |daemon| async move { daemon.bin_empty_preview(&request).await })
    }

    fn bin_empty(&self, request: BinEmpty) -> Reply<'_, BinEmptied> {
        let subject = Subject::Bin(request.datastore.clone(), request.entries.clone());
        self.ask(subject, |daemon| async move { daemon.bin_empty(&request).await })
    }

    fn vm_remove(&self, vm: VmName, request: VmRemove) -> Reply<'_, VmRemoved> {
        let name = vm.clone();
        let home = self.ask(Subject::None, move |daemon| async move {
            Ok(daemon.idle_home(name.as_str()).map(|home| home.path))
        });
        Box::pin(async move {
            if let Some(home) = home.await?.filter(|_| request.delete_disks) {
                let look = move || if home.is_dir() { inuse::refuse_locked(&[home]) } else { Ok(()) };
                prepare::beside(look).await?;
            }
            self.ask(
                Subject::Vm(vm.clone()),
                move |daemon| async move { daemon.vm_remove(&vm, request).await },
            )
            .await
        })
    }

    fn disk_add(&self, vm: VmName, disk: DiskCreate) -> Reply<'_, Disk> {
        let subject = Subject::Vm(vm.clone());
        self.ask_with(
            subject,
            move || prepare::disk(disk),
            |daemon, disk| async move { daemon.disk_add(&vm, disk).await },
        )
    }

    fn disk_remove(&self, vm: VmName, number: u32, delete_files: bool) -> Reply<'_, DiskRemoved> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.disk_remove(&vm, number, delete_files).await })
    }

    fn disk_grow(&self, vm: VmName, number: u32, size_bytes: u64) -> Reply<'_, DiskGrown> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.disk_grow(&vm, number, size_bytes).await })
    }

    fn disk_set_mode(&self, vm: VmName, number: u32, mode: DiskMode) -> Reply<'_, Disk> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.disk_set_mode(&vm, number, mode).await })
    }

    fn snapshot_take(&self, vm: VmName, request: SnapshotTake) -> Reply<'_, SnapshotTaken> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.snapshot_take(&vm, request).await })
    }

    fn snapshot_tree(&self, vm: VmName) -> Reply<'_, SnapshotTree> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.snapshot_tree(&vm).await })
    }

    fn snapshot_diff(&self, vm: VmName, request: Diff) -> Reply<'_, Differences> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.snapshot_diff(&vm, request).await })
    }

    fn commit_preview(&self, vm: VmName, target: CommitTarget) -> Reply<'_, CommitPreview> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.commit_preview(&vm, target).await })
    }

    fn snapshot_commit(&self, vm: VmName, target: CommitTarget) -> Reply<'_, Job> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.snapshot_commit(&vm, target).await })
    }

    fn revert_preview(&self, vm: VmName, request: Revert) -> Reply<'_, Loss> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.revert_preview(&vm, request).await })
    }

    fn snapshot_revert(&self, vm: VmName, request: Revert) -> Reply<'_, Loss> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.snapshot_revert(&vm, request).await })
    }

    fn discard_preview(&self, vm: VmName, request: Discard) -> Reply<'_, Loss> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.discard_preview(&vm, request).await })
    }

    fn snapshot_discard(&self, vm: VmName, request: Discard) -> Reply<'_, Loss> {
        self.ask_vm(vm, |daemon, vm| async move { daemon.snapshot_discard(&vm, request).await })
    }

    fn undo_preview(&self, vm: VmName, request: Reset) -> Reply<'_, Loss> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.undo_preview(&vm, request).await })
    }

    fn snapshot_undo(&self, vm: VmName, request: Reset) -> Reply<'_, Loss> {
        self.ask_vm(vm, move |daemon, vm| async move { daemon.snapshot_undo(&vm, request).await })
    }

    fn store_check(&self, datastore: Option<DatastoreName>) -> Reply<'_, Checked> {
        let subject = Subject::Datastore(datastore.clone());
        self.ask(subject, |daemon| async move { daemon.store_check(datastore).await })
    }

    fn store_scrub(&self, datastore: Option<DatastoreName>) -> Reply<'_, Job> {
        let subject = Subject::Datastore(datastore.clone());
        self.ask(subject, |daemon| async move { daemon.store_scrub(datastore).await })
    }

    fn store_scrubbed(&self, datastore: Option<DatastoreName>) -> Reply<'_, Checked> {
        self.ask(Subject::None, |daemon| async move { daemon.store_scrubbed(datastore) })
    }

    fn datastore_list(&self) -> Reply<'_, Vec<Listed>> {
        self.ask(Subject::None, |daemon| async move { Ok(daemon.datastore_list().await) })
    }

    fn datastore_add(&self, request: DatastoreAdd) -> Reply<'_, Listed> {
        let take_over = if request.take_over { TakeOver::FromAnyOwner } else { TakeOver::FromOwnHost };
        let subject = Subject::None;
        self.ask_with(
            subject,
            move || prepare::datastore(request),
            move |daemon, (name, path)| async move { daemon.datastore_add(name, path, take_over).await },
        )
    }

    fn datastore_remove(&self, name: DatastoreName) -> Reply<'_, DatastoreRemoved> {
        let subject = Subject::Added(name.clone());
        self.ask(subject, |daemon| async move { daemon.datastore_remove(&name).await })
    }

    fn datastore_remove_preview(&self, name: DatastoreName) -> Reply<'_, DatastoreRemovePreview> {
        let subject = Subject::Added(name.clone());
        self.ask(subject, |daemon| async move { daemon.datastore_remove_preview(&name).await })
    }

    fn job_list(&self) -> Reply<'_, Vec<Job>> {
        self.ask(Subject::None, |daemon| async move { Ok(daemon.job_list()) })
    }

    fn job_show(&self, id: u64) -> Reply<'_, Job> {
        self.ask(Subject::None, move |daemon| async move { daemon.job_do(id, |_| Ok(())) })
    }

    fn job_pause(&self, id: u64) -> Reply<'_, Job> {
        self.ask(Subject::None, move |daemon| async move { daemon.job_do(id, |job| job.pause()) })
    }

    fn job_resume(&self, id: u64) -> Reply<'_, Job> {
        self.ask(Subject::None, move |daemon| async move { daemon.job_do(id, |job| job.resume()) })
    }

    fn job_cancel(&self, id: u64) -> Reply<'_, Job> {
        self.ask(Subject::Job(id), move |daemon| async move { daemon.job_cancel(id).await })
    }

    fn job_limit(&self, id: u64, limit_bytes_s: Option<u64>) -> Reply<'_, Job> {
        self.ask(Subject::None, move |daemon| async move {
            daemon.job_do(id, |job| job.set_limit(limit_bytes_s.unwrap_or(0)))
        })
    }

    fn events(&self, vm: VmName, after: u64) -> Reply<'_, Vec<Event>> {
        self.ask(Subject::None, move |daemon| async move { daemon.events(&vm, after) })
    }

    fn shutdown(&self) -> Reply<'_, ()> {
        let drained = self.ask(Subject::None, |daemon| async move { daemon.shut_down().await });
        Box::pin(async move {
            let result = drained.await;
            let core = self.core.lock().ok().and_then(|mut core| core.take());
            // The thread ends right after its answer, so joining it does not wait for I/O.
            if let Some(core) = core
                && core.join().is_err()
            {
                return Err(Error::failed("the core's thread panicked; the next start recovers"));
            }
            result
        })
    }
}
