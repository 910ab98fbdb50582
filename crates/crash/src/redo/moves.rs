//! Moves of the user in the tree, with the guests powered off: revert, discard and reset.

use blk::ErrorKind;
use engine::{GenerationChange, Vm};

use super::control::{Control, settle};
use super::model::{Moving, SnapshotStatus, TAKING};
use crate::content::Image;
use crate::watch::print;

impl Control {
    /// Reverts to any snapshot of the tree, sometimes with a take of the present first.
    pub(super) async fn revert(&mut self) -> Result<(), String> {
        let Some(name) = self.any_sealed() else { return Ok(()) };
        self.powered_off(async |user| user.revert_to(&name).await).await
    }

    async fn revert_to(&mut self, name: &str) -> Result<(), String> {
        self.look_at_all().await?;
        let present = self.rng.coin().then(|| self.begin_take());
        let Some(moving) = self.contents_of(name) else { return Ok(()) };
        self.begin_move("cut in a revert", Some(moving));
        print(|| format!("revert to {name}, keeping {present:?}"));
        let take_first = present.as_ref().map(|(name, _)| name.as_str());
        let keep = self.rng.coin();
        if keep && take_first.is_none() {
            let shown = self.shown_by(0..self.persistent()).await?;
            self.putting_into_bin(shown, Vec::new());
        }
        let result = self.vm.revert(Some(name), take_first, keep).await;
        print(|| format!("revert to {name} ends {:?}", result.as_ref().map(|s| s.id)));
        self.model.borrow_mut().doing.remove("cut in a revert");
        if let Some((first, began)) = present {
            self.settle_take(&first, began).await?;
        }
        if !self.settle_move(&format!("revert to {name}"), result)? {
            return Ok(());
        }
        self.world.mark("reverted");
        self.open_plain_names().await
    }

    /// Notes whether the take of a revert has happened, which it may have even if the revert then failed. Looks at the
    /// new snapshot while the models still cover the time before the revert.
    async fn settle_take(&self, name: &str, began: Vec<u64>) -> Result<(), String> {
        let here = self.vm.state().snapshots.iter().find(|s| s.name == name).map(|s| s.id);
        {
            let mut model = self.model.borrow_mut();
            model.doing.remove(TAKING);
            let Some(id) = here else {
                model.snapshots.retain(|k| k.name != name);
                return Ok(());
            };
            if self.faults.has_struck() && !self.vm.is_sealed(id) {
                // The flush of its seal failed: the next boot treats it like a snapshot whose take was cut.
                return Ok(());
            }
            model.seal(name, began, None);
        }
        self.look(name).await.map(drop)
    }

    /// Discards a branch.
    pub(super) async fn discard(&mut self) -> Result<(), String> {
        let Some(name) = self.any_sealed() else { return Ok(()) };
        self.powered_off(async |user| user.discard_from(&name).await).await
    }

    async fn discard_from(&mut self, name: &str) -> Result<(), String> {
        self.look_at_all().await?;
        let Ok(loss) = self.vm.discard_preview(name).await else { return Ok(()) };
        let Some(contents) = self.contents_of(name) else { return Ok(()) };
        self.model.borrow_mut().leaving(&loss.snapshots);
        self.begin_move("cut in a discard", loss.reverts.then_some(contents));
        let keep = self.rng.coin();
        print(|| format!("discard {name}, kept: {keep}: {loss:?}"));
        if keep {
            let shown = match loss.reverts {
                true => self.shown_by(0..self.persistent()).await?,
                false => Vec::new(),
            };
            self.putting_into_bin(shown, self.known_of(&loss.snapshots));
        }
        let result = self.vm.discard(name, keep).await;
        print(|| format!("discard {name} ends {:?}", result.as_ref().map(|_| ())));
        self.model.borrow_mut().doing.remove("cut in a discard");
        let done = self.settle_move(&format!("discard {name}"), result)?;
        match done {
            true => self.model.borrow_mut().gone(&loss.snapshots),
            false => self.model.borrow_mut().staying(&loss.snapshots),
        }
        match loss.reverts {
            _ if !done => {}
            true => self.world.mark("discarded the running branch"),
            false => self.world.mark("discarded a side branch"),
        }
        Ok(())
    }

    /// Drops what was written to the nonpersistent disk.
    pub(super) async fn reset(&mut self) -> Result<(), String> {
        let index = self.persistent();
        let size_bytes = self.vm.disks()[index].size_bytes() as usize;
        self.begin_move("cut in a reset", Some(vec![(index, vec![0; size_bytes].into())]));
        let keep = self.rng.coin();
        if keep {
            let shown = self.shown_by(index..index + 1).await?;
            self.putting_into_bin(shown, Vec::new());
        }
        let result = self.vm.reset(keep).await;
        self.model.borrow_mut().doing.remove("cut in a reset");
        if self.settle_move("reset", result)? {
            self.world.mark("reset");
        }
        Ok(())
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

    /// Notes that a verb begins that moves the disks, if it moves any.
    pub(super) fn begin_move(&self, doing: &'static str, moving: Option<Moving>) {
        let mut model = self.model.borrow_mut();
        model.moving = moving;
        model.doing.insert(doing);
    }

    /// Notes the result of a verb of the tree or of the bin. Returns false if the verb was refused or found no space, and
    /// so changed nothing. After any other error it may have happened: a flush failed, perhaps after its commit point.
    pub(super) fn settle_move<T>(&self, what: &str, result: blk::Result<T>) -> Result<bool, String> {
        match result {
            Ok(_) => self.model.borrow_mut().moved(),
            Err(e) if e.is_no_space() || matches!(e.kind, ErrorKind::Refused | ErrorKind::NotFound) => {
                let mut model = self.model.borrow_mut();
                (model.moving, model.binning) = (None, None);
                return Ok(false);
            }
            Err(e) => return Err(format!("{what}: {e}")),
        }
        self.see_bin().map(|()| true)
    }

    /// Looks at every snapshot before a move, because the models keep nothing of the time before it. Usually lets
    /// commits finish first, because a move is refused while one is under way.
    pub(super) async fn look_at_all(&mut self) -> Result<(), String> {
        if self.rng.below(4) > 0 {
            settle(&self.vm).await?;
        }
        for name in self.sealed_names() {
            self.look(&name).await?;
        }
        Ok(())
    }

    /// Returns what the disks of a sealed snapshot showed at the first look.
    pub(super) fn sealed_contents(&self, name: &str) -> Option<Vec<Image>> {
        let mut model = self.model.borrow_mut();
        let status = &model.known(name)?.status;
        status.contents().filter(|_| matches!(status, SnapshotStatus::Sealed { .. }))
    }

    fn contents_of(&self, name: &str) -> Option<Moving> {
        self.sealed_contents(name).map(|contents| contents.into_iter().enumerate().collect())
    }
}

/// Discards every side branch after the guests have ended, so that a last commit leaves a clean home.
pub(super) async fn discard_side_branches(vm: &std::rc::Rc<Vm>) -> Result<(), String> {
    loop {
        let state = vm.state();
        let side = state.snapshots.iter().find(|s| !engine::tree::is_running(&state, s.id));
        let Some(side) = side else { return Ok(()) };
        let discarded = vm.discard(&side.name, false).await;
        print(|| format!("discard {} at the end: {discarded:?}", side.name));
        discarded.map_err(|e| format!("discarding {} at the end: {e}", side.name))?;
    }
}
