//! The lease of a store that several hosts can reach. One opening owns it, writes heartbeats, and stops when it cannot.
//!
//! `docs/formats/native.md`, "Lease", has the protocol and why at most one opening writes at any moment.

mod claim;
mod claimant;
mod lease_file;
mod page;
mod reservation;
#[cfg(test)]
mod reservation_tests;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};

use blk::sync::{Signal, TaskMutex};
use blk::{Env, Error, ErrorKind, Fence, File, Result};
use futures_util::future::select;

use self::claim::{ClaimOutcome, claim, describe};
pub use self::claimant::{Claimant, LeaseTimes, TakeOver};
use self::lease_file::LeaseFile;
pub use self::page::Owner;
pub(crate) use self::page::{LeasePage, LeaseState};
use super::superblock::Superblock;
use crate::options::Defect;

/// A lease that is owned until it is released or lost.
pub struct Lease {
    env: Env,
    file: LeaseFile,
    terms: LeaseTimes,
    /// The page of the last write.
    page: RefCell<LeasePage>,
    /// Boot time before the submission of the last heartbeat that completed.
    heartbeat_ns: Cell<u64>,
    fence: Rc<Fence>,
    /// Held by a user of the page.
    turn: TaskMutex,
    ended: Cell<bool>,
    woken: Rc<Signal>,
}

impl Lease {
    /// Claims the lease of the store in `file`, and writes heartbeats from then on. `file` is a handle of its own: it
    /// gets a fence that the store's handle must not have.
    ///
    /// # Errors
    /// `Locked`: the owner is alive. `Refused`: the owner writes no heartbeats. `Invalid`: `file` is not a store.
    pub async fn acquire(env: &Env, file: File, claimant: Claimant) -> Result<Rc<Lease>> {
        let superblock = Superblock::read(&file).await?.newest;
        let file = LeaseFile::new(env, file, superblock.store_id);
        let claimed = claim(&file, &claimant).await;
        // Without a claim, or without a wish for it; it was necessary if the former owner had reserved the device.
        if !claimed.as_ref().is_ok_and(|(page, _)| page.reserves) {
            let given_up = file.give_up().await;
            claimed.as_ref().map_err(Error::clone)?;
            given_up?;
        }
        let (page, heartbeat_ns) = claimed?;
        let lease = Rc::new(Lease {
            env: env.clone(),
            file,
            terms: claimant.terms,
            page: RefCell::new(page),
            heartbeat_ns: Cell::new(heartbeat_ns),
            fence: Fence::waiting(env),
            turn: TaskMutex::default(),
            ended: Cell::new(false),
            woken: Rc::default(),
        });
        lease.open_fence(heartbeat_ns);
        lease.beat().await?;
        let beating = Rc::downgrade(&lease);
        env.spawn_detached(Box::pin(write_heartbeats(env.clone(), beating)));
        Ok(lease)
    }

    /// Returns the owner that the lease of the store in `file` names; None if it was released, or cannot be read.
    pub async fn holder(env: &Env, file: File) -> Option<Owner> {
        let superblock = Superblock::read(&file).await.ok()?.newest;
        let page = LeaseFile::new(env, file, superblock.store_id).read().await.ok()?.page.ok()?;
        (page.state != LeaseState::Released).then_some(page.owner)
    }

    /// Returns the fence that the store's file has to use.
    pub fn fence(&self) -> Rc<Fence> {
        self.fence.clone()
    }

    /// Returns the random number of the store that the lease is for.
    pub fn store_id(&self) -> u64 {
        self.file.store_id
    }

    /// Returns why nothing may be written any more; None while the lease is owned.
    pub fn lost(&self) -> Option<Error> {
        self.fence.lost()
    }

    /// Returns the number of the claim; each claim of the store has a higher one.
    pub fn epoch(&self) -> u64 {
        self.page.borrow().epoch
    }

    /// Returns whether the device refuses the writes of other hosts.
    pub fn reserves(&self) -> bool {
        self.page.borrow().reserves
    }

    fn expires_ns(&self) -> u64 {
        self.heartbeat_ns.get() + self.terms.expiry_us * 1000
    }

    /// Extends the fence after a heartbeat that was submitted at `at_ns` has completed.
    fn open_fence(&self, at_ns: u64) {
        let late = self.terms.defects.has(Defect::HeartbeatCountedFromItsEnd);
        self.heartbeat_ns.set(if late { self.env.boot_ns() } else { at_ns });
        let unfenced = self.terms.defects.has(Defect::HolderWithoutFence);
        self.fence.open_until(if unfenced { u64::MAX } else { self.expires_ns() });
    }

