//! Planted defects of the daemon's own steps. A test turns one on at run time and must find it.

use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// A folder is served whatever home its VM has on record.
    ServeCopies,
    /// A removal goes by the mark in the folder, which a copy has too.
    RemoveByMark,
    /// What is being made is on record only when all of it is there.
    RecordLate,
    /// What is being made counts as a VM from the start.
    WholeEarly,
    /// A removal is not on record while the files go; a store's VM goes before its folder.
    ForgetRemoval,
    /// A VM's way into the bin is not on record before its folder is renamed.
    BinLate,
    /// One of the engine's, in the VMs that keep their disks in files.
    #[cfg(test)]
    Engine(engine::Defect),
}

/// None but in tests.
#[derive(Default)]
pub struct Planted(Cell<Option<Defect>>);

impl Planted {
    pub fn has(&self, defect: Defect) -> bool {
        self.0.get() == Some(defect)
    }

    pub fn of_engine(&self) -> engine::Defects {
        #[cfg(test)]
        if let Some(Defect::Engine(defect)) = self.0.get() {
            return engine::Defects::only(defect);
        }
        engine::Defects::default()
    }

    #[cfg(test)]
    pub fn plant(&self, defect: Option<Defect>) {
        self.0.set(defect);
    }
}
