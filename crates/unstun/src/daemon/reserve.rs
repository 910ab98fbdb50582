//! Space of each datastore that is reserved for the daemon's own small files: an operation that frees space has to be
//! recorded first.

use std::rc::Rc;

use blk::reactor::OpenMode;
use futures_util::future::join_all;

use super::site::Site;
use super::state::Daemon;

/// In the datastore's own folder.
const RESERVE_NAME: &str = "reserve";
/// Marks, records and folders of one operation: a few dozen blocks of 4 KiB.
const RESERVE_BYTES: u64 = 256 << 10;
/// By how much less is tried when not all of it can be had.
const RESERVE_STEP_BYTES: u64 = 32 << 10;

impl Site {
    /// Sets the reserve aside, or what there is of it. What a crash has left of it is taken over.
    pub async fn set_reserve_aside(&self) -> blk::Result<()> {
        let file = match self.own.create_new(RESERVE_NAME).await {
            Err(e) if e.kind == blk::ErrorKind::Exists => {
                self.own.open(RESERVE_NAME, OpenMode::Write).await?
            }
            created => created?,
        };
        let mut bytes = RESERVE_BYTES;
        loop {
            match file.allocate(0, bytes).await {
                Err(e) if e.is_no_space() && bytes > RESERVE_STEP_BYTES => bytes -= RESERVE_STEP_BYTES,
                allocated => return allocated,
            }
        }
    }
}

impl Daemon {
    /// Runs `work`, and where the datastore is full runs it again with what the bin keeps removed, and at last with the reserve
    /// given free. `work` can be repeated.
    pub async fn with_reserve<T>(
        &self,
        site: &Site,
        work: impl AsyncFn() -> blk::Result<T>,
    ) -> blk::Result<T> {
        let here = |other: &Rc<Site>| other.root == site.root || other.root == self.main.root;
        let sites: Vec<_> = self.sites().into_iter().filter(here).collect();
        loop {
            match work().await {
                Err(e) if e.is_no_space() => {}
                other => return other,
            }
            let mut made = false;
            for site in &sites {
                made = made || self.make_room(site).await;
            }
            if !made {
                return self.with_last_reserve(site, work).await;
            }
        }
    }

    /// The same without the bin, for what empties it.
    pub async fn with_last_reserve<T>(
        &self,
        site: &Site,
        work: impl AsyncFn() -> blk::Result<T>,
    ) -> blk::Result<T> {
        match work().await {
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        // Guests that wait for space would take it first. A device's homes lie in the main datastore.
        let here = |other: &Site| other.root == site.root || other.root == self.main.root;
        let entries: Vec<_> = self.entries().into_iter().filter(|entry| here(&entry.site)).collect();
        let _holds = join_all(entries.iter().map(|entry| entry.vm.hold_writes())).await;
        let freed = match site.native.device() {
            Some(_) => &*self.main,
            None => site,
        };
        freed.own.unlink_if_present(RESERVE_NAME).await?;
        let done = work().await;
        // What of it cannot be had now is set aside at the next start.
        let _ = freed.set_reserve_aside().await;
        done
    }
}
