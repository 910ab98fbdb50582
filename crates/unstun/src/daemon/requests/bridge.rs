//! The core's thread, the requests that are sent to it, and what the API's thread prepares for some of them.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc as ready_channel};
use std::thread::JoinHandle;

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use api::{
    Datastore, DatastoreAdd, Disk, DiskCreate, SnapshotDir, Vm, VmCreate, VmImport, VmRemove, VmRemoved,
};
use engine::native::TakeOver;
use tokio::sync::{mpsc, oneshot};

use crate::daemon::datastore::lease::Wanted;
use crate::daemon::heartbeat::Heartbeat;
use crate::daemon::place::Place;
use crate::daemon::ready::{self, Question};
use crate::daemon::requests::answer::Subject;
use crate::daemon::requests::prepare::{self, Importable};
use crate::daemon::state::Daemon;
use crate::daemon::vm::inuse;

/// Handle of the core's thread, for the API's thread. No data of a guest crosses it.
pub(crate) struct CoreHandle {
    questions: mpsc::UnboundedSender<Question>,
    core: Mutex<Option<JoinHandle<()>>>,
}

impl CoreHandle {
    /// Starts the thread of the first core, which starts the others, locks and recovers the datastores, and serves NBD.
    /// Each core stamps its heartbeat. Returns once every VM is open and every listener listens, or with the reason why
    /// not.
    pub(crate) fn start(place: Place, heartbeats: Vec<Arc<Heartbeat>>) -> Result<CoreHandle> {
        let (questions, inbox) = mpsc::unbounded_channel();
        let (sender, receiver) = ready_channel::channel();
        let core = std::thread::Builder::new()
            .name("core0".into())
            .spawn(move || ready::run(place, heartbeats, inbox, &sender))
            .map_err(|e| Error::failed(format!("starting the core's thread: {e}")))?;
        let answer =
            receiver.recv().map_err(|_| Error::failed("the core's thread ended before it was ready"));
        answer.and_then(|result| result)?;
        Ok(CoreHandle { questions, core: Mutex::new(Some(core)) })
    }

    /// Runs `question` on the core's thread as a task of its own, and returns its answer. The answer comes in time even
    /// if `subject` hangs. The task continues if the caller stops waiting.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        subject: Subject,
        question: impl AsyncFnOnce(Rc<Daemon>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let run: Question = Box::new(move |daemon| {
            let env = daemon.env.clone();
            env.spawn_detached(Box::pin(async move {
                let asked = daemon.clone();
                let work = async move { question(asked).await };
                // The caller may have stopped waiting; the operation's effect stays.
                let _ = answer.send(daemon.answer(subject, work).await);
            }));
        });
        let gone = || Error::new(ErrorKind::Unavailable, "the engine is stopping");
        self.questions.send(run).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    pub(crate) async fn vm_create(self: Arc<Self>, request: VmCreate) -> Result<Vm> {
        let subject = Subject::Datastore(request.datastore.clone());
        let request = prepare::beside(|| prepare::create(request)).await?;
        self.ask(subject, async |daemon| daemon.vm_create(request).await).await
    }

    pub(crate) async fn vm_import(self: Arc<Self>, request: VmImport) -> Result<Vm> {
        let subject = Subject::Datastore(request.datastore.clone());
        let (request, found) = prepare::beside(|| prepare::import(request)).await?;
        let import = async |daemon: Rc<Daemon>| match found {
            Importable::Folder(source) => daemon.vm_import(request, source).await,
            Importable::Ova(path) => daemon.vm_import_ova(request, path).await,
        };
        self.ask(subject, import).await
    }

    pub(crate) async fn vm_open(self: Arc<Self>, vm: VmName, take_over: bool) -> Result<Vm> {
        if let Some(home) = self.idle_home(vm.clone()).await? {
            prepare::beside(move || inuse::refuse_locked(&[home])).await?;
        }
        self.ask(Subject::Vm(vm.clone()), async move |daemon| daemon.vm_open(&vm, take_over).await).await
    }

    pub(crate) async fn vm_set_snapshot_dir(self: Arc<Self>, vm: VmName, request: SnapshotDir) -> Result<Vm> {
        let dir = prepare::beside(|| prepare::folder(request.dir)).await?;
        self.ask(Subject::Vm(vm.clone()), async move |daemon| daemon.vm_set_snapshot_dir(&vm, dir).await)
            .await
    }

    pub(crate) async fn vm_remove(self: Arc<Self>, vm: VmName, request: VmRemove) -> Result<VmRemoved> {
        if let Some(home) = self.idle_home(vm.clone()).await?.filter(|_| request.delete_disks) {
            let look = move || if home.is_dir() { inuse::refuse_locked(&[home]) } else { Ok(()) };
            prepare::beside(look).await?;
        }
        self.ask(Subject::Vm(vm.clone()), async move |daemon| daemon.vm_remove(&vm, request).await).await
    }

    /// Returns the folder of a VM that is closed or broken.
    async fn idle_home(&self, vm: VmName) -> Result<Option<PathBuf>> {
        self.ask(Subject::None, async move |daemon| Ok(daemon.idle_home(vm.as_str()).map(|home| home.path)))
            .await
    }

    pub(crate) async fn disk_add(self: Arc<Self>, vm: VmName, disk: DiskCreate) -> Result<Disk> {
        let disk = prepare::beside(|| prepare::disk(disk)).await?;
        self.ask(Subject::Vm(vm.clone()), async move |daemon| daemon.disk_add(&vm, disk).await).await
    }

    pub(crate) async fn datastore_add(self: Arc<Self>, request: DatastoreAdd) -> Result<Datastore> {
        let take_over = if request.take_over { TakeOver::FromAnyOwner } else { TakeOver::FromOwnHost };
        let wanted = Wanted { take_over, reserves: request.reservations };
        let (name, path) = prepare::beside(|| prepare::datastore(request)).await?;
        self.ask(Subject::None, async move |daemon| daemon.datastore_add(name, path, wanted).await).await
    }

    /// Admits no new guest I/O, completes what was admitted, writes tables and closes. It is called once, as the last
    /// call.
    pub(crate) async fn shutdown(&self) -> Result<()> {
        let result = self.ask(Subject::None, async |daemon| daemon.shut_down().await).await;
        let core = self.core.lock().ok().and_then(|mut core| core.take());
        // The thread ends right after its answer, so joining it does not wait for I/O.
        if let Some(core) = core
            && core.join().is_err()
        {
            return Err(Error::failed("the core's thread panicked; the next start recovers"));
        }
        result
    }
}
