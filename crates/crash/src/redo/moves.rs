//! Moves of the user in the tree, with the guests powered off: revert, discard and reset.

use blk::ErrorKind;
use engine::{GenerationChange, Vm};

use super::control::{Control, look, settle};
use super::model::{Moving, Standing};
use crate::watch::tell;

impl Control {
    /// Reverts to any snapshot of the tree, sometimes with a take of the present first.
    pub async fn revert(&mut self) -> Result<(), String> {
        let Some(name) = self.any_sealed() else { return Ok(()) };
        self.gate.stop().await;
        let result = self.revert_to(&name).await;
        self.gate.start();
        result
    }

    async fn revert_to(&mut self, name: &str) -> Result<(), String> {
        self.look_at_all().await?;
        let present = self.rng.coin().then(|| self.begin_take());
        let Some(moving) = self.contents_of(name) else { return Ok(()) };
        {
            let mut model = self.model.borrow_mut();
            model.moving = Some(moving);
            model.reverting = true;
        }
        tell(|| format!("revert to {name}, keeping {present:?}"));
        let take_first = present.as_ref().map(|(name, _)| name.as_str());
        let keep = self.rng.coin();
        if keep && take_first.is_none() {
            let shown = self.shown_by(0..self.persistent()).await?;
            self.putting_into_bin(shown, Vec::new());
        }
        let result = self.vm.revert(Some(name), take_first, keep).await;
        tell(|| format!("revert to {name} ends {:?}", result.as_ref().map(|s| s.id)));
        self.model.borrow_mut().reverting = false;
        if let Some((first, began)) = present {
            self.settle_take(&first, began).await?;
        }
        match result {
            Ok(_) => {
                self.model.borrow_mut().moved();
                self.marks("reverted");
                self.see_bin()?;
                self.open_plain_names().await
            }
            Err(e) => self.not_moved(&format!("revert to {name}"), e),
        }
    }

    /// Notes whether the take of a revert has happened, which it may have even if the revert then failed. Looks at the
    /// new snapshot while the models still cover the time before the revert.
    async fn settle_take(&self, name: &str, began: Vec<u64>) -> Result<(), String> {
        let here = self.vm.state().snapshots.iter().find(|s| s.name == name).map(|s| s.id);
        {
            let mut model = self.model.borrow_mut();
            model.taking = false;
            let Some(id) = here else {
                model.snapshots.retain(|k| k.name != name);
                return Ok(());
            };
            if self.trouble.has_struck() && !self.vm.is_sealed(id) {
                // The flush of its seal failed: the next boot treats it like a snapshot whose take was cut.
                return Ok(());
            }
            let ended = model.ticks();
            let known = model.known(name).expect("known since the revert began");
            known.standing = Standing::Sealed { began, ended, contents: None };
        }
        look(&self.vm, &self.model, name).await
    }

    /// Discards a branch.
    pub async fn discard(&mut self) -> Result<(), String> {
        let Some(name) = self.any_sealed() else { return Ok(()) };
        self.gate.stop().await;
        let result = self.discard_from(&name).await;
        self.gate.start();
        result
    }

    async fn discard_from(&mut self, name: &str) -> Result<(), String> {
        self.look_at_all().await?;
        let Ok(loss) = self.vm.discard_preview(name).await else { return Ok(()) };
        let Some(contents) = self.contents_of(name) else { return Ok(()) };
        {
            let mut model = self.model.borrow_mut();
            model.leaving(&loss.snapshots);
            model.moving = loss.reverts.then_some(contents);
            model.discarding = true;
        }
        let keep = self.rng.coin();
        tell(|| format!("discard {name}, kept: {keep}: {loss:?}"));
        if keep {
            let shown = match loss.reverts {
                true => self.shown_by(0..self.persistent()).await?,
                false => Vec::new(),
            };
            self.putting_into_bin(shown, self.known_of(&loss.snapshots));
        }
        let result = self.vm.discard(name, keep).await;
        tell(|| format!("discard {name} ends {:?}", result.as_ref().map(|_| ())));
        self.model.borrow_mut().discarding = false;
        match result {
            Ok(_) => {
                self.model.borrow_mut().gone(&loss.snapshots);
                self.model.borrow_mut().moved();
                self.see_bin()?;
                self.marks(if loss.reverts {
                    "discarded the running branch"
                } else {
                    "discarded a side branch"
                });
                Ok(())
            }
            Err(e) => {
                if !self.is_in_doubt(&e) {
                    self.model.borrow_mut().staying(&loss.snapshots);
                }
                self.not_moved(&format!("discard {name}"), e)
            }
        }
    }

