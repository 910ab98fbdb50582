//! The snapshot tree with what its branches hold.

use std::collections::BTreeMap;

use blk::manifest::{DiskState, LayerInfo, LayerName, SnapshotState, VmState};

use super::node::{Entry, Node};
use super::present;
use crate::api;
use crate::error::Result;
use crate::name::VmName;

/// Every layer of every branch, by name.
type Layers = BTreeMap<LayerName, LayerInfo>;

impl Node {
    pub async fn snapshot_tree(&self, vm: &VmName) -> Result<api::SnapshotTree> {
        let entry = self.entry(vm.as_str())?;
        let state = entry.vm.state();
        let layers = self.all_layers(&entry, &state).await?;
        let delta_bytes = |snapshot: &SnapshotState| {
            let on_top = layers.values().filter(|layer| {
                let parent = layer.parent.as_ref();
                snapshot.disks.iter().any(|(_, frozen)| Some(frozen) == parent)
            });
            on_top.map(|layer| entry.file_bytes(layer)).sum()
        };
        let mut unowned = Vec::new();
        for disk in &state.disks {
            let chain = self.layers(&entry, &disk.top).await?;
            unowned.extend(self::unowned(&state, disk, &chain).into_iter().map(|layer| api::UnownedDelta {
                disk: disk.number,
                descriptor: entry.home.join(&layer.name),
                allocated_bytes: layer.allocated_bytes,
            }));
        }
        Ok(api::SnapshotTree {
            vm: vm.clone(),
            snapshots: present::snapshots(&entry, &state, delta_bytes),
            unowned,
            machine_states: entry.files.machine_states().await?,
        })
    }

    /// A chain that ends in a layer known from another is not asked for again.
    async fn all_layers(&self, entry: &Entry, state: &VmState) -> Result<Layers> {
        let mut layers = Layers::new();
        let running = state.disks.iter().map(|disk| &disk.top);
        let frozen = state.snapshots.iter().rev().flat_map(|s| s.disks.iter().map(|(_, layer)| layer));
        for end in running.chain(frozen) {
            if !layers.contains_key(end) {
                let chain = self.layers(entry, end).await?;
                layers.extend(chain.into_iter().map(|layer| (layer.name.clone(), layer)));
            }
        }
        Ok(layers)
    }
}

impl Entry {
    /// An open layer knows what it has in use; of another its files tell, with what was set aside for growth.
    fn file_bytes(&self, layer: &LayerInfo) -> u64 {
        let open = self.vm.disks().into_iter().find_map(|disk| disk.link_named(&layer.name));
        open.map_or(layer.allocated_bytes, |link| link.layer.usage().file_bytes)
    }
}

/// The deltas of a disk's running chain (base first) on a layer that no snapshot froze. What lies on another
/// VM's layer is a clone's own ground, and nothing to be folded away.
pub fn unowned<'a>(state: &VmState, disk: &DiskState, chain: &'a [LayerInfo]) -> Vec<&'a LayerInfo> {
    let frozen = |name: &str| state.snapshots.iter().flat_map(|s| &s.disks).any(|(_, layer)| layer == name);
    let kept = |name: &str| frozen(name) || disk.reset_to.as_deref() == Some(name);
    let unowned = |pair: &&[LayerInfo]| !kept(&pair[0].name) && !pair[0].foreign;
    chain.windows(2).filter(unowned).map(|pair| &pair[1]).collect()
}

#[cfg(test)]
mod tests {
    use blk::manifest::DiskMode;

    use super::*;

    fn layer(name: &str, parent: Option<&str>) -> LayerInfo {
        LayerInfo {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            size_bytes: 512,
            format: String::new(),
            allocated_bytes: 0,
            foreign: false,
        }
    }

    #[test]
    fn a_delta_is_owned_by_the_snapshot_that_froze_what_is_under_it() {
        let chain = [layer("base", None), layer("d1", Some("base")), layer("d2", Some("d1"))];
        let mut disk = DiskState {
            number: 0,
            slot: "scsi0:0".to_owned(),
            mode: DiskMode::Persistent,
            size_bytes: 512,
            top: "d2".to_owned(),
            reset_to: None,
        };
        let snapshot = SnapshotState {
            id: 1,
            uid: 1,
            parent: None,
            name: "a".to_owned(),
            description: String::new(),
            created_unix_us: 0,
            disks: vec![(0, "base".to_owned())],
        };
        let state = VmState { snapshots: vec![snapshot], ..VmState::default() };
        let names = |disk: &DiskState| {
            unowned(&state, disk, &chain).into_iter().map(|layer| layer.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&disk), ["d2"]);
        disk.reset_to = Some("d1".to_owned());
        assert!(names(&disk).is_empty());
    }
}
