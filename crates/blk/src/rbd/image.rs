//! An open image, and the requests to it.

// The functions of the library.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::library::{
    Cluster, Completion, FEATURE_EXCLUSIVE_LOCK, LOCK_EXCLUSIVE, Libraries, Pool, RawImage, Rbd, Watcher,
    libraries,
};
use super::name::RbdName;
use crate::buf::{Buf, Slice};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::uring::closing::close_elsewhere;

/// Seconds that the library waits for the monitors. Its own default is five minutes.
const CONNECT_S: &CStr = c"30";
/// Owners of an exclusive lock; there is one at most.
const OWNERS_MAX: usize = 4;
/// Clients of one image that are compared with the owner of its lock: two daemons, and some tools of the administrator.
const WATCHERS_MAX: usize = 64;

/// A connection to a cluster.
struct Connection {
    raw: Cluster,
    libraries: &'static Libraries,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: created by `rados_create2`; whatever used it is gone.
        unsafe { (self.libraries.rados.rados_shutdown)(self.raw) }
    }
}

/// A pool of a connection, in a namespace.
struct OpenPool {
    raw: Pool,
    // Dropped after `drop` has destroyed the pool.
    connection: Connection,
}

impl Drop for OpenPool {
    fn drop(&mut self) {
        // SAFETY: created by `rados_ioctx_create`; the image is closed.
        unsafe { (self.connection.libraries.rados.rados_ioctx_destroy)(self.raw) }
    }
}

/// The image itself.
struct OpenImage {
    raw: RawImage,
    // Dropped after `drop` has closed the image.
    pool: OpenPool,
}

// SAFETY: librbd's functions on an image may be called from any thread, and at the same time.
unsafe impl Send for OpenImage {}
// SAFETY: as above.
unsafe impl Sync for OpenImage {}

impl Drop for OpenImage {
    /// Waits for the requests under way, and releases the lock.
    fn drop(&mut self) {
        // SAFETY: opened by `rbd_open`, and closed once. An error changes nothing: the image is not used any more.
        unsafe { (self.libraries().rbd.rbd_close)(self.raw) };
    }
}

impl OpenImage {
    fn libraries(&self) -> &'static Libraries {
        self.pool.connection.libraries
    }
}

/// An open image. It is closed on another thread, because the cluster may not answer.
pub struct Image {
    name: RbdName,
    /// Distinguishes the images of this process.
    number: u32,
    place: String,
    /// None only while dropping.
    open: Option<OpenImage>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

/// Number of images that were opened.
static NUMBERED: AtomicU32 = AtomicU32::new(0);
/// Number of images that are not closed, and the end of one.
static OPEN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Waits until the images that were dropped are closed, which releases their locks: at the end of a process, for so long at
/// most. Until then the cluster takes the process for one that lives for half a minute more.
pub fn until_closed(limit: Duration) {
    // An error of the lock is a panic elsewhere; nothing depends on the count.
    if let Ok(open) = OPEN.0.lock() {
        drop(OPEN.1.wait_timeout_while(open, limit, |open| *open > 0));
    }
}

fn count_open(change: impl FnOnce(&mut usize)) {
    if let Ok(mut open) = OPEN.0.lock() {
        change(&mut open);
    }
    OPEN.1.notify_all();
}

impl Drop for Image {
    fn drop(&mut self) {
        let open = self.open.take();
        close_elsewhere(move || {
            drop(open);
            count_open(|open| *open -= 1);
        });
    }
}

fn c_text(text: &str, place: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(ErrorKind::Invalid, place, "a name with a zero byte in it"))
}

/// Returns the error of a call that has answered a negative number.
fn checked(result: c_int, place: &str, doing: &'static str) -> Result<c_int> {
    match Errno(-result) {
        _ if result >= 0 => Ok(result),
        e @ (Errno::EPERM | Errno::EACCES) => {
            let cause = format!("{doing}: {e}; {}", remedy_for_caps(place));
            Err(Error::new(e.kind(), place, cause))
        }
        e => Err(e.at(place, doing)),
    }
}

