//! What all front ends of one server share: the memory of clients, the turns of VMs on the core, and the limits of VMs.
//!
//! A VM may have clients of several protocols. Its limits and its share of the core apply to all of them together.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::fair::FairScheduler;
use crate::limiter::Limiter;
use crate::memory::Memory;
use crate::under_way::Activity;

/// Memory, turns and limits of the clients of a server.
pub struct Resources {
    memory: Memory,
    scheduler: Rc<FairScheduler>,
    next_id: Cell<u64>,
}

impl Resources {
    /// Creates resources with `memory_bytes` for all connections and their requests.
    pub fn new(memory_bytes: u64) -> Rc<Resources> {
        Rc::new(Resources {
            memory: Memory::new(memory_bytes),
            scheduler: Rc::default(),
            next_id: Cell::new(0),
        })
    }

    /// Returns the memory of all connections and requests.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the limiter of all clients of a party (`Exports::client_group`). The limits apply as long as the
    /// limiter is kept.
    pub fn limiter(&self, party: &str) -> Rc<Limiter> {
        self.scheduler.limiters.of(party)
    }

    /// Lets the clients of this server take account of those of other cores. `own` is the number of this core.
    pub fn share_activity(&self, activity: Arc<Activity>, own: usize) {
        assert!(self.scheduler.sharing.cores.set((activity, own)).is_ok(), "a core has one number");
    }

    pub(crate) fn scheduler(&self) -> &Rc<FairScheduler> {
        &self.scheduler
    }

    /// Returns a number for a connection. A limiter tells connections by it, whatever their protocol is.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.update(|id| id + 1);
        self.next_id.get()
    }
}
