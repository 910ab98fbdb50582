//! Items of a VM in the catalogue: one for its present state, one for each snapshot. Nodes of the store take the place
//! of a redo VM's layers; their names are `n` and their number.

use std::collections::BTreeMap;

use blk::manifest::{
    BinnedBy, BinnedState, ContentGeneration, DESCRIPTION_BYTES_MAX, DISK_NUMBER_MAX, DiskMode, DiskState,
    JOB_NUMBER_MAX, NAME_BYTES_MAX, SNAPSHOT_UID_MAX, SnapshotState, VmState,
};
use blk::{Error, Result};

use super::super::bytes::{Reader, Writer};
use super::super::change::{Key, Op};
use super::super::store::Store;
use super::super::stored::USER_KINDS;

pub(super) const VM: u8 = USER_KINDS;
pub(super) const SNAPSHOT: u8 = USER_KINDS + 1;
/// Present, without a value, while the VM is the source or the target of a move.
pub(super) const MOVING: u8 = USER_KINDS + 2;
/// The folder that is the VM's home.
pub(super) const HOME: u8 = USER_KINDS + 3;

/// The bin: an item for each entry, and one for each snapshot in it.
pub(super) const BIN: u8 = USER_KINDS + 4;
pub(super) const BINNED_SNAPSHOT: u8 = USER_KINDS + 5;

/// The slot of a disk when a snapshot was taken, which a revert needs to bring back a removed disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeptSlot {
    pub number: u32,
    pub slot: String,
}

/// The folder through which a VM is served. An id has one home, even if copies of the folder exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmHome {
    /// The folder's name in the datastore, or an absolute path.
    pub path: String,
    /// Of the VM that the folder is for.
    pub state: VmHomeState,
}

/// State of the VM of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmHomeState {
    /// The VM is being made or removed: it is removed with its home when it is found in this state.
    Unfinished,
    /// The VM is served.
    Whole,
    /// The VM was removed, and is kept for a while: it is not served.
    Binned,
}

const HOME_STATES: [VmHomeState; 3] = [VmHomeState::Unfinished, VmHomeState::Whole, VmHomeState::Binned];

pub(super) fn layer_name(node: u64) -> String {
    format!("n{node}")
}

/// Returns the node of a layer's name. Panics on a name that this module has not made.
pub(super) fn node_of(layer: &str) -> u64 {
    layer.strip_prefix('n').and_then(|number| number.parse().ok()).expect("a node's own name")
}

pub(super) fn vm_key(id: u128) -> Key {
    Key { kind: VM, major: id, minor: 0 }
}

pub(super) fn moving_key(vm: u128) -> Key {
    Key { kind: MOVING, major: vm, minor: 0 }
}

pub(super) fn home_key(vm: u128) -> Key {
    Key { kind: HOME, major: vm, minor: 0 }
}

pub(super) fn put_home(vm: u128, home: &VmHome) -> Op {
    let mut out = Writer::default();
    out.u8(home.state as u8).bytes(home.path.as_bytes());
    Op::Put { key: home_key(vm), value: out.done() }
}

pub(super) fn read_home(value: &[u8], place: &str) -> Result<VmHome> {
    let mut input = Reader::new(value, place);
    let byte = input.u8("state of a VM's home")?;
    let state = *HOME_STATES.get(usize::from(byte)).ok_or_else(|| {
        Error::damaged(place, format!("state of a VM's home: found {byte}, expected 0 to 2"))
    })?;
    Ok(VmHome { state, path: input.text("home of a VM")? })
}

pub(super) fn snapshot_key(vm: u128, uid: u32) -> Key {
    Key { kind: SNAPSHOT, major: vm, minor: u64::from(uid) }
}

pub(super) fn binned_key(vm: u128, entry: u64) -> Key {
    Key { kind: BIN, major: vm, minor: entry }
}

pub(super) fn binned_snapshot_key(vm: u128, uid: u32) -> Key {
    Key { kind: BINNED_SNAPSHOT, major: vm, minor: u64::from(uid) }
}

