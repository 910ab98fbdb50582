//! Differences between two states of a disk, and the space that a VM uses.

use api::DiskRange;
use api::error::Result;
use api::name::VmName;
use api::units::total;
use engine::DiffRequest;

use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;

impl Daemon {
    /// Returns a part of the differences. Fails with `Refused` while a commit moves blocks.
    pub(crate) async fn snapshot_diff(&self, vm: &VmName, request: api::Diff) -> Result<api::Differences> {
        let entry = self.entry(vm.as_str())?;
        let (from, to) = (request.from.as_str(), request.to.as_ref().map(|name| name.as_str()));
        let between = DiffRequest { disk: request.disk, from, to, start: request.start_bytes, end: u64::MAX };
        let found = entry.running.differences(between).await?;
        let range = |range: std::ops::Range<u64>| DiskRange {
            start_bytes: range.start,
            length_bytes: range.end - range.start,
        };
        Ok(api::Differences {
            vm: vm.clone(),
            disk: request.disk,
            from: from.to_owned(),
            to: to.map(str::to_owned),
            size_bytes: found.size_bytes,
            start_bytes: request.start_bytes,
            end_bytes: found.end,
            ranges: found.ranges.into_iter().map(range).collect(),
            verified: None,
        })
    }

    pub(crate) async fn vm_space(&self, vm: &VmName) -> Result<api::VmSpace> {
        let entry = self.entry(vm.as_str())?;
        self.measure_states(&entry.datastore).await;
        let view = entry.running.view().await;
        let used = entry.running.used().await?;
        let delta_bytes = entry.running.delta_bytes().await?;
        let now = api_types::time(self.env.unix_us());
        let snapshot = |snapshot: api::Snapshot| api::SnapshotSpace {
            id: snapshot.id,
            name: snapshot.name,
            created: snapshot.created,
            // If the clock was put back past the snapshot, its age is 0.
            age_s: now.duration_since(snapshot.created).as_secs().max(0).unsigned_abs(),
            delta_bytes: snapshot.delta_bytes,
            memory_bytes: snapshot.memory_bytes.unwrap_or(0),
        };
        let mut disks = Vec::new();
        for disk in &view.state.disks {
            let average_run_bytes = entry.running.average_run_bytes(disk.number).await?;
            disks.push(api::DiskOrder { number: disk.number, average_run_bytes });
        }
        let memory_bytes = entry.memory_bytes();
        let snapshots = api_types::snapshots(&view, &delta_bytes, &entry);
        Ok(api::VmSpace {
            vm: vm.clone(),
            datastore: entry.datastore.name.clone(),
            store: entry.kept.store(),
            logical_bytes: total(view.state.disks.iter().map(|disk| disk.size_bytes)),
            allocated_bytes: used.allocated_bytes + memory_bytes,
            shared_bytes: used.shared_bytes,
            memory_bytes,
            snapshots: snapshots.into_iter().map(snapshot).collect(),
            disks,
            space: self.space(&entry.datastore).await?,
        })
    }
}
