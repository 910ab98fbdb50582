//! Sources whose images are needed, and the use of each image.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use api::HashState;
use engine::JobControl;
use engine::native::Source;

use crate::daemon::source::origin::Origin;
use crate::daemon::source::watched::WatchedImage;

/// A source of which something has not been copied.
pub(super) struct KeptSource {
    pub source: Rc<Source>,
    pub origin: Origin,
    pub image: Rc<WatchedImage>,
    /// Whether the image is to be copied; cleared where a user has ended the copy.
    pub wants_copy: Cell<bool>,
    /// Comparison of the image with the hash in the manifest of its OVA.
    pub hash: RefCell<HashCheck>,
    pub job: RefCell<Option<Arc<JobControl>>>,
    /// Whether the image is being opened, or looked at.
    pub is_opening: Cell<bool>,
    /// Times before which the image is not opened or looked at, and not copied.
    pub open_at_ns: Cell<u64>,
    pub copy_at_ns: Cell<u64>,
    /// Time until a copy that fails begins again.
    pub retry_ns: Cell<u64>,
}

/// Comparison of an image with a hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HashCheck {
    /// There is nothing to compare, or the user wants no comparison.
    Unwanted,
    Pending,
    /// The user has ended the comparison. Nothing is copied without it.
    Ended,
    Matches,
    /// The image has another hash, or cannot have the right one. It is not read any more.
    Wrong(blk::Error),
}

/// Sources of a datastore.
#[derive(Default)]
pub(crate) struct KeptSources {
    by_number: RefCell<BTreeMap<u8, Rc<KeptSource>>>,
    /// Whether the datastore is being closed.
    ends: Cell<bool>,
}

impl KeptSources {
    pub(super) fn get(&self, source: &Rc<Source>) -> Option<Rc<KeptSource>> {
        let all = self.by_number.borrow();
        all.get(&source.device).filter(|kept| Rc::ptr_eq(&kept.source, source)).cloned()
    }

    pub(super) fn add(&self, kept: &Rc<KeptSource>) {
        self.by_number.borrow_mut().insert(kept.source.device, kept.clone());
    }

    /// Returns whether the datastore is being closed.
    pub(super) fn end_has_begun(&self) -> bool {
        self.ends.get()
    }

    pub(super) fn forget(&self, kept: &Rc<KeptSource>) {
        let mut all = self.by_number.borrow_mut();
        if all.get(&kept.source.device).is_some_and(|known| Rc::ptr_eq(known, kept)) {
            all.remove(&kept.source.device);
        }
    }

    /// Ends all use of the images: the datastore has no clients any more, and is closed next.
    pub(in crate::daemon) async fn end(&self) {
        self.ends.set(true);
        let all: Vec<_> = self.by_number.borrow().values().cloned().collect();
        for kept in all {
            let job = kept.open_job();
            // A job that has ended needs no cancel.
            let _ = job.as_ref().map(|job| job.cancel());
            kept.image.is_away(blk::Error::cancelled(&kept.origin.uri));
            if let Some(job) = job {
                job.wait().await;
            }
        }
    }
}

impl KeptSource {
    /// Returns whether a job has something to do: to compare the hash, and then to copy the image.
    pub(super) fn wants_job(&self) -> bool {
        match &*self.hash.borrow() {
            HashCheck::Pending => true,
            HashCheck::Unwanted | HashCheck::Matches => self.wants_copy.get(),
            HashCheck::Ended | HashCheck::Wrong(_) => false,
        }
    }

    /// Returns the comparison as users see it.
    pub(super) fn hash_state(&self) -> Option<HashState> {
        match &*self.hash.borrow() {
            HashCheck::Unwanted => None,
            HashCheck::Pending | HashCheck::Ended => Some(HashState::Pending),
            HashCheck::Matches => Some(HashState::Matches),
            HashCheck::Wrong(_) => Some(HashState::Wrong),
        }
    }

    /// Returns why the image must not be read any more, even though its files can be.
    pub(super) fn wrong_hash(&self) -> Option<blk::Error> {
        match &*self.hash.borrow() {
            HashCheck::Wrong(cause) => Some(cause.clone()),
            _ => None,
        }
    }

    pub(super) fn open_job(&self) -> Option<Arc<JobControl>> {
        self.job.borrow().clone().filter(|job| !job.state().is_over())
    }
}