pub(super) fn put_vm(state: &VmState) -> Op {
    let mut out = Writer::default();
    out.bytes(state.name.as_bytes()).u128(state.current.unwrap_or(0)).u32(state.last_uid).u64(state.last_job);
    out.u64(state.generation.present).u64(state.generation.opened);
    put_disks(&mut out, &state.disks);
    Op::Put { key: vm_key(state.id), value: out.done() }
}

/// Returns what people call the states of disks: `VM/diskN`, or `VM@SNAPSHOT/diskN`. Items that cannot be decoded are left
/// out.
pub(in super::super) fn names_of_nodes(items: &BTreeMap<Key, Vec<u8>>) -> BTreeMap<u64, String> {
    let mut names = BTreeMap::new();
    let mut vms = BTreeMap::new();
    for (key, value) in items.range(vm_key(0)..=Key { kind: VM, major: u128::MAX, minor: u64::MAX }) {
        let mut input = Reader::new(value, "VM");
        let _ = name_disks(&mut input, &mut names).map(|name| vms.insert(key.major, name));
    }
    for (key, value) in
        items.range(snapshot_key(0, 0)..=Key { kind: SNAPSHOT, major: u128::MAX, minor: u64::MAX })
    {
        let unknown = format!("{:032x}", key.major);
        let vm = vms.get(&key.major).unwrap_or(&unknown);
        let _ = name_snapshot(&mut Reader::new(value, "snapshot"), vm, &mut names);
    }
    names
}

fn name_disks(input: &mut Reader<'_>, names: &mut BTreeMap<u64, String>) -> Result<String> {
    let name = input.text_up_to("name", NAME_BYTES_MAX)?;
    let _ = (input.u128("current snapshot")?, input.u32("number")?, input.u64("job")?);
    let _ = (input.u64("generation")?, input.u64("generation")?);
    while !input.is_empty() {
        let (number, _, _) = (input.u32("disk")?, input.text("slot")?, input.u8("mode")?);
        let (node, _) = (input.u64("node")?, input.u64("node")?);
        names.insert(node, format!("{name}/disk{number}"));
    }
    Ok(name)
}

fn name_snapshot(input: &mut Reader<'_>, vm: &str, names: &mut BTreeMap<u64, String>) -> Result<()> {
    let _ = (input.u128("id")?, input.u128("parent")?, input.u64("time")?);
    let name = input.text_up_to("name", NAME_BYTES_MAX)?;
    input.text_up_to("description", DESCRIPTION_BYTES_MAX)?;
    while !input.is_empty() {
        let (number, node, _) = (input.u32("disk")?, input.u64("node")?, input.text("slot")?);
        names.insert(node, format!("{vm}@{name}/disk{number}"));
    }
    Ok(())
}

/// Returns the change that adds a VM whose disks are in the store, with a name that the rebuild made.
pub(in super::super) fn recovered_vm(state: &VmState) -> Op {
    put_vm(state)
}

fn put_disks(out: &mut Writer, disks: &[DiskState]) {
    for disk in disks {
        out.u32(disk.number).bytes(disk.slot.as_bytes()).u8(mode_byte(disk.mode)).u64(node_of(&disk.top));
        out.u64(disk.reset_to.as_deref().map_or(0, node_of));
    }
}

/// Encodes an entry of the bin without its snapshots.
pub(super) fn put_binned(vm: u128, binned: &BinnedState) -> Op {
    let mut out = Writer::default();
    out.u8(by_byte(binned.by)).u64(binned.unix_us as u64).u128(binned.current.unwrap_or(0));
    out.bytes(binned.subject.as_bytes());
    out.u32(binned.added.len() as u32);
    binned.added.iter().for_each(|number| _ = out.u32(*number));
    put_disks(&mut out, &binned.disks);
    Op::Put { key: binned_key(vm, binned.id), value: out.done() }
}

pub(super) fn put_snapshot(vm: u128, snapshot: &SnapshotState, slots: &[KeptSlot]) -> Op {
    Op::Put { key: snapshot_key(vm, snapshot.uid), value: snapshot_value(Writer::default(), snapshot, slots) }
}

