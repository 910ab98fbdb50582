//! Changes of a VM's labels.

use std::rc::Rc;

use api::VmLabels;
use api::error::Result;
use api::name::VmName;
use blk::dir::OWN_FOLDER;

use crate::daemon::state::Daemon;
use crate::daemon::vm::labels::{Labels, SnapshotLabel};
use crate::daemon::vm::vm_record::VmRecord;
use crate::daemon::vm::{labels, paths};

impl Daemon {
    /// Durably records who takes a snapshot, before it is taken: after a crash, a snapshot of a policy is known as such.
    pub(crate) async fn label_snapshot(
        &self,
        entry: &VmRecord,
        id: u128,
        label: SnapshotLabel,
    ) -> blk::Result<()> {
        let add = async |labels: &mut Labels| {
            // The snapshots of other takes under way may not be in the state yet.
            if entry.labels.is_only_take() {
                let state = entry.running.state().await;
                let binned = state.bin.iter().flat_map(|binned| &binned.snapshots);
                labels.retain(&state.snapshots.iter().chain(binned).map(|snapshot| snapshot.id).collect());
            }
            labels.add(id, label);
        };
        self.change_labels(entry, add).await
    }

    pub(super) async fn change_labels(
        &self,
        entry: &VmRecord,
        change: impl AsyncFnOnce(&mut Labels),
    ) -> blk::Result<()> {
        let write = async |labels: Labels| {
            // The text of thousands of snapshots takes longer than guests should wait.
            let (labels, text) = self
                .env
                .offload(move || {
                    let text = labels.to_text();
                    (labels, text)
                })
                .await;
            let write = async || {
                let own = paths::open_path(&self.env, &entry.home).await?.open_dir(OWN_FOLDER, true).await?;
                labels::write(&own, &text).await
            };
            self.with_reserve(&entry.datastore, write).await?;
            Ok(labels)
        };
        entry.labels.change(change, write).await
    }

    /// Replaces the tags and the note of a VM.
    pub(crate) async fn vm_set_labels(self: &Rc<Self>, vm: &VmName, wanted: VmLabels) -> Result<api::Vm> {
        let entry = self.entry_to_change(vm.as_str())?;
        let VmLabels { mut tags, note } = wanted;
        tags.sort();
        tags.dedup();
        let set = async |labels: &mut Labels| (labels.tags, labels.note) = (tags, note);
        self.change_labels(&entry, set).await?;
        self.policies.wake();
        self.show(&entry).await
    }
}
