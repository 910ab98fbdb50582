//! Guests that a take may have left frozen or standing still, for the alarms, and the times for which guests were frozen, for the metrics.

use std::cell::RefCell;
use std::collections::BTreeMap;

use api::name::VmName;
use engine::latencies::{Latencies, LatencyFigures};

/// What is said of a guest that was not released at once.
const TRYING: &str = "the guest may be frozen or stand still: it has not said that it goes on, and the daemon tries to \
                      release it for ten minutes; `fsfreeze -u` in the guest, or `cont` in QEMU's monitor, does it by hand";

#[derive(Default)]
pub(crate) struct FrozenGuests {
    /// Guests that did not thaw at once, with what became of that. The record of a guest that is thawed is gone.
    unthawed: RefCell<BTreeMap<VmName, String>>,
    times: Latencies,
}

impl FrozenGuests {
    /// Notes that a guest may be frozen, and is being thawed.
    pub(super) fn begin(&self, vm: &VmName) {
        self.unthawed.borrow_mut().insert(vm.clone(), TRYING.to_owned());
    }

    /// Notes what became of the tries to thaw a guest.
    pub(super) fn end(&self, vm: &VmName, sentence: &str) {
        if let Some(said) = self.unthawed.borrow_mut().get_mut(vm) {
            sentence.clone_into(said);
        }
    }

    pub(super) fn count(&self, frozen_us: u64) {
        self.times.count(frozen_us.saturating_mul(1000));
    }

    pub(crate) fn times(&self) -> LatencyFigures {
        self.times.figures()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unthawed.borrow().is_empty()
    }

    pub(super) fn all(&self) -> BTreeMap<VmName, String> {
        self.unthawed.borrow().clone()
    }

    /// Leaves out the guests that have no record any more.
    pub(super) fn keep(&self, recorded: &[VmName]) -> BTreeMap<VmName, String> {
        let mut unthawed = self.unthawed.borrow_mut();
        unthawed.retain(|vm, _| recorded.contains(vm));
        drop(unthawed);
        self.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_left_out_when_its_record_is_gone() {
        let (guests, web): (_, VmName) = (FrozenGuests::default(), "web".parse().unwrap());
        guests.end(&web, "of another daemon");
        assert!(guests.keep(std::slice::from_ref(&web)).is_empty());
        guests.begin(&web);
        assert_eq!(guests.keep(std::slice::from_ref(&web))[&web], TRYING);
        guests.end(&web, "given up");
        assert_eq!(guests.keep(std::slice::from_ref(&web))[&web], "given up");
        assert!(guests.keep(&[]).is_empty() && guests.is_empty());
    }
}
