//! Records of the bin in a home: states that a revert, a discard or a reset threw away and the VM keeps for a while.
//! Each state has a file in the home's private folder, which VMware does not read.
//!
//! The file has the form of a .vmsd. Its snapshots are those that left the tree, with all their lines, so that they can
//! be restored unchanged. Facts without a key in the format have keys that begin with `unstun.`. Layers have the names
//! that the home uses. If the configuration was replaced too, the previous .vmx is beside the file.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::dir::OWN_FOLDER;
use blk::manifest::{
    BINNED_STATES_MAX, BinnedBy, BinnedState, Change, DISK_NUMBER_MAX, DiskMode, DiskState, LayerName,
    NAME_BYTES_MAX, SnapshotState, VmState,
};
use blk::{Dir, Error, ErrorKind, Result, SECTOR};

use super::intent::{self, Intent, private_name};
use super::state::{SNAPSHOT_ID, Texts, id, number, parse_id, snapshot_number};
use super::survey::Survey;
use super::write::{mode_word, write_snapshot_disks};
use super::{Home, links};
use crate::keyvalue::KeyValues;
use crate::read::parse;
use crate::text::{TEXT_BYTES_MAX, check_bytes, shown, wrong};
use crate::vmsd::{Snapshot, SnapshotList, Vmsd};
use crate::vmx::Vmx;

const PREFIX: &str = "bin-";
const SUFFIX: &str = ".vmsd";
/// Maximum size of a bin's texts together: as many bytes as all texts of a folder may have.
const BIN_BYTES_MAX: u64 = 24 << 20;
/// Maximum number of disks of a VM, as for a snapshot.
const DISKS_MAX: usize = 636;

const ENTRY_ID: &str = "unstun.bin";
const BY: &str = "unstun.by";
const TIME: &str = "unstun.unixUs";
const SUBJECT: &str = "unstun.subject";
const CURRENT: &str = "unstun.current";
/// Key in the lines of a snapshot.
pub(super) const PARENT: &str = "unstun.parent";

const WORDS: [(BinnedBy, &str); 4] = [
    (BinnedBy::Revert, "revert"),
    (BinnedBy::Discard, "discard"),
    (BinnedBy::Reset, "reset"),
    (BinnedBy::Restore, "restore"),
];

/// A binned state, with the lines of its snapshots as VMware or unstun wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binned {
    pub state: BinnedState,
    text: Vmsd,
}

impl Binned {
    pub(super) fn snapshots(&self) -> &[Snapshot] {
        &self.text.list().snapshots
    }

    fn parse(file: &str, bytes: &[u8]) -> Result<Binned> {
        let text = Vmsd::parse(file, bytes)?;
        let state = read_state(&text)?;
        Ok(Binned { state, text })
    }
}

fn file_name(id: u64) -> String {
    format!("{PREFIX}{id:016x}{SUFFIX}")
}

fn configuration_name(id: u64) -> String {
    format!("{PREFIX}{id:016x}.vmx")
}

fn id_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    u64::from_str_radix(digits, 16).ok().filter(|id| file_name(*id) == name)
}

impl Home {
    /// Returns the bin as it was last read or written. A file that cannot be read is reported, and its layers belong to
    /// no entry.
    pub(super) async fn binned(&self) -> Result<Rc<Vec<Binned>>> {
        if let Some(known) = &*self.bin.borrow() {
            return Ok(known.clone());
        }
        let mut found = Vec::new();
        let names = intent::private_names(&self.folders).await?;
        if names.iter().any(|name| id_of(name).is_some()) {
            let private = self.dir().open_dir(OWN_FOLDER, false).await?;
            let mut left_bytes = BIN_BYTES_MAX;
            for name in entry_names(&names) {
                match read_binned(&private, name, &mut left_bytes).await {
                    Ok(binned) => found.push(binned),
                    Err(e) if says_nothing(&e) => return Err(e),
                    Err(e) => self.notice(format!("what is in the bin cannot be restored: {e}")),
                }
            }
        }
        found.sort_by_key(|binned| (binned.state.unix_us, binned.state.id));
        let found = Rc::new(found);
        *self.bin.borrow_mut() = Some(found.clone());
        Ok(found)
    }

    /// Returns the entries of the bin that still exist, with the sizes of their disks.
    pub(super) async fn read_bin(&self, survey: &Survey<'_>, texts: &Texts) -> Result<Vec<BinnedState>> {
        let mut states = Vec::new();
        for binned in texts.bin.iter() {
            match self.missing_layer(survey, &binned.state).await? {
                Some(layer) => {
                    let file = shown(&layer);
                    self.notice(format!("what is in the bin cannot be restored: there is no {file}"));
                }
                None => states.push(self.with_sizes(&binned.state).await),
            }
        }
        Ok(states)
    }

    async fn missing_layer(&self, survey: &Survey<'_>, state: &BinnedState) -> Result<Option<LayerName>> {
        for layer in state.layers() {
            if !survey.has_layer(layer).await? {
                return Ok(Some(layer.clone()));
            }
        }
        Ok(None)
    }

