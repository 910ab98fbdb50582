//! Snapshot tree with the space that its branches use.

use api::error::Result;
use api::name::VmName;

use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::Kept;

impl Daemon {
    pub(crate) async fn snapshot_tree(&self, vm: &VmName) -> Result<api::SnapshotTree> {
        let entry = self.entry(vm.as_str())?;
        let view = entry.running.view().await;
        let delta_bytes = entry.running.delta_bytes().await?;
        let mut unowned = Vec::new();
        for disk in entry.running.listing().await? {
            unowned.extend(disk.unowned.into_iter().map(|layer| api::UnownedDelta {
                disk: disk.number,
                descriptor: api_types::layer_path(&entry, &layer.name),
                allocated_bytes: layer.allocated_bytes,
            }));
        }
        let machine_states = match &entry.kept {
            Kept::Redo => entry.running.with_files(async |files| files.machine_states().await).await?,
            Kept::Native(_) => 0,
        };
        Ok(api::SnapshotTree {
            vm: vm.clone(),
            store: entry.kept.store(),
            snapshots: api_types::snapshots(&view, &delta_bytes, &entry),
            unowned,
            machine_states,
        })
    }
}