/// Returns the command that gives the client of an image what it needs. `place` is the image's name.
fn remedy_for_caps(place: &str) -> String {
    let name: Option<RbdName> = place.parse().ok();
    let user = name.as_ref().and_then(|name| name.user.as_deref()).unwrap_or("admin");
    let pool = name.as_ref().map_or("POOL", |name| &name.pool);
    format!(
        "the client needs more: `ceph auth caps client.{user} mon 'profile rbd' osd 'profile rbd pool={pool}'`"
    )
}

/// Checks that this client may blocklist others, without which a take-over cannot fence the host that has an image. It
/// blocklists an address that no client has, for a second. This blocks.
pub fn check_fencing(name: &RbdName) -> Result<()> {
    let (pool, place) = (OpenPool::open(name)?, name.to_string());
    let mut address = c"127.0.0.1:0/4294967295".to_owned().into_bytes_with_nul();
    // SAFETY: the text ends with a zero byte, and the library copies it.
    let added = unsafe {
        (pool.connection.libraries.rados.rados_blocklist_add)(
            pool.connection.raw,
            address.as_mut_ptr().cast(),
            1,
        )
    };
    checked(added, &place, "trying the permission to blocklist clients").map(drop)
}

impl OpenPool {
    fn open(name: &RbdName) -> Result<OpenPool> {
        let place = name.to_string();
        let libraries = libraries().map_err(|cause| Error::new(ErrorKind::Unsupported, &place, cause))?;
        let rados = &libraries.rados;
        let user = c_text(&format!("client.{}", name.user.as_deref().unwrap_or("admin")), &place)?;
        let mut raw = null_mut();
        // SAFETY: all texts end with a zero byte and outlive the call.
        let created = unsafe { (rados.rados_create2)(&raw mut raw, c"ceph".as_ptr(), user.as_ptr(), 0) };
        checked(created, &place, "creating a client of Ceph")?;
        let connection = Connection { raw, libraries };
        let config = name.config.as_deref().map(|file| c_text(file, &place)).transpose()?;
        let file = config.as_ref().map_or(null(), |file| file.as_ptr());
        // SAFETY: as above; null stands for the usual places.
        let read = unsafe { (rados.rados_conf_read_file)(raw, file) };
        checked(read, &place, "reading the configuration of Ceph")?;
        // SAFETY: null stands for the variable CEPH_ARGS.
        let read = unsafe { (rados.rados_conf_parse_env)(raw, null()) };
        checked(read, &place, "reading CEPH_ARGS")?;
        // The store has caches of its own. A write that was answered is at the cluster, whatever becomes of this process.
        for (option, value) in [(c"rbd_cache", c"false"), (c"client_mount_timeout", CONNECT_S)] {
            // SAFETY: as above.
            let set = unsafe { (rados.rados_conf_set)(raw, option.as_ptr(), value.as_ptr()) };
            checked(set, &place, "setting an option of Ceph")?;
        }
        // SAFETY: as above.
        let connected = unsafe { (rados.rados_connect)(raw) };
        if connected < 0 {
            let user = name.user.as_deref().unwrap_or("admin");
            let e = Errno(-connected);
            let remedy = match e {
                Errno::EPERM | Errno::EACCES => {
                    format!("is the key in its keyring that of `ceph auth get client.{user}`?")
                }
                _ => "are its keyring and the monitors there?".into(),
            };
            let cause = format!("connecting to Ceph as client.{user}: {e}; {remedy}");
            return Err(Error::new(e.kind(), &place, cause));
        }
        let (pool, mut raw_pool) = (c_text(&name.pool, &place)?, null_mut());
        // SAFETY: as above.
        let opened = unsafe { (rados.rados_ioctx_create)(raw, pool.as_ptr(), &raw mut raw_pool) };
        checked(opened, &place, "opening the pool")?;
        let pool = OpenPool { raw: raw_pool, connection };
        let namespace = c_text(&name.namespace, &place)?;
        // SAFETY: as above.
        unsafe { (rados.rados_ioctx_set_namespace)(pool.raw, namespace.as_ptr()) };
        Ok(pool)
    }
}

