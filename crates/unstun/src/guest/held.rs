//! A guest that is held for a snapshot: its record, and its release, which is tried for as long as the guest does not answer.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use api::GuestAccess;
use tokio::sync::oneshot;
use tracing::{error, info};

use super::lines::Lines;
use super::record::{Held, all};
use super::{Guest, Record};

/// Limits of the waits for a guest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waits {
    /// For the agent's first answer, before anything is frozen.
    pub reach: Duration,
    /// For the answer that the file systems are frozen: a hook in the guest may have to write a database's memory.
    pub freeze: Duration,
    pub thaw: Duration,
    /// Between two tries to thaw.
    pub again: Duration,
    /// From the first try to thaw to the last.
    pub tries: Duration,
}

pub(super) const WAITS: Waits = Waits {
    reach: Duration::from_secs(5),
    freeze: Duration::from_secs(10),
    thaw: Duration::from_secs(5),
    again: Duration::from_secs(1),
    tries: Duration::from_secs(600),
};

/// A guest that is held or may be, and where its record is.
#[derive(Clone)]
pub(crate) struct HeldGuest {
    pub record: Record,
    /// Folder of the main datastore, which has the records.
    pub datastore: PathBuf,
    pub guests_dir: PathBuf,
}

/// What became of a guest that was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Released {
    /// It goes on. Nothing was frozen, or it is not known whether anything was.
    GoesOn,
    /// Its file systems were frozen until then.
    Thawed,
    /// Its QEMU has ended.
    Ended,
}

impl Released {
    /// `file_systems` is what the guest says that it has thawed.
    pub(super) fn of(file_systems: Option<u64>) -> Released {
        if file_systems.is_some_and(|count| count > 0) { Released::Thawed } else { Released::GoesOn }
    }
}

/// Why a guest is not held.
pub(crate) struct NotHeld {
    pub cause: String,
    /// Where it may be held nevertheless: what became of it, later.
    pub later: Option<oneshot::Receiver<String>>,
}

impl From<String> for NotHeld {
    fn from(cause: String) -> NotHeld {
        NotHeld { cause, later: None }
    }
}

/// The right to hold a guest: one thread at a time has it. It is given back before the thread's last answer, upon which the
/// next take may begin.
pub(super) struct Busy(Arc<AtomicBool>);

impl Busy {
    pub(super) fn begin(busy: &Arc<AtomicBool>) -> Option<Busy> {
        (!busy.swap(true, Ordering::AcqRel)).then(|| Busy(busy.clone()))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Starts a thread that holds a guest, and returns its first answer.
pub(super) async fn hold<T: Send + 'static>(
    name: &str,
    busy: &Arc<AtomicBool>,
    work: impl FnOnce(Busy, oneshot::Sender<Result<T, NotHeld>>) + Send + 'static,
) -> Result<T, NotHeld> {
    let Some(busy) = Busy::begin(busy) else {
        return Err("an earlier snapshot still holds this guest".to_owned().into());
    };
    let (answer, answered) = oneshot::channel();
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || work(busy, answer));
    spawned.map_err(|e| format!("a thread to hold the guest: {e}"))?;
    answered.await.unwrap_or_else(|_| Err("the thread that holds the guest has ended".to_owned().into()))
}

impl HeldGuest {
    pub(super) fn reach(&self, until: Instant) -> Result<Guest, String> {
        Guest::reach(&self.record.held, &self.record.vm, &self.guests_dir, until)
    }

    /// Removes the record: the guest is not held.
    pub(super) fn forget(&self) {
        self.record.remove(&self.datastore);
    }

    /// Releases the guest if an earlier take has left it held, as its record says. Tries it once. Returns whether the guest may
    /// be frozen still, as this take's own record says, too: it must stay if the guest cannot be frozen now.
    ///
    /// # Errors
    /// The guest may be held in another way: the record of this take would replace that one, and the guest would be on no
    /// record.
    pub(super) fn release_earlier(&self, waits: Waits) -> Result<bool, String> {
        let all = all(&self.datastore).into_iter();
        let Some(record) = all.into_iter().find(|record| record.vm == self.record.vm) else {
            return Ok(false);
        };
        let earlier = HeldGuest { record, ..self.clone() };
        let once = Waits { tries: Duration::ZERO, ..waits };
        let (was, is) = (&earlier.record.held, &self.record.held);
        let released = match (earlier.thaw_until(once), was, is) {
            // The guest may be reached in another way by now. That it has thawed something shows that it is this one.
            (Err(cause), Held::Frozen(_), Held::Frozen(_)) if was != is => match self.thaw_until(once) {
                Ok(Released::Thawed) => Ok(Released::Thawed),
                _ => Err(cause),
            },
            (released, ..) => released,
        };
        match released {
            Ok(_) => {
                earlier.forget();
                info!("VM {}: what an earlier snapshot may have left held goes on", self.record.vm);
                Ok(false)
            }
            Err(_) if was == is && matches!(is, Held::Frozen(_)) => Ok(true),
            Err(cause) => {
                let [_, may_not, remedy] = was.sentences();
                Err(format!("{may_not} since an earlier snapshot: {cause}; {remedy}"))
            }
        }
    }

