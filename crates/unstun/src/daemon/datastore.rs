//! One datastore that the daemon serves: its folder or device, its lock, its homes, and the store of its native VMs.

pub(super) mod added;
pub(super) mod datastores;
pub(super) mod device;
pub(super) mod full;
pub(super) mod hang;
pub(super) mod identity;
pub(super) mod lease;
pub(super) mod native;
pub(super) mod rebuild;
pub(super) mod reserve;
pub(super) mod scrub;
pub(super) mod signature;
pub(super) mod store_memory;
pub(super) mod unflushed;
pub(super) mod unserved;
pub(super) mod watch;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use api::error::{Error, ErrorKind, Result};
use api::location::SERVED_BY_NAME;
use api::name::DatastoreName;
use blk::dir::OWN_FOLDER;
use blk::file::Lock;
use blk::reactor::{OpenMode, Space};
use blk::sync::TaskMutex;
use blk::{Dir, Env};
use engine::native::Store;
use futures_util::stream::{self, StreamExt};

use crate::daemon::bin::records::{BinRecords, parse_folder};
use crate::daemon::datastore::hang::{Hang, Opening, until_hung};
use crate::daemon::datastore::identity::{DatastoreId, Expected};
use crate::daemon::datastore::lease::Wanted;
use crate::daemon::datastore::native::Native;
use crate::daemon::datastore::store_memory::StoreMemory;
use crate::daemon::register::Register;
use crate::daemon::running::folders::SharedPending;
use crate::daemon::source::kept::KeptSources;
use crate::daemon::vm::home_records::HomeRecords;

/// Name of the lock file, which a daemon holds while it serves the datastore.
const LOCK_NAME: &str = "lock";
/// File in the datastore's `.unstun` folder: the homes outside the datastore.
const HOMES_NAME: &str = "homes";
/// Folder in the main datastore's `.unstun` folder: the homes of the VMs on devices, in one folder per device, named by
/// its store's ID.
const DEVICES_NAME: &str = "devices";

/// Most space kept ready for first writes: what 4 KiB writes at 6,000 a second take in 40 seconds.
const READY_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of homes that are looked at side by side. The file system's thread works off their calls one after the
/// other; with several of them waiting, it needs no wake-up for each.
pub(super) const LOOKS_MAX: usize = 16;
/// Unit of the space kept ready: small changes of the free space do not matter.
const READY_UNIT_BYTES: u64 = 16 << 20;

pub(crate) struct Datastore {
    pub name: DatastoreName,
    /// Absolute path by which the user refers to the datastore: the folder or the device.
    pub path: PathBuf,
    /// Folder that contains the homes: the datastore's own, or a device's in the main datastore.
    pub root: PathBuf,
    /// None while the datastore has none, because it was full when it was opened.
    pub id: Option<DatastoreId>,
    pub dir: Dir,
    pub own: Dir,
    /// Register of the homes outside the datastore.
    pub registry: Register,
    /// Records of the homes with files.
    pub records: HomeRecords,
    /// Records of the VMs that were removed and are kept.
    pub bin: Rc<BinRecords>,
    pub native: Native,
    /// Images below the disks of the native store.
    pub sources: KeptSources,
    /// Bytes that the removal of each state in the bin of an open VM frees, by the state's ID; measured when the state
    /// entered the bin.
    pub state_bytes: RefCell<BTreeMap<u64, u64>>,
    /// Result of the last scrub that ended.
    pub scrubbed: RefCell<Option<api::Checked>>,
    /// Notices about VMs in the datastore that are not served and have no row of their own; their names are taken.
    pub notices: RefCell<Vec<String>>,
    /// Number of sides in this datastore of VMs that are being moved between datastores.
    pub arrivals: Cell<u32>,
    /// Lock that allows one step of a start at a time: finishing interrupted operations, cleaning up moves, opening the
    /// VMs.
    pub opening: TaskMutex,
    /// Row of the datastore in the list as of its last answer, and the space of its file system at that time.
    pub last_row: RefCell<Option<api::Datastore>>,
    pub last_space: Cell<Space>,
    /// What the folder's file system has not answered on other cores.
    pub elsewhere: RefCell<Vec<Arc<SharedPending>>>,
    /// Whether the datastore is being removed; no VM of it is opened any more then.
    leaving: Cell<bool>,
    /// Lock on the datastore; None once it is not served any more.
    lock: RefCell<Option<Lock>>,
}

