//! Native VMs: one store per datastore. Each VM's folder records its ID in the store.

use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::WhenFull;
use blk::dir::{OWN_FOLDER, TEMPORARY_SUFFIX};
use blk::file::Lock;
use blk::manifest::NewDisk;
use blk::reactor::OpenMode;
use blk::sync::TaskMutex;
use blk::{Dir, Env, Error, ErrorKind, File, Result};
use engine::Options;
use engine::native::space::Growth;
use engine::native::{NativeVm, NewNativeVm, NewStore, Store, StoreOptions, TakeOver, VmHomeState};
use tracing::error;

use crate::daemon::datastore::device::Claimed;
use crate::daemon::datastore::lease::{self, Leased};
use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::defect::Defect;
use crate::daemon::state::Daemon;
use crate::daemon::vm::formats::{exists, open_path, write_when_full};
use crate::daemon::vm::homes;
use crate::daemon::vm::remove::{has_vmx, open_home, remove_configuration, remove_folder};

/// Name of the store's file in the datastore's folder.
const STORE_NAME: &str = "store.unstun";
/// File in a home's `.unstun` folder: the VM's ID in the store, as 32 hexadecimal digits.
pub(crate) const MARK_NAME: &str = "native";
const MARK_BYTES_MAX: u64 = 64;

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
    /// Size in bytes of the tree pages kept in memory.
    map_cache_bytes: usize,
    store: RefCell<Option<Rc<Store>>>,
    /// Device and inode of the store's file in a folder, as of its opening.
    file_id: Cell<Option<(u64, u64)>>,
    /// Lock on the store's file in a folder. The file can be added as a datastore by its own path, so like a device it
    /// belongs to one daemon.
    lock: RefCell<Option<Lock>>,
    /// Lease of the store where other hosts can reach it.
    lease: RefCell<Option<Leased>>,
    /// Owners that the lease may be taken from.
    take_over: TakeOver,
    /// Lock around opening: two concurrent openings would each have their own journal.
    opening: TaskMutex,
}

impl Native {
    pub(crate) fn in_folder(env: Env, dir: Dir, map_cache_bytes: usize) -> Native {
        Native::over(env, Ground::Folder(dir), map_cache_bytes, TakeOver::FromOwnHost)
    }

    pub(crate) fn on_device(
        env: Env,
        device: Claimed,
        map_cache_bytes: usize,
        take_over: TakeOver,
    ) -> Native {
        Native::over(env, Ground::Device(device), map_cache_bytes, take_over)
    }

    fn over(env: Env, ground: Ground, map_cache_bytes: usize, take_over: TakeOver) -> Native {
        let (store, lock, lease) = (RefCell::default(), RefCell::default(), RefCell::default());
        let (file_id, opening) = (Cell::default(), TaskMutex::default());
        Native { env, ground, map_cache_bytes, store, file_id, lock, lease, take_over, opening }
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

    pub(crate) fn map_cache_bytes(&self) -> usize {
        self.map_cache_bytes
    }

    /// Returns the open store; None before its first use.
    pub(crate) fn opened(&self) -> Option<Rc<Store>> {
        self.store.borrow().clone()
    }

    /// Returns the number of bytes inside the store that are free for guests.
    pub(crate) fn free_bytes(&self) -> u64 {
        let used = self.opened().map(|store| store.store_use());
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
            if is_marked(&self.env, home).await {
                owners.push(name.as_str());
            }
        }
        if owners.is_empty() {
            return Ok(());
        }
        let cause = format!("the file is missing, and the disks of {} are in it", owners.join(", "));
        let remedy = "bring the file back, or remove those VMs (`unstun vm remove`); then try again";
        Err(Error::damaged(self.path().to_string_lossy(), format!("{cause}; {remedy}")))
    }

