//! How an opening claims the lease: it reads, waits where it must, writes, and reads again.

use blk::{Buf, Error, ErrorKind, Result};

use super::claimant::{Claimant, LeaseTimes, TakeOver};
use super::lease_file::{LeaseFile, LeaseRead};
use super::page::{LeasePage, LeaseState, Owner};
use super::reservation::{Reach, Wish};
use crate::options::Defect;

/// Most claims that take too long before the device counts as too slow.
const CLAIMS_MAX: usize = 4;
/// An owner that is alive has written within this many of its heartbeats.
const LIVE_HEARTBEATS: u64 = 3;

/// Outcome of a claim.
pub(super) enum ClaimOutcome {
    /// The claim succeeded, and counts as a heartbeat of this boot time.
    Confirmed(LeasePage, u64),
    /// The claim was not written: the time for its start was over.
    NotStarted,
    /// The claim took too long to count, and may have been written over another owner's page.
    Late,
    /// The page of another owner is there.
    Superseded(LeaseRead),
}

impl LeaseFile {
    /// Claims the lease, as `seen` allows: writes, flushes, waits, and reads again.
    pub(super) async fn try_claim(
        &self,
        seen: &LeaseRead,
        epoch: u64,
        owner: &Owner,
        reserves: bool,
        terms: &LeaseTimes,
    ) -> Result<ClaimOutcome> {
        let now_us = self.env.unix_us();
        let page = LeasePage {
            store_id: self.store_id,
            state: LeaseState::Claimed,
            epoch,
            heartbeat: 0,
            owner: owner.clone(),
            expiry_ms: terms.expiry_us / 1000,
            io_max_ms: terms.io_max_us / 1000,
            since_unix_us: now_us,
            heartbeat_unix_us: now_us,
            reserves,
        };
        let until_ns = terms.claim_until_ns(seen);
        let began_ns = self.env.boot_ns();
        match self.write(&page, until_ns).await {
            Err(e) if e.kind == ErrorKind::LeaseLost => return Ok(ClaimOutcome::NotStarted),
            written => written?,
        }
        if self.env.boot_ns() > until_ns {
            return Ok(ClaimOutcome::Late);
        }
        self.flush().await?;
        if terms.defects.has(Defect::ClaimWithoutReadback) {
            return Ok(ClaimOutcome::Confirmed(page, began_ns));
        }
        self.env.sleep_us(terms.settle_us).await;
        let again = self.read().await?;
        match again.page.as_ref() {
            Ok(found) if *found == page => Ok(ClaimOutcome::Confirmed(page, began_ns)),
            _ => Ok(ClaimOutcome::Superseded(again)),
        }
    }

    /// Resolves when the page has not changed for `us` microseconds, with the last read. None if it changed.
    pub(super) async fn watch(&self, first: LeaseRead, us: u64, every_us: u64) -> Result<Option<LeaseRead>> {
        // The time counts from the end of the first read, at the latest.
        let until_ns = self.env.boot_ns() + us * 1000;
        loop {
            self.env.sleep_us(every_us).await;
            let seen = self.read().await?;
            if seen.bytes[..] != first.bytes[..] {
                return Ok(None);
            }
            if seen.at_ns >= until_ns {
                return Ok(Some(seen));
            }
        }
    }
}

impl LeaseTimes {
    /// Returns the boot time by which a claim that this read allows has to start.
    fn claim_until_ns(&self, read: &LeaseRead) -> u64 {
        let unhurried = self.defects.has(Defect::LateClaim);
        if unhurried { u64::MAX } else { read.at_ns + self.claim_us * 1000 }
    }

    /// Returns how long the page of an owner with these bounds must not change, in microseconds.
    pub(super) fn quiet_period_us(&self, page: &Result<LeasePage>) -> u64 {
        let stated_us = match page {
            Ok(page) => (page.expiry_ms + page.io_max_ms) * 1000,
            Err(_) => self.expiry_us + self.io_max_us,
        };
        match self.defects.has(Defect::ClaimWithoutWait) {
            true => 0,
            false => stated_us + self.margin_us,
        }
    }
}

