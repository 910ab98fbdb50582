//! Native VMs: one store per datastore. Each VM's folder records its ID in the store.

use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blk::dir::TEMPORARY_SUFFIX;
use blk::file::Lock;
use blk::reactor::OpenMode;
use blk::sync::TaskMutex;
use blk::{Dir, Env, Error, ErrorKind, File, Result};
use engine::native::space::Growth;
use engine::native::superblock::Superblock;
use engine::native::{NewStore, Store, TakeOver};
use tracing::error;

use crate::daemon::datastore::device::Claimed;
use crate::daemon::datastore::lease::{self, Leased, Wanted};
use crate::daemon::datastore::store_memory::{StoreMemory, StorePart};
use crate::daemon::vm::mark;

/// Name of the store's file in the datastore's folder.
pub(crate) const STORE_NAME: &str = "store.unstun";

/// Location of the store.
enum Ground {
    /// A file in the datastore's folder, created with the first native VM.
    Folder(Dir),
    /// A whole device, which does not grow.
    Device(Claimed),
}

/// Store of a datastore.
pub(crate) struct Native {
    env: Env,
    ground: Ground,
    /// Memory of all native stores.
    memory: StoreMemory,
    /// The part of the open store.
    part: RefCell<Option<StorePart>>,
    store: RefCell<Option<Rc<Store>>>,
    /// ID of a store that existed before it was opened.
    found_id: Cell<Option<u64>>,
    /// Device and inode of the store's file in a folder, as of its opening.
    file_id: Cell<Option<(u64, u64)>>,
    /// Lock on the store's file in a folder. The file can be added as a datastore by its own path, so like a device it
    /// belongs to one daemon.
    lock: RefCell<Option<Lock>>,
    /// Lease of the store where other hosts can reach it.
    lease: RefCell<Option<Leased>>,
    wanted: Wanted,
    /// Lock around opening: two concurrent openings would each have their own journal.
    opening: TaskMutex,
}

impl Native {
    pub(crate) fn in_folder(env: Env, dir: Dir, memory: StoreMemory) -> Native {
        Native::over(env, Ground::Folder(dir), memory, TakeOver::FromOwnHost.into())
    }

    pub(crate) fn on_device(env: Env, device: Claimed, memory: StoreMemory, wanted: Wanted) -> Native {
        Native::over(env, Ground::Device(device), memory, wanted)
    }

    fn over(env: Env, ground: Ground, memory: StoreMemory, wanted: Wanted) -> Native {
        let (store, lock, lease) = (RefCell::default(), RefCell::default(), RefCell::default());
        let (part, file_id, opening) = (RefCell::default(), Cell::default(), TaskMutex::default());
        let found_id = Cell::default();
        Native { env, ground, memory, part, store, found_id, file_id, lock, lease, wanted, opening }
    }

    pub(crate) fn path(&self) -> PathBuf {
        match &self.ground {
            Ground::Folder(dir) => Path::new(dir.path()).join(STORE_NAME),
            Ground::Device(device) => device.path.clone(),
        }
    }

    /// Returns the device; None in a folder.
    pub(crate) fn device(&self) -> Option<&Claimed> {
        match &self.ground {
            Ground::Folder(_) => None,
            Ground::Device(device) => Some(device),
        }
    }

    /// Returns whether the device refuses the writes of other hosts, because this one has reserved it.
    pub(crate) fn reserves(&self) -> bool {
        self.lease.borrow().as_ref().is_some_and(|leased| leased.lease.reserves())
    }

    /// Returns the cap of the cache of map pages, which all stores of the daemon share.
    pub(crate) fn map_cache_bytes(&self) -> usize {
        self.memory.map_cache_bytes()
    }

    /// Returns the open store; None before its first use.
    pub(crate) fn opened(&self) -> Option<Rc<Store>> {
        self.store.borrow().clone()
    }

