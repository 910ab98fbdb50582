//! The grants of one disk, as the VM's core keeps them.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::rc::Rc;

use super::grant::Grant;

/// The grants of a disk.
#[derive(Default)]
pub(super) struct GrantCache {
    by_window: HashMap<u64, Rc<Grant>, BuildHasherDefault<DefaultHasher>>,
    /// Windows in the order of their first grants.
    order: VecDeque<u64>,
}

impl GrantCache {
    pub(super) fn get(&self, window: u64) -> Option<&Rc<Grant>> {
        self.by_window.get(&window)
    }

    /// Returns the number of grants, withdrawn ones included.
    pub(super) fn len(&self) -> usize {
        self.by_window.len()
    }

    /// Adds a grant. Returns whether the disk has one more now. A grant that was withdrawn on its way is left out: a later
    /// one of the window may have arrived before.
    pub(super) fn add(&mut self, grant: Grant) -> bool {
        let window = grant.window;
        if grant.mark.is_withdrawn() || self.by_window.insert(window, Rc::new(grant)).is_some() {
            return false;
        }
        self.order.push_back(window);
        true
    }

    /// Gives up the grant of the window that has had one for the longest time. Returns false if there is none.
    pub(super) fn give_up_oldest(&mut self) -> bool {
        let oldest = self.order.pop_front().and_then(|oldest| self.by_window.remove(&oldest));
        if let Some(grant) = &oldest {
            grant.mark.withdraw();
        }
        oldest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawn_grant_that_arrives_late_does_not_replace_a_later_one() {
        let mut cache = GrantCache::default();
        let [late, present] = [1, 2].map(|_| Grant::new(7, &[], &Default::default(), |_| None));
        late.mark.withdraw();
        assert!(cache.add(present) && !cache.add(late));
        assert!(cache.get(7).is_some_and(|grant| !grant.mark.is_withdrawn()));
        assert!(cache.len() == 1 && cache.give_up_oldest() && !cache.give_up_oldest());
    }
}
