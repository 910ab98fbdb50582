//! An opening that claims a lease, and the times of the protocol.

use std::rc::Rc;

use super::page::Owner;
use crate::options::Defects;

/// The times of the protocol, in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTimes {
    /// Interval between two heartbeats.
    pub heartbeat_us: u64,
    /// The holder starts no I/O once its last heartbeat is this old.
    pub expiry_us: u64,
    /// An I/O that was started has ended after this time.
    pub io_max_us: u64,
    /// Longest time from the read that allows a claim to the end of the claim's write.
    pub claim_us: u64,
    /// Time from the claim's write to the next read; longer than `claim_us`.
    pub settle_us: u64,
    /// Most by which the clocks of two hosts may differ within `expiry_us + io_max_us`.
    pub margin_us: u64,
    /// Planted to prove that tests find them; none in production.
    pub defects: Defects,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            heartbeat_us: 2_000_000,
            expiry_us: 10_000_000,
            io_max_us: 30_000_000,
            claim_us: 500_000,
            settle_us: 1_000_000,
            margin_us: 1_000_000,
            defects: Defects::default(),
        }
    }
}

/// The owners from which an opening takes a lease that was not released, after it has waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOver {
    /// Such a lease is not taken.
    FromNobody,
    /// From an owner on a host of the same name, of an earlier boot or in another container: it may be this host before
    /// a restart. The wait is necessary nevertheless.
    FromOwnHost,
    /// Any owner, on the user's word that it has ended.
    FromAnyOwner,
}

/// An opening that claims the lease, and its terms.
#[derive(Clone)]
pub struct Claimant {
    /// The opening.
    pub owner: Owner,
    /// The times that it keeps to.
    pub terms: LeaseTimes,
    /// Whose lease it takes.
    pub take_over: TakeOver,
    /// Whether this owner and the later ones reserve the device; None leaves it as the page has it.
    pub reserves: Option<bool>,
    /// Returns whether an owner's process has ended for certain.
    pub has_ended: Rc<dyn Fn(&Owner) -> bool>,
}