pub(super) fn put_binned_snapshot(vm: u128, entry: u64, snapshot: &SnapshotState, slots: &[KeptSlot]) -> Op {
    let mut out = Writer::default();
    out.u64(entry);
    Op::Put { key: binned_snapshot_key(vm, snapshot.uid), value: snapshot_value(out, snapshot, slots) }
}

fn snapshot_value(mut out: Writer, snapshot: &SnapshotState, slots: &[KeptSlot]) -> Vec<u8> {
    out.u128(snapshot.id).u128(snapshot.parent.unwrap_or(0)).u64(snapshot.created_unix_us as u64);
    out.bytes(snapshot.name.as_bytes()).bytes(snapshot.description.as_bytes());
    for (number, layer) in &snapshot.disks {
        let slot = slots.iter().find(|kept| kept.number == *number).map_or("", |kept| kept.slot.as_str());
        out.u32(*number).u64(node_of(layer)).bytes(slot.as_bytes());
    }
    out.done()
}

fn by_byte(by: BinnedBy) -> u8 {
    match by {
        BinnedBy::Revert => 0,
        BinnedBy::Discard => 1,
        BinnedBy::Reset => 2,
        BinnedBy::Restore => 3,
    }
}

fn by_of(byte: u8, place: &str) -> Result<BinnedBy> {
    let all = [BinnedBy::Revert, BinnedBy::Discard, BinnedBy::Reset, BinnedBy::Restore];
    all.into_iter().find(|by| by_byte(*by) == byte).ok_or_else(|| {
        Error::damaged(place, format!("operation of an entry of the bin: found {byte}, expected 0 to 3"))
    })
}

fn mode_byte(mode: DiskMode) -> u8 {
    match mode {
        DiskMode::Persistent => 0,
        DiskMode::IndependentPersistent => 1,
        DiskMode::IndependentNonpersistent => 2,
    }
}

fn mode_of(byte: u8, place: &str) -> Result<DiskMode> {
    match byte {
        0 => Ok(DiskMode::Persistent),
        1 => Ok(DiskMode::IndependentPersistent),
        2 => Ok(DiskMode::IndependentNonpersistent),
        _ => Err(Error::damaged(place, format!("mode of a disk: found {byte}, expected 0 to 2"))),
    }
}

pub(super) fn read_name(value: &[u8], place: &str) -> Result<String> {
    Reader::new(value, place).text("name of a VM")
}

pub(super) fn read_vm(store: &Store, id: u128, value: &[u8]) -> Result<VmState> {
    let place = format!("{}: VM {id:032x}", store.path());
    let mut input = Reader::new(value, &place);
    let mut state =
        VmState { name: input.text_up_to("name of a VM", NAME_BYTES_MAX)?, id, ..VmState::default() };
    state.current = Some(input.u128("current snapshot")?).filter(|id| *id != 0);
    state.last_uid = input.u32_up_to("last number of a snapshot", SNAPSHOT_UID_MAX)?;
    state.last_job = input.u64_up_to("last number of a job", JOB_NUMBER_MAX)?;
    state.generation = read_generation(&mut input, &place)?;
    state.disks = read_disks(store, &mut input, &place)?;
    Ok(state)
}

fn read_disks(store: &Store, input: &mut Reader<'_>, place: &str) -> Result<Vec<DiskState>> {
    let mut disks: Vec<DiskState> = Vec::new();
    while !input.is_empty() {
        let number = input.u32_up_to("number of a disk", DISK_NUMBER_MAX)?;
        let slot = input.text("slot of a disk")?;
        if disks.iter().any(|known| known.number == number) {
            return Err(Error::damaged(place, format!("two of its disks have the number {number}")));
        }
        let mode = mode_of(input.u8("mode of a disk")?, place)?;
        let (node, reset) = (input.u64("node of a disk")?, input.u64("node of a reset")?);
        let size_bytes = expect_node(store, place, node, true)?;
        if reset != 0 {
            expect_node(store, place, reset, false)?;
        }
        let reset_to = (reset != 0).then(|| layer_name(reset));
        disks.push(DiskState { number, slot, mode, size_bytes, top: layer_name(node), reset_to });
    }
    Ok(disks)
}

