//! Datastore on a block device, in a file of fixed size or in an image of RBD. It contains only the store, which `datastore create`
//! creates. The VMs' homes are in the main datastore, and are recreated if they are missing.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use api::error::{Error, ErrorKind, Result};
use api::units::format_bytes;
use blk::ErrorKind as K;
use blk::file::Lock;
use blk::rbd::{self, Image, RbdName};
use blk::reactor::OpenMode;
use blk::uring::UringReactor;
use blk::{Buf, Dir, Env, Executor, File, SECTOR};
use engine::native::{NewStore, Store, TakeOver};
use nix::libc;

use crate::daemon::datastore::lease;
use crate::daemon::datastore::signature::{self, EDGE_BYTES};

/// Minimum size in bytes: the journal's 64 MiB, a group of 126 MiB each for metadata and data, and as much again to
/// work in.
const DEVICE_BYTES_MIN: u64 = 512 << 20;

/// Exclusively claimed device, until this is dropped.
pub(crate) struct Claimed {
    pub path: PathBuf,
    pub file: File,
    pub size_bytes: u64,
    env: Env,
    held: Held,
}

/// What excludes others.
enum Held {
    /// A lock excludes other daemons. The exclusive opening of a block device excludes the kernel's own users (mounts,
    /// arrays).
    Path { dir: Dir, name: String, lock: RefCell<Option<(Lock, Option<std::fs::File>)>> },
    /// The exclusive lock of an image excludes all other clients of the cluster.
    Image(Arc<Image>),
}

impl Claimed {
    /// Opens another handle of the device: a fence belongs to one handle.
    pub(crate) async fn open(&self) -> blk::Result<File> {
        match &self.held {
            Held::Path { dir, name, .. } => dir.open(name, OpenMode::Write).await,
            Held::Image(_) => self.file.share()?.open(&self.env),
        }
    }

    /// Returns whether no other client, on any host, can write the device.
    pub(crate) fn is_exclusive(&self) -> bool {
        matches!(self.held, Held::Image(_))
    }

    /// Gives up the exclusive lock of an image. The store is closed.
    pub(crate) async fn give_up(&self) -> blk::Result<()> {
        let Held::Image(image) = &self.held else { return Ok(()) };
        let image = image.clone();
        self.env.blocking(move || image.release()).await
    }

    /// Releases the device: others may claim it from now on.
    pub(crate) fn release(&self) {
        if let Held::Path { lock, .. } = &self.held {
            lock.take();
        }
    }
}

/// Returns the image of RBD that a path for a datastore names.
pub(crate) fn image_at(path: &Path) -> Option<Result<RbdName>> {
    let text = path.to_str().filter(|text| text.starts_with(rbd::PREFIX))?;
    Some(text.parse().map_err(Error::invalid))
}

/// Returns a path that a user has stated, without links and relative parts. The name of an image stays as it is.
pub(crate) fn absolute(path: &Path, missing: &str) -> Result<PathBuf> {
    match image_at(path) {
        Some(image) => image.map(|_| path.to_path_buf()),
        None => path.canonicalize().map_err(|e| Error::at_path(path.display(), missing, &e)),
    }
}

/// Returns whether a path for a datastore is a block device, a regular file or an image.
pub(crate) fn is_device(path: &Path) -> bool {
    image_at(path).is_some()
        || path.metadata().is_ok_and(|at| at.file_type().is_block_device() || at.is_file())
}

/// Claims a device; `Locked` while another user has it. The path is absolute, and its target is opened. An image is taken
/// from its present owner if that has ended for certain, or with `TakeOver::FromAnyOwner`.
pub(crate) async fn claim(env: &Env, named: &Path, take_over: TakeOver) -> Result<Claimed> {
    match image_at(named) {
        Some(image) => claim_image(env, named, image?, take_over).await,
        None => claim_for(env, named, OpenMode::Write).await,
    }
}

/// Like `claim`, without writes: the device may be read-only.
pub(crate) async fn claim_to_read(env: &Env, named: &Path) -> Result<Claimed> {
    match image_at(named) {
        Some(image) => claim_image(env, named, image?, TakeOver::FromNobody).await,
        None => claim_for(env, named, OpenMode::Read).await,
    }
}

/// Checks that a take-over of an image could fence its host; of other devices there is nothing to check.
pub(crate) async fn check_fencing(env: &Env, named: &Path) -> Result<()> {
    match image_at(named) {
        Some(image) => {
            let image = image?;
            Ok(env.blocking(move || rbd::check_fencing(&image)).await?)
        }
        None => Ok(()),
    }
}

async fn claim_image(env: &Env, named: &Path, image: RbdName, take_over: TakeOver) -> Result<Claimed> {
    let image = Arc::new(env.blocking(move || Image::open(&image)).await?);
    let file = File::of_image(env, image.clone())?;
    let asked = image.clone();
    // Before the lease is read: who acquires the lock after that is not the daemon that the lease names, and keeps it.
    let owner = env.blocking(move || asked.owner()).await?;
    // A daemon of this host that was killed still counts as a client of the cluster for half a minute.
    let ended = take_over == TakeOver::FromAnyOwner || lease::holder_has_ended(env, &file).await?;
    let (locked, from) = (image.clone(), owner.filter(|_| ended));
    if from.is_some() {
        // Before the cluster fences a daemon whose store this one cannot have.
        lease::refuse_served_here(&file).await?;
    }
    env.blocking(move || locked.acquire(from.as_ref())).await?;
    let size_bytes = file.size().await?;
    Ok(Claimed { path: named.to_path_buf(), file, size_bytes, env: env.clone(), held: Held::Image(image) })
}

