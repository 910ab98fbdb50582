//! Leases of stores that other hosts can reach: the identity of this daemon, the owners that have ended for certain,
//! and the lock that separates the daemons of one host without any wait.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::{self, File as OpenFile, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::rc::Rc;

use blk::{Env, Error, ErrorKind, File, Result};
use engine::native::superblock::Superblock;
use engine::native::{Claimant, Lease, LeaseTimes, Owner, TakeOver};
use nix::libc;
use rustix::fs::FlockOperation;
use tracing::error;

/// Variable that systemd sets for a unit with RuntimeDirectory=unstun.
const RUN_VARIABLE: &str = "RUNTIME_DIRECTORY";
const RUN_DEFAULT: &str = "/run/unstun";

thread_local! {
    /// IDs of the openings of this process that may still write.
    static LIVE: RefCell<BTreeSet<u128>> = const { RefCell::new(BTreeSet::new()) };
}

/// What a user wants of the lease of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub take_over: TakeOver,
    /// Whether owners reserve the device; None leaves it as the lease has it.
    pub reserves: Option<bool>,
}

impl From<TakeOver> for Wanted {
    fn from(take_over: TakeOver) -> Wanted {
        Wanted { take_over, reserves: None }
    }
}

/// Lease that this daemon owns.
pub(crate) struct Leased {
    pub lease: Rc<Lease>,
    id: u128,
    released: Rc<Cell<bool>>,
    _lock: OpenFile,
}

impl Leased {
    /// Releases the lease. The store must be closed.
    pub(crate) async fn release(&self) -> Result<()> {
        self.released.set(true);
        self.lease.release().await
    }

    /// Ends the lease without a write, for a store that is not there any more.
    pub(crate) async fn abandon(&self) -> Result<()> {
        self.released.set(true);
        self.lease.abandon().await
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        LIVE.with(|live| live.borrow_mut().remove(&self.id));
    }
}

/// Returns whether the daemon that the lease of the store in `file` names has ended for certain.
pub(crate) async fn holder_has_ended(env: &Env, file: &File) -> Result<bool> {
    let own = own(env)?;
    Ok(Lease::holder(env, file.clone()).await.is_some_and(|holder| has_ended(&own, &holder)))
}

/// Refuses a store that another daemon of this host serves, as `acquire` does. What is no store passes.
pub(crate) async fn refuse_served_here(file: &File) -> Result<()> {
    match Superblock::read(file).await {
        Ok(found) => lock_by_id(found.newest.store_id, file.name()).map(drop),
        Err(_) => Ok(()),
    }
}

/// Acquires the lease of the store in `file`, which is a handle of its own. `is_exclusive`: no other client can write the
/// file, whatever its lease says.
///
/// # Errors
/// `Locked`: another owner has the lease and lives. `Refused`: the state of its owner is unknown. `Invalid`: not a
/// store.
pub(crate) async fn acquire(
    env: &Env,
    file: File,
    Wanted { take_over, reserves }: Wanted,
    is_exclusive: bool,
) -> Result<Leased> {
    refuse_cached(&file)?;
    let superblock = Superblock::read(&file).await?.newest;
    let lock = lock_by_id(superblock.store_id, file.name())?;
    let owner = own(env)?;
    let id = owner.id;
    let has_ended: Rc<dyn Fn(&Owner) -> bool> = {
        let own = owner.clone();
        Rc::new(move |other| is_exclusive || has_ended(&own, other))
    };
    let take_over = if is_exclusive { TakeOver::FromAnyOwner } else { take_over };
    let claimant = Claimant { owner, terms: LeaseTimes::default(), take_over, reserves, has_ended };
    LIVE.with(|live| live.borrow_mut().insert(id));
    let claimed = Lease::acquire(env, file, claimant).await;
    let lease = claimed.inspect_err(|_| {
        LIVE.with(|live| live.borrow_mut().remove(&id));
    })?;
    let released = Rc::new(Cell::new(false));
    log_loss(env, &lease, &released);
    Ok(Leased { lease, id, released, _lock: lock })
}

/// Refuses a file behind the page cache: a host would read its own copy of the lease, and take it from an owner that
/// lives.
fn refuse_cached(file: &File) -> Result<()> {
    if file.limits().direct {
        return Ok(());
    }
    let cause = "other hosts can reach this file system, and without direct I/O (O_DIRECT) they do not see the lease \
                 of a store; mount it with direct I/O, or use a local file system";
    Err(Error::refused(file.name(), cause))
}

