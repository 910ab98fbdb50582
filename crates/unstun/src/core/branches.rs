//! Revert, discard and reset: what they lose, said before and after; with the writers sent away first where
//! asked.

use std::rc::Rc;

use engine::Loss;

use super::door::{Shut, Who};
use super::entry::{Entry, Kept};
use super::node::Node;
use super::present;
use crate::api::{self, Operation, VmClient};
use crate::error::Result;
use crate::name::VmName;

impl Node {
    pub async fn revert_preview(&self, vm: &VmName, request: api::Revert) -> Result<api::Loss> {
        let entry = self.entry(vm.as_str())?;
        let loss = entry.revert_loss(&request).await?;
        Ok(present_loss(&entry, Operation::Revert, &loss, &request, entry.writers()))
    }

    pub async fn snapshot_revert(&self, vm: &VmName, request: api::Revert) -> Result<api::Loss> {
        let entry = self.entry_to_change(vm.as_str())?;
        let loss = entry.revert_loss(&request).await?;
        let (clients, _shut) = self.make_way(&entry, request.disconnect).await?;
        let wanted = request.snapshot.as_ref().map(|name| name.as_str());
        entry.vm.clone().revert(wanted, request.take_first.as_ref().map(|name| name.as_str()), false).await?;
        Ok(present_loss(&entry, Operation::Revert, &loss, &request, clients))
    }

    pub async fn discard_preview(&self, vm: &VmName, request: api::Discard) -> Result<api::Loss> {
        let entry = self.entry(vm.as_str())?;
        let loss = entry.vm.discard_preview(request.snapshot.as_str()).await?;
        Ok(present_loss(&entry, Operation::Discard, &loss, &api::Revert::default(), entry.writers()))
    }

    pub async fn snapshot_discard(&self, vm: &VmName, request: api::Discard) -> Result<api::Loss> {
        let entry = self.entry_to_change(vm.as_str())?;
        // A side branch goes without anybody's noticing.
        let reverts = entry.vm.discard_preview(request.snapshot.as_str()).await?.reverts;
        let (clients, _shut) = self.make_way(&entry, request.disconnect && reverts).await?;
        let loss = entry.vm.clone().discard(request.snapshot.as_str(), false).await?;
        Ok(present_loss(&entry, Operation::Discard, &loss, &api::Revert::default(), clients))
    }

    pub async fn reset_preview(&self, vm: &VmName) -> Result<api::Loss> {
        let entry = self.entry(vm.as_str())?;
        let loss = entry.vm.reset_preview().await?;
        Ok(present_loss(&entry, Operation::Reset, &loss, &api::Revert::default(), entry.writers()))
    }

    pub async fn vm_reset(&self, vm: &VmName, disconnect: bool) -> Result<api::Loss> {
        let entry = self.entry_to_change(vm.as_str())?;
        entry.vm.reset_preview().await?;
        let (clients, _shut) = self.make_way(&entry, disconnect).await?;
        let loss = entry.vm.clone().reset(false).await?;
        Ok(present_loss(&entry, Operation::Reset, &loss, &api::Revert::default(), clients))
    }

    /// Nobody where nobody is to be disconnected: then the engine refuses, and names them.
    pub async fn make_way(
        &self,
        entry: &Rc<Entry>,
        disconnect: bool,
    ) -> Result<(Vec<VmClient>, Option<Shut>)> {
        if !disconnect {
            return Ok((Vec::new(), None));
        }
        let (clients, shut) = entry.disconnect(&self.env, &self.doors, Who::Writers).await?;
        Ok((clients, Some(shut)))
    }
}

impl Entry {
    async fn revert_loss(&self, request: &api::Revert) -> Result<Loss> {
        let wanted = request.snapshot.as_ref().map(|name| name.as_str());
        Ok(self.vm.revert_preview(wanted, request.take_first.is_some()).await?)
    }
}

fn present_loss(
    entry: &Entry,
    operation: Operation,
    loss: &Loss,
    request: &api::Revert,
    clients: Vec<VmClient>,
) -> api::Loss {
    let layers = match entry.kept {
        Kept::Redo(_) => loss.layers.iter().map(|layer| entry.home.join(layer)).collect(),
        // No file goes: the space is given back inside of the store.
        Kept::Native(_) => Vec::new(),
    };
    let mut shown = api::Loss {
        vm: present::vm_name(&entry.name),
        operation,
        target: loss.target.clone(),
        taken: request.take_first.as_ref().map(ToString::to_string),
        snapshots: loss.snapshots.clone(),
        layers,
        bytes_lost: loss.bytes,
        reverts: loss.reverts,
        clients,
        warning: String::new(),
    };
    shown.warning = shown.sentence();
    shown
}