impl Image {
    /// Makes an image of `size_bytes`, with Ceph's default features. It must not exist. This blocks.
    pub fn create(name: &RbdName, size_bytes: u64) -> Result<()> {
        let (pool, place) = (OpenPool::open(name)?, name.to_string());
        let (image, mut order) = (c_text(&name.image, &place)?, 0);
        // SAFETY: the pool is open, and the text ends with a zero byte. An order of 0 is the default.
        let made = unsafe {
            (pool.connection.libraries.rbd.rbd_create)(pool.raw, image.as_ptr(), size_bytes, &raw mut order)
        };
        match Errno(-made) {
            Errno::EEXIST => {
                let cause = "creating the image: it exists; leave out --size to use it";
                Err(Error::new(ErrorKind::Exists, &place, cause))
            }
            _ => checked(made, &place, "creating the image").map(drop),
        }
    }

    /// Opens an image, which may be read then. This blocks.
    pub fn open(name: &RbdName) -> Result<Image> {
        let (pool, place) = (OpenPool::open(name)?, name.to_string());
        let (image, mut raw) = (c_text(&name.image, &place)?, null_mut());
        // SAFETY: the pool is open, and the text ends with a zero byte; null stands for no snapshot.
        let opened = unsafe {
            (pool.connection.libraries.rbd.rbd_open)(pool.raw, image.as_ptr(), &raw mut raw, null())
        };
        if opened == -Errno::ENOENT.0 {
            let cause =
                "opening the image: there is none; `unstun datastore create IMAGE --size SIZE` makes it";
            return Err(Error::new(ErrorKind::NotFound, &place, cause));
        }
        checked(opened, &place, "opening the image")?;
        count_open(|open| *open += 1);
        let number = NUMBERED.fetch_add(1, Ordering::Relaxed);
        Ok(Image { number, name: name.clone(), place, open: Some(OpenImage { raw, pool }) })
    }

