//! The grants of one disk, as the VM's core keeps them.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::sync::Arc;

use super::grant::{Grant, Redirected};
use super::link::NewGrant;

/// The grants of a disk.
#[derive(Default)]
pub(super) struct GrantCache {
    by_window: HashMap<u64, Rc<Grant>, BuildHasherDefault<DefaultHasher>>,
    /// Windows in the order of their first grants.
    order: VecDeque<u64>,
    bytes: usize,
}

impl GrantCache {
    pub(super) fn get(&self, window: u64) -> Option<&Rc<Grant>> {
        self.by_window.get(&window)
    }

    /// Returns what the grants take, withdrawn ones included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a grant that came with an answer.
    pub(super) fn take(&mut self, grant: NewGrant) {
        match grant {
            NewGrant::Whole(grant) => self.add(grant),
            NewGrant::Redirected(change) => self.redirect(change),
        }
    }

    /// Changes the grant of a window. A change of a grant that is not here is given up: the store makes another grant
    /// then. A withdrawn grant is changed too, because a later change may be on its way.
    fn redirect(&mut self, change: Redirected) {
        match self.by_window.get(&change.window) {
            Some(known) if Arc::ptr_eq(&known.mark, &change.base) => self.insert(known.redirected(change)),
            _ => drop(change.mark.withdraw()),
        }
    }

    /// Adds a grant. A grant that was withdrawn on its way is left out: a later one of the window may have arrived before.
    fn add(&mut self, grant: Grant) {
        if !grant.mark.is_withdrawn() {
            self.insert(grant);
        }
    }

    fn insert(&mut self, grant: Grant) {
        let window = grant.window;
        self.bytes += grant.bytes();
        match self.by_window.insert(window, Rc::new(grant)) {
            Some(earlier) => self.bytes -= earlier.bytes(),
            None => self.order.push_back(window),
        }
    }

    /// Gives up the grant of the window that has had one for the longest time.
    pub(super) fn give_up_oldest(&mut self) {
        if let Some(grant) = self.order.pop_front().and_then(|oldest| self.by_window.remove(&oldest)) {
            grant.mark.withdraw();
            self.bytes -= grant.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mark::Mark;
    use super::*;

    #[test]
    fn a_withdrawn_grant_that_arrives_late_does_not_replace_a_later_one() {
        let mut cache = GrantCache::default();
        let [late, present] = [1, 2].map(|_| Grant::new(7, &[], &Default::default(), |_| None));
        late.mark.withdraw();
        cache.add(present);
        cache.add(late);
        assert!(cache.get(7).is_some_and(|grant| !grant.mark.is_withdrawn()));
        assert!(cache.bytes() > 0);
        cache.give_up_oldest();
        assert!(cache.bytes() == 0 && cache.get(7).is_none());
    }

    #[test]
    fn a_redirect_changes_the_grant_it_was_made_for_and_no_other() {
        let mut cache = GrantCache::default();
        let disk = Default::default();
        let first = Grant::new(7, &[], &disk, |_| None);
        let marks: Vec<_> =
            std::iter::once(first.mark.clone()).chain((0..3).map(|_| Mark::new(&disk))).collect();
        cache.take(NewGrant::Whole(first));
        let change = |base: usize, mark: usize| {
            let (base, mark) = (marks[base].clone(), marks[mark].clone());
            let places = vec![(224 + mark_number(&marks, &mark)..225 + mark_number(&marks, &mark), 1000)];
            NewGrant::Redirected(Redirected { window: 7, base, mark, epoch: 0, places, settled_at: 0 })
        };
        marks[1].withdraw();
        // Withdrawn on its way, and the base of the next one.
        cache.take(change(0, 1));
        cache.take(change(1, 2));
        let shows = |cache: &GrantCache, block: u64| {
            cache.get(7).is_some_and(|grant| grant.places(&(block..block + 1), &mut |_| ()))
        };
        assert!(shows(&cache, 225) && shows(&cache, 226) && !shows(&cache, 227));
        cache.take(change(1, 3));
        assert!(!shows(&cache, 227) && marks[3].is_withdrawn(), "its base is not here any more");
        assert!(cache.get(7).is_some_and(|grant| !grant.mark.is_withdrawn()));
    }

    fn mark_number(marks: &[Arc<Mark>], mark: &Arc<Mark>) -> u64 {
        marks.iter().position(|known| Arc::ptr_eq(known, mark)).unwrap() as u64
    }
}