fn log_loss(env: &Env, lease: &Rc<Lease>, released: &Rc<Cell<bool>>) {
    let (fence, released) = (lease.fence(), released.clone());
    env.spawn_detached(Box::pin(async move {
        let cause = fence.until_lost().await;
        if !released.get() {
            error!("{cause}");
        }
    }));
}

/// Returns the identity of this opening as other hosts see it.
fn own(env: &Env) -> Result<Owner> {
    let pid = u64::from(std::process::id());
    let namespace = fs::metadata("/proc/self/ns/pid").map(|at| at.ino());
    Ok(Owner {
        id: u128::from(env.random()) << 64 | u128::from(env.random()),
        boot_id: boot_id().unwrap_or(0),
        process_namespace: namespace.unwrap_or(0),
        pid,
        started: started(pid).unwrap_or(0),
        host: read("/proc/sys/kernel/hostname").unwrap_or_default().chars().take(63).collect(),
    })
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

/// Returns the random ID of the running kernel's boot.
fn boot_id() -> Option<u128> {
    u128::from_str_radix(&read("/proc/sys/kernel/random/boot_id")?.replace('-', ""), 16).ok()
}

/// Returns the start of a process in clock ticks since the boot; None if there is no such process. The process name is
/// in parentheses and may contain anything. The number is the 20th field after them (proc_pid_stat(5)).
fn started(pid: u64) -> Option<u64> {
    let stat = read(&format!("/proc/{pid}/stat"))?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Returns whether the owner has ended for certain. A pid is meaningful only on the same boot and in the same
/// namespace. What cannot be read is no proof.
fn has_ended(own: &Owner, other: &Owner) -> bool {
    let same_host = own.boot_id == other.boot_id && own.process_namespace == other.process_namespace;
    if !same_host || own.boot_id == 0 || own.process_namespace == 0 || other.started == 0 {
        return false;
    }
    if (own.pid, own.started) == (other.pid, other.started) {
        return LIVE.with(|live| !live.borrow().contains(&other.id));
    }
    match fs::metadata(format!("/proc/{}", other.pid)) {
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        Ok(_) => started(other.pid).is_some_and(|started| started != other.started),
    }
}

/// Locks a store's ID on this host. Two nodes of one device have the same store's ID, so the daemons of a host need no
/// lease to detect each other.
fn lock_by_id(store_id: u64, name: &str) -> Result<OpenFile> {
    let folder = run_folder();
    let path = folder.join(format!("store-{store_id:016x}.lock"));
    let failed = |e: std::io::Error| blk::Errno::from(e).at(path.to_string_lossy(), "locking the store's id");
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder);
    made.map_err(failed)?;
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let cause = "another unstun daemon on this host serves this store, by another path of the device";
            Err(Error::new(ErrorKind::Locked, name, cause))
        }
        Err(e) => Err(failed(e.into())),
    }
}

/// Returns a folder that belongs to this host alone and is empty after a boot.
fn run_folder() -> PathBuf {
    if let Some(given) = std::env::var_os(RUN_VARIABLE).filter(|given| !given.is_empty()) {
        return given.into();
    }
    let user = fs::metadata("/proc/self").map_or(0, |own| own.uid());
    if user == 0 {
        return RUN_DEFAULT.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|given| !given.is_empty()) {
        Some(given) => PathBuf::from(given).join("unstun"),
        None => std::env::temp_dir().join(format!("unstun-{user}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        let pid = u64::from(std::process::id());
        let started = started(pid).expect("this process runs");
        Owner { id: 1, boot_id: boot_id().unwrap(), process_namespace: 7, pid, started, host: String::new() }
    }

    #[test]
    fn a_process_of_this_boot_that_is_gone_has_ended_and_nothing_else_is_proof() {
        let own = owner();
        let ended = |other: Owner| has_ended(&own, &other);
        assert!(ended(Owner { pid: 1 << 40, ..own.clone() }), "no process has that number");
        assert!(ended(Owner { pid: 1, started: u64::MAX, ..own.clone() }), "its number is another's now");
        assert!(!ended(Owner { pid: 1, started: started(1).unwrap(), ..own.clone() }));
        assert!(
            !ended(Owner { pid: 1 << 40, boot_id: 5, ..own.clone() }),
            "of another host, or another boot"
        );
        assert!(!ended(Owner { pid: 1 << 40, process_namespace: 8, ..own.clone() }), "of another container");
        assert!(!ended(Owner { pid: 1 << 40, started: 0, ..own.clone() }));
        assert!(ended(Owner { id: 2, ..own.clone() }), "an opening of this process that is over");
        LIVE.with(|live| live.borrow_mut().insert(2));
        assert!(!ended(Owner { id: 2, ..own.clone() }));
    }
}
