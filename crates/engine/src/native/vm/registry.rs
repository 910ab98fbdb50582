//! VMs in a store's catalogue: listing, creating, cloning, removing.

use std::collections::{BTreeMap, BTreeSet};

use blk::manifest::{
    ContentGeneration, DiskMode, DiskState, NewDisk, SnapshotState, VmState, new_disk_number,
};
use blk::{Error, Result};

use super::super::change::Op;
use super::super::layout::BLOCK;
use super::super::lineage::DISK_BLOCKS_MAX;
use super::super::store::Store;
use super::items::{
    self, KeptSlot, VmHome, VmHomeState, home_key, layer_name, moving_key, node_of, put_home, put_snapshot,
    put_vm, vm_key,
};
use super::remove_names::{drop_snapshot, snapshots_per_change};
use super::{NativeVm, head_of};
use crate::relocate::refuse_unmovable;
use crate::tree;

/// Number of usable slots: a controller has slots 0 to 15, of which 7 is its own.
const SLOTS_PER_CONTROLLER: u32 = 15;
/// Description of a VM to make.
#[derive(Debug, Clone)]
pub struct NewNativeVm<'a> {
    /// For people; the store identifies a VM by its id.
    pub name: &'a str,
    /// In the order of their numbers, from 0.
    pub disks: &'a [NewDisk],
    /// Slots of the disks in their order, such as `scsi0:0`; a disk without one gets the first free one.
    pub slots: &'a [Option<String>],
}

impl Store {
    /// Returns the ids and names of the VMs.
    pub async fn vms(&self) -> Result<Vec<(u128, String)>> {
        let found = self.items(items::VM);
        found.iter().map(|(key, value)| Ok((key.major, items::read_name(value, self.path())?))).collect()
    }

    /// Returns whether the store has the VM.
    pub fn has_vm(&self, id: u128) -> bool {
        self.has_item(vm_key(id))
    }

    /// Raises every VM's content generation: earlier clients may rely on writes that are lost. Durable when this
    /// resolves.
    pub(in super::super) async fn raise_generations(&self) -> Result<()> {
        for (id, name) in self.vms().await? {
            let read = self.read_vm(id).await;
            let raised = read.and_then(|(state, _)| Ok((state.generation.raised(&name)?, state)));
            match raised {
                Ok((generation, state)) => {
                    self.wait_for_room().await?;
                    self.change(&[put_vm(&VmState { generation, ..head_of(&state) })])?;
                    self.raised.borrow_mut().insert(id);
                }
                // The other VMs are served nevertheless.
                Err(e) => self.damage.borrow_mut().push(e),
            }
        }
        self.flush().await
    }

    /// Returns whether the VM is one side of a move that has not ended: the copy in the other store may be the VM.
    pub fn is_moving(&self, id: u128) -> bool {
        self.has_item(moving_key(id))
    }

    /// Marks the VM as one side of a move, or removes the mark. Durable when this resolves.
    pub async fn set_moving(&self, id: u128, moving: bool) -> Result<()> {
        let key = moving_key(id);
        if self.is_moving(id) != moving {
            self.change(&[if moving { Op::Put { key, value: Vec::new() } } else { Op::Delete { key } }])?;
        }
        self.flush().await
    }

    pub(super) async fn read_vm(&self, id: u128) -> Result<(VmState, BTreeMap<u128, Vec<KeptSlot>>)> {
        let missing = || Error::not_found(self.path(), format!("no VM {id:032x}"));
        let mut state = items::read_vm(self, id, &self.item(vm_key(id)).ok_or_else(missing)?)?;
        let mut slots = BTreeMap::new();
        for (key, value) in &self.items_of(items::SNAPSHOT, id) {
            let (snapshot, kept) = items::read_snapshot(self, *key, value)?;
            slots.insert(snapshot.id, kept);
            state.snapshots.push(snapshot);
        }
        state.bin = self.read_bin(id, &mut slots)?;
        Ok((state, slots))
    }

    /// Makes a VM, and returns its id. Its disks are empty, or over the sources that they name. The VM is unfinished until `set_home`; its home is to have the
    /// VM's name. Durable when this resolves.
    pub async fn create_vm(&self, new: NewNativeVm<'_>) -> Result<u128> {
        let id = new_id(self);
        let mut state = new_state(self, id, new.name);
        let mut ops = Vec::new();
        for wanted in new.disks {
            let disk = plan_disk(self, &state, &[], wanted, &mut ops)?;
            state.disks.push(disk);
        }
        place(&mut state, new.slots)?;
        ops.extend([put_vm(&state), put_home(id, &unfinished(new.name))]);
        self.change(&ops)?;
        self.flush().await?;
        Ok(id)
    }