async fn claim_for(env: &Env, named: &Path, mode: OpenMode) -> Result<Claimed> {
    let shown = named.display();
    let asked = named.to_path_buf();
    let path = env.blocking(move || asked.canonicalize()).await;
    let path = path.map_err(|e| Error::failed(format!("{shown}: {e}")))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let dir = env.open_path(&folder.to_string_lossy()).await?;
    let lock = dir.lock(&name).await.map_err(|e| match e.kind {
        blk::ErrorKind::Locked => Error::new(
            ErrorKind::Locked,
            format!("{shown}: another unstun daemon serves it, or is creating a store in it"),
        ),
        _ => e.into(),
    })?;
    // The lock comes first: it says more about another daemon than the kernel does.
    let exclusive = env.blocking(move || hold_device(&path, mode == OpenMode::Write)).await?;
    let file = dir.open(&name, mode).await?;
    let size_bytes = file.size().await?;
    let held = Held::Path { dir, name, lock: RefCell::new(Some((lock, exclusive))) };
    Ok(Claimed { path: named.to_path_buf(), file, size_bytes, env: env.clone(), held })
}

/// Opens a block device exclusively, which the kernel grants to one opener. A regular file needs no such handle.
fn hold_device(path: &Path, writes: bool) -> Result<Option<std::fs::File>> {
    let failed = |e: std::io::Error| match e.raw_os_error() {
        Some(libc::EBUSY) => Error::new(
            ErrorKind::Locked,
            format!("{} is in use (mounted, swap, or part of an array or a volume group)", path.display()),
        ),
        _ => Error::failed(format!("{}: {e}", path.display())),
    };
    if !path.metadata().map_err(failed)?.file_type().is_block_device() {
        return Ok(None);
    }
    let opened = OpenOptions::new().read(true).write(writes).custom_flags(libc::O_EXCL).open(path);
    opened.map(Some).map_err(failed)
}

/// Creates an empty store on a block device, in a file of fixed size or in an image, for `datastore add`. Refuses a target
/// that is not empty, unless `force`. With a size the image is made first.
pub(crate) fn create(path: &Path, size_bytes: Option<u64>, force: bool) -> Result<api::DatastoreCreated> {
    match (image_at(path), size_bytes) {
        (Some(image), Some(bytes)) => {
            // Before the image exists.
            refuse_small(path, bytes)?;
            let image = image?;
            rbd::check_fencing(&image)?;
            Image::create(&image, bytes)?;
        }
        (None, Some(_)) => {
            let cause = "--size makes an image of RBD; a device or a file has the size that it has";
            return Err(Error::invalid(format!("{}: {cause}", path.display())));
        }
        (_, None) => {}
    }
    let executor = Executor::new(Rc::new(UringReactor::new()?));
    let env = executor.env();
    let path = path.to_path_buf();
    let made = executor.run(async move { make(&env, &path, force).await });
    made.ok_or_else(|| Error::failed("the reactor stopped"))?
}

fn refuse_small(path: &Path, size_bytes: u64) -> Result<()> {
    let (found, expected) = (format_bytes(size_bytes), format_bytes(DEVICE_BYTES_MIN));
    match size_bytes < DEVICE_BYTES_MIN {
        true => {
            Err(Error::refused(format!("{} has {found}; a store needs at least {expected}", path.display())))
        }
        false => Ok(()),
    }
}

async fn make(env: &Env, path: &Path, force: bool) -> Result<api::DatastoreCreated> {
    check_fencing(env, path).await?;
    let claimed = claim(env, path, TakeOver::FromNobody).await?;
    let (shown, size_bytes) = (path.display(), claimed.size_bytes);
    refuse_small(path, size_bytes)?;
    let found = look(&claimed).await?;
    if let (Some(found), false) = (&found, force) {
        let remedy = "if its content is no longer needed, --force overwrites it";
        return Err(Error::refused(format!("{shown} contains {found}; {remedy}")));
    }
    let leased = refuse_leased(env, &claimed).await?;
    // Old content at the end (of arrays, of partition tables) would be detected there again.
    let edge = Buf::zeroed(EDGE_BYTES as usize);
    claimed.file.write(last_edge(size_bytes), edge).await?;
    Store::format(env, &claimed.file, NewStore::default()).await?;
    if let Some(leased) = leased {
        leased.abandon().await?;
    }
    Ok(api::DatastoreCreated { path: path.to_path_buf(), size_bytes, overwritten: found })
}

/// Refuses a store that another host serves, even with `force`.
pub(crate) async fn refuse_leased(env: &Env, claimed: &Claimed) -> Result<Option<lease::Leased>> {
    if !claimed.file.limits().shared {
        return Ok(None);
    }
    let (file, is_exclusive) = (claimed.open().await?, claimed.is_exclusive());
    match lease::acquire(env, file, TakeOver::FromOwnHost.into(), is_exclusive).await {
        Ok(leased) => Ok(Some(leased)),
        // There is no store, or one that this program cannot read.
        Err(e) if matches!(e.kind, K::Invalid | K::Damaged | K::Unsupported) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn last_edge(size_bytes: u64) -> u64 {
    size_bytes / SECTOR * SECTOR - EDGE_BYTES
}

async fn look(claimed: &Claimed) -> Result<Option<String>> {
    let mut edges = Vec::new();
    for at in [0, last_edge(claimed.size_bytes)] {
        let (bytes, read) = claimed.file.read(at, Buf::alloc(EDGE_BYTES as usize)).await;
        read?;
        edges.push(bytes);
    }
    Ok(signature::find(&edges[0], &edges[1]))
}