/// Claims the lease. Returns the page, and the boot time of its first heartbeat.
///
/// # Errors
/// `Locked`: the owner is alive, or another claim was faster. `Refused`: the owner writes no heartbeats, and a
/// take-over is not allowed.
pub(super) async fn claim(file: &LeaseFile, claimant: &Claimant) -> Result<(LeasePage, u64)> {
    let mut doubtful = false;
    for _ in 0..CLAIMS_MAX {
        let seen = file.read().await?;
        let free = !doubtful && seen.page.as_ref().is_ok_and(|page| is_free(page, claimant));
        let seen = if free { seen } else { wait_out(file, claimant, seen, doubtful).await? };
        let Some(seen) = reserved(file, claimant, seen).await? else { continue };
        let epoch = seen.page.as_ref().map_or(0, |page| page.epoch) + 1;
        let reserves = wants_reservation(claimant, &seen);
        match file.try_claim(&seen, epoch, &claimant.owner, reserves, &claimant.terms).await? {
            ClaimOutcome::Confirmed(page, at_ns) => return Ok((page, at_ns)),
            ClaimOutcome::NotStarted => {}
            ClaimOutcome::Late => doubtful = true,
            ClaimOutcome::Superseded(seen) => return Err(locked(file, &seen, "was faster")),
        }
    }
    let cause = format!(
        "its lease could not be claimed: reading and writing one page took more than {} ms, {CLAIMS_MAX} times",
        claimant.terms.claim_us / 1000
    );
    Err(Error::refused(file.file.name(), cause))
}

fn wants_reservation(claimant: &Claimant, seen: &LeaseRead) -> bool {
    claimant.reserves.unwrap_or_else(|| seen.page.as_ref().is_ok_and(|page| page.reserves))
}

/// Reserves the device where that is wanted, or was, and reads the page again. None if it has changed meanwhile, or if a
/// step was late.
async fn reserved(file: &LeaseFile, claimant: &Claimant, seen: LeaseRead) -> Result<Option<LeaseRead>> {
    let is_reserved = seen.page.as_ref().is_ok_and(|page| page.reserves);
    let is_wanted = wants_reservation(claimant, &seen);
    if !is_wanted && !is_reserved {
        return Ok(Some(seen));
    }
    let wish = |read: &LeaseRead| Wish {
        own: claimant.owner.reservation_key(),
        former: seen.page.as_ref().map_or(0, |page| page.owner.reservation_key()),
        until_ns: claimant.terms.claim_until_ns(read),
        defects: claimant.terms.defects,
    };
    let mut reserved = file.make_reservation(wish(&seen), Reach::FromFormerOwner).await;
    let is_held = reserved.as_ref().is_err_and(|e| e.kind == ErrorKind::Refused);
    if is_held && claimant.take_over == TakeOver::FromAnyOwner {
        // Another opening that has just reserved the device writes its claim within this time. Nothing of it is cleared.
        file.env.sleep_us(claimant.terms.settle_us).await;
        let now = file.read().await?;
        if now.bytes[..] == seen.bytes[..] {
            reserved = file.make_reservation(wish(&now), Reach::FromAnybody).await;
        }
    }
    let again = file.read().await?;
    if again.bytes[..] != seen.bytes[..] {
        file.give_up().await?;
        return Ok(None);
    }
    match reserved {
        Err(e) if e.kind == ErrorKind::LeaseLost => return Ok(None),
        // An opening without a reservation may still write: another program may have registered this host.
        Err(e) if !is_wanted && matches!(e.kind, ErrorKind::Unsupported | ErrorKind::Refused) => {}
        Err(e) if e.kind == ErrorKind::Unsupported => return Err(no_reservations(file, &e)),
        reserved => reserved?,
    }
    Ok(Some(again))
}

