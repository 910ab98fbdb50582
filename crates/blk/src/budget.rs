//! A counted amount of memory. Each user of a part holds a [`Charge`] until the memory is freed.
//!
//! This is mechanism alone, and nothing here waits. The policy is the caller's: who may take how much, and who waits.

use std::cell::Cell;
use std::rc::Rc;

/// A fixed number of bytes, of which charges take parts. `used` never exceeds `total`.
pub struct Budget {
    total: u64,
    used: Cell<u64>,
    peak: Cell<u64>,
}

/// Bytes of a budget that are in use. Dropping the charge gives them back.
pub struct Charge {
    budget: Rc<Budget>,
    bytes: u64,
}

impl Budget {
    /// Creates a budget of `total` bytes, none of which is in use.
    pub fn new(total: u64) -> Rc<Budget> {
        Rc::new(Budget { total, used: Cell::new(0), peak: Cell::new(0) })
    }

    /// Returns the bytes that all charges may have together.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the bytes that all charges have together now.
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// Returns the most that was in use at one time.
    pub fn peak(&self) -> u64 {
        self.peak.get()
    }

    /// Returns the bytes that no charge has.
    pub fn free(&self) -> u64 {
        self.total - self.used.get()
    }

    /// Charges `bytes`. Returns None if fewer are free.
    pub fn take(self: &Rc<Self>, bytes: u64) -> Option<Charge> {
        let mut charge = Charge { budget: self.clone(), bytes: 0 };
        charge.set(bytes).then_some(charge)
    }
}

impl Charge {
    /// Returns the bytes that this charge has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the charge to `bytes`. Returns false and changes nothing if it would grow by more than is free.
    pub fn set(&mut self, bytes: u64) -> bool {
        let others = self.budget.used.get() - self.bytes;
        if bytes > self.bytes && bytes > self.budget.total - others {
            return false;
        }
        self.bytes = bytes;
        self.budget.used.set(others + bytes);
        self.budget.peak.set(self.budget.peak.get().max(others + bytes));
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.set(self.budget.used.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_never_exceed_the_total_and_are_returned_when_dropped() {
        let budget = Budget::new(100);
        let mut first = budget.take(60).unwrap();
        assert!(budget.take(41).is_none());
        let second = budget.take(40).unwrap();
        assert!(!first.set(61));
        assert_eq!((budget.used(), budget.free(), first.bytes()), (100, 0, 60));
        drop(second);
        assert!(first.set(100) && first.set(10));
        assert_eq!((budget.used(), budget.peak()), (10, 100));
        drop(first);
        assert_eq!(budget.used(), 0);
        assert!(budget.take(u64::MAX).is_none());
    }
}
