//! Load of a disk's guest: requests under way and their latency, as sums, so that a window is a difference.

use std::cell::Cell;

/// The calm load covers at least this time and this many requests: a short fast phase of a device is not the guest's
/// usual load.
const CALM_NS: u64 = 2_000_000_000;
pub(crate) const CALM_REQUESTS: u64 = 1024;

/// Sums over completed requests.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub requests: u64,
    pub latency_ns: u64,
    /// Sum of the guest's requests under way as each of them ended, the request itself included.
    pub under_way: u64,
}

/// The load of one disk: the total, and the recent load while no commit moved data.
#[derive(Default)]
pub(crate) struct GuestLoad {
    total: Cell<Load>,
    baseline: Cell<Load>,
    /// When the calm sums were halved, in nanoseconds of `Env`.
    halved_ns: Cell<u64>,
    /// A commit is moving data of the VM.
    disturbed: Cell<bool>,
}

impl GuestLoad {
    /// Counts a request that ended now, with its latency and the number of requests under way, itself included.
    pub(crate) fn request_ended(&self, now_ns: u64, latency_ns: u64, under_way: usize) {
        let one = Load { requests: 1, latency_ns, under_way: under_way as u64 };
        self.total.set(self.total.get().plus(one));
        if !self.disturbed.get() {
            self.remember(now_ns, one);
        }
    }

    /// Adds a request to the calm sums. Repeated halving gives older requests less weight in the mean.
    fn remember(&self, now_ns: u64, one: Load) {
        let baseline = self.baseline.get().plus(one);
        if baseline.requests < CALM_REQUESTS || now_ns < self.halved_ns.get() + CALM_NS {
            return self.baseline.set(baseline);
        }
        self.halved_ns.set(now_ns);
        self.baseline.set(baseline.scaled(1, 2));
    }

    /// Sets whether the requests that end from now on are disturbed by a commit, and so do not count as calm.
    pub(crate) fn disturb(&self, disturbed: bool) {
        self.disturbed.set(disturbed);
    }

    pub(crate) fn total(&self) -> Load {
        self.total.get()
    }

    pub(crate) fn baseline(&self) -> Load {
        self.baseline.get()
    }
}

impl Load {
    pub(crate) fn plus(self, other: Load) -> Load {
        Load {
            requests: self.requests + other.requests,
            latency_ns: self.latency_ns + other.latency_ns,
            under_way: self.under_way + other.under_way,
        }
    }

    /// Returns what was added since `earlier`.
    pub(crate) fn since(self, earlier: Load) -> Load {
        Load {
            requests: self.requests - earlier.requests,
            latency_ns: self.latency_ns - earlier.latency_ns,
            under_way: self.under_way - earlier.under_way,
        }
    }

    /// Returns the same means over another number of requests.
    pub(crate) fn scaled(self, by: u64, of: u64) -> Load {
        let scale = |sum: u64| times(sum, by, of);
        Load {
            requests: scale(self.requests),
            latency_ns: scale(self.latency_ns),
            under_way: scale(self.under_way),
        }
    }

    /// Returns the total time that these requests would have taken at the rate of `before`. With more requests under
    /// way each takes longer at the same rate; with fewer none takes less.
    pub(crate) fn latency_at_rate_of_ns(self, before: Load) -> u64 {
        let under_way = self.under_way.max(times(self.requests, before.under_way, before.requests));
        times(under_way, before.latency_ns, before.under_way)
    }

    /// Returns whether the guest has fewer than half as many requests under way as in `before`.
    pub(crate) fn is_shallower_than(self, before: Load) -> bool {
        2 * times(self.under_way, before.requests, 1) < times(self.requests, before.under_way, 1)
    }

    /// Compares rates: requests under way divided by the latency of each is the rate of a device that is never idle.
    pub(crate) fn is_faster_than(self, before: Load) -> bool {
        u128::from(self.under_way) * u128::from(before.latency_ns)
            > u128::from(before.under_way) * u128::from(self.latency_ns)
    }
}

/// Returns `a * b / of`, rounded down and saturating.
fn times(a: u64, b: u64, of: u64) -> u64 {
    let product = u128::from(a) * u128::from(b) / u128::from(of.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}