fn no_reservations(file: &LeaseFile, e: &Error) -> Error {
    let cause = format!(
        "{}; the store's lease demands persistent reservations, which whole SCSI disks and NVMe namespaces can have, and \
         partitions, logical volumes and multipath devices have not; `unstun datastore add PATH --reservations off` serves it \
         by the lease alone",
        e.cause
    );
    Error::new(ErrorKind::Unsupported, file.file.name(), cause)
}

/// Returns whether the owner can start no I/O any more.
fn is_free(page: &LeasePage, claimant: &Claimant) -> bool {
    match page.state {
        LeaseState::Released => true,
        // This claim may have been written late, over the page of an owner that is alive.
        LeaseState::Claimed => false,
        LeaseState::Held => (claimant.has_ended)(&page.owner),
    }
}

/// Waits, and resolves with the last read when the lease may be claimed because its owner wrote no heartbeat.
async fn wait_out(
    file: &LeaseFile,
    claimant: &Claimant,
    seen: LeaseRead,
    doubtful: bool,
) -> Result<LeaseRead> {
    let terms = &claimant.terms;
    let us = terms.quiet_period_us(&seen.page);
    let again = LeaseRead { page: seen.page.clone(), bytes: Buf::copy_of(&seen.bytes), at_ns: seen.at_ns };
    if !doubtful && !may_take_over(&seen.page, claimant) {
        let living_us = us.min(terms.heartbeat_us * LIVE_HEARTBEATS);
        return match file.watch(seen, living_us, terms.heartbeat_us / 2).await? {
            None => Err(locked(file, &file.read().await?, "serves it")),
            Some(still) => Err(stopped(file, &still, living_us)),
        };
    }
    match file.watch(seen, us, terms.heartbeat_us).await? {
        Some(still) => Ok(still),
        None => {
            let now = file.read().await?;
            // The lease was released: the store has no owner, and this claim may go on.
            match now.page.as_ref().is_ok_and(|page| page.state == LeaseState::Released) {
                true => Ok(now),
                false => Err(locked(file, if now.page.is_ok() { &now } else { &again }, "serves it")),
            }
        }
    }
}

fn may_take_over(page: &Result<LeasePage>, claimant: &Claimant) -> bool {
    match (claimant.take_over, page) {
        (TakeOver::FromAnyOwner, _) => true,
        (TakeOver::FromOwnHost, Ok(page)) => {
            let (other, own) = (&page.owner, &claimant.owner);
            // An owner of this boot and namespace is a process whose end could be seen.
            let seen = (other.boot_id, other.process_namespace) == (own.boot_id, own.process_namespace);
            other.host == own.host && !seen
        }
        _ => false,
    }
}

fn locked(file: &LeaseFile, seen: &LeaseRead, does: &str) -> Error {
    let who = match &seen.page {
        Ok(page) => describe(page, file.env.unix_us()),
        Err(e) => format!("an unknown owner ({})", e.cause),
    };
    let remedy = "serve it from one host at a time: remove it there first (`unstun datastore remove`)";
    Error::new(ErrorKind::Locked, file.file.name(), format!("{who} {does}; {remedy}"))
}

fn stopped(file: &LeaseFile, seen: &LeaseRead, us: u64) -> Error {
    let cause = match &seen.page {
        Ok(page) => {
            let who = describe(page, file.env.unix_us());
            format!("the store is leased to {who}, which has sent no heartbeat for {} s", us / 1_000_000)
        }
        Err(e) => format!("its lease cannot be read ({})", e.cause),
    };
    let remedy = "if that host is dead or cut off from the device, `unstun datastore take-over` claims it";
    Error::refused(file.file.name(), format!("{cause}; {remedy}"))
}

/// Describes an owner for messages.
pub(super) fn describe(page: &LeasePage, now_unix_us: i64) -> String {
    let ago = |unix_us: i64| now_unix_us.saturating_sub(unix_us).max(0) / 1_000_000;
    let Owner { host, pid, .. } = &page.owner;
    format!(
        "unstun on host {host} (pid {pid}, since {} s, last heartbeat {} s ago by its clock)",
        ago(page.since_unix_us),
        ago(page.heartbeat_unix_us)
    )
}