    /// Adds the sizes of the disks. A disk whose descriptor cannot be read has none, which a restore reports.
    async fn with_sizes(&self, state: &BinnedState) -> BinnedState {
        let mut state = state.clone();
        for disk in &mut state.disks {
            let link = links::read(&self.folders, &disk.top).await;
            disk.size_bytes = link.map_or(0, |link| link.capacity_sectors() * SECTOR);
        }
        state
    }

    pub(super) async fn binned_configuration(&self, id: u64) -> Result<Option<Vmx>> {
        self.private_configuration(&configuration_name(id)).await
    }

    /// Adds the bin's new and removed entries to a change. Returns the bin after the change.
    pub(super) fn write_bin(
        &self,
        before: &Texts,
        change: &Change,
        replaced: bool,
        intent: &mut Intent,
    ) -> Result<Vec<Binned>> {
        let mut after = Vec::new();
        for state in &change.next.bin {
            let known = before.bin.iter().find(|binned| binned.state.id == state.id);
            let name = file_name(state.id);
            let binned = match known {
                Some(known) if same(&known.state, state) => known.clone(),
                _ => {
                    let text = to_text(&name, state, before, &change.next)?;
                    intent.replace.insert(private_name(&name), text.to_bytes());
                    Binned { state: state.clone(), text }
                }
            };
            if known.is_none() && replaced {
                intent.replace.insert(private_name(&configuration_name(state.id)), before.vmx.to_bytes());
            }
            after.push(binned);
        }
        for gone in before.bin.iter().filter(|old| !after.iter().any(|new| new.state.id == old.state.id)) {
            let id = gone.state.id;
            intent.remove.extend([file_name(id), configuration_name(id)].map(|name| private_name(&name)));
        }
        Ok(after)
    }
}

/// Compares a state with a record, without the sizes of disks: their layers have these.
fn same(known: &BinnedState, state: &BinnedState) -> bool {
    let mut known = known.clone();
    for (old, new) in known.disks.iter_mut().zip(&state.disks) {
        old.size_bytes = new.size_bytes;
    }
    known == *state
}

pub(super) fn snapshot_uids(bin: &[BinnedState]) -> impl Iterator<Item = u32> {
    bin.iter().flat_map(|state| state.snapshots.iter().map(|snapshot| snapshot.uid))
}

/// Returns the layers that the bin of a home keeps. A record that cannot be read keeps none.
pub(crate) async fn binned_layers(home: &Dir) -> Result<BTreeSet<LayerName>> {
    let private = match home.open_dir(OWN_FOLDER, false).await {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        opened => opened?,
    };
    let (mut layers, mut left_bytes) = (BTreeSet::new(), BIN_BYTES_MAX);
    for name in entry_names(&private.list().await?) {
        match read_binned(&private, name, &mut left_bytes).await {
            Ok(binned) => layers.extend(binned.state.layers().cloned()),
            Err(e) if says_nothing(&e) => return Err(e),
            Err(_) => {}
        }
    }
    Ok(layers)
}

/// Returns whether an error is temporary, and so does not concern the file that was read.
fn says_nothing(e: &Error) -> bool {
    matches!(e.kind, ErrorKind::LeaseLost | ErrorKind::Cancelled | ErrorKind::NoDescriptors)
}

/// Returns the names of the entries' files, up to the maximum number of entries.
fn entry_names(private: &[String]) -> impl Iterator<Item = &String> {
    private.iter().filter(|name| id_of(name).is_some()).take(BINNED_STATES_MAX)
}

async fn read_binned(private: &Dir, name: &str, left_bytes: &mut u64) -> Result<Binned> {
    let bytes = private.read_file(name, (*left_bytes).min(TEXT_BYTES_MAX as u64)).await?;
    *left_bytes -= bytes.len() as u64;
    let path = private.path_of(name);
    let binned = parse(private.env(), path.clone(), bytes, Binned::parse).await?;
    match id_of(name) == Some(binned.state.id) {
        true => Ok(binned),
        false => Err(wrong(&path, ENTRY_ID, format!("{:016x}", binned.state.id), "the id in its name")),
    }
}

