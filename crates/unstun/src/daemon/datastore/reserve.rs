//! Space of each datastore that is reserved for the daemon's own small files: an operation that frees space has to be
//! recorded first.

use std::rc::Rc;

use blk::reactor::OpenMode;
use engine::with_freed_space;
use futures_util::future::join_all;

use crate::daemon::datastore::Datastore;
use crate::daemon::state::Daemon;

/// Name of the reserve file in the datastore's `.unstun` folder.
const RESERVE_NAME: &str = "reserve";
/// Size of the reserve in bytes. One operation needs it for marks, records and folders: a few dozen blocks of 4 KiB.
const RESERVE_BYTES: u64 = 256 << 10;
/// Number of bytes by which the request shrinks when the full reserve cannot be allocated.
const RESERVE_STEP_BYTES: u64 = 32 << 10;

impl Datastore {
    /// Allocates the reserve, or as much of it as fits. A reserve file that a crash left behind is reused.
    pub(crate) async fn set_reserve_aside(&self) -> blk::Result<()> {
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
    /// Runs `work`. If the datastore is full, removes entries of the bin and runs `work` again; at last also frees the
    /// reserve. `work` must be repeatable.
    pub(crate) async fn with_reserve<T>(
        &self,
        datastore: &Datastore,
        work: impl AsyncFn() -> blk::Result<T>,
    ) -> blk::Result<T> {
        let here = |other: &Rc<Datastore>| other.root == datastore.root || other.root == self.main.root;
        let datastores: Vec<_> = self.datastores().into_iter().filter(here).collect();
        loop {
            match work().await {
                Err(e) if e.is_no_space() => {}
                other => return other,
            }
            let mut made = false;
            for datastore in &datastores {
                made = made || self.make_room(datastore).await;
            }
            if !made {
                return self.with_last_reserve(datastore, work).await;
            }
        }
    }

    /// Does the same as `with_reserve` without using the bin; for operations that empty the bin.
    pub(crate) async fn with_last_reserve<T>(
        &self,
        datastore: &Datastore,
        work: impl AsyncFn() -> blk::Result<T>,
    ) -> blk::Result<T> {
        match work().await {
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        // Guest writes that wait for space would take the freed space first. A device's VM folders are in the main
        // datastore.
        let here = |other: &Datastore| other.root == datastore.root || other.root == self.main.root;
        let entries: Vec<_> = self.entries().into_iter().filter(|entry| here(&entry.datastore)).collect();
        let _holds = join_all(entries.iter().map(|entry| entry.running.hold_writes())).await;
        let freed = match datastore.native.device() {
            Some(_) => &*self.main,
            None => datastore,
        };
        freed.own.unlink_if_present(RESERVE_NAME).await?;
        let done = with_freed_space(&self.env, work).await;
        // The part of the reserve that cannot be allocated now is allocated at the next start.
        let _ = freed.set_reserve_aside().await;
        done
    }
}