    /// Returns why the open store takes no new VM: the file at its path is not the one that was opened. Running VMs
    /// continue in the old file, which is lost when the daemon ends.
    pub(crate) async fn unlinked(&self) -> Option<Error> {
        let opened = self.file_id.get()?;
        if file_id(&self.env, self.path()).await == Some(opened) {
            return None;
        }
        let cause = "the file was removed or replaced while unstun serves it; its VMs run on in the old file, \
                     which is lost when unstun ends";
        let remedy =
            "move each of them out of it now (`unstun vm move VM --store redo`), then restart unstun";
        Some(Error::damaged(self.path().to_string_lossy(), format!("{cause}; {remedy}")))
    }

    async fn refuse_when_unlinked(&self) -> Result<()> {
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
        let leased = self.lease(&file).await?;
        if let Some(leased) = &leased {
            file.set_fence(leased.lease.fence());
        }
        let options = StoreOptions { map_cache_bytes: self.map_cache_bytes, ..StoreOptions::default() };
        let opened = Store::open(self.env.clone(), file, options, Growth::default(), can_grow).await;
        if let (Err(_), Some(leased)) = (&opened, &leased) {
            // If the lease cannot be released, other daemons wait for its end.
            let _ = leased.release().await;
        }
        *self.store.borrow_mut() = Some(opened.clone()?);
        *self.lease.borrow_mut() = leased;
        opened
    }

    async fn lease(&self, store: &File) -> Result<Option<Leased>> {
        if !store.limits().shared {
            return Ok(None);
        }
        let file = match &self.ground {
            Ground::Folder(dir) => dir.open(STORE_NAME, OpenMode::Write).await?,
            Ground::Device(device) => device.open().await?,
        };
        lease::acquire(&self.env, file, self.take_over).await.map(Some)
    }