fn to_text(name: &str, state: &BinnedState, before: &Texts, next: &VmState) -> Result<Vmsd> {
    let mut text = Vmsd::create(name);
    let mut snapshots = Vec::new();
    for wanted in &state.snapshots {
        let mut snapshot = before.snapshot(wanted.uid).cloned().unwrap_or_default();
        snapshot.uid = wanted.uid;
        snapshot.parent = None;
        snapshot.name = wanted.name.clone();
        if !wanted.description.is_empty() {
            snapshot.description = Some(wanted.description.clone());
        }
        snapshot.created_us = Some(wanted.created_unix_us);
        snapshot.set_other(SNAPSHOT_ID, Some(&format!("{:032x}", wanted.id)));
        let parent = wanted.parent.map(|parent| format!("{parent:032x}"));
        snapshot.set_other(PARENT, parent.as_deref());
        // Every path is replaced by the home's own name of the layer.
        let nowhere = |written: &str| Err(Error::not_found(written, "is not looked for"));
        let known: Vec<DiskState> = state.disks.iter().chain(&next.disks).cloned().collect();
        write_snapshot_disks(name, &mut snapshot, wanted, &known, &nowhere)?;
        snapshots.push(snapshot);
    }
    let last_uid = snapshots.iter().map(|snapshot| snapshot.uid).max().unwrap_or(0);
    text.set_list(SnapshotList { snapshots, last_uid, ..SnapshotList::default() });
    let values = text.values_mut();
    values.set(ENTRY_ID, &format!("{:016x}", state.id));
    let word = WORDS.iter().find(|(by, _)| *by == state.by).map_or("", |(_, word)| word);
    values.set(BY, word);
    values.set(TIME, &state.unix_us.to_string());
    values.set(SUBJECT, &state.subject);
    if let Some(current) = state.current {
        values.set(CURRENT, &format!("{current:032x}"));
    }
    for (index, number) in state.added.iter().enumerate() {
        values.set(&format!("unstun.came{index}"), &number.to_string());
    }
    for (index, disk) in state.disks.iter().enumerate() {
        let mut set = |field: &str, value: &str| values.set(&format!("unstun.disk{index}.{field}"), value);
        set("number", &disk.number.to_string());
        set("slot", &disk.slot);
        set("mode", mode_word(disk.mode));
        set("top", &disk.top);
        if let Some(base) = &disk.reset_to {
            set("resetTo", base);
        }
    }
    Ok(text)
}

fn read_state(text: &Vmsd) -> Result<BinnedState> {
    let values = text.values();
    let file = values.file();
    let needed = |key: &str| values.get(key)?.ok_or_else(|| wrong(file, key, "absent", "a value"));
    let word = needed(BY)?;
    let by = WORDS.iter().find(|(_, known)| *known == word).map(|(by, _)| *by);
    let by = by.ok_or_else(|| wrong(file, BY, shown(word), "revert, discard, reset or restore"))?;
    let subject = needed(SUBJECT)?;
    check_bytes(file, SUBJECT, subject, TEXT_BYTES_MAX / BINNED_STATES_MAX)?;
    let current = id(values, CURRENT)?;
    Ok(BinnedState {
        id: u64::from_str_radix(needed(ENTRY_ID)?, 16).map_err(|_| {
            wrong(
                file,
                ENTRY_ID,
                shown(values.get(ENTRY_ID).ok().flatten().unwrap_or_default()),
                "16 hexadecimal digits",
            )
        })?,
        by,
        unix_us: number(values, TIME, i64::MAX)?.unwrap_or(0),
        subject: subject.to_owned(),
        snapshots: text.list().snapshots.iter().map(|s| read_snapshot(file, s)).collect::<Result<_>>()?,
        disks: read_disks(values)?,
        added: read_added_disks(values)?,
        current,
    })
}

fn read_snapshot(file: &str, snapshot: &Snapshot) -> Result<SnapshotState> {
    let parent = snapshot.other(PARENT).map(|parent| parse_id(file, PARENT, parent)).transpose()?;
    let mut disks: BTreeMap<u32, LayerName> = BTreeMap::new();
    for disk in &snapshot.disks {
        if let Some(number) = snapshot_number(file, snapshot, disk)? {
            disks.insert(number, disk.file_name.clone());
        }
    }
    check_bytes(file, "displayName", &snapshot.name, NAME_BYTES_MAX)?;
    Ok(SnapshotState {
        id: parse_id(file, SNAPSHOT_ID, snapshot.other(SNAPSHOT_ID).unwrap_or_default())?,
        uid: snapshot.uid,
        parent,
        name: snapshot.name.clone(),
        description: snapshot.description.clone().unwrap_or_default(),
        created_unix_us: snapshot.created_us.unwrap_or(0),
        disks: disks.into_iter().collect(),
    })
}

fn read_added_disks(values: &KeyValues) -> Result<Vec<u32>> {
    let added = (0..DISKS_MAX).map(|index| number(values, &format!("unstun.came{index}"), DISK_NUMBER_MAX));
    added.map_while(Result::transpose).collect()
}

fn read_disks(values: &KeyValues) -> Result<Vec<DiskState>> {
    let mut disks = Vec::new();
    for index in 0..=DISKS_MAX {
        let key = |field: &str| format!("unstun.disk{index}.{field}");
        let Some(disk_number) = number(values, &key("number"), DISK_NUMBER_MAX)? else { break };
        let needed = |field: &str| {
            let key = key(field);
            values.get(&key)?.ok_or_else(|| wrong(values.file(), &key, "absent", "a value"))
        };
        let word = needed("mode")?;
        let modes =
            [DiskMode::Persistent, DiskMode::IndependentPersistent, DiskMode::IndependentNonpersistent];
        let mode = modes.into_iter().find(|mode| mode_word(*mode) == word);
        disks.push(DiskState {
            number: disk_number,
            slot: needed("slot")?.to_owned(),
            mode: mode.ok_or_else(|| wrong(values.file(), &key("mode"), shown(word), "a disk's mode"))?,
            size_bytes: 0,
            top: needed("top")?.to_owned(),
            reset_to: values.get(&key("resetTo"))?.map(str::to_owned),
        });
    }
    Ok(disks)
}
