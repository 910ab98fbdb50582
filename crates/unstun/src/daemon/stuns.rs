//! The stuns of operations, for the metrics.

use std::cell::RefCell;

use api::Operation;
use engine::latencies::{Latencies, LatencyFigures};

/// Stuns of all VMs since the start, by operation.
#[derive(Default)]
pub(crate) struct Stuns(RefCell<Vec<(Operation, Latencies)>>);

impl Stuns {
    pub(crate) fn count(&self, operation: Operation, stun_us: u64) {
        let mut all = self.0.borrow_mut();
        let known = all.iter().position(|(of, _)| *of == operation);
        let at = known.unwrap_or_else(|| {
            all.push((operation, Latencies::default()));
            all.len() - 1
        });
        all[at].1.count(stun_us.saturating_mul(1000));
    }

    pub(crate) fn figures(&self) -> Vec<(Operation, LatencyFigures)> {
        self.0.borrow().iter().map(|(operation, latencies)| (*operation, latencies.figures())).collect()
    }
}