    async fn hold(&self, dir: &Dir) -> Result<()> {
        if self.lock.borrow().is_some() {
            return Ok(());
        }
        let lock = dir.lock(STORE_NAME).await.map_err(|e| match e.kind {
            ErrorKind::Locked => {
                let cause =
                    "a running unstun has the file open as a datastore of its own; remove it there first";
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
        closed.and(released)
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
    Store::format(env, &file, NewStore::default()).await?;
    drop(file);
    dir.rename(&making, STORE_NAME).await?;
    dir.sync().await
}

/// Returns which VM of the store a home is; None for a VM with its own files.
pub(crate) async fn mark(env: &Env, home: &Path) -> Result<Option<u128>> {
    let own = open_path(env, home).await?.open_dir(OWN_FOLDER, false).await?;
    let text = match own.read_file(MARK_NAME, MARK_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let text = String::from_utf8_lossy(&text);
    let id = u128::from_str_radix(text.trim_ascii(), 16).map_err(|_| {
        let cause = format!("found {:?}, expected the id of a VM", text.trim_ascii());
        Error::damaged(own.path_of(MARK_NAME), cause)
    })?;
    Ok(Some(id))
}

/// Returns whether a home has a mark, from what the file system shows now; for VMs that are not served.
pub(crate) async fn is_marked(env: &Env, home: &Path) -> bool {
    exists(env, home.join(OWN_FOLDER).join(MARK_NAME)).await
}

pub(crate) fn mark_line(id: u128) -> String {
    format!("{id:032x}\n")
}

/// Durably records which VM of the store the home is from now on, if any.
pub(crate) async fn set_mark(own: &Dir, id: Option<u128>) -> Result<()> {
    match id {
        Some(id) => own.replace_file(MARK_NAME, mark_line(id).as_bytes()).await,
        None => {
            own.unlink_if_present(MARK_NAME).await?;
            own.sync().await
        }
    }
}

/// Creates a home in the datastore. The home has its mark as soon as it has its `.unstun` folder.
pub(crate) async fn new_home(datastore: &Datastore, name: &str, when_full: WhenFull, id: u128) -> Result<()> {
    let dir = datastore.dir.open_dir(name, true).await?;
    datastore.dir.sync().await?;
    let making = format!("{OWN_FOLDER}{TEMPORARY_SUFFIX}");
    let own = dir.open_dir(&making, true).await?;
    write_when_full(&own, when_full).await?;
    set_mark(&own, Some(id)).await?;
    dir.rename(&making, OWN_FOLDER).await?;
    dir.sync().await
}

/// Creates a VM with empty disks. The store has it as unfinished until its home exists.
pub(crate) async fn create_vm(
    daemon: &Daemon,
    datastore: &Rc<Datastore>,
    name: &str,
    disks: &[NewDisk],
    when_full: WhenFull,
) -> Result<()> {
    let store = datastore.native_store().await?;
    let id = store.create_vm(NewNativeVm { name, disks }).await?;
    make_whole(daemon, &datastore.home(name), when_full, id).await
}

/// Creates a VM that continues from a snapshot of another one.
pub(crate) async fn clone(
    daemon: &Daemon,
    datastore: &Rc<Datastore>,
    parent: &NativeVm,
    snapshot: &str,
    name: &str,
    when_full: WhenFull,
) -> Result<()> {
    datastore.native.refuse_when_unlinked().await?;
    let id = parent.clone_to(snapshot, name).await?;
    make_whole(daemon, &datastore.home(name), when_full, id).await
}

/// Creates the home of an unfinished VM. Nothing of the home or the VM is left after an error. Anything that cannot be
/// removed then is removed at the next start.
async fn make_whole(daemon: &Daemon, home: &Home, when_full: WhenFull, id: u128) -> Result<()> {
    let datastore = &home.datastore;
    let name = datastore.relative(&home.path);
    let store = datastore.native.open().await?;
    let made = async {
        if daemon.defects.has(Defect::WholeEarly) {
            store.set_home(id, &name).await?;
        }
        new_home(datastore, &name, when_full, id).await?;
        store.set_home(id, &name).await
    };
    let made = made.await;
    if let Err(error) = &made
        && let Err(left) = remove_with_home(home, id).await
    {
        daemon.list_left_over(&name, home, &error.clone().into(), &left);
    }
    made
}

/// Returns the VM of the store whose home is or was at this path.
pub(crate) async fn recorded_at(home: &Home) -> Result<Option<u128>> {
    let datastore = &home.datastore;
    if !datastore.native.exists().await? {
        return Ok(None);
    }
    let path = datastore.relative(&home.path);
    let homes = datastore.native.open().await?.homes()?;
    Ok(homes.into_iter().find(|(_, home)| home.path == path).map(|(id, _)| id))
}

/// Removes a VM that is not open, and its home, from the store and the datastore.
pub(crate) async fn remove_with_home(home: &Home, id: u128) -> Result<()> {
    match home.datastore.native.open().await {
        Ok(store) => {
            if store.vms().await?.iter().any(|(vm, _)| *vm == id) {
                store.begin_removal(id, &home.datastore.relative(&home.path)).await?;
            }
        }
        // The store is missing, and its VMs with it: their folders can be removed.
        Err(e) if e.kind == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    take_away(home, id).await
}

/// Carries out the rest of `remove_with_home`; can be repeated. A folder marked as another VM's stays.
pub(crate) async fn take_away(home: &Home, id: u128) -> Result<()> {
    match open_home(home).await {
        Ok(dir) => remove_home(home, &dir, id).await?,
        Err(e) if e.kind == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    remove_vm(&home.datastore, id).await
}

async fn remove_home(home: &Home, dir: &Dir, id: u128) -> Result<()> {
    let has_own = dir.list().await?.iter().any(|name| name.trim_end_matches('/') == OWN_FOLDER);
    if has_own && mark(dir.env(), &home.path).await? != Some(id) {
        return Ok(());
    }
    // Files from an import in place are no longer disks of the VM, and belonged to the user before. They stay.
    if has_own && has_vmx(dir).await? && !homes::is_adopted(home).await? {
        remove_configuration(dir).await?;
    }
    remove_folder(home, dir).await
}

pub(crate) async fn open_vm(datastore: &Datastore, id: u128, options: Options) -> Result<Rc<NativeVm>> {
    let store = datastore.native.open().await?;
    NativeVm::open(&store, id, options).await
}

/// Removes the VM that the home is marked with from the store. The VM is not open. For the sides of a move, which are
/// identified by their marks.
pub(crate) async fn remove_marked(home: &Home) -> Result<()> {
    match mark(home.datastore.dir.env(), &home.path).await? {
        Some(id) => remove_vm(&home.datastore, id).await,
        None => Ok(()),
    }
}

/// Removes a VM that is not open from the store, if the VM and the store exist.
pub(crate) async fn remove_vm(datastore: &Datastore, id: u128) -> Result<()> {
    if datastore.native.opened().is_none() && !datastore.native.exists().await? {
        return Ok(());
    }
    match datastore.native.open().await?.remove_vm(id).await {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Returns whether a home's VM in the store is one side of a move.
pub(crate) async fn is_moving(home: &Home) -> Result<bool> {
    match mark(home.datastore.dir.env(), &home.path).await? {
        Some(id) => Ok(home.datastore.native.open().await?.is_moving(id)),
        None => Ok(false),
    }
}

/// Returns whether the store has the home's VM, and the VM is not one side of a move.
pub(crate) async fn is_whole(home: &Home) -> Result<bool> {
    let Some(id) = mark(home.datastore.dir.env(), &home.path).await? else { return Ok(false) };
    let store = home.datastore.native.open().await?;
    Ok(!store.is_moving(id) && store.vms().await?.iter().any(|(vm, _)| *vm == id))
}

/// Durably records in the store whether the home's VM is one side of a move.
pub(crate) async fn set_moving(home: &Home, moving: bool) -> Result<()> {
    match mark(home.datastore.dir.env(), &home.path).await? {
        Some(id) => home.datastore.native.open().await?.set_moving(id, moving).await,
        None => Ok(()),
    }
}

/// Returns the VMs of the store that no home is marked with, by the names of their former homes. VMs that are being
/// created or removed are left out.
async fn homeless(datastore: &Datastore, store: &Store) -> api::error::Result<Vec<(u128, String)>> {
    // The VMs are read before the homes, so a VM that is created meanwhile is not among them.
    let mut vms = store.vms().await?;
    for (id, home) in store.homes()? {
        if home.state != VmHomeState::Whole {
            vms.retain(|(vm, _)| *vm != id);
        }
        if let Some((_, name)) = vms.iter_mut().find(|(vm, _)| *vm == id && !home.path.starts_with('/')) {
            *name = home.path;
        }
    }
    for (_, home) in datastore.inhabitants().await? {
        // Opening a missing or damaged home reports it.
        let marked = match mark(datastore.dir.env(), &home).await {
            Err(e) if e.kind == ErrorKind::NoDescriptors => return Err(e.into()),
            marked => marked.ok().flatten(),
        };
        vms.retain(|(id, _)| Some(*id) != marked);
    }
    Ok(vms)
}

/// Creates homes for VMs of the store without one: a crash came before the mark, or the folder was removed. Reports
/// those whose name is taken.
pub(crate) async fn find_homeless(
    daemon: &Rc<Daemon>,
    datastore: &Rc<Datastore>,
) -> api::error::Result<Vec<(String, PathBuf)>> {
    if !datastore.native.exists().await? {
        return Ok(Vec::new());
    }
    let store = datastore.native.open().await?;
    let mut found = Vec::new();
    for (id, name) in homeless(datastore, &store).await? {
        // An operation that creates, moves or removes the VM is under way or has just ended.
        let Ok(_claim) = daemon.claim(&name) else { continue };
        if !homeless(datastore, &store).await?.iter().any(|(other, _)| *other == id) {
            continue;
        }
        if datastore.inhabitants().await?.iter().any(|(taken, _)| *taken == name) {
            let cause = "has no folder, and its name is taken";
            let notice = format!("VM {name} ({id:032x}) in {} is not served: it {cause}", store.path());
            error!("{notice}");
            datastore.notices.borrow_mut().push(notice);
            continue;
        }
        new_home(datastore, &name, WhenFull::default(), id).await?;
        store.set_home(id, &name).await?;
        found.push((name.clone(), datastore.home(&name).path));
    }
    Ok(found)
}
