//! Restore and removal of what the bin keeps, and comparison with what was put there.

use std::ops::Range;

use super::control::Control;
use super::harness::Harness;
use super::model::{ExpectedBinned, ExpectedSnapshot, Model, Moving, SnapshotStatus};
use crate::content::{Image, contents_of, difference, read_all};
use crate::watch::{chains, print};

type Names = Vec<(String, Option<Vec<Image>>)>;

impl Control {
    pub(super) fn persistent(&self) -> usize {
        self.model.borrow().persistent
    }

    /// Returns what the disks with these indexes show; the guests are powered off.
    pub(super) async fn shown_by(&self, indexes: Range<usize>) -> Result<Moving, String> {
        let contents = contents_of(&self.vm.disks()[indexes.clone()]).await?;
        Ok(indexes.zip(contents).collect())
    }

    pub(super) fn putting_into_bin(&self, contents: Moving, names: Names) {
        self.model.borrow_mut().binning = Some(ExpectedBinned { contents, names, leaving: false });
    }

    pub(super) fn known_of(&self, names: &[String]) -> Names {
        let mut model = self.model.borrow_mut();
        names
            .iter()
            .map(|name| (name.clone(), model.known(name).and_then(|known| known.status.contents())))
            .collect()
    }

    /// Notes that a verb that takes these entries out of the bin begins (`leaving`), or that it has not happened.
    pub(super) fn evicting(&self, ids: &[u64], leaving: bool) {
        let mut model = self.model.borrow_mut();
        model.bin.iter_mut().filter(|(id, _)| ids.contains(id)).for_each(|(_, it)| it.leaving = leaving);
    }

    pub(super) async fn restore(&mut self) -> Result<(), String> {
        let ids: Vec<u64> = self.model.borrow().bin.keys().copied().collect();
        let Some(id) = self.rng.pick(&ids).copied() else { return Ok(()) };
        self.powered_off(async |user| user.restore_entry(id).await).await
    }

    async fn restore_entry(&mut self, id: u64) -> Result<(), String> {
        self.look_at_all().await?;
        let binned = self.model.borrow().bin[&id].clone();
        let keep = self.rng.coin();
        let moves = !binned.contents.is_empty();
        if keep && moves {
            let shown = self.shown_by(0..self.vm.disks().len()).await?;
            let in_it = |index: &usize| binned.contents.iter().any(|(own, _)| own == index);
            let shown = shown.into_iter().filter(|(index, _)| in_it(index)).collect();
            self.putting_into_bin(shown, Vec::new());
        }
        self.begin_move("cut in a restore", moves.then(|| binned.contents.clone()));
        self.model.borrow_mut().returning(&binned.names);
        self.evicting(&[id], true);
        let result = self.vm.restore(id, keep).await;
        print(|| format!("restore {id:016x}, kept: {keep}, ends {:?}", result.as_ref().map(|_| ())));
        print(|| format!("  of {:?}; {:?}", chains(&self.vm), self.vm.state()));
        self.model.borrow_mut().doing.remove("cut in a restore");
        let done = self.settle_move("restore", result)?;
        let names: Vec<String> = binned.names.iter().map(|(name, _)| name.clone()).collect();
        if !done {
            self.model.borrow_mut().gone(&names);
            self.evicting(&[id], false);
            return Ok(());
        }
        self.model.borrow_mut().staying(&names);
        self.world.mark(if moves { "restored what ran" } else { "restored a side branch" });
        Ok(())
    }

    pub(super) async fn empty_bin(&mut self) -> Result<(), String> {
        let bin = self.harness.model.borrow().bin.keys().copied().collect::<Vec<u64>>();
        let ids: Vec<u64> = bin.into_iter().filter(|_| self.rng.coin()).collect();
        self.evicting(&ids, true);
        let emptied = self.vm.empty_bin(&ids).await;
        match self.settle_move("emptying the bin", emptied)? {
            true => self.world.mark("emptied the bin"),
            false => self.evicting(&ids, false),
        }
        Ok(())
    }
}

impl Model {
    /// Notes that a verb has begun that brings back these names, which had left the tree.
    fn returning(&mut self, names: &Names) {
        for (name, contents) in names {
            let status = SnapshotStatus::Committing(contents.clone());
            match self.known(name) {
                Some(known) => known.status = status,
                None => self.snapshots.push(ExpectedSnapshot { name: name.clone(), status }),
            }
        }
    }
}

impl Harness {
    pub(super) fn see_bin(&self) -> Result<(), String> {
        let ids: Vec<u64> = self.vm.state().bin.iter().map(|binned| binned.id).collect();
        self.model.borrow_mut().found_in_bin(&ids)
    }

    /// Checks that every entry shows what it showed when it was put into the bin.
    pub(super) async fn check_bin(&self) -> Result<(), String> {
        let bin = self.model.borrow().bin.clone();
        for (id, binned) in &bin {
            for (index, bytes) in &binned.contents {
                let number = self.vm.disks()[*index].number;
                let disk = self.vm.open_binned(*id, number).await.map_err(|e| format!("the bin: {e}"))?;
                let seen = read_all(&disk).await.map_err(|e| format!("the bin: {e}"))?;
                if seen != *bytes {
                    let change = difference(std::slice::from_ref(bytes), &[seen]);
                    return Err(format!("what the bin keeps of disk{number} ({id:016x}) changed: {change}"));
                }
            }
        }
        Ok(())
    }
}
