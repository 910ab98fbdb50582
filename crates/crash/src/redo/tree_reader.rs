//! A second user, who only reads the tree: this succeeds whatever operation is under way.

use std::rc::Rc;

use blk::{ErrorKind, Result};
use engine::{CommitWhat, Vm};
use sim::Rng;

pub(super) struct TreeReader {
    pub vm: Rc<Vm>,
    pub rng: Rng,
}

impl TreeReader {
    pub(super) async fn run(mut self, steps: u64) -> std::result::Result<(), String> {
        for _ in 0..4 * steps {
            self.vm.env.sleep_us(self.rng.below(1000)).await;
            let looked = self.look().await;
            looked.map_err(|e| format!("a look at the tree: {e}"))?;
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<()> {
        match self.rng.below(5) {
            0 => self.vm.listing().await.map(drop),
            1 => self.vm.delta_bytes().await.map(drop),
            2 => self.vm.used().await.map(drop),
            3 => answered(self.vm.commit_preview(&CommitWhat::All).await),
            _ => {
                let had = self.vm.state().current;
                let looked = self.vm.revert_preview(None, false).await;
                match had.is_some() && had == self.vm.state().current {
                    true => answered(looked),
                    false => Ok(()),
                }
            }
        }
    }
}

/// Accepts a preview that reports why the operation would be refused.
fn answered<T>(preview: Result<T>) -> Result<()> {
    match preview {
        Err(e) if e.kind != ErrorKind::Refused => Err(e),
        _ => Ok(()),
    }
}
