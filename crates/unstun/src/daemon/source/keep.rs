//! The images of a datastore's sources: opened when the store is, opened again when they were away, and copied into the
//! store. A task for each source does that until the source is not needed any more.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use api::error::Error;
use engine::job::{LAND, VERIFY};
use engine::native::{Source, Store};
use engine::{Job, JobControl};
use futures_util::future::{Either, join_all, select};
use tracing::{error, info, warn};

use crate::daemon::datastore::{Datastore, asked};
use crate::daemon::source::image::{Image, Terms};
use crate::daemon::source::kept::{HashCheck, KeptSource};
use crate::daemon::source::origin::Origin;
use crate::daemon::source::watched::WatchedImage;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::{Kept, VmRecord};

/// Interval between two looks at a source.
const LOOK_US: u64 = 1_000_000;
/// Time after which an image that is away is opened again, and one that is open is looked at.
const REOPEN_NS: u64 = 15_000_000_000;
/// Time that the start of a datastore gives its images to open. Those that are later open in the background, and reads of
/// them are errors until then.
const START_US: u64 = 10_000_000;
/// A copy waits while less than this part of the datastore is free: a twentieth.
const FREE_SHARE: u64 = 20;
/// Time after which a copy that failed begins again; doubled each time.
const RETRY_NS: u64 = 60_000_000_000;
const RETRY_NS_MAX: u64 = 3_600_000_000_000;

/// Returns whether the store still needs the source's image.
fn is_needed(store: &Store, source: &Rc<Source>) -> bool {
    let is_known = store.source(source.device).is_ok_and(|known| Rc::ptr_eq(&known, source));
    // The image is detached when it is durable that all of it was copied.
    is_known && !store.is_closed() && source.is_attached()
}

impl Daemon {
    /// Returns what is allowed to images.
    pub(super) fn image_terms(&self) -> Terms {
        let own_roots = self.datastores().iter().map(|datastore| datastore.root.clone()).collect();
        Terms { own_roots, descriptors: self.descriptors.clone() }
    }

    /// Opens the images of a datastore's sources, before its VMs are opened.
    pub(in crate::daemon) async fn open_sources(self: &Rc<Self>, datastore: &Rc<Datastore>) {
        let Some(store) = datastore.native.opened() else { return };
        let mut opening = Vec::new();
        for source in store.sources().into_iter().filter(|source| !source.has_landed()) {
            if datastore.sources.get(&source).is_some() {
                continue;
            }
            let origin = match Origin::parse(&source.name) {
                Ok(origin) => origin,
                Err(e) => {
                    error!("datastore {}: source {}: {e}", datastore.name, source.device);
                    continue;
                }
            };
            let image = WatchedImage::away(&self.env, &origin.uri, source.bytes);
            let kept = self.keep_source(datastore, &store, source, origin, image);
            let daemon = self.clone();
            opening.push(self.env.spawn(async move { daemon.open_image(kept).await }));
        }
        let opened = join_all(opening.into_iter().map(blk::exec::JoinHandle::join));
        if let Either::Right(_) = select(pin!(opened), pin!(self.env.sleep_us(START_US))).await {
            warn!(
                "datastore {}: images of its sources are not open yet: `unstun source list` shows them",
                datastore.name
            );
        }
    }

    /// Attaches an image to its source, and tends it from now on.
    pub(super) fn keep_source(
        self: &Rc<Self>,
        datastore: &Rc<Datastore>,
        store: &Rc<Store>,
        source: Rc<Source>,
        origin: Origin,
        image: Rc<WatchedImage>,
    ) -> Rc<KeptSource> {
        let attached = store.attach_source(source.device, image.clone());
        attached.expect("the volume has the source's size");
        let hash = if origin.verify { HashCheck::Pending } else { HashCheck::Unwanted };
        let kept = Rc::new(KeptSource {
            wants_copy: Cell::new(origin.copy),
            hash: RefCell::new(hash),
            source,
            origin,
            image,
            job: RefCell::default(),
            is_opening: Cell::new(false),
            open_at_ns: Cell::new(0),
            copy_at_ns: Cell::new(0),
            retry_ns: Cell::new(RETRY_NS),
        });
        datastore.sources.add(&kept);
        let (daemon, datastore, store, tended) =
            (self.clone(), datastore.clone(), store.clone(), kept.clone());
        self.env.spawn_detached(Box::pin(async move {
            daemon.tend_source(&datastore, &store, &tended).await;
            datastore.sources.forget(&tended);
        }));
        kept
    }

    async fn tend_source(
        self: &Rc<Self>,
        datastore: &Rc<Datastore>,
        store: &Rc<Store>,
        kept: &Rc<KeptSource>,
    ) {
        while is_needed(store, &kept.source) {
            self.env.sleep_us(LOOK_US).await;
            if datastore.sources.end_has_begun() {
                return;
            }
            kept.image.give_up_unanswered();
            let now_ns = self.env.now_ns();
            let is_away = kept.image.cause().is_some();
            let may_open = !kept.is_opening.get() && now_ns >= kept.open_at_ns.get();
            if is_away && may_open && kept.wrong_hash().is_none() {
                let (daemon, kept) = (self.clone(), kept.clone());
                self.env.spawn_detached(Box::pin(async move { daemon.open_image(kept).await }));
            }
            if !is_away && may_open {
                kept.is_opening.set(true);
                let (env, kept) = (self.env.clone(), kept.clone());
                self.env.spawn_detached(Box::pin(async move {
                    kept.image.look().await;
                    kept.is_opening.set(false);
                    kept.open_at_ns.set(env.now_ns() + REOPEN_NS);
                }));
            }
            self.hold_when_full(datastore, kept).await;
            let is_due = kept.wants_job() && now_ns >= kept.copy_at_ns.get();
            if is_due && !is_away && is_needed(store, &kept.source) && kept.open_job().is_none() {
                self.begin_job(datastore, store, kept);
            }
        }
    }

