//! Layers under a VM's disks, and the space of each snapshot's deltas.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use blk::Result;
use blk::manifest::{DiskState, LayerInfo, LayerName, VmState};

use super::vm::Vm;
use crate::operations::{DiskLayers, SpaceUsage};

/// Every layer of every branch, by name.
type Layers = BTreeMap<LayerName, LayerInfo>;

impl Vm {
    /// Returns the layers of every running disk, in the order of the state.
    pub async fn listing(&self) -> Result<Vec<DiskLayers>> {
        self.read_steady(async || self.read_listing().await).await
    }

    async fn read_listing(&self) -> Result<Vec<DiskLayers>> {
        let state = self.state();
        let mut listing = Vec::with_capacity(state.disks.len());
        for disk in &state.disks {
            let layers = self.manifest.chain(&disk.top).await?;
            let unowned = unowned(&state, disk, &layers);
            listing.push(DiskLayers { number: disk.number, layers, unowned });
        }
        Ok(listing)
    }

    /// Returns the bytes of the deltas that no snapshot owns. Each answer of the daemon has their sum over all VMs, so
    /// descriptors are read only where the chains in memory leave it open, and once for each change of them.
    pub async fn unowned_bytes(&self) -> Result<u64> {
        let Some(chains) = self.unfrozen_chains() else { return Ok(0) };
        if self.owned_chains.get() == Some(chains) {
            return Ok(0);
        }
        let listing = self.listing().await?;
        let mut unowned = listing.iter().flat_map(|disk| &disk.unowned).peekable();
        if unowned.peek().is_none() && self.unfrozen_chains() == Some(chains) {
            self.owned_chains.set(Some(chains));
        }
        Ok(unowned.fold(0, |sum, layer| sum.saturating_add(layer.allocated_bytes)))
    }

    /// Returns a hash of the running chains and of what the snapshots froze. None if a snapshot or a reset state froze
    /// every layer below the tops: then no delta is unowned.
    fn unfrozen_chains(&self) -> Option<u64> {
        let state = self.state.borrow();
        let resets = state.disks.iter().filter_map(|disk| disk.reset_to.as_deref());
        let taken = state.snapshots.iter().flat_map(|s| s.disks.iter().map(|(_, layer)| layer.as_str()));
        let frozen: BTreeSet<&str> = taken.chain(resets).collect();
        let (mut hasher, mut all_frozen) = (DefaultHasher::new(), true);
        frozen.hash(&mut hasher);
        for disk in self.disks() {
            let links = &disk.chain().links;
            links.iter().for_each(|link| link.layer.name().hash(&mut hasher));
            all_frozen &= links.iter().rev().skip(1).all(|link| frozen.contains(link.layer.name()));
        }
        (!all_frozen).then(|| hasher.finish())
    }

    /// Returns, by snapshot id, the bytes held by the deltas on top of the snapshot, on all its branches and disks.
    pub async fn delta_bytes(&self) -> Result<BTreeMap<u128, u64>> {
        let (state, layers) = self.all_layers().await?;
        let mut on_top: BTreeMap<&str, u64> = BTreeMap::new();
        for layer in layers.values() {
            if let Some(parent) = &layer.parent {
                let bytes = on_top.entry(parent).or_default();
                *bytes = bytes.saturating_add(self.file_bytes(layer));
            }
        }
        let held = |disks: &[(u32, LayerName)]| {
            let on_top = disks.iter().filter_map(|(_, frozen)| on_top.get(frozen.as_str()));
            on_top.fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
        };
        Ok(state.snapshots.iter().map(|s| (s.id, held(&s.disks))).collect())
    }

    /// See [`crate::Machine::used`].
    pub async fn used(&self) -> Result<SpaceUsage> {
        let (_, layers) = self.all_layers().await?;
        let mut used = SpaceUsage::default();
        for layer in layers.values() {
            match layer.foreign {
                true => used.shared_bytes = used.shared_bytes.saturating_add(layer.allocated_bytes),
                false => used.allocated_bytes = used.allocated_bytes.saturating_add(layer.allocated_bytes),
            }
        }
        Ok(used)
    }

    /// Reads every layer of every branch, with the state that names them.
    async fn all_layers(&self) -> Result<(VmState, Layers)> {
        let read = async || {
            let state = self.state();
            let layers = self.layers_of(&state).await?;
            Ok((state, layers))
        };
        self.read_steady(read).await
    }

    /// Reads the chains of a state. A chain that ends in a layer of an earlier one is not read again.
    async fn layers_of(&self, state: &VmState) -> Result<Layers> {
        let mut layers = Layers::new();
        let running = state.disks.iter().map(|disk| &disk.top);
        let frozen = state.snapshots.iter().rev().flat_map(|s| s.disks.iter().map(|(_, layer)| layer));
        let binned = state.bin.iter().flat_map(|binned| binned.layers());
        for end in running.chain(frozen).chain(binned) {
            if !layers.contains_key(end) {
                let chain = self.manifest.chain(end).await?;
                layers.extend(chain.into_iter().map(|layer| (layer.name.clone(), layer)));
            }
        }
        Ok(layers)
    }

    /// Returns the bytes that a layer uses. An open layer reports what it has in use; for another one the size of its
    /// files counts, including space set aside for growth.
    fn file_bytes(&self, layer: &LayerInfo) -> u64 {
        let open = self.disks().into_iter().find_map(|disk| disk.link_named(&layer.name));
        open.map_or(layer.allocated_bytes, |link| link.layer.usage().file_bytes)
    }
}

/// Returns the deltas of a disk's running chain (base first) whose parent no snapshot froze. A delta over another VM's
/// layer is part of a clone and is not folded.
fn unowned(state: &VmState, disk: &DiskState, chain: &[LayerInfo]) -> Vec<LayerInfo> {
    let frozen = |name: &str| state.snapshots.iter().flat_map(|s| &s.disks).any(|(_, layer)| layer == name);
    let kept = |name: &str| frozen(name) || disk.reset_to.as_deref() == Some(name);
    let unowned = |pair: &&[LayerInfo]| !kept(&pair[0].name) && !pair[0].foreign;
    chain.windows(2).filter(unowned).map(|pair| pair[1].clone()).collect()
}

#[cfg(test)]
mod tests {
    use blk::manifest::{DiskMode, SnapshotState};

    use super::*;

    fn layer(name: &str, parent: Option<&str>) -> LayerInfo {
        LayerInfo {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            size_bytes: 512,
            format: String::new(),
            allocated_bytes: 0,
            foreign: false,
            read_only: false,
        }
    }

    #[test]
    fn a_delta_is_owned_by_the_snapshot_that_froze_its_parent() {
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