/// VM's folder, and the datastore that it belongs to: the one that contains it, or that has it in its registry.
#[derive(Clone)]
pub(crate) struct Home {
    pub datastore: Rc<Datastore>,
    pub path: PathBuf,
}

impl Datastore {
    /// Opens and locks a datastore in a folder; `Locked` while another daemon serves it.
    pub(super) async fn in_folder(
        env: &Env,
        name: DatastoreName,
        root: &Path,
        expected: Expected<'_>,
        memory: StoreMemory,
        opening: &Opening,
    ) -> Result<Datastore> {
        let shown = root.to_string_lossy().into_owned();
        let dir = env.open_path(&shown).await?;
        opening.has_dir(&dir);
        dir.trust_owner()?;
        expected.check_folder(&name, &dir).await?;
        let own = dir.open_dir(OWN_FOLDER, true).await?;
        // If the name of the `.unstun` folder were not durable, a crash would lose all records in it.
        dir.sync().await?;
        // A killed daemon may have left changes of its records in the cache. What this one reads and acts on is durable.
        own.sync().await?;
        let lock = own.lock(LOCK_NAME).await.map_err(|e| match e.kind {
            blk::ErrorKind::Locked => Error::new(
                ErrorKind::Locked,
                format!(
                    "datastore {shown}: another unstun daemon serves it (it holds {OWN_FOLDER}/{LOCK_NAME})"
                ),
            ),
            _ => e.into(),
        })?;
        let native = Native::in_folder(env.clone(), dir.clone(), memory);
        native.read_id().await;
        let id = identity::read_or_make(env, &own).await?;
        let datastore = Datastore::over(name, (root, root), id, (dir, own), native, Some(lock)).await?;
        // A datastore that is full already has no space for the reserve.
        let _ = datastore.set_reserve_aside().await;
        Ok(datastore)
    }