    /// Has the copy wait while the datastore has little space left, which guests need.
    async fn hold_when_full(&self, datastore: &Rc<Datastore>, kept: &KeptSource) {
        if kept.open_job().is_none() {
            return;
        }
        if let Ok(Ok(space)) = asked(datastore, datastore.space()).await {
            kept.source.hold_landing(space.free_bytes < space.total_bytes / FREE_SHARE);
        }
    }

    async fn open_image(self: Rc<Self>, kept: Rc<KeptSource>) {
        kept.is_opening.set(true);
        let opened = Image::open(&self.env, &kept.origin, &self.image_terms()).await;
        kept.is_opening.set(false);
        kept.open_at_ns.set(self.env.now_ns() + REOPEN_NS);
        let number = kept.source.device;
        match opened {
            Ok(image) => {
                kept.image.has_come(image);
                kept.copy_at_ns.set(0);
                info!("source {number}: {} is open", kept.origin.uri);
            }
            Err(e) => {
                let cause = blk::Error::new(blk::ErrorKind::Io, &kept.origin.uri, e.to_string());
                if kept.image.cause().as_ref() != Some(&cause) {
                    error!("source {number}: {e}; it is opened again every {} s", REOPEN_NS / 1_000_000_000);
                }
                kept.image.is_away(cause);
            }
        }
    }

    /// Begins to compare an image's hash if that is pending, and to copy the image into the store if it is to be copied.
    pub(super) fn begin_job(
        self: &Rc<Self>,
        datastore: &Rc<Datastore>,
        store: &Rc<Store>,
        kept: &Rc<KeptSource>,
    ) -> Arc<JobControl> {
        let operation = if kept.wants_copy.get() { LAND } else { VERIFY };
        let job = Job::new(self.env.clone(), self.next_job(), operation, String::new());
        let users = self.vms_over(datastore, &kept.source);
        self.track(datastore, users.first(), job.control());
        *kept.job.borrow_mut() = Some(job.control().clone());
        let (daemon, datastore, store) = (self.clone(), datastore.clone(), store.clone());
        let (kept, control) = (kept.clone(), job.control().clone());
        self.env.spawn_detached(Box::pin(async move {
            let ended = match daemon.compare_hash(&datastore, &store, &kept, &job).await {
                Ok(()) if operation == LAND => store.land(kept.source.device, &job).await,
                compared => {
                    job.end(compared.clone());
                    compared
                }
            };
            daemon.job_ended(&datastore, &kept, &job, ended);
        }));
        control
    }

    fn job_ended(&self, datastore: &Rc<Datastore>, kept: &KeptSource, job: &Job, ended: blk::Result<()>) {
        // The last disk over it may have been removed.
        let is_known =
            datastore.native.opened().is_some_and(|store| store.source(kept.source.device).is_ok());
        if datastore.sources.end_has_begun() || !is_known {
            return;
        }
        let uri = &kept.origin.uri;
        let what = if job.operation == LAND { "copy" } else { "comparison of the hash" };
        let message = match ended {
            // The comparison has reported what it found.
            Ok(()) if job.operation == VERIFY => return,
            Ok(()) => format!("all of {uri} is in the store: the image is not needed any more"),
            Err(_) if job.is_cancelled() => {
                kept.wants_copy.set(false);
                if *kept.hash.borrow() == HashCheck::Pending {
                    *kept.hash.borrow_mut() = HashCheck::Ended;
                }
                let which = format!("source {} of datastore {}", kept.source.device, datastore.name);
                format!(
                    "the {what} of {uri} was ended: the image stays needed; `unstun source copy` continues it ({which})"
                )
            }
            Err(e) if kept.wrong_hash().is_some() => format!("{e}"),
            Err(e) => {
                let retry_ns = kept.retry_ns.get();
                kept.copy_at_ns.set(self.env.now_ns() + retry_ns);
                kept.retry_ns.set((retry_ns * 2).min(RETRY_NS_MAX));
                let again = format!("it continues in {} s", retry_ns / 1_000_000_000);
                format!("the {what} of {uri} failed: {e}; {again}, and the image stays needed")
            }
        };
        info!("source {} of datastore {}: {message}", kept.source.device, datastore.name);
        for entry in self.vms_over(datastore, &kept.source) {
            self.note_land(&entry, &message);
        }
    }

    /// Returns the VMs with a running disk over the source.
    pub(super) fn vms_over(&self, datastore: &Rc<Datastore>, source: &Rc<Source>) -> Vec<Rc<VmRecord>> {
        let mut vms = self.entries();
        vms.retain(|entry| Rc::ptr_eq(&entry.datastore, datastore) && !disks_over(entry, source).is_empty());
        vms
    }
}

/// Returns the numbers of the VM's running disks over the source.
pub(super) fn disks_over(entry: &VmRecord, source: &Rc<Source>) -> Vec<u32> {
    match &entry.kept {
        Kept::Native(vm) => vm.disks_over(source),
        Kept::Redo => Vec::new(),
    }
}

/// Returns the error of an image that takes too long to open.
pub(super) fn unanswered(uri: &str, seconds: u64) -> Error {
    let cause = format!("{uri}: the image has not answered for {seconds} s");
    Error::new(
        api::error::ErrorKind::Unavailable,
        format!("{cause}; nothing was made; try again when it answers"),
    )
}
