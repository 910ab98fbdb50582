//! What all operations on policies need: the time, and the VMs of a policy.

use std::rc::Rc;

use api::Policy;
use jiff::Timestamp;

use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::VmRecord;

/// VMs whose names and tags are compared in one turn of the core.
const VMS_PER_TURN: usize = 32;

impl Daemon {
    pub(super) fn now(&self) -> Timestamp {
        api_types::time(self.env.unix_us())
    }

    /// Returns the time by which ages are judged.
    pub(super) fn now_for_ages(&self) -> Timestamp {
        api_types::time(self.age_now_us())
    }

    /// Returns the open VMs that a policy applies to, in the order of their names.
    pub(super) async fn policy_vms(&self, policy: &Policy) -> Vec<Rc<VmRecord>> {
        let mut found = Vec::new();
        for entries in self.entries().chunks(VMS_PER_TURN) {
            // Guests must not wait for the patterns of all policies.
            self.env.next_turn().await;
            let applies = |entry: &&Rc<VmRecord>| policy.applies_to(&entry.name, &entry.labels.get().tags);
            found.extend(entries.iter().filter(applies).cloned());
        }
        found
    }
}
