//! Restore and removal of what the bin keeps, and comparison with what was put there.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use engine::Vm;

use super::control::{Control, read_all};
use super::model::{Image, Known, KnownBinned, Model, Moving, Standing};
use crate::watch::{chains, tell};

type Names = Vec<(String, Option<Vec<Image>>)>;

impl Control {
    pub fn persistent(&self) -> usize {
        self.model.borrow().persistent
    }

    /// Returns what the disks with these indexes show; the guests are powered off.
    pub async fn shown_by(&self, indexes: Range<usize>) -> Result<Moving, String> {
        let mut shown = Vec::new();
        for index in indexes {
            shown.push((index, read_all(&self.vm.disks()[index]).await?));
        }
        Ok(shown)
    }

    pub fn putting_into_bin(&self, contents: Moving, names: Names) {
        self.model.borrow_mut().binning = Some(KnownBinned { contents, names, leaving: false });
    }

    pub fn known_of(&self, names: &[String]) -> Names {
        let mut model = self.model.borrow_mut();
        let contents = |standing: &Standing| match standing {
            Standing::Sealed { contents, .. } | Standing::Committing(contents) => contents.clone(),
            _ => None,
        };
        names
            .iter()
            .map(|name| (name.clone(), model.known(name).and_then(|k| contents(&k.standing))))
            .collect()
    }

    pub fn see_bin(&self) -> Result<(), String> {
        let ids: Vec<u64> = self.vm.state().bin.iter().map(|binned| binned.id).collect();
        self.model.borrow_mut().found_in_bin(&ids)
    }

    /// Notes that a commit that evicts these entries begins (`leaving`), or that it has not happened.
    pub fn evicting(&self, ids: &[u64], leaving: bool) {
        let mut model = self.model.borrow_mut();
        model
            .bin
            .iter_mut()
            .filter(|(id, _)| ids.contains(id))
            .for_each(|(_, binned)| binned.leaving = leaving);
    }

    pub async fn restore(&mut self) -> Result<(), String> {
        let ids: Vec<u64> = self.model.borrow().bin.keys().copied().collect();
        let Some(id) = self.rng.pick(&ids).copied() else { return Ok(()) };
        self.gate.stop().await;
        let result = self.restore_entry(id).await;
        self.gate.start();
        result
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
        {
            let mut model = self.model.borrow_mut();
            model.moving = moves.then(|| binned.contents.clone());
            model.returning(&binned.names);
            model.bin.get_mut(&id).expect("picked").leaving = true;
            model.restoring = true;
        }
        let result = self.vm.restore(id, keep).await;
        tell(|| format!("restore {id:016x}, kept: {keep}, ends {:?}", result.as_ref().map(|_| ())));
        tell(|| format!("  of {:?}; {:?}", chains(&self.vm), self.vm.state()));
        self.model.borrow_mut().restoring = false;
        match result {
            Ok(_) => {
                {
                    let mut model = self.model.borrow_mut();
                    model.moved();
                    let names: Vec<String> = binned.names.iter().map(|(name, _)| name.clone()).collect();
                    model.staying(&names);
                }
                self.marks(if moves { "restored what ran" } else { "restored a side branch" });
                self.see_bin()
            }
            Err(e) => {
                if !self.is_in_doubt(&e) {
                    let mut model = self.model.borrow_mut();
                    model.not_returned(&binned.names);
                    model.bin.get_mut(&id).expect("picked").leaving = false;
                }
                self.not_moved("restore", e)
            }
        }
    }

    pub async fn empty_bin(&mut self) -> Result<(), String> {
        let ids: Vec<u64> = self.model.borrow().bin.keys().copied().filter(|_| self.rng.coin()).collect();
        self.evicting(&ids, true);
        match self.vm.empty_bin(&ids).await {
            Ok(_) => {
                self.marks("emptied the bin");
                self.see_bin()
            }
            Err(e) => {
                if !self.is_in_doubt(&e) {
                    self.evicting(&ids, false);
                }
                self.not_moved("emptying the bin", e)
            }
        }
    }
}

impl Model {
    /// Notes that a verb has begun that brings back these names, which had left the tree.
    fn returning(&mut self, names: &Names) {
        for (name, contents) in names {
            let standing = Standing::Committing(contents.clone());
            match self.known(name) {
                Some(known) => known.standing = standing,
                None => self.snapshots.push(Known { name: name.clone(), standing }),
            }
        }
    }

    fn not_returned(&mut self, names: &Names) {
        let names: Vec<String> = names.iter().map(|(name, _)| name.clone()).collect();
        self.gone(&names);
    }
}

/// Checks that every entry shows what it showed when it was put into the bin.
pub async fn check_bin(vm: &Rc<Vm>, model: &RefCell<Model>) -> Result<(), String> {
    let bin = model.borrow().bin.clone();
    for (id, binned) in &bin {
        for (index, bytes) in &binned.contents {
            let number = vm.disks()[*index].number;
            let disk = vm.open_binned(*id, number).await.map_err(|e| format!("the bin: {e}"))?;
            let seen = read_all(&disk).await.map_err(|e| format!("the bin: {e}"))?;
            if seen != *bytes {
                let change = super::control::difference(std::slice::from_ref(bytes), &[seen]);
                return Err(format!("what the bin keeps of disk{number} ({id:016x}) changed: {change}"));
            }
        }
    }
    Ok(())
}