/// Decodes an entry of the bin without its snapshots.
pub(super) fn read_binned(store: &Store, key: Key, value: &[u8]) -> Result<BinnedState> {
    let place = format!("{}: entry {:016x} in the bin of VM {:032x}", store.path(), key.minor, key.major);
    let mut input = Reader::new(value, &place);
    let by = by_of(input.u8("operation of an entry")?, &place)?;
    let unix_us = input.u64("time of an entry")? as i64;
    let current = Some(input.u128("snapshot of an entry")?).filter(|id| *id != 0);
    let subject = input.text("subject of an entry")?;
    let mut added = Vec::new();
    for _ in 0..input.u32("disks that came with an entry")? {
        added.push(input.u32_up_to("number of a disk", DISK_NUMBER_MAX)?);
    }
    let disks = read_disks(store, &mut input, &place)?;
    Ok(BinnedState { id: key.minor, by, unix_us, subject, snapshots: Vec::new(), disks, added, current })
}

fn read_generation(input: &mut Reader<'_>, place: &str) -> Result<ContentGeneration> {
    let (present, opened) = (input.u64("content generation")?, input.u64("opened content generation")?);
    if present == 0 || present > ContentGeneration::MAX {
        let expected = format!("expected 1 to {}", ContentGeneration::MAX);
        return Err(Error::damaged(place, format!("content generation: found {present}, {expected}")));
    }
    Ok(ContentGeneration::read(present, opened))
}

/// Returns the size in bytes of a node, which must run or be sealed according to `running`.
fn expect_node(store: &Store, place: &str, node: u64, running: bool) -> Result<u64> {
    let found = store.node(node)?;
    if found.is_running() != running {
        let (is, expected) = if running { ("is sealed", "that runs") } else { ("runs", "that is sealed") };
        return Err(Error::damaged(place, format!("its node {node} {is}, expected one {expected}")));
    }
    Ok(found.size_bytes())
}

pub(super) fn read_snapshot(store: &Store, key: Key, value: &[u8]) -> Result<(SnapshotState, Vec<KeptSlot>)> {
    let place = format!("{}: snapshot {} of VM {:032x}", store.path(), key.minor, key.major);
    read_snapshot_value(store, key, Reader::new(value, &place), &place)
}

/// Decodes a snapshot in the bin, and returns it with the id of its entry.
pub(super) fn read_binned_snapshot(
    store: &Store,
    key: Key,
    value: &[u8],
) -> Result<(u64, SnapshotState, Vec<KeptSlot>)> {
    let place = format!("{}: snapshot {} in the bin of VM {:032x}", store.path(), key.minor, key.major);
    let mut input = Reader::new(value, &place);
    let entry = input.u64("entry of a snapshot")?;
    let (snapshot, slots) = read_snapshot_value(store, key, input, &place)?;
    Ok((entry, snapshot, slots))
}

fn read_snapshot_value(
    store: &Store,
    key: Key,
    mut input: Reader<'_>,
    place: &str,
) -> Result<(SnapshotState, Vec<KeptSlot>)> {
    let id = input.u128("id of a snapshot")?;
    let parent = Some(input.u128("parent of a snapshot")?).filter(|id| *id != 0);
    let created_unix_us = input.u64("time of a snapshot")? as i64;
    let name = input.text_up_to("name of a snapshot", NAME_BYTES_MAX)?;
    let description = input.text_up_to("description of a snapshot", DESCRIPTION_BYTES_MAX)?;
    let (mut disks, mut slots) = (Vec::new(), Vec::new());
    while !input.is_empty() {
        let number = input.u32_up_to("number of a disk", DISK_NUMBER_MAX)?;
        let node = input.u64("node of a disk")?;
        expect_node(store, place, node, false)?;
        slots.push(KeptSlot { number, slot: input.text("slot of a disk")? });
        disks.push((number, layer_name(node)));
    }
    let uid = u32::try_from(key.minor).ok().filter(|uid| *uid <= SNAPSHOT_UID_MAX).ok_or_else(|| {
        let cause = format!("number of a snapshot is {}, expected at most {SNAPSHOT_UID_MAX}", key.minor);
        Error::damaged(place, cause)
    })?;
    Ok((SnapshotState { id, uid, parent, name, description, created_unix_us, disks }, slots))
}
