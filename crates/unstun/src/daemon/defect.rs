//! Planted defects of the daemon's own steps. A test enables one at run time and must detect it.

use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// A folder is served even if another home of its VM is on record.
    ServeCopies,
    /// A removal relies on the mark in the folder, which a copy has too.
    RemoveByMark,
    /// A creation is recorded only after all of it is done.
    RecordLate,
    /// A home counts as a VM from the start of its creation.
    WholeEarly,
    /// A removal is not on record while the files are removed, and a store's VM is removed before its folder.
    ForgetRemoval,
    /// The move of a VM into the bin is not on record before its folder is renamed.
    BinLate,
    /// A snapshot's label is written after the take.
    LabelLate,
    /// A defect of the engine, in VMs with their disks in files.
    #[cfg(test)]
    Engine(engine::Defect),
}

/// Defect that is enabled; there is one only in tests.
#[derive(Default)]
pub(crate) struct Planted(Cell<Option<Defect>>);

impl Planted {
    pub(super) fn has(&self, defect: Defect) -> bool {
        self.0.get() == Some(defect)
    }

    pub(super) fn of_engine(&self) -> engine::Defects {
        #[cfg(test)]
        if let Some(Defect::Engine(defect)) = self.0.get() {
            return engine::Defects::only(defect);
        }
        engine::Defects::default()
    }

    #[cfg(test)]
    pub(super) fn plant(&self, defect: Option<Defect>) {
        self.0.set(defect);
    }
}
