//! Persistent reservations: the device itself refuses the I/O of hosts that have lost the lease, however late it arrives.
//!
//! An opening registers before its claim is written, because only registered hosts may write a reserved device, and
//! takes the reservation over from the owner that the page names. Until it may claim, it takes no step. An opening that
//! is paused in between takes over nothing from an owner that has come since: that owner's key is another one.

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

/// How far an opening goes to get the reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// It takes over from the owner that the page names.
    FromFormerOwner,
    /// From anybody, on the user's word.
    FromAnybody,
}

impl LeaseFile {
    /// Registers with the key `own`, and reserves the device in place of the key `former`.
    ///
    /// # Errors
    /// `Refused`: another program or host holds the device. It is left to it. `Unsupported`: the device has no
    /// reservations.
    pub(super) async fn reserve(&self, own: u64, former: u64, reach: Reach, defects: Defects) -> Result<()> {
        if !self.register(own, former).await? {
            if reach != Reach::FromAnybody {
                return Err(self.held("another program has registered this host with the device"));
            }
            self.take(Reservation::RegisterAnyway { key: own }).await?;
        }
        self.registered.set(Some(own));
        if defects.has(Defect::ReservationLeft) {
            return Ok(());
        }
        if self.take(Reservation::Reserve { key: own }).await?
            || self.take(Reservation::Preempt { key: own, other: former }).await?
        {
            return Ok(());
        }
        if reach == Reach::FromAnybody {
            self.take(Reservation::Clear { key: own }).await?;
            self.take(Reservation::Register { instead: 0, key: own }).await?;
            if self.take(Reservation::Reserve { key: own }).await? {
                return Ok(());
            }
        }
        self.give_up().await?;
        Err(self.held("another host or a cluster manager has reserved the device"))
    }

    /// Ends the registration, if there is one, and the reservation with it.
    pub(super) async fn give_up(&self) -> Result<()> {
        match self.registered.take() {
            Some(own) => self.take(Reservation::Register { instead: own, key: 0 }).await.map(drop),
            None => Ok(()),
        }
    }

    /// Registers a host that is not registered, or is with a key of its own: this opening's, from an earlier attempt, or
    /// that of an opening of this host that was killed.
    async fn register(&self, own: u64, former: u64) -> Result<bool> {
        for instead in [0, own, former] {
            if self.take(Reservation::Register { instead, key: own }).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn take(&self, step: Reservation) -> Result<bool> {
        self.open_starts();
        self.file.reserve(step).await
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