    /// Returns whether no QEMU has the socket of the guest any more, so that the guest has ended. The absent socket of an agent may
    /// be out of sight of this process, and a guest that stays frozen does more harm than a record that stays.
    fn is_gone(&self, until: Instant) -> bool {
        let (socket, gone): (_, &[ErrorKind]) = match &self.record.held {
            Held::Stopped { monitor, .. } => (monitor, &[ErrorKind::ConnectionRefused, ErrorKind::NotFound]),
            Held::Frozen(GuestAccess::Agent(path)) => (path, &[ErrorKind::ConnectionRefused]),
            Held::Frozen(_) => return false,
        };
        Lines::connect(socket, until).is_err_and(|e| gone.contains(&e.kind()))
    }

    /// Tries to release the guest until it says that it goes on.
    pub(super) fn thaw_until(&self, waits: Waits) -> Result<Released, String> {
        let until = Instant::now() + waits.tries;
        loop {
            let reached = self.reach(Instant::now() + waits.reach);
            let thawed = reached.and_then(|mut guest| guest.thaw(Instant::now() + waits.thaw));
            if thawed.is_err() && self.is_gone(Instant::now() + waits.reach) {
                return Ok(Released::Ended);
            }
            if thawed.is_ok() || Instant::now() + waits.again >= until {
                return thawed.map(Released::of);
            }
            thread::park_timeout(waits.again);
        }
    }

    /// Returns what became of a guest that was not released at once, and writes it to the log.
    pub(super) fn report(&self, thawed: Result<Released, String>) -> String {
        let vm = &self.record.vm;
        let [gone_on, may_not, remedy] = self.record.held.sentences();
        match thawed {
            Ok(released) => {
                self.forget();
                let ended =
                    "the guest that a snapshot held has ended: its QEMU's socket has no listener any more";
                let sentence = if released == Released::Ended { ended } else { gone_on }.to_owned();
                info!("VM {vm}: {sentence}");
                sentence
            }
            Err(cause) => {
                let sentence = format!("{may_not}: {cause}; {remedy}");
                error!("VM {vm}: {sentence}");
                sentence
            }
        }
    }
}

/// Time for which a guest is tried to be thawed without a daemon.
const WITHOUT_DAEMON: Duration = Duration::from_secs(10);
/// The same for a guest that stands still. A QEMU that waits for its disks does not answer, and the daemon's start, which
/// this may hold up, releases it.
const STOPPED_WITHOUT_DAEMON: Duration = Duration::from_secs(1);

/// Thaws a guest that a daemon may have left frozen, and removes its record. Tries it for `tries`, or for as long as its kind
/// is worth.
pub(crate) fn thaw_recorded(guest: &HeldGuest, tries: Option<Duration>) -> Result<(), String> {
    let thawed = match &guest.record.held {
        Held::Stopped { .. } => {
            let tries = tries.unwrap_or(STOPPED_WITHOUT_DAEMON);
            let starts =
                "a QEMU that waits for its disks does not answer; the daemon's start lets the guest run on";
            let thawed = guest.thaw_until(Waits { reach: STOPPED_WITHOUT_DAEMON, tries, ..WAITS });
            thawed.map_err(|cause| format!("{cause}; {starts}"))
        }
        Held::Frozen(_) => guest.thaw_until(Waits { tries: tries.unwrap_or(WITHOUT_DAEMON), ..WAITS }),
    };
    thawed?;
    guest.forget();
    Ok(())
}

/// Does the same for a daemon that starts. No freeze of the guest begins meanwhile. Returns what became of it.
pub(crate) fn thaw_left(guest: &HeldGuest, busy: &Arc<AtomicBool>) -> String {
    let _busy = loop {
        match Busy::begin(busy) {
            Some(busy) => break busy,
            None => thread::park_timeout(WAITS.again),
        }
    };
    let is_left = all(&guest.datastore).contains(&guest.record);
    // A take that held the guest meanwhile has released it.
    let released = if is_left { guest.thaw_until(WAITS) } else { Ok(Released::GoesOn) };
    guest.report(released)
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
