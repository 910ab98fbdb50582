//! Limits on the number of connections. Each listener and each export has a reserve, so that no other can take all.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::proto::{CONNECTIONS_MAX, CONNECTIONS_RESERVED, MEMORY_BYTES};

/// Limits for all connections of a server together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory for all connections and their requests, in bytes. Half of it is for the promises to connections, so it
    /// bounds their number too.
    pub memory_bytes: u64,
    /// Maximum number of connections. A further client is refused, with the reason.
    pub connections_max: usize,
    /// Planted defect, which a test must find: requests are admitted and not charged. Never set in production.
    pub uncharged: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { memory_bytes: MEMORY_BYTES, connections_max: CONNECTIONS_MAX, uncharged: false }
    }
}

/// Numbers of connections by what they share: a listener or an export.
#[derive(Default)]
pub(super) struct Counts(RefCell<BTreeMap<String, usize>>);

impl Counts {
    pub(super) fn of(&self, name: &str) -> usize {
        self.0.borrow().get(name).copied().unwrap_or(0)
    }

    pub(super) fn enter(&self, name: &str) {
        *self.0.borrow_mut().entry(name.to_string()).or_default() += 1;
    }

    pub(super) fn leave(&self, name: &str) {
        let mut counts = self.0.borrow_mut();
        if let Some(count) = counts.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                counts.remove(name);
            }
        }
    }

    /// Returns whether `name` may have one more connection while `free` are left for all. It must leave free as many as
    /// it has, or be within its reserve.
    pub(super) fn allows(&self, name: &str, free: usize) -> bool {
        let own = self.of(name);
        free > 0 && (own < CONNECTIONS_RESERVED || own < free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greedy_listener_leaves_connections_for_the_others() {
        let counts = Counts::default();
        let mut free = 1000;
        let mut fill = |name: &str| {
            while counts.allows(name, free) {
                counts.enter(name);
                free -= 1;
            }
            counts.of(name)
        };
        assert_eq!((fill("tcp"), fill("unix"), fill("other")), (500, 250, 125));
        assert_eq!(fill("tcp"), 500);
        (0..400).for_each(|_| counts.leave("tcp"));
        assert_eq!(counts.of("tcp"), 100);
    }

    #[test]
    fn the_reserve_remains_for_new_listeners_until_no_connection_is_free() {
        let counts = Counts::default();
        (0..100).for_each(|_| counts.enter("greedy"));
        assert!(!counts.allows("greedy", 10));
        (0..CONNECTIONS_RESERVED).for_each(|_| {
            assert!(counts.allows("new", 1));
            counts.enter("new");
        });
        assert!(!counts.allows("new", 1));
        assert!(!counts.allows("third", 0));
    }
}
