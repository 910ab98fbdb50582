//! The grants of one disk, as the VM's core keeps them.

use std::cell::Cell;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::rc::Rc;

use super::GRANTS_MAX;
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

    /// Adds a grant, and gives up the disk's oldest one if the core has too many. `total` is their number. A grant that
    /// was withdrawn on its way is left out: a later one of the window may have arrived before.
    pub(super) fn add(&mut self, grant: Grant, total: &Cell<usize>) {
        if grant.mark.is_withdrawn() {
            return;
        }
        let window = grant.window;
        if self.by_window.insert(window, Rc::new(grant)).is_some() {
            return;
        }
        self.order.push_back(window);
        total.update(|n| n + 1);
        if total.get() > GRANTS_MAX
            && let Some(given_up) = self.order.pop_front().and_then(|oldest| self.by_window.remove(&oldest))
        {
            given_up.mark.withdraw();
            total.update(|n| n - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawn_grant_that_arrives_late_does_not_replace_a_later_one() {
        let (mut cache, total) = (GrantCache::default(), Cell::new(0));
        let [late, present] = [1, 2].map(|_| Grant::new(7, &[], &Default::default(), |_| None));
        late.mark.withdraw();
        cache.add(present, &total);
        cache.add(late, &total);
        assert!(cache.get(7).is_some_and(|grant| !grant.mark.is_withdrawn()));
        assert_eq!((cache.len(), total.get()), (1, 1));
    }
}