    /// Drops what was written to the nonpersistent disk.
    pub async fn reset(&mut self) -> Result<(), String> {
        self.gate.stop().await;
        {
            let mut model = self.model.borrow_mut();
            let index = model.persistent;
            let size_bytes = self.vm.disks()[index].size_bytes() as usize;
            model.moving = Some(vec![(index, vec![0; size_bytes].into())]);
            model.resetting = true;
        }
        let keep = self.rng.coin();
        if keep {
            let index = self.persistent();
            let shown = self.shown_by(index..index + 1).await?;
            self.putting_into_bin(shown, Vec::new());
        }
        let result = self.vm.reset(keep).await;
        self.model.borrow_mut().resetting = false;
        let result = match result {
            Ok(_) => {
                self.model.borrow_mut().moved();
                self.marks("reset");
                self.see_bin()
            }
            Err(e) => self.not_moved("reset", e),
        };
        self.gate.start();
        result
    }

    /// Sometimes opens plain names: the user declares that the earlier clients are dead.
    async fn open_plain_names(&mut self) -> Result<(), String> {
        self.check_generation()?;
        if self.rng.coin() {
            return Ok(());
        }
        self.model.borrow_mut().opening = true;
        let opened = self.vm.change_generation(GenerationChange::Open).await;
        let mut model = self.model.borrow_mut();
        model.opening = false;
        match opened {
            Ok(()) => {
                let generation = model.generation.as_mut().expect("known since the boot");
                generation.opened = generation.present;
                Ok(())
            }
            Err(e) if e.is_no_space() => Ok(()),
            Err(e) => Err(format!("opening plain names: {e}")),
        }
    }

    fn check_generation(&self) -> Result<(), String> {
        let (is, expected) = (self.vm.state().generation, self.model.borrow().generation);
        match expected == Some(is) {
            true => Ok(()),
            false => Err(format!("the content's generation is {is:?}, expected {expected:?}")),
        }
    }

    /// Returns whether the verb may have happened despite its error: a flush failed, perhaps after the commit point.
    pub fn is_in_doubt(&self, e: &blk::Error) -> bool {
        self.trouble.has_struck() && !changed_nothing(e)
    }

    pub fn not_moved(&self, what: &str, e: blk::Error) -> Result<(), String> {
        if !self.is_in_doubt(&e) {
            self.model.borrow_mut().moving = None;
            self.model.borrow_mut().binning = None;
        }
        match changed_nothing(&e) {
            true => Ok(()),
            false => Err(format!("{what}: {e}")),
        }
    }

    /// Looks at every snapshot before a move, because the models keep nothing of the time before it. Usually lets
    /// commits finish first, because a move is refused while one is under way.
    pub async fn look_at_all(&mut self) -> Result<(), String> {
        if self.rng.below(4) > 0 {
            settle(&self.vm).await?;
        }
        for name in self.sealed_names() {
            look(&self.vm, &self.model, &name).await?;
        }
        Ok(())
    }

    fn contents_of(&self, name: &str) -> Option<Moving> {
        let mut model = self.model.borrow_mut();
        match &model.known(name)?.standing {
            Standing::Sealed { contents: Some(contents), .. } => {
                Some(contents.iter().cloned().enumerate().collect())
            }
            _ => None,
        }
    }
}

fn changed_nothing(e: &blk::Error) -> bool {
    e.kind == ErrorKind::Refused || e.kind == ErrorKind::NotFound || e.is_no_space()
}

/// Discards every side branch after the guests have ended, so that a last commit leaves a clean home.
pub async fn discard_side_branches(vm: &std::rc::Rc<Vm>) -> Result<(), String> {
    loop {
        let state = vm.state();
        let side = state.snapshots.iter().find(|s| !engine::tree::is_running(&state, s.id));
        let Some(side) = side else { return Ok(()) };
        let discarded = vm.discard(&side.name, false).await;
        tell(|| format!("discard {} at the end: {discarded:?}", side.name));
        discarded.map_err(|e| format!("discarding {} at the end: {e}", side.name))?;
    }
}
