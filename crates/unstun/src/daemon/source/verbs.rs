//! Disks over images, and the list of sources.

use std::pin::pin;
use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::DatastoreName;
use api::{DiskCreate, SourceState};
use blk::Env;
use blk::manifest::NewDisk;
use engine::native::{Source, Store};
use futures_util::future::{Either, select};

use crate::daemon::datastore::Datastore;
use crate::daemon::requests::api_types;
use crate::daemon::source::image::Image;
use crate::daemon::source::keep::{disks_over, unanswered};
use crate::daemon::source::kept::HashCheck;
use crate::daemon::source::origin::Origin;
use crate::daemon::source::watched::WatchedImage;
use crate::daemon::state::Daemon;

/// Unit of the sizes of native disks.
const DISK_UNIT_BYTES: u64 = 4096;
/// Time that an image has to open when a disk is made over it.
const OPEN_US: u64 = 20_000_000;

impl Daemon {
    /// Returns the disks that a request wants in a native store, with their sources in place. With a `fingerprint`, an image
    /// with another one is refused. After an error nothing is left; after a success `give_up_sources` is called if the disks
    /// were not made.
    pub(in crate::daemon) async fn native_disks(
        self: &Rc<Self>,
        datastore: &Rc<Datastore>,
        wanted: &[DiskCreate],
        fingerprint: Option<&str>,
    ) -> Result<Vec<NewDisk>> {
        let mut made = Vec::new();
        for disk in wanted {
            match self.native_disk(datastore, disk, fingerprint).await {
                Ok(disk) => made.push(disk),
                Err(e) => {
                    give_up_sources(datastore, &made);
                    return Err(e);
                }
            }
        }
        Ok(made)
    }

    async fn native_disk(
        self: &Rc<Self>,
        datastore: &Rc<Datastore>,
        wanted: &DiskCreate,
        fingerprint: Option<&str>,
    ) -> Result<NewDisk> {
        let disk = api_types::new_disk(wanted);
        let Some(from) = &wanted.from else { return Ok(disk) };
        let store = datastore.native_store().await?;
        let asked = Origin { fingerprint: fingerprint.map(str::to_owned), ..Origin::asked(from)? };
        let source = self.source_of(datastore, &store, asked).await?;
        let least = source.bytes.next_multiple_of(DISK_UNIT_BYTES);
        let size_bytes = if wanted.size_bytes == 0 { least } else { wanted.size_bytes };
        let disk = NewDisk { size_bytes, source: Some(source.device), ..disk };
        if size_bytes < least {
            give_up_sources(datastore, &[disk]);
            let found = format!("a disk of {size_bytes} bytes over an image of {}", source.bytes);
            return Err(Error::invalid(format!("{}: {found}: expected {least} or more", from.uri)));
        }
        Ok(disk)
    }

    /// Returns the source of an image, which is made if there is none yet.
    async fn source_of(
        self: &Rc<Self>,
        datastore: &Rc<Datastore>,
        store: &Rc<Store>,
        asked: Origin,
    ) -> Result<Rc<Source>> {
        let (env, terms, wanted) = (self.env.clone(), self.image_terms(), asked.clone());
        let opening = async move { Image::open(&env, &wanted, &terms).await };
        let image = in_time(&self.env, &asked.uri, opening).await?;
        let origin = Origin { fingerprint: image.fingerprint(), ..asked };
        let name = origin.text()?;
        // What nothing shows a change of is a new image each time.
        let known = store.sources().into_iter().find(|source| source.name == name);
        if let Some(known) = known.filter(|_| origin.fingerprint.is_some()) {
            if let Some(kept) = datastore.sources.get(&known) {
                if let Some(wrong) = kept.wrong_hash() {
                    return Err(wrong.into());
                }
                kept.image.has_come(image);
            }
            return Ok(known);
        }
        let device = store.add_source(&name, image.size_bytes()).await?;
        let source = store.source(device)?;
        let watched = WatchedImage::open(&self.env, &origin.uri, image);
        self.keep_source(datastore, store, source.clone(), origin, watched);
        Ok(source)
    }