    /// Reads the ID of the store without opening it. The opening reports a store that cannot be read.
    pub(crate) async fn read_id(&self) {
        let Ground::Folder(dir) = &self.ground else { return };
        let read = async { Superblock::read(&dir.open(STORE_NAME, OpenMode::Read).await?).await };
        self.found_id.set(read.await.ok().map(|found| found.newest.store_id));
    }

    /// Returns the ID of the store; None if none exists, or if it cannot be read.
    pub(crate) fn id(&self) -> Option<u64> {
        self.opened().map(|store| store.id()).or(self.found_id.get())
    }

    /// Returns the number of bytes inside the store that are free for guests.
    pub(crate) fn free_bytes(&self) -> u64 {
        let used = self.opened().map(|store| store.store_usage());
        used.map_or(0, |used| used.free.saturating_sub(used.reserve))
    }

    /// Returns whether a store exists, open or not.
    pub(crate) async fn exists(&self) -> Result<bool> {
        match &self.ground {
            Ground::Folder(dir) => Ok(dir.list().await?.iter().any(|name| name == STORE_NAME)),
            Ground::Device(_) => Ok(true),
        }
    }

    /// Removes a store whose creation a crash has interrupted.
    pub(crate) async fn clear_up(&self) -> Result<()> {
        let _turn = self.opening.lock().await;
        match &self.ground {
            Ground::Folder(dir) => dir.unlink_if_present(&format!("{STORE_NAME}{TEMPORARY_SUFFIX}")).await,
            Ground::Device(_) => Ok(()),
        }
    }

    /// Opens the store; `NotFound` if none exists yet.
    pub(crate) async fn open(&self) -> Result<Rc<Store>> {
        let _turn = self.opening.lock().await;
        self.open_in_turn().await
    }

    /// Returns the store for a new VM, and makes it where there is none. `homes` are the VM folders of the datastore.
    ///
    /// # Errors
    /// `Damaged` where the store's file is gone while VMs are in it.
    pub(crate) async fn open_or_make(&self, homes: &[(String, PathBuf)]) -> Result<Rc<Store>> {
        let _turn = self.opening.lock().await;
        self.refuse_when_unlinked().await?;
        if let Ground::Folder(dir) = &self.ground
            && self.opened().is_none()
            && !self.exists().await?
        {
            self.refuse_beside(homes).await?;
            make(&self.env, dir).await?;
        }
        self.open_in_turn().await
    }

    /// Refuses to replace a missing store by an empty one: the VMs in the old store could not be distinguished from new
    /// ones.
    async fn refuse_beside(&self, homes: &[(String, PathBuf)]) -> Result<()> {
        let mut owners = Vec::new();
        for (name, home) in homes {
            if mark::exists(&self.env, home).await {
                owners.push(name.as_str());
            }
        }
        if owners.is_empty() {
            return Ok(());
        }
        let cause = format!("the file is missing, which contains the disks of {}", owners.join(", "));
        let remedy = "restore the file, or remove those VMs (`unstun vm remove`); then try again";
        Err(Error::damaged(self.path().to_string_lossy(), format!("{cause}; {remedy}")))
    }

    /// Returns why the open store takes no new VM: the file at its path is not the one that was opened. Running VMs
    /// continue in the old file, which is lost when the daemon ends.
    pub(crate) async fn unlinked(&self) -> Option<Error> {
        let opened = self.file_id.get()?;
        if file_id(&self.env, self.path()).await == Some(opened) {
            return None;
        }
        let cause = "the file was removed or replaced while unstun serves it; its VMs continue in the old file, \
                     which is lost when unstun ends";
        let remedy =
            "move each VM out of this file now (`unstun vm move VM --store redo`), then restart unstun";
        Some(Error::damaged(self.path().to_string_lossy(), format!("{cause}; {remedy}")))
    }

    pub(crate) async fn refuse_when_unlinked(&self) -> Result<()> {
        self.unlinked().await.map_or(Ok(()), Err)
    }