    fn lose(&self, cause: impl Into<String>) -> Error {
        let cause = Error::new(ErrorKind::LeaseLost, self.file.file.name(), cause);
        self.fence.lose(cause.clone());
        cause
    }

    /// Reads the page, and writes it with the next counter.
    async fn beat(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        if self.ended.get() {
            return Ok(());
        }
        self.check_own().await?;
        if self.env.boot_ns() >= self.expires_ns() {
            return self.claim_again().await;
        }
        let at_ns = self.env.boot_ns();
        match self.write(LeaseState::Held).await {
            Ok(()) => self.open_fence(at_ns),
            // The write was late; the next heartbeat claims the lease anew.
            Err(e) if e.kind == ErrorKind::LeaseLost => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    async fn write(&self, state: LeaseState) -> Result<()> {
        let mut page = self.page.borrow().clone();
        page.state = state;
        page.heartbeat += 1;
        page.heartbeat_unix_us = self.env.unix_us();
        self.file.write(&page, self.expires_ns()).await?;
        *self.page.borrow_mut() = page;
        Ok(())
    }

    /// Checks that the page names this owner; otherwise the lease is lost permanently (`LeaseLost`).
    async fn check_own(&self) -> Result<()> {
        let seen = self.file.read().await?;
        match &seen.page {
            Ok(page) if page.owner.id == self.page.borrow().owner.id => Ok(()),
            Ok(page) => Err(self.lose(format!(
                "{} serves the store now; nothing more is written from here",
                describe(page, self.env.unix_us())
            ))),
            Err(e) => Err(self.lose(format!("its lease cannot be read any more ({})", e.cause))),
        }
    }

    /// Claims the lease again after a heartbeat was not written in time. The page still names this owner, so no other
    /// host has written the store meanwhile.
    async fn claim_again(&self) -> Result<()> {
        let seen = self.file.read().await?;
        let owned = self.page.borrow().clone();
        let epoch = match &seen.page {
            Ok(page) if page.owner.id == owned.owner.id => page.epoch + 1,
            _ => return self.check_own().await,
        };
        match self.file.try_claim(&seen, epoch, &owned.owner, owned.reserves, &self.terms).await? {
            ClaimOutcome::Confirmed(page, at_ns) => {
                *self.page.borrow_mut() = LeasePage { since_unix_us: owned.since_unix_us, ..page };
                self.open_fence(at_ns);
                Ok(())
            }
            ClaimOutcome::NotStarted => Ok(()),
            // The claim may have been written over the page of an owner that has changed the store.
            ClaimOutcome::Late => Err(self.lose(format!(
                "after {} s without a heartbeat its lease could not be claimed anew within {} ms; another host may have \
                 served the store in between",
                self.terms.expiry_us / 1_000_000,
                self.terms.claim_us / 1000
            ))),
            ClaimOutcome::Superseded(_) => self.check_own().await,
        }
    }

    /// Ends the lease without a write, for a store that is not there any more.
    pub async fn abandon(&self) -> Result<()> {
        self.ended.set(true);
        self.woken.notify();
        let _turn = self.turn.lock().await;
        self.lose("its store is gone");
        self.file.give_up().await
    }

    /// Releases the lease, so that the next opening on any host need not wait. The store's file is not written any
    /// more.
    pub async fn release(&self) -> Result<()> {
        self.ended.set(true);
        self.woken.notify();
        let _turn = self.turn.lock().await;
        if self.lost().is_some() {
            return Ok(());
        }
        self.check_own().await?;
        let written = self.write(LeaseState::Released).await;
        self.lose("its lease was released");
        written?;
        self.file.flush().await?;
        self.file.give_up().await
    }
}

async fn write_heartbeats(env: Env, lease: Weak<Lease>) {
    loop {
        let Some(used) = lease.upgrade() else { return };
        let every_us = used.terms.heartbeat_us;
        let began_ns = env.now_ns();
        if let Err(e) = used.beat().await {
            used.lose(format!("no heartbeat can be written to its lease: {}", e.cause));
        }
        if used.ended.get() || used.lost().is_some() {
            return;
        }
        let (woken, at_ns) = (used.woken.clone(), began_ns + every_us * 1000);
        let woken = woken.wait();
        // No heartbeat is written for a lease without a user.
        drop(used);
        select(pin!(woken), pin!(env.sleep_until(at_ns))).await;
    }
}
