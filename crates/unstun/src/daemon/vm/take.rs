//! Takes, with who took the snapshot.

use std::collections::BTreeMap;
use std::rc::Rc;

use api::error::{Error, Result};
use api::name::VmName;
use engine::Rename;
use tracing::warn;

use crate::daemon::defect::Defect;
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::labels::{LabelledTake, SnapshotLabel};
use crate::daemon::vm::vm_record::VmRecord;

impl Daemon {
    /// Takes a snapshot, and returns once it is sealed.
    pub(crate) async fn snapshot_take(
        &self,
        vm: &VmName,
        request: api::SnapshotTake,
        label: SnapshotLabel,
    ) -> Result<api::SnapshotTaken> {
        let entry = self.entry_to_change(vm.as_str())?;
        self.take_and_show(&entry, request, entry.labels.begin_take(label)).await
    }

    /// Gives a snapshot another name or description.
    pub(crate) async fn snapshot_rename(
        &self,
        vm: &VmName,
        request: api::SnapshotRename,
    ) -> Result<api::Snapshot> {
        let entry = self.entry_to_change(vm.as_str())?;
        let rename = Rename { name: request.name.map(|name| name.to_string()), description: request.message };
        let wanted = request.snapshot.as_str();
        let rename = async || Ok(entry.running.rename(wanted, rename.clone()).await?);
        let renamed = self.with_bin(&entry.datastore, rename).await?;
        let tree = self.snapshot_tree(vm).await?;
        let id = api_types::id(renamed.id);
        let gone = || Error::failed(format!("VM {vm}: snapshot {} is removed by now", renamed.name));
        tree.snapshots.into_iter().find(|snapshot| snapshot.id == id).ok_or_else(gone)
    }

    pub(crate) async fn take_and_show(
        &self,
        entry: &Rc<VmRecord>,
        request: api::SnapshotTake,
        take: LabelledTake<'_>,
    ) -> Result<api::SnapshotTaken> {
        let taken = self.take_labelled(entry, request, &take.label).await?;
        // The event must be this take's own: another operation may have recorded one meanwhile.
        let own = |e: &&api::Event| {
            e.operation == api::Operation::Take && e.snapshot.as_deref() == Some(taken.name.as_str())
        };
        let stun_us = entry.events.borrow().iter().rev().find(own).map_or(0, |e| e.stun_us);
        let view = entry.running.view().await;
        // The new snapshot has no delta above it yet.
        let shown = api_types::snapshots(&view, &BTreeMap::new(), &entry.labels.get());
        let id = api_types::id(taken.id);
        let snapshot = shown.into_iter().find(|s| s.id == id);
        let gone = || {
            let name = &taken.name;
            Error::failed(format!(
                "VM {}: another client committed snapshot {name} at the same time",
                entry.name
            ))
        };
        Ok(api::SnapshotTaken {
            vm: api_types::vm_name(&entry.name),
            snapshot: snapshot.ok_or_else(gone)?,
            stun_us,
            space: self.space(&entry.datastore).await?,
        })
    }

    async fn take_labelled(
        &self,
        entry: &Rc<VmRecord>,
        request: api::SnapshotTake,
        label: &SnapshotLabel,
    ) -> Result<blk::manifest::SnapshotState> {
        let api::SnapshotTake { name, message } = request;
        let new = engine::tree::new_snapshot(&self.env, name.as_str(), &message);
        let late = self.defects.has(Defect::LabelLate);
        if !late {
            self.label_or_warn(entry, new.id, label).await?;
        }
        let take = async || Ok(entry.running.take(new.clone()).await?);
        let taken = self.with_bin(&entry.datastore, take).await?;
        if late {
            self.label_or_warn(entry, new.id, label).await?;
        }
        Ok(taken)
    }

    /// A policy must know its snapshots; a person can do without.
    async fn label_or_warn(&self, entry: &VmRecord, id: u128, label: &SnapshotLabel) -> Result<()> {
        match self.label_snapshot(entry, id, label.clone()).await {
            Err(e) if label.policy.is_none() => {
                warn!("VM {}: who takes a snapshot is not recorded: {e}", entry.name);
                Ok(())
            }
            labelled => Ok(labelled?),
        }
    }
}