    async fn open_in_turn(&self) -> Result<Rc<Store>> {
        if let Some(store) = self.opened() {
            return Ok(store);
        }
        let (file, can_grow) = match &self.ground {
            Ground::Folder(dir) => {
                let file = dir.open(STORE_NAME, OpenMode::Write).await?;
                self.hold(dir).await?;
                self.file_id.set(file_id(&self.env, self.path()).await);
                (file, true)
            }
            Ground::Device(device) => (device.open().await?, false),
        };
        let part = self.memory.take();
        let leased = self.lease(&file).await?;
        if let Some(leased) = &leased {
            file.set_fence(leased.lease.fence());
        }
        let (env, growth) = (self.env.clone(), Growth::default());
        let opened = Store::open_with_cache(env, file, part.options, growth, can_grow, &part.map_cache).await;
        if let (Err(_), Some(leased)) = (&opened, &leased) {
            // If the lease cannot be released, other daemons wait for its end.
            let _ = leased.release().await;
        }
        for damage in opened.iter().flat_map(|store| store.damage()) {
            error!("{damage}");
        }
        *self.store.borrow_mut() = Some(opened.clone()?);
        *self.part.borrow_mut() = Some(part);
        *self.lease.borrow_mut() = leased;
        opened
    }

    async fn lease(&self, store: &File) -> Result<Option<Leased>> {
        if !store.limits().shared {
            if self.wanted.reserves == Some(true) {
                let cause = "no other host reaches it, so it has no reservations; leave --reservations out";
                return Err(Error::invalid(store.name(), cause));
            }
            return Ok(None);
        }
        let file = match &self.ground {
            Ground::Folder(dir) => dir.open(STORE_NAME, OpenMode::Write).await?,
            Ground::Device(device) => device.open().await?,
        };
        let is_exclusive = self.device().is_some_and(Claimed::is_exclusive);
        lease::acquire(&self.env, file, self.wanted, is_exclusive).await.map(Some)
    }

    async fn hold(&self, dir: &Dir) -> Result<()> {
        if self.lock.borrow().is_some() {
            return Ok(());
        }
        let lock = dir.lock(STORE_NAME).await.map_err(|e| match e.kind {
            ErrorKind::Locked => {
                let cause =
                    "another unstun daemon serves this file as a datastore; remove the datastore there first";
                Error::new(ErrorKind::Locked, dir.path_of(STORE_NAME), cause)
            }
            _ => e,
        })?;
        *self.lock.borrow_mut() = Some(lock);
        Ok(())
    }

    /// Releases the store: another daemon may open it from now on.
    pub(crate) fn release(&self) {
        self.lock.take();
        if let Ground::Device(device) = &self.ground {
            device.release();
        }
    }

    pub(crate) async fn close(&self) -> Result<()> {
        let closed = match self.opened() {
            Some(store) => store.close().await,
            None => Ok(()),
        };
        let leased = self.lease.take();
        let released = match &leased {
            Some(leased) => leased.release().await,
            None => Ok(()),
        };
        let given_up = match &self.ground {
            Ground::Device(device) => device.give_up().await,
            Ground::Folder(_) => Ok(()),
        };
        closed.and(released).and(given_up)
    }
}

/// Returns device and inode of a file; None if it does not exist.
async fn file_id(env: &Env, path: PathBuf) -> Option<(u64, u64)> {
    env.blocking(move || path.metadata().ok().map(|found| (found.dev(), found.ino()))).await
}

/// Creates a store under a temporary name first: there is either a complete store or none.
async fn make(env: &Env, dir: &Dir) -> Result<()> {
    let making = format!("{STORE_NAME}{TEMPORARY_SUFFIX}");
    dir.unlink_if_present(&making).await?;
    let file = dir.create_new(&making).await?;
    let formatted = Store::format(env, &file, NewStore::default()).await;
    drop(file);
    if let Err(e) = formatted {
        // On a full file system the file would take what is left. The next start removes it if this fails.
        let _ = dir.unlink(&making).await;
        return Err(e);
    }
    dir.rename(&making, STORE_NAME).await?;
    dir.sync().await
}