    /// Lists the sources of all datastores.
    pub(crate) fn source_list(&self) -> Vec<api::Source> {
        let mut all = Vec::new();
        for datastore in self.datastores() {
            let Some(store) = datastore.native.opened() else { continue };
            all.extend(store.sources().iter().filter_map(|source| self.show_source(&datastore, source)));
        }
        all
    }

    /// Returns a source as users see it; None if its record cannot be read, which the log has said.
    pub(in crate::daemon) fn show_source(
        &self,
        datastore: &Rc<Datastore>,
        source: &Rc<Source>,
    ) -> Option<api::Source> {
        let origin = Origin::parse(&source.name).ok()?;
        let kept = datastore.sources.get(source);
        let cause = kept.as_ref().and_then(|kept| kept.image.cause());
        let state = match (&cause, source.has_landed()) {
            (_, true) => SourceState::Copied,
            (Some(_), false) => SourceState::Unavailable,
            (None, false) => SourceState::Open,
        };
        let vms = self.vms_over(datastore, source);
        let disks = vms.iter().flat_map(|entry| {
            disks_over(entry, source).into_iter().map(|number| format!("{}/disk{number}", entry.name))
        });
        Some(api::Source {
            datastore: datastore.name.clone(),
            number: source.device.into(),
            trusted: origin.fingerprint.is_none(),
            uri: origin.uri,
            format: origin.format,
            backup: origin.backup,
            copy: kept.as_ref().map_or(origin.copy, |kept| kept.wants_copy.get()),
            state,
            hash: kept.as_ref().and_then(|kept| kept.hash_state()),
            message: match state {
                SourceState::Unavailable => cause.map(|cause| cause.cause),
                SourceState::Open => kept.as_ref().and_then(|kept| kept.image.warning()),
                SourceState::Copied => None,
            },
            size_bytes: source.bytes,
            copied_bytes: source.landed_bytes(),
            disks: disks.collect(),
            job: kept.and_then(|kept| kept.open_job()).map(|job| job.id),
        })
    }

    /// Begins, or begins again, to copy the image of a source into the store.
    pub(crate) async fn source_copy(
        self: &Rc<Self>,
        datastore: Option<DatastoreName>,
        number: u64,
    ) -> Result<api::Job> {
        let datastore = self.datastore(datastore.as_ref())?;
        let unknown = || {
            Error::not_found(format!(
                "datastore {}: no source {number}; `unstun source list` has them",
                datastore.name
            ))
        };
        let store = datastore.native.opened().ok_or_else(unknown)?;
        let source =
            u8::try_from(number).ok().and_then(|device| store.source(device).ok()).ok_or_else(unknown)?;
        if source.has_landed() {
            return Err(Error::refused(format!("source {number}: all of its image is in the store already")));
        }
        let kept = datastore.sources.get(&source).ok_or_else(unknown)?;
        if let Some(cause) = kept.image.cause() {
            return Err(Error::new(ErrorKind::Unavailable, format!("source {number}: {cause}")));
        }
        kept.wants_copy.set(true);
        if *kept.hash.borrow() == HashCheck::Ended {
            *kept.hash.borrow_mut() = HashCheck::Pending;
        }
        let job = match kept.open_job() {
            Some(job) => job,
            None => self.begin_job(&datastore, &store, &kept),
        };
        self.job_do(job.id, |_| Ok(())).await
    }
}

/// Runs work on an image, and returns its result if the image answers in time. Late work goes on, and its result is dropped.
pub(super) async fn in_time<T: 'static>(
    env: &Env,
    uri: &str,
    work: impl Future<Output = Result<T>> + 'static,
) -> Result<T> {
    let working = env.spawn(work);
    match select(pin!(working.join()), pin!(env.sleep_us(OPEN_US))).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Err(unanswered(uri, OPEN_US / 1_000_000)),
    }
}

/// Lets the sources of disks go that were not made.
pub(in crate::daemon) fn give_up_sources(datastore: &Rc<Datastore>, disks: &[NewDisk]) {
    let Some(store) = datastore.native.opened() else { return };
    disks.iter().filter_map(|disk| disk.source).for_each(|device| store.give_up_source(device));
}
