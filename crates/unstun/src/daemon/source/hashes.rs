//! Comparison of images with the hashes in the manifests of their OVAs: in the background, and before anything is copied.

use std::rc::Rc;

use blk::{Error, ErrorKind, Result};
use engine::Job;
use engine::native::Store;
use tracing::{error, info};

use crate::daemon::datastore::Datastore;
use crate::daemon::source::image::Image;
use crate::daemon::source::kept::{HashCheck, KeptSource};
use crate::daemon::state::Daemon;

impl Daemon {
    /// Compares the image's hash, if that is pending. It is the first part of a job, which counts the bytes that are read.
    ///
    /// # Errors
    /// `Damaged`: the image has another hash. Reads of it are errors from then on, and it is not opened again. `Cancelled`:
    /// the user has ended the job, or the datastore is closed. Otherwise an error of the image's files.
    pub(super) async fn compare_hash(
        &self,
        datastore: &Rc<Datastore>,
        store: &Rc<Store>,
        kept: &Rc<KeptSource>,
        job: &Job,
    ) -> Result<()> {
        if *kept.hash.borrow() != HashCheck::Pending {
            return Ok(());
        }
        let uri = &kept.origin.uri;
        let Some(image) = kept.image.current() else {
            return Err(kept.image.cause().unwrap_or_else(|| Error::cancelled(uri)));
        };
        let Some(bytes) = image.hashed_bytes() else {
            *kept.hash.borrow_mut() = HashCheck::Unwanted;
            return Ok(());
        };
        job.bytes_total.set(bytes);
        let compared = read_for_hash(store, &image, job).await;
        // A file that was changed meanwhile is another error, and so is a right hash of it.
        image.files.verify().await?;
        match compared {
            Ok(()) => {
                *kept.hash.borrow_mut() = HashCheck::Matches;
                let part = kept.origin.part.unwrap_or(0);
                let message = format!("disk {part} of {uri} has the hash that the manifest has");
                info!("source {} of datastore {}: {message}", kept.source.device, datastore.name);
                self.vms_over(datastore, &kept.source).iter().for_each(|entry| self.note(entry, &message));
                Ok(())
            }
            Err(e) if e.kind == ErrorKind::Damaged => Err(give_up(kept, &e)),
            Err(e) => Err(e),
        }
    }
}

/// Reads the file of an image, and yields to guests.
async fn read_for_hash(store: &Rc<Store>, image: &Image, job: &Job) -> Result<()> {
    let (mut at, mut turn) = (0, store.begin_turn());
    let progress = async |read: u64| {
        job.moved(read - at).await;
        at = read;
        let ended = std::mem::replace(&mut turn, store.begin_turn());
        store.end_turn(job, ended, 0).await;
        job.checkpoint().await?;
        turn = store.begin_turn();
        Ok(())
    };
    job.or_cancelled(image.verify_hash(progress)).await?
}

/// Ends all reads of an image with a wrong hash, and returns their error.
fn give_up(kept: &KeptSource, wrong: &Error) -> Error {
    let remedy = "nothing more is read of this image: remove the VM and import an intact file, or this one with \
                  --no-verify if its manifest is known to be wrong";
    let cause = Error::damaged(&kept.origin.uri, format!("{wrong}; {remedy}"));
    error!("source {}: {cause}", kept.source.device);
    *kept.hash.borrow_mut() = HashCheck::Wrong(cause.clone());
    kept.image.is_away(cause.clone());
    cause
}
