//! Limits on the I/O of a party: all clients of one VM (`Exports::client_group`).

/// Weight of a party without a setting.
pub const WEIGHT_DEFAULT: u32 = 100;
/// Largest weight. The smallest is 1.
pub const WEIGHT_MAX: u32 = 1000;

/// Limits on the requests of a party, and its share of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoLimits {
    /// Reads, writes, discards and zeroes per second.
    pub ios: Option<RateLimit>,
    /// Bytes of payload of reads and writes per second.
    pub bytes: Option<RateLimit>,
    /// Share of the core relative to other parties that wait for it, 1 to [`WEIGHT_MAX`].
    pub weight: u32,
}

/// A rate, and the burst that may exceed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Units per second, at least 1.
    pub rate: u64,
    /// The burst after a time below the rate; None for bursts of a tenth of a second alone.
    pub burst: Option<Burst>,
}

/// A higher rate for a limited time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Units per second, more than the limit's own rate.
    pub rate: u64,
    /// Time for which the rate is permitted after the party was idle.
    pub seconds: u32,
}

impl Default for IoLimits {
    fn default() -> Self {
        IoLimits { ios: None, bytes: None, weight: WEIGHT_DEFAULT }
    }
}

/// What a request costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IoCost {
    pub ios: u64,
    pub bytes: u64,
}

impl IoCost {
    /// A request without payload: a discard or zeroes.
    pub(crate) const NO_PAYLOAD: IoCost = IoCost { ios: 1, bytes: 0 };

    /// Returns the cost of a piece of a read or write. The first piece pays for the request.
    pub(crate) fn of_piece(is_first: bool, bytes: u64) -> IoCost {
        IoCost { ios: u64::from(is_first), bytes }
    }
}