    fn rbd(&self) -> &'static Rbd {
        &self.open.as_ref().expect("open until it is dropped").libraries().rbd
    }

    fn raw(&self) -> RawImage {
        self.open.as_ref().expect("open until it is dropped").raw
    }

    /// Acquires the exclusive lock, without which the image must not be written. The client `from` loses the lock if it has
    /// it, and the cluster refuses that client's writes from then on; any other owner keeps it. This blocks.
    ///
    /// # Errors
    /// `Locked`: another client has the lock. `Refused`: the image has no exclusive lock.
    pub fn acquire(&self, from: Option<&LockOwner>) -> Result<()> {
        if let Some(LockOwner(owner)) = from {
            self.break_lock(owner)?;
        }
        match self.owner()? {
            // The library would wait for it.
            Some(LockOwner(owner)) if self.is_open_at(&owner)? => {
                return Err(self.locked(Some(LockOwner(owner))));
            }
            // The library breaks the lock of an owner that is gone, and blocklists it.
            _ => {}
        }
        // SAFETY: the image is open.
        let acquired = unsafe { (self.rbd().rbd_lock_acquire)(self.raw(), LOCK_EXCLUSIVE) };
        let refusals = [rustix::io::Errno::ROFS, rustix::io::Errno::BUSY, rustix::io::Errno::AGAIN];
        match Errno(-acquired) {
            _ if acquired >= 0 => Ok(()),
            e if refusals.into_iter().any(|refusal| e == refusal.into()) => Err(self.locked(self.owner()?)),
            e => Err(e.at(&self.place, "acquiring the lock of the image")),
        }
    }

    /// Breaks the lock of an owner, which the cluster blocklists first. Who has become the owner since keeps it.
    fn break_lock(&self, owner: &CStr) -> Result<()> {
        // SAFETY: the image is open, and the text ends with a zero byte.
        let broken = unsafe { (self.rbd().rbd_lock_break)(self.raw(), LOCK_EXCLUSIVE, owner.as_ptr()) };
        // The owner may have released it meanwhile.
        match broken == -Errno::ENOENT.0 {
            true => Ok(()),
            false => checked(broken, &self.place, "breaking the lock of the image").map(drop),
        }
    }

    fn locked(&self, owner: Option<LockOwner>) -> Error {
        let owner = owner
            .map_or("another client".to_owned(), |owner| format!("the client {}", owner.0.to_string_lossy()));
        let cause = format!(
            "{owner} has the exclusive lock of the image, and lives or was alive half a minute ago; stop it there; if its host is \
             dead or cut off, `unstun datastore take-over` takes the image"
        );
        Error::new(ErrorKind::Locked, &self.place, cause)
    }

    /// Returns whether the client at an address has the image open. The cluster takes one for gone that has given no sign for
    /// 30 s (its option `osd_client_watch_timeout`).
    fn is_open_at(&self, address: &CStr) -> Result<bool> {
        let none = Watcher { address: null_mut(), _id: 0, _cookie: 0 };
        let (mut watchers, mut count) = ([none; WATCHERS_MAX], WATCHERS_MAX);
        // SAFETY: the image is open, and the array has room for `count` clients.
        let asked =
            unsafe { (self.rbd().rbd_watchers_list)(self.raw(), watchers.as_mut_ptr(), &raw mut count) };
        checked(asked, &self.place, "asking for the clients of the image")?;
        // SAFETY: the library has filled `count` entries; each text ends with a zero byte.
        let is_open = watchers[..count].iter().any(|one| unsafe { CStr::from_ptr(one.address) } == address);
        // SAFETY: as the library has filled them.
        unsafe { (self.rbd().rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        Ok(is_open)
    }

    /// Releases the exclusive lock, if it is still this client's; nothing is written any more. This blocks.
    pub fn release(&self) -> Result<()> {
        // SAFETY: the image is open.
        let released = unsafe { (self.rbd().rbd_lock_release)(self.raw()) };
        match Errno(-released) {
            // Another host has taken the image over.
            Errno::EINVAL => Ok(()),
            e if e == rustix::io::Errno::SHUTDOWN.into() => Ok(()),
            _ => checked(released, &self.place, "releasing the lock of the image").map(drop),
        }
    }

    /// Returns the image as users name it.
    pub fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    fn refuse_without_lock(&self) -> Result<()> {
        let mut features = 0;
        // SAFETY: the image is open.
        let asked = unsafe { (self.rbd().rbd_get_features)(self.raw(), &raw mut features) };
        checked(asked, &self.place, "asking for the features of the image")?;
        if features & FEATURE_EXCLUSIVE_LOCK != 0 {
            return Ok(());
        }
        let remedy = format!("`rbd feature enable {} exclusive-lock` adds it", self.name.spec());
        let cause = format!("the image has no exclusive lock, so two hosts could write to it; {remedy}");
        Err(Error::refused(&self.place, cause))
    }

    /// Returns the owner of the exclusive lock. This blocks.
    ///
    /// # Errors
    /// `Refused`: the image has no exclusive lock.
    pub fn owner(&self) -> Result<Option<LockOwner>> {
        self.refuse_without_lock()?;
        let (mut mode, mut owners, mut count) = (0, [null_mut::<c_char>(); OWNERS_MAX], OWNERS_MAX);
        let rbd = self.rbd();
        // SAFETY: the array has room for `count` owners.
        let asked = unsafe {
            (rbd.rbd_lock_get_owners)(self.raw(), &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        };
        if asked == -Errno::ENOENT.0 {
            return Ok(None);
        }
        checked(asked, &self.place, "asking for the owner of the lock")?;
        // SAFETY: the library has filled `count` texts, each of which ends with a zero byte.
        let first = (count > 0).then(|| LockOwner(unsafe { CStr::from_ptr(owners[0]) }.to_owned()));
        // SAFETY: as the library has filled them.
        unsafe { (rbd.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(first)
    }

    /// Returns the size in bytes, as the client knows it: without a request to the cluster.
    pub fn size_bytes(&self) -> Result<u64, Errno> {
        let mut size = 0;
        // SAFETY: the image is open.
        match unsafe { (self.rbd().rbd_get_size)(self.raw(), &raw mut size) } {
            0 => Ok(size),
            e => Err(Errno(-e)),
        }
    }

    /// Sets the size in bytes. This blocks.
    pub(crate) fn resize(&self, size_bytes: u64) -> Result<(), Errno> {
        // SAFETY: the image is open.
        match unsafe { (self.rbd().rbd_resize)(self.raw(), size_bytes) } {
            0 => Ok(()),
            e => Err(Errno(-e)),
        }
    }

    /// Starts a request. `done` is called with its result, on a thread of the library or on this one: a number of bytes for a
    /// read, or a negative error.
    pub(crate) fn start(&self, request: &mut Request, done: Box<dyn FnOnce(i64) + Send>) {
        let rbd = self.rbd();
        let argument = Box::into_raw(Box::new(Done(done))).cast();
        let mut completion = null_mut();
        // SAFETY: `completed` takes the argument back, once.
        let created = unsafe { (rbd.rbd_aio_create_completion)(argument, completed, &raw mut completion) };
        assert!(created == 0, "{}: no memory for a completion", self.place);
        let Request { offset, len, transfer } = request;
        let (offset, len) = (*offset, *len);
        let size = usize::try_from(len).expect("64-bit");
        // SAFETY: the owner of the request keeps it, with its buffer, until `done` is called; the image is open until all
        // requests are answered.
        let started = unsafe {
            match transfer {
                Transfer::Read(buf) => {
                    (rbd.rbd_aio_read)(self.raw(), offset, buf.len(), buf.as_mut_ptr().cast(), completion)
                }
                Transfer::Write(data) => {
                    (rbd.rbd_aio_write)(self.raw(), offset, data.len(), data.as_ptr().cast(), completion)
                }
                Transfer::Zero => (rbd.rbd_aio_write_zeroes)(self.raw(), offset, size, completion, 0, 0),
                Transfer::Discard => (rbd.rbd_aio_discard)(self.raw(), offset, len, completion),
                Transfer::Flush => (rbd.rbd_aio_flush)(self.raw(), completion),
            }
        };
        if started < 0 {
            // The request was not begun, and is never completed.
            // SAFETY: the argument is as it was made above, and no other reference to the completion exists.
            let done = unsafe {
                (rbd.rbd_aio_release)(completion);
                Box::from_raw(argument.cast::<Done>())
            };
            (done.0)(started.into());
        }
    }
}

/// The client that has an exclusive lock, by its address. An address is never used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockOwner(CString);

/// What is called when a request is done.
struct Done(Box<dyn FnOnce(i64) + Send>);

/// Called by the library when a request is done.
unsafe extern "C" fn completed(completion: Completion, argument: *mut c_void) {
    // The libraries are loaded, because one of them calls.
    let Ok(libraries) = libraries() else { return };
    // SAFETY: made by `Image::start`, which leaves it to this call; the completion is the one of this request.
    let (done, result) = unsafe {
        let result = (libraries.rbd.rbd_aio_get_return_value)(completion);
        (libraries.rbd.rbd_aio_release)(completion);
        (Box::from_raw(argument.cast::<Done>()), result)
    };
    (done.0)(result as i64);
}

/// A request to an image. Its owner keeps it until it is done.
pub(crate) struct Request {
    pub offset: u64,
    /// Length in bytes of a zero or a discard.
    pub len: u64,
    pub transfer: Transfer,
}

pub(crate) enum Transfer {
    Read(Buf),
    Write(Slice),
    /// Zeros that give their space back.
    Zero,
    Discard,
    Flush,
}

impl Transfer {
    /// Returns a verb phrase for messages about a cluster that does not answer.
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            Transfer::Read(_) => "reading",
            Transfer::Write(_) => "writing",
            Transfer::Zero | Transfer::Discard => "freeing space",
            Transfer::Flush => "flushing a file",
        }
    }
}