    /// Gives a VM that is not open another name. Durable when this resolves.
    pub async fn set_vm_name(&self, id: u128, name: &str) -> Result<()> {
        let missing = || Error::not_found(self.path(), format!("no VM {id:032x}"));
        let state = items::read_vm(self, id, &self.item(vm_key(id)).ok_or_else(missing)?)?;
        if state.name == name {
            return Ok(());
        }
        self.change(&[put_vm(&VmState { name: name.to_owned(), ..state })])?;
        self.flush().await
    }

    /// Returns a new id for `create_vm_like`: the caller may have to record the id before it makes the VM.
    pub fn new_vm_id(&self) -> u128 {
        new_id(self)
    }

    /// Makes a VM with empty disks like `disks`: the target of a move, marked as one until `set_moving`. Durable when
    /// this resolves.
    pub async fn create_vm_like(&self, id: u128, name: &str, disks: &[DiskState]) -> Result<()> {
        refuse_unmovable(name, disks)?;
        let mut state = new_state(self, id, name);
        let mut ops = Vec::new();
        for disk in disks {
            let wanted = NewDisk { size_bytes: disk.size_bytes, mode: disk.mode, folder: None, source: None };
            let made = plan_disk(self, &state, &[], &wanted, &mut ops)?;
            state.disks.push(DiskState { number: disk.number, slot: disk.slot.clone(), ..made });
        }
        ops.push(put_vm(&state));
        ops.push(Op::Put { key: moving_key(id), value: Vec::new() });
        self.change(&ops)?;
        self.flush().await?;
        Ok(())
    }

    /// Removes a VM that is not open: its nodes are dropped, and their space is given back in the background. Clones
    /// keep the blocks that they read.
    pub async fn remove_vm(&self, id: u128) -> Result<()> {
        let (state, _) = self.read_vm(id).await?;
        // The latest snapshot goes first, so that the parents of the others still exist after a crash.
        let mut gone = BTreeSet::new();
        for some in state.snapshots.rchunks(snapshots_per_change(state.disks.len())) {
            gone.extend(some.iter().map(|snapshot| snapshot.id));
            let current = tree::leaving(&state, &gone).current;
            let head = VmState { current, ..head_of(&state) };
            let drops = some.iter().flat_map(|snapshot| drop_snapshot(id, snapshot));
            self.change(&drops.chain([put_vm(&head)]).collect::<Vec<_>>())?;
            self.flush().await?;
        }
        for binned in &state.bin {
            self.drop_binned(id, binned).await?;
        }
        let nodes = state.disks.iter().flat_map(|d| std::iter::once(&d.top).chain(&d.reset_to));
        let mut ops: Vec<Op> = nodes.map(|layer| Op::Drop { node: node_of(layer) }).collect();
        ops.extend([vm_key(id), moving_key(id), home_key(id)].map(|key| Op::Delete { key }));
        self.change(&ops)?;
        self.flush().await
    }
}

fn new_state(store: &Store, id: u128, name: &str) -> VmState {
    let generation = ContentGeneration::begin(store.env.random());
    VmState { name: name.to_string(), id, generation, ..VmState::default() }
}

fn unfinished(home: &str) -> VmHome {
    VmHome { path: home.to_string(), state: VmHomeState::Unfinished }
}

fn new_id(store: &Store) -> u128 {
    u128::from(store.env.random()) << 64 | u128::from(store.env.random())
}

