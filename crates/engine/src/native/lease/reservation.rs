//! Persistent reservations: the device itself refuses the I/O of hosts that have lost the lease, however late it arrives.
//!
//! An opening registers before its claim is written, because only registered hosts may write a reserved device, and
//! takes the reservation over from the owner that the page names. Until it may claim, it takes no step, and each step has
//! to start within the time that a claim has from the read that allows it: an opening that is paused in between must not
//! take the device from an owner that has claimed the lease anew.

use blk::reactor::Reservation;
use blk::{Error, ErrorKind, Result};

use super::lease_file::LeaseFile;
use super::page::Owner;
use crate::options::{Defect, Defects};

/// The upper half of all keys: "unst", so that people see whose key it is.
const KEY_HEAD: u64 = 0x756e_7374 << 32;

impl Owner {
    /// Returns the key under which the owner registers with the device.
    pub fn reservation_key(&self) -> u64 {
        KEY_HEAD | u64::from(self.id as u32)
    }
}

/// An opening that wants the reservation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// Its key.
    pub own: u64,
    /// The key of the owner that the page names.
    pub former: u64,
    /// Boot time by which each step has to start.
    pub until_ns: u64,
    pub defects: Defects,
}

/// How far an opening goes to get the reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// It takes over from the owner that the page names.
    FromFormerOwner,
    /// From anybody, on the user's word.
    FromAnybody,
}

impl LeaseFile {
    /// Registers with the device, and reserves it in place of the former owner.
    ///
    /// # Errors
    /// `Refused`: another program or host holds the device. It is left to it. `Unsupported`: the device has no
    /// reservations. `LeaseLost`: a step was late.
    pub(super) async fn make_reservation(&self, wish: Wish, reach: Reach) -> Result<()> {
        let Wish { own, former, until_ns, defects } = wish;
        let take = |step| self.reserve(step, until_ns);
        if !self.register(wish).await? {
            if reach != Reach::FromAnybody {
                return Err(self.held("another program has registered this host with the device"));
            }
            take(Reservation::RegisterAnyway { key: own }).await?;
        }
        self.registered.set(Some(own));
        if defects.has(Defect::ReservationLeft) {
            return Ok(());
        }
        if take(Reservation::Reserve { key: own }).await?
            || take(Reservation::Preempt { key: own, other: former }).await?
        {
            return Ok(());
        }
        if reach == Reach::FromAnybody {
            take(Reservation::Clear { key: own }).await?;
            take(Reservation::Register { instead: 0, key: own }).await?;
            if take(Reservation::Reserve { key: own }).await? {
                return Ok(());
            }
        }
        self.give_up().await?;
        Err(self.held("another host or a cluster manager has reserved the device"))
    }

    /// Ends the registration, if there is one, and the reservation with it.
    pub(super) async fn give_up(&self) -> Result<()> {
        match self.registered.take() {
            Some(own) => {
                self.reserve(Reservation::Register { instead: own, key: 0 }, u64::MAX).await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// Registers a host that is not registered, or is with a key of its own: this opening's, from an earlier attempt, or
    /// that of an opening of this host that was killed.
    async fn register(&self, Wish { own, former, until_ns, .. }: Wish) -> Result<bool> {
        for instead in [0, own, former] {
            if self.reserve(Reservation::Register { instead, key: own }, until_ns).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn held(&self, what: &str) -> Error {
        let cause = format!(
            "{what}, by a key that the store's lease does not name; if it is a cluster manager's, leave the fencing to it \
             (`unstun datastore add PATH --reservations off`); if nothing uses the device any more, `unstun datastore \
             take-over` clears it"
        );
        Error::new(ErrorKind::Refused, self.file.name(), cause)
    }
}
