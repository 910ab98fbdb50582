//! What the tests know across power cuts.

use sim::SimWorld;

use super::plan::Plan;
use crate::oracle::DiskModel;

/// How far a snapshot has come, as its user was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// `take` was called at these ticks (by disk) and has not answered.
    Taking(Vec<u64>),
    /// Reported as sealed; the contents are filled in at the first look.
    Sealed { began: Vec<u64>, ended: Vec<u64>, contents: Option<Vec<Vec<u8>>> },
    /// `commit` was called: the name may be gone.
    Committing(Option<Vec<Vec<u8>>>),
    /// `commit` answered: the name must be gone for ever.
    Gone,
}

#[derive(Debug, Clone)]
pub struct Known {
    pub name: String,
    pub standing: Standing,
}

pub struct Truth {
    pub models: Vec<DiskModel>,
    pub snapshots: Vec<Known>,
    pub next_name: u64,
    // Where a cut falls, for the marks.
    pub recovering: bool,
    pub taking: bool,
    pub folding: bool,
}

impl Truth {
    pub fn new(plan: &Plan) -> Truth {
        Truth {
            models: (0..plan.disks.len()).map(|n| DiskModel::new(n as u32)).collect(),
            snapshots: Vec::new(),
            next_name: 0,
            recovering: false,
            taking: false,
            folding: false,
        }
    }

    pub fn ticks(&mut self) -> Vec<u64> {
        self.models.iter_mut().map(DiskModel::now).collect()
    }

    pub fn known(&mut self, name: &str) -> Option<&mut Known> {
        self.snapshots.iter_mut().find(|k| k.name == name)
    }

    pub fn mark_cut(&mut self, world: &SimWorld) {
        world.mark("cut");
        for (happened, label) in [
            (self.recovering, "cut in recovery"),
            (self.taking, "cut in a take"),
            (self.folding, "cut in a commit"),
            (self.taking && self.folding, "cut in a take during a commit"),
        ] {
            if happened {
                world.mark(label);
            }
        }
        self.taking = false;
        self.folding = false;
    }
}