    /// Opens a store that fills a device. The homes of its VMs are in a folder of the main datastore. `Locked` while
    /// another user has the device, `Invalid` if no store is on it.
    pub(super) async fn on_device(
        env: &Env,
        name: DatastoreName,
        (path, expected): (&Path, Expected<'_>),
        main: &Datastore,
        memory: StoreMemory,
        wanted: Wanted,
        opening: &Opening,
    ) -> Result<Datastore> {
        let device = device::claim(env, path, wanted.take_over).await?;
        opening.has_file(&device.file);
        expected.check_device(&name, path, &device.file).await?;
        let native = Native::on_device(env.clone(), device, memory, wanted);
        let store = native.open().await.map_err(|e| match e.kind {
            blk::ErrorKind::Invalid => {
                let make = format!("`unstun datastore create {}`", path.display());
                Error::invalid(format!("{e}; {make} creates a datastore on it"))
            }
            _ => e.into(),
        })?;
        let all = main.own.open_dir(DEVICES_NAME, true).await?;
        main.own.sync().await?;
        let id = DatastoreId::of_store(store.id());
        let dir = all.open_dir(id.as_str(), true).await?;
        all.sync().await?;
        let own = dir.open_dir(OWN_FOLDER, true).await?;
        dir.sync().await?;
        let root = PathBuf::from(dir.path());
        Datastore::over(name, (path, &root), Some(id), (dir, own), native, None).await
    }

    async fn over(
        name: DatastoreName,
        (path, root): (&Path, &Path),
        id: Option<DatastoreId>,
        (dir, own): (Dir, Dir),
        native: Native,
        lock: Option<Lock>,
    ) -> Result<Datastore> {
        Ok(Datastore {
            name,
            path: path.to_path_buf(),
            root: root.to_path_buf(),
            id,
            registry: Register::read(&own, HOMES_NAME).await?,
            records: HomeRecords::read(&own).await?,
            bin: Rc::new(BinRecords::read(&own).await?),
            native,
            sources: KeptSources::default(),
            dir,
            own,
            state_bytes: RefCell::default(),
            scrubbed: RefCell::default(),
            notices: RefCell::default(),
            arrivals: Cell::new(0),
            opening: TaskMutex::default(),
            last_row: RefCell::default(),
            last_space: Cell::default(),
            elsewhere: RefCell::default(),
            leaving: Cell::new(false),
            lock: RefCell::new(lock),
        })
    }

    /// Returns whether one of the two is a copy of the other.
    pub(super) fn is_twin(&self, other: &Datastore) -> bool {
        let (store, other_store) = (self.native.id(), other.native.id());
        (self.id.is_some() && self.id == other.id) || (store.is_some() && store == other_store)
    }

    /// Refers clients that name this datastore to the daemon of the datastore in `main`; with None this daemon serves
    /// them.
    pub(super) async fn set_served_by(&self, main: Option<&Path>) -> Result<()> {
        match main {
            Some(main) => {
                let line = format!("{}\n", main.display());
                Ok(self.own.replace_file(SERVED_BY_NAME, line.as_bytes()).await?)
            }
            None => Ok(self.own.unlink_if_present(SERVED_BY_NAME).await?),
        }
    }

    /// Returns the space of the file system and inside the store. On a device only the store has space.
    pub(super) async fn space(&self) -> blk::Result<Space> {
        let inside = self.native.free_bytes();
        if let Some(device) = self.native.device() {
            return Ok(Space { total_bytes: device.size_bytes, free_bytes: inside, freeing_bytes: 0 });
        }
        let outside = self.dir.space().await?;
        Ok(Space { free_bytes: outside.free_bytes + inside, ..outside })
    }

    /// Sets how much space the store keeps ready for first writes: an eighth of what it uses, and a sixteenth of what
    /// the file system has left. On a device all space is the store's.
    pub(super) async fn keep_ready(&self) {
        let (Some(store), None) = (self.native.opened(), self.native.device()) else { return };
        let Ok(outside) = self.dir.space().await else { return };
        let bytes = (store.store_usage().used / 8).min(outside.free_bytes / 16).min(READY_BYTES_MAX);
        store.keep_ready(bytes & !(READY_UNIT_BYTES - 1));
    }

    /// Returns the space of the file system with the datastore's folder. If it hangs, the space is that of its last
    /// answer.
    pub(super) async fn outside_space(&self) -> blk::Result<Space> {
        if let Ok(space) = asked(self, self.dir.space()).await {
            self.last_space.set(space?);
        }
        Ok(self.last_space.get())
    }

    /// Returns the store for native VMs, and creates it before its first use.
    pub(super) async fn native_store(&self) -> blk::Result<Rc<Store>> {
        if self.native.opened().is_some() {
            // The homes matter only where a store is made; to find them, every folder of the datastore is opened.
            self.native.refuse_when_unlinked().await?;
            return self.native.open().await;
        }
        let mut homes = self.inhabitants().await?;
        let binned = self.bin.all().into_iter();
        homes.extend(binned.map(|(entry, record)| {
            let path = record.path.clone().unwrap_or_else(|| self.root.join(record.folder(&entry)));
            (format!("{} (in the bin)", record.vm), path)
        }));
        self.native.open_or_make(&homes).await
    }

    /// Returns whether I/O on files in this datastore bypasses the page cache.
    pub(super) async fn is_direct(&self) -> bool {
        match self.native.device() {
            Some(device) => device.file.limits().direct,
            None => self.own.open(LOCK_NAME, OpenMode::Read).await.is_ok_and(|file| file.limits().direct),
        }
    }

    /// Refuses a datastore that cannot contain VM files.
    pub(super) fn refuse_files(&self) -> blk::Result<()> {
        if self.native.device().is_none() {
            return Ok(());
        }
        let cause = "the datastore is a device and holds native disks only; use --store native, or a datastore in a folder";
        Err(blk::Error::refused(format!("datastore {}", self.name), cause))
    }

    pub(super) fn leave(&self) {
        self.leaving.set(true);
    }

    pub(super) fn refuse_when_leaving(&self) -> Result<()> {
        match self.leaving.get() {
            true => Err(Error::refused(format!("datastore {} is being removed from the daemon", self.name))),
            false => Ok(()),
        }
    }

    /// Releases the datastore: another daemon may serve it from now on.
    pub(super) fn unlock(&self) {
        self.lock.take();
        self.native.release();
    }

    /// Returns the home that a VM of this name would have.
    pub(super) fn home(self: &Rc<Self>, name: &str) -> Home {
        Home { datastore: self.clone(), path: self.root.join(name) }
    }

    pub(super) fn at(self: &Rc<Self>, path: &Path) -> Home {
        Home { datastore: self.clone(), path: path.to_path_buf() }
    }

    /// Returns whether the folder is in the datastore itself, and not only in its registry.
    pub(super) fn contains(&self, home: &Path) -> bool {
        home.parent() == Some(&self.root)
    }

    /// Returns the datastore's homes by name: those in its folder and those in its registry.
    pub(super) async fn inhabitants(&self) -> blk::Result<Vec<(String, PathBuf)>> {
        let look = async |home: (String, PathBuf)| {
            let is_home = self.is_inhabited(&home.1).await?;
            Ok(is_home.then_some(home))
        };
        let candidates = self.candidates().await?.into_iter();
        let looks = stream::iter(candidates.map(look)).buffered(LOOKS_MAX);
        let looks: Vec<blk::Result<Option<(String, PathBuf)>>> = looks.collect().await;
        looks.into_iter().filter_map(Result::transpose).collect()
    }

    /// Returns the inhabitants, and folders that may not be homes: the caller opens each of them anyway.
    pub(super) async fn candidates(&self) -> blk::Result<Vec<(String, PathBuf)>> {
        let mut found = self.registry.all();
        for name in self.dir.list().await? {
            let Some(name) = name.strip_suffix('/').filter(|n| !n.starts_with('.')) else { continue };
            if parse_folder(name).is_some() {
                continue;
            }
            // A home in the folder has precedence over one of this name in the registry.
            let path = self.root.join(name);
            if !found.contains_key(name) || self.is_inhabited(&path).await? {
                found.insert(name.to_string(), path);
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Returns whether a candidate is a home. One in the registry always is.
    pub(super) async fn is_inhabited(&self, path: &Path) -> blk::Result<bool> {
        match path.file_name().and_then(|name| name.to_str()).filter(|_| self.contains(path)) {
            Some(name) => self.has_own_folder(name).await,
            None => Ok(true),
        }
    }

    /// Opens the folder of a candidate, as `is_inhabited` does: without the thread that each path needs.
    pub(super) async fn open_candidate(&self, path: &Path) -> blk::Result<Dir> {
        match path.file_name().and_then(|name| name.to_str()).filter(|_| self.contains(path)) {
            Some(name) => self.dir.open_dir(name, false).await,
            None => self.dir.env().open_path(&path.to_string_lossy()).await,
        }
    }

    async fn has_own_folder(&self, name: &str) -> blk::Result<bool> {
        let own = async { self.dir.open_dir(name, false).await?.open_dir(OWN_FOLDER, false).await };
        match own.await {
            Err(e) if e.kind == blk::ErrorKind::NoDescriptors => Err(e),
            // A file, a link, or an unreadable folder is no home.
            own => Ok(own.is_ok()),
        }
    }

    /// Returns whether the datastore's folder contains anything of this name.
    pub(super) async fn has(&self, name: &str) -> blk::Result<bool> {
        Ok(self.dir.list().await?.iter().any(|known| known.trim_end_matches('/') == name))
    }

    /// Returns a hang if the datastore has not answered a call for too long.
    pub(super) fn hang(&self) -> Option<Hang> {
        let device = self.native.device().and_then(|device| device.file.pending());
        let elsewhere = self.elsewhere.borrow();
        let elsewhere = elsewhere.iter().filter_map(|core| core.get());
        let all = self.dir.pending().into_iter().chain(device).chain(elsewhere);
        let pending = all.min_by_key(|pending| pending.since_ns);
        Hang::of(&self.name, self.dir.env(), pending)
    }
}

/// Awaits a question that changes nothing. Gives up if the datastore hangs.
pub(super) async fn asked<T>(datastore: &Datastore, question: impl Future<Output = T>) -> Result<T, Hang> {
    match datastore.hang() {
        Some(hang) => Err(hang),
        None => until_hung(datastore.dir.env(), || datastore.hang(), &mut pin!(question)).await,
    }
}

/// Datastore that was added and could not be opened.
pub(crate) struct Absent {
    pub name: DatastoreName,
    pub path: PathBuf,
    pub is_device: bool,
    pub cause: Error,
}
