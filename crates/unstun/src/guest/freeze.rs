//! A guest whose file systems are frozen for a moment. A thread of its own freezes and thaws them: it thaws them in time
//! whatever the rest of the daemon waits for, and goes on trying where the guest does not answer.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use api::units::format_us;
use tokio::sync::oneshot;

use super::Guest;
use super::fault::NotFrozen;
use super::held::{Busy, HeldGuest, NotHeld, Released, WAITS, Waits, hold, micros};

/// What is needed to freeze a guest.
#[derive(Clone)]
pub(crate) struct Freeze {
    pub guest: HeldGuest,
    /// Time after which the file systems are thawed in any case.
    pub frozen_max: Duration,
    /// Whether a freeze of this guest is under way, or one that is not undone yet.
    pub busy: Arc<AtomicBool>,
}

/// Frozen file systems. They are thawed when this is dropped, and after `frozen_max` at the latest.
pub(crate) struct Frozen {
    pub file_systems: Option<u64>,
    pub freeze_us: u64,
    release: Sender<()>,
    thawed: oneshot::Receiver<Thawed>,
}

/// How a freeze has ended.
pub(crate) struct Thawed {
    /// Time from the guest's answer that the file systems are frozen to its answer that they are thawed.
    pub frozen_us: u64,
    /// Whether they were frozen until `Frozen::thaw` was called; otherwise `Err` with the cause.
    pub held: Result<(), String>,
    /// Where the guest has not said that they are thawed: what became of it, later.
    pub later: Option<oneshot::Receiver<String>>,
}

impl Frozen {
    /// Thaws the file systems, and waits for the guest's answer.
    pub(crate) async fn thaw(self) -> Thawed {
        drop(self.release);
        let gone =
            |_| Thawed { frozen_us: 0, held: Err("the thread that thaws has ended".to_owned()), later: None };
        self.thawed.await.unwrap_or_else(gone)
    }
}

/// Freezes the file systems of a guest.
pub(crate) async fn freeze(freeze: Freeze) -> Result<Frozen, NotHeld> {
    begin(freeze, WAITS).await
}

pub(super) async fn begin(freeze: Freeze, waits: Waits) -> Result<Frozen, NotHeld> {
    let (release, released) = channel();
    let flag = freeze.busy.clone();
    let work = move |busy, begun| freeze.run(waits, busy, begun, &released);
    let (file_systems, freeze_us, thawed) = hold("freeze", &flag, work).await?;
    Ok(Frozen { file_systems, freeze_us, release, thawed })
}

/// What the thread says once the file systems are frozen.
type Begun = Result<(Option<u64>, u64, oneshot::Receiver<Thawed>), NotHeld>;

impl Freeze {
    fn run(&self, waits: Waits, busy: Busy, begun: oneshot::Sender<Begun>, released: &Receiver<()>) {
        let (mut guest, was_left) = match self.prepare(waits) {
            Ok(prepared) => prepared,
            Err(cause) => {
                drop(busy);
                return drop(begun.send(Err(cause.into())));
            }
        };
        let before = Instant::now();
        let fault = match guest.freeze(before + waits.freeze) {
            Ok(Some(0)) => {
                // The agent, or the meaning of what a command says, may be another than expected.
                NotFrozen { cause: "the guest has frozen no file system".to_owned(), may_be: true }
            }
            Ok(count) => {
                let frozen = Instant::now();
                let (thaw, thawed) = oneshot::channel();
                let answer = (count, micros(frozen - before), thawed);
                // Without a taker there is nothing to wait for.
                let is_taken = begun.send(Ok(answer)).is_ok();
                let in_time =
                    !is_taken || released.recv_timeout(self.frozen_max) != Err(RecvTimeoutError::Timeout);
                return self.end(waits, busy, guest, (frozen, in_time), thaw);
            }
            Err(fault) => fault,
        };
        let fault = match was_left {
            true => {
                let left = "an earlier snapshot may have left its file systems frozen";
                NotFrozen { cause: format!("{}; {left}", fault.cause), may_be: true }
            }
            false => fault,
        };
        if !fault.may_be {
            self.guest.forget();
            drop(busy);
            return drop(begun.send(Err(fault.cause.into())));
        }
        let (end, later) = oneshot::channel();
        let _ = begun.send(Err(NotHeld { cause: fault.cause, later: Some(later) }));
        let first = guest.thaw(Instant::now() + waits.thaw);
        // The agent has one client at a time.
        drop(guest);
        let report = self.guest.report(first.map(Released::of).or_else(|_| self.guest.thaw_until(waits)));
        drop(busy);
        let _ = end.send(report);
    }

    /// Records the freeze and reaches the guest. Returns whether an earlier take may have left it frozen.
    fn prepare(&self, waits: Waits) -> Result<(Guest, bool), String> {
        let was_left = self.guest.release_earlier(waits)?;
        let guest = self.guest.reach(Instant::now() + waits.reach)?;
        self.guest.record.write(&self.guest.datastore)?;
        Ok((guest, was_left))
    }

    fn end(
        &self,
        waits: Waits,
        busy: Busy,
        mut guest: Guest,
        (frozen, in_time): (Instant, bool),
        thawed: oneshot::Sender<Thawed>,
    ) {
        let answer = guest.thaw(Instant::now() + waits.thaw);
        let frozen_us = micros(frozen.elapsed());
        let held = match &answer {
            Ok(Some(0)) => Err("another program thawed the guest's file systems meanwhile".to_owned()),
            Ok(_) if in_time => Ok(()),
            Ok(_) => {
                let max = format_us(micros(self.frozen_max));
                Err(format!(
                    "the snapshot was not taken within {max}, after which the file systems are thawed"
                ))
            }
            Err(cause) => Err(format!("{cause}; its file systems may be frozen, and are being thawed")),
        };
        if answer.is_ok() {
            self.guest.forget();
            drop(busy);
            let _ = thawed.send(Thawed { frozen_us, held, later: None });
            return;
        }
        drop(guest);
        let (end, later) = oneshot::channel();
        let _ = thawed.send(Thawed { frozen_us, held, later: Some(later) });
        let report = self.guest.report(self.guest.thaw_until(waits));
        drop(busy);
        let _ = end.send(report);
    }
}