/// Plans a disk: returns it with the next free number and slot, and adds the operations that make it to `ops`. Numbers
/// and slots in `kept` are not free: they belong to disks that a revert brings back.
pub(super) fn plan_disk(
    store: &Store,
    state: &VmState,
    kept: &[&KeptSlot],
    wanted: &NewDisk,
    ops: &mut Vec<Op>,
) -> Result<DiskState> {
    if !is_size(wanted.size_bytes) {
        let cause = format!("a native disk of {} bytes: {EXPECTED_SIZE}", wanted.size_bytes);
        return Err(Error::invalid(&state.name, cause));
    }
    if let Some(folder) = &wanted.folder {
        let cause = format!("a native disk is in its datastore, not in {folder}");
        return Err(Error::refused(&state.name, format!("{cause}; move the VM there, or make a redo VM")));
    }
    let numbers = state.disks.iter().map(|d| d.number).chain(kept.iter().map(|k| k.number));
    let number = new_disk_number(&state.name, numbers.map(|number| number + 1).max().unwrap_or(0))?;
    let node = store.new_node_id();
    let size_blocks = wanted.size_bytes / BLOCK;
    ops.push(match wanted.source {
        None => Op::Create { node, size_blocks },
        Some(device) => store.create_over(node, size_blocks, device)?,
    });
    let mut disk = DiskState {
        number,
        slot: free_slot(state, kept),
        mode: wanted.mode,
        size_bytes: wanted.size_bytes,
        top: layer_name(node),
        reset_to: None,
    };
    if wanted.mode == DiskMode::IndependentNonpersistent {
        disk.reset_to = Some(layer_name(freeze(store, node, ops)));
    }
    Ok(disk)
}

pub(super) const EXPECTED_SIZE: &str = "expected a multiple of 4096, up to 1 EiB";

pub(super) fn is_size(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(BLOCK) && bytes / BLOCK <= DISK_BLOCKS_MAX
}

/// Seals the content of a running node in a new one.
pub(super) fn freeze(store: &Store, running: u64, ops: &mut Vec<Op>) -> u64 {
    let sealed = store.new_node_id();
    ops.push(Op::Take { running, sealed });
    sealed
}

fn free_slot(state: &VmState, kept: &[&KeptSlot]) -> String {
    free_slot_beside(|slot| state.disks.iter().any(|d| d.slot == slot) || kept.iter().any(|k| k.slot == slot))
}

fn free_slot_beside(taken: impl Fn(&str) -> bool) -> String {
    let slot = |n: u32| {
        let (controller, at) = (n / SLOTS_PER_CONTROLLER, n % SLOTS_PER_CONTROLLER);
        format!("scsi{controller}:{}", if at < 7 { at } else { at + 1 })
    };
    (0..).map(slot).find(|slot| !taken(slot)).expect("there are more slots than disks")
}

/// Gives the disks of a new VM the slots that were requested, and the first free ones to the others.
fn place(state: &mut VmState, slots: &[Option<String>]) -> Result<()> {
    let mut taken = BTreeSet::new();
    for slot in slots.iter().flatten() {
        if !taken.insert(slot.clone()) {
            let cause = format!("{slot} is the slot of two disks, expected one slot for each disk");
            return Err(Error::invalid(&state.name, cause));
        }
    }
    for (index, disk) in state.disks.iter_mut().enumerate() {
        disk.slot = match slots.get(index).cloned().flatten() {
            Some(slot) => slot,
            None => free_slot_beside(|slot| taken.contains(slot)),
        };
        taken.insert(disk.slot.clone());
    }
    Ok(())
}

impl NativeVm {
    /// Makes a VM with a snapshot's content and returns its id. The VM is unfinished until `Store::set_home`. Durable
    /// when this resolves.
    pub async fn clone_to(&self, snapshot: &str, name: &str) -> Result<u128> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let source = self.sealed(snapshot)?;
        let id = new_id(&self.store);
        let mut state = new_state(&self.store, id, name);
        let mut ops = Vec::new();
        for (number, layer) in &source.disks {
            let (from, node) = (node_of(layer), self.store.new_node_id());
            ops.push(Op::Branch { from, node });
            state.disks.push(DiskState {
                number: *number,
                slot: self.slot_at(&source, *number),
                mode: DiskMode::Persistent,
                size_bytes: self.store.node(from)?.size_bytes(),
                top: layer_name(node),
                reset_to: None,
            });
        }
        ops.extend([put_vm(&state), put_home(id, &unfinished(name))]);
        self.store.change(&ops)?;
        self.store.flush().await?;
        Ok(id)
    }

    /// Returns the slot of a disk when the snapshot was taken.
    pub(super) fn slot_at(&self, snapshot: &SnapshotState, number: u32) -> String {
        let slots = self.slots.borrow();
        let kept = slots.get(&snapshot.id).and_then(|kept| kept.iter().find(|k| k.number == number));
        kept.map(|kept| kept.slot.clone()).unwrap_or_default()
    }

    pub(super) fn put_again(&self, snapshot: &SnapshotState) -> Op {
        let slots = self.slots.borrow();
        let kept = slots.get(&snapshot.id).map(Vec::as_slice).unwrap_or_default();
        put_snapshot(self.id(), snapshot, kept)
    }
}
