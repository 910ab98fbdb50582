//! Clients of a redo VM: attaching to its running disks, opening its sealed states, and the checks of both.

use std::collections::BTreeSet;
use std::rc::Rc;

use blk::manifest::{Change, LayerName, Opening, SnapshotState, VmState};
use blk::{Error, Result};

use super::disk::Disk;
use super::vm::Vm;
use crate::client::{Client, GenerationChange, View};

impl Vm {
    /// Attaches a writable client to a running disk. Before, a top that was reopened gets a new content id on disk.
    pub async fn attach(&self, number: u32, client: &str) -> Result<(Rc<Disk>, Rc<Client>)> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let disk = self.disk(number)?;
        self.refuse_frozen_top(&disk)?;
        self.touch(&disk.top_name()).await?;
        Ok((disk, self.activity.attach(number, client)))
    }

    pub(crate) async fn find_frozen_tops(&self) -> Result<()> {
        let mut named = self.state();
        let disks = std::mem::take(&mut named.disks);
        if !named.snapshots.is_empty() {
            let needed = self.graph().await?.reachable(&named);
            let tops = disks.into_iter().map(|disk| disk.top);
            *self.frozen_tops.borrow_mut() = tops.filter(|top| needed.contains(top)).collect();
        }
        Ok(())
    }

    fn refuse_frozen_top(&self, disk: &Disk) -> Result<()> {
        if !self.frozen_tops.borrow().contains(&disk.top_name()) {
            return Ok(());
        }
        let cause = format!("the disk runs in {}, which a snapshot needs unchanged", disk.top_name());
        let remedy = "take a snapshot: the disk then runs in a new layer";
        Err(Error::refused(&disk.name, format!("{cause}; {remedy}")))
    }

    /// Changes the content generation. The change is durable when this returns.
    pub async fn change_generation(&self, change: GenerationChange) -> Result<()> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let before = self.state();
        let generation = change.apply(before.generation, &self.name)?;
        match generation == before.generation {
            true => Ok(()),
            false => {
                self.publish(Change { next: VmState { generation, ..before }, ..Change::default() }).await
            }
        }
    }

    /// Returns a sealed snapshot and a guard on its layers, for work outside of the engine such as making a clone.
    pub async fn hold(&self, snapshot: &str, client: &str) -> Result<(SnapshotState, Rc<View>)> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.refuse_open_jobs()?;
        let found = self.sealed(snapshot)?;
        let view = self.activity.view(found.id, client, true);
        Ok((found, view))
    }

    /// Opens a sealed state of one disk, read-only. The view protects its layers until it is dropped.
    pub async fn open_view(&self, snapshot: &str, number: u32, client: &str) -> Result<(Rc<Disk>, Rc<View>)> {
        let _turn = self.operations.lock().await;
        let found = self.sealed(snapshot)?;
        let layer = found.disks.iter().find(|(n, _)| *n == number).map(|(_, layer)| layer);
        let Some(layer) = layer else {
            let cause = format!("disk{number} is not part of snapshot {snapshot}");
            return Err(Error::not_found(&self.name, cause));
        };
        let layers = self.open_chain(layer, Opening::Serve).await?;
        let name = format!("{}/disk{number}@{}", self.name, found.name);
        let disk = Disk::new(self.env.clone(), name, number, layers, true, self.options)?;
        Ok((disk, self.activity.view(found.id, client, false)))
    }

    pub(crate) fn sealed(&self, snapshot: &str) -> Result<SnapshotState> {
        self.activity.sealed(&self.state.borrow(), snapshot)
    }

    /// Refuses changes of layers that are held for work outside of the engine. A view within the engine follows a fold
    /// under it; a reader that opened the layers itself does not.
    pub(crate) fn refuse_held_still(&self, changing: &BTreeSet<LayerName>) -> Result<()> {
        let state = self.state.borrow();
        for view in self.activity.views().iter().filter(|view| view.still) {
            let held = state.snapshots.iter().find(|s| s.id == view.snapshot);
            if let Some(held) = held.filter(|s| s.disks.iter().any(|(_, layer)| changing.contains(layer))) {
                let cause = format!(
                    "{} is in use by {}; try again when that operation has ended",
                    held.name, view.client
                );
                return Err(Error::refused(&self.name, cause));
            }
        }
        Ok(())
    }
}
