//! Where the units of a disk are, now and in each snapshot, for stacks that never overwrite a unit in place while a
//! snapshot needs it.
//!
//! A snapshot keeps the places of the units that were replaced since it was taken. Removing one frees those that no
//! older snapshot needs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use super::sparse::Sparse;

pub(super) struct Versions {
    /// Place of each unit plus one; 0: never written.
    head: RefCell<Sparse>,
    /// For each snapshot, oldest first: the places that were replaced. `HOLE` stands for a unit that did not exist.
    kept: RefCell<Vec<Sparse>>,
    /// Places that were freed.
    free: RefCell<BTreeSet<u64>>,
    /// Where the search for a free place begins.
    cursor: Cell<u64>,
    next: Cell<u64>,
    /// Places of the storage. Freed places are used once all others are.
    places: u64,
}

const HOLE: u64 = u64::MAX;

impl Versions {
    pub(super) fn new(places: u64) -> Versions {
        let (head, kept, free) = (RefCell::default(), RefCell::default(), RefCell::default());
        Versions { head, kept, free, cursor: Cell::new(0), next: Cell::new(0), places }
    }

    /// Returns the place of a unit at present.
    pub(super) fn find(&self, unit: u64) -> Option<u64> {
        self.head.borrow().get(unit).checked_sub(1)
    }

    /// Returns the place of a unit in snapshot `number`: what the first snapshot from it on has kept, or the present one.
    pub(super) fn find_in(&self, number: usize, unit: u64) -> Option<u64> {
        let kept = self.kept.borrow()[number..].iter().map(|kept| kept.get(unit)).find(|place| *place != 0);
        match kept {
            Some(HOLE) => None,
            Some(place) => Some(place - 1),
            None => self.find(unit),
        }
    }

    /// Returns a place for a unit: the next one, and in the end the next one that was freed.
    pub(super) fn allocate(&self) -> u64 {
        let mut free = self.free.borrow_mut();
        let next_free = || free.range(self.cursor.get()..).chain(free.iter()).next().copied();
        match next_free().filter(|_| self.next.get() >= self.places) {
            Some(place) => {
                free.remove(&place);
                self.cursor.set(place + 1);
                place
            }
            None => self.next.replace(self.next.get() + 1),
        }
    }

    /// Puts a unit at a new place. The newest snapshot keeps the old one, or it is returned. It is not free until
    /// `release`.
    pub(super) fn replace(&self, unit: u64, place: u64) -> Option<u64> {
        let old = self.head.borrow().get(unit);
        self.head.borrow_mut().set(unit, place + 1);
        let mut kept = self.kept.borrow_mut();
        match kept.last_mut() {
            Some(newest) if newest.get(unit) == 0 => {
                newest.set(unit, if old == 0 { HOLE } else { old });
                None
            }
            _ => old.checked_sub(1),
        }
    }

    pub(super) fn take(&self) {
        self.kept.borrow_mut().push(Sparse::default());
    }

    /// Removes a snapshot and returns the places that nothing needs any more. They are not free until `release`.
    pub(super) fn remove(&self, number: usize) -> Vec<u64> {
        let mut kept = self.kept.borrow_mut();
        let removed = kept.remove(number);
        let mut unneeded = Vec::new();
        for (unit, place) in removed.iter() {
            match number.checked_sub(1).map(|older| &mut kept[older]) {
                Some(older) if older.get(unit) == 0 => older.set(unit, place),
                _ if place != HOLE => unneeded.push(place - 1),
                _ => {}
            }
        }
        unneeded
    }

    pub(super) fn release(&self, places: impl IntoIterator<Item = u64>) {
        self.free.borrow_mut().extend(places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with whole copies of the disk for each snapshot, over random writes, takes and removals.
    #[test]
    fn equals_whole_copies() {
        let (versions, mut rng) = (Versions::new(20), sim::Rng::new(4));
        let (mut head, mut copies) = ([None; 9], Vec::<[Option<u64>; 9]>::new());
        for _ in 0..3000 {
            match rng.below(8) {
                0 if copies.len() < 4 => {
                    versions.take();
                    copies.push(head);
                }
                1 if !copies.is_empty() => {
                    let number = rng.below(copies.len() as u64) as usize;
                    copies.remove(number);
                    let unneeded = versions.remove(number);
                    let used: Vec<_> = copies.iter().chain([&head]).flatten().flatten().collect();
                    assert!(unneeded.iter().all(|place| !used.contains(&place)), "{unneeded:?} {used:?}");
                    versions.release(unneeded);
                }
                _ => {
                    let (unit, place) = (rng.below(9), versions.allocate());
                    let used: Vec<_> = copies.iter().chain([&head]).flatten().flatten().collect();
                    assert!(!used.contains(&&place));
                    versions.release(versions.replace(unit, place));
                    head[unit as usize] = Some(place);
                }
            }
            for unit in 0..9 {
                assert_eq!(versions.find(unit), head[unit as usize]);
                for (number, copy) in copies.iter().enumerate() {
                    assert_eq!(versions.find_in(number, unit), copy[unit as usize]);
                }
            }
        }
        assert!(versions.next.get() <= 9 * 5 + 1 && versions.next.get() > 20, "places are used again");
    }
}
