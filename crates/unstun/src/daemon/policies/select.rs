//! What all operations on policies need: the time, and the VMs of a policy.

use std::rc::Rc;

use api::Policy;
use jiff::Timestamp;

use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::VmRecord;

impl Daemon {
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.env.unix_us()).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Returns the open VMs that a policy applies to, in the order of their names.
    pub(super) fn policy_vms(&self, policy: &Policy) -> Vec<Rc<VmRecord>> {
        let applies = |entry: &Rc<VmRecord>| policy.applies_to(&entry.name, &entry.labels.get().tags);
        self.entries().into_iter().filter(applies).collect()
    }
}
