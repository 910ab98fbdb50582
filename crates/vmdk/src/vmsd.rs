//! The .vmsd: the list of a VM's snapshots. An absent or empty file means none.
//!
//! Facts: reference/vmware-formats 5.2. The index N of `snapshotN` is only a position in the file; snapshots are
//! identified by `uid`. Older files contain stale entries (N not below `numSnapshots`), which are skipped and reported.
//! The list can be empty while a VM runs on deltas: the .vmx determines the running links.

use std::collections::{BTreeMap, BTreeSet};

use blk::manifest::{DESCRIPTION_BYTES_MAX, NAME_BYTES_MAX, SNAPSHOT_UID_MAX};
use blk::{Error, Result};

use crate::keyvalue::KeyValues;
use crate::steps;
use crate::text::{check_bytes, decimal, decimal_up_to, shown, wrong};

/// Maximum number of a VM's snapshots that are read: VMware's limit of a chain, 255, for each branch of an improbable
/// tree.
pub(crate) const SNAPSHOTS_MAX: usize = 4096;

/// Maximum number of disks of one snapshot, which is that of a VM: 4 * 64 SCSI, 4 * 30 SATA, 4 * 64 NVMe and 4 IDE.
const SNAPSHOT_DISKS_MAX: usize = 636;

/// The content of a .vmsd.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotList {
    /// Snapshots in file order.
    pub snapshots: Vec<Snapshot>,
    /// Uid of the snapshot from which the running state descends.
    pub current: Option<u32>,
    /// Highest uid that was assigned; the next one is one higher.
    pub last_uid: u32,
    /// Deltas remain that no snapshot owns.
    pub needs_consolidation: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    pub uid: u32,
    pub parent: Option<u32>,
    pub name: String,
    pub description: Option<String>,
    /// Time of the take in microseconds since 1970 UTC.
    pub created_us: Option<i64>,
    /// Links that the take made read-only.
    pub disks: Vec<SnapshotDisk>,
    /// All other keys of this snapshot (`filename`, `type`, `clone0`...), without the prefix `snapshotN.`.
    pub other: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotDisk {
    /// Slot as in the .vmx: `scsi0:0`.
    pub node: String,
    /// Descriptor of the link with the state of the snapshot. Untrusted.
    pub file_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vmsd {
    values: KeyValues,
    list: SnapshotList,
    oddities: Vec<String>,
}

impl Vmsd {
    /// Returns the file of a VM without snapshots.
    pub fn create(file: &str) -> Self {
        let mut values = KeyValues::new(file);
        values.set(".encoding", "UTF-8");
        Self { values, list: SnapshotList::default(), oddities: Vec::new() }
    }

    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let read = Self::parse_loose(file, bytes)?;
        check_tree(file, &read.list.snapshots)?;
        Ok(read)
    }

    /// Parses a list whose snapshots need not be a tree: repeated uids, missing parents and cycles are accepted.
    pub(crate) fn parse_loose(file: &str, bytes: &[u8]) -> Result<Self> {
        let values = KeyValues::parse(file, bytes)?;
        let mut oddities = Vec::new();
        let list = read_list(&values, &mut oddities)?;
        Ok(Self { values, list, oddities })
    }

    /// Returns a copy that has the name `file` in errors.
    pub fn named(&self, file: &str) -> Self {
        Self { values: self.values.named(file), ..self.clone() }
    }

    pub fn values(&self) -> &KeyValues {
        &self.values
    }

    /// Returns the values, for keys that do not concern snapshots.
    pub fn values_mut(&mut self) -> &mut KeyValues {
        &mut self.values
    }

    pub fn list(&self) -> &SnapshotList {
        &self.list
    }

    /// Returns notices about harmless faults of the file.
    pub fn oddities(&self) -> &[String] {
        &self.oddities
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        self.values.to_bytes()
    }

    /// Replaces the list. Lines that do not concern snapshots stay byte for byte; an equal list changes nothing.
    pub fn set_list(&mut self, list: SnapshotList) {
        if list != self.list {
            self.write_list(list);
        }
    }

    /// Writes the list again, even an equal one, which corrects contradictions in the file.
    pub(crate) fn write_list(&mut self, list: SnapshotList) {
        self.values.set("snapshot.lastUID", &list.last_uid.to_string());
        match list.current {
            Some(uid) => self.values.set("snapshot.current", &uid.to_string()),
            None => self.values.remove("snapshot.current"),
        }
        let entries = list.snapshots.iter().enumerate().flat_map(|(index, snapshot)| snapshot.entries(index));
        self.values.replace(|key| split_index(key, "snapshot").is_some(), entries);
        self.values.set("snapshot.numSnapshots", &list.snapshots.len().to_string());
        if list.needs_consolidation != self.list.needs_consolidation {
            let value = if list.needs_consolidation { "TRUE" } else { "FALSE" };
            self.values.set("snapshot.needConsolidate", value);
        }
        self.list = list;
        self.oddities.clear();
    }
}

impl Snapshot {
    /// Returns the value of one of the other keys, compared without case.
    pub fn other(&self, key: &str) -> Option<&str> {
        self.place_of(key).ok().map(|at| self.other[at].1.as_str())
    }

    /// Returns the position of one of the other keys, or where it would be inserted.
    fn place_of(&self, key: &str) -> std::result::Result<usize, usize> {
        self.other.binary_search_by(|(own, _)| {
            steps::count(1);
            lower(own).cmp(lower(key))
        })
    }

    /// Sets or removes one of the other keys. They stay in the order in which they are read.
    pub fn set_other(&mut self, key: &str, value: Option<&str>) {
        match (self.place_of(key), value) {
            (Ok(at), Some(value)) => self.other[at].1 = value.into(),
            (Ok(at), None) => _ = self.other.remove(at),
            (Err(at), Some(value)) => self.other.insert(at, (key.into(), value.into())),
            (Err(_), None) => {}
        }
    }

    /// Returns the .vmx files of this snapshot's clones, with their keys.
    pub fn clones(&self) -> impl Iterator<Item = (&str, &str)> {
        self.other.iter().filter(|(key, _)| is_clone(key)).map(|(key, path)| (key.as_str(), path.as_str()))
    }

    /// Replaces the list of clones.
    pub fn set_clones(&mut self, paths: &[String]) {
        self.other.retain(|(key, _)| !is_clone(key));
        let clones = paths.iter().enumerate().map(|(index, path)| (format!("clone{index}"), path.clone()));
        self.other.extend(clones);
        self.other.sort_by(|(a, _), (b, _)| lower(a).cmp(lower(b)));
        let count = (!paths.is_empty()).then(|| paths.len().to_string());
        self.set_other("numClones", count.as_deref());
    }

    /// Returns the lines of this snapshot at `index`, in VMware's order.
    fn entries(&self, index: usize) -> Vec<(String, String)> {
        let mut out: Vec<(String, String)> = Vec::new();
        let mut push = |key: &str, value: String| out.push((format!("snapshot{index}.{key}"), value));
        push("uid", self.uid.to_string());
        if let Some(parent) = self.parent {
            push("parent", parent.to_string());
        }
        push("displayName", self.name.clone());
        if let Some(description) = &self.description {
            push("description", description.clone());
        }
        if let Some(created_us) = self.created_us {
            // Truncation is the format: two signed halves.
            push("createTimeHigh", ((created_us >> 32) as i32).to_string());
            push("createTimeLow", (created_us as i32).to_string());
        }
        for (key, value) in &self.other {
            push(key, value.clone());
        }
        push("numDisks", self.disks.len().to_string());
        for (number, disk) in self.disks.iter().enumerate() {
            push(&format!("disk{number}.fileName"), disk.file_name.clone());
            push(&format!("disk{number}.node"), disk.node.clone());
        }
        out
    }
}

/// Returns a key in the form for comparison, without a copy: a file may have many keys.
fn lower(key: &str) -> impl Iterator<Item = u8> {
    key.bytes().map(|byte| byte.to_ascii_lowercase())
}

fn is_clone(key: &str) -> bool {
    let digits = key.get(..5).filter(|head| head.eq_ignore_ascii_case("clone")).map(|_| &key[5..]);
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Keys of one snapshot in lower case, with the key as written and the value.
type Fields<'a> = BTreeMap<String, (&'a str, &'a str)>;

fn read_list(values: &KeyValues, oddities: &mut Vec<String>) -> Result<SnapshotList> {
    let file = values.file();
    let number = |key: &str| -> Result<Option<u32>> {
        let Some(value) = values.get(key)?.filter(|value| !value.is_empty()) else { return Ok(None) };
        decimal_up_to(file, key, value, u32::MAX).map(Some)
    };
    let uid = |key: &str| -> Result<Option<u32>> {
        let Some(value) = values.get(key)?.filter(|value| !value.is_empty()) else { return Ok(None) };
        decimal_up_to(file, key, value, SNAPSHOT_UID_MAX).map(Some)
    };
    let mut by_index = group_by_index(values)?;
    let count = match number("snapshot.numSnapshots")? {
        Some(count) => count,
        None => by_index.keys().next_back().map_or(0, |last| last.saturating_add(1)),
    };
    let stale = by_index.split_off(&count);
    if !stale.is_empty() {
        let keys: Vec<String> = stale.keys().take(5).map(|index| format!("snapshot{index}")).collect();
        oddities.push(format!("{file}: {} left over, numSnapshots is {count}", keys.join(", ")));
    }
    let mut snapshots = Vec::new();
    for (index, fields) in &by_index {
        match read_snapshot(file, *index, fields)? {
            Some(snapshot) => snapshots.push(snapshot),
            None => oddities.push(format!("{file}: snapshot{index} has no uid and is passed over")),
        }
    }
    if snapshots.len() > SNAPSHOTS_MAX {
        return Err(wrong(file, "the number of snapshots", snapshots.len(), "at most 4096"));
    }
    let highest = snapshots.iter().map(|snapshot| snapshot.uid).max().unwrap_or(0);
    let last_uid = uid("snapshot.lastUID")?.unwrap_or(0).max(highest);
    let current = uid("snapshot.current")?.filter(|uid| {
        // 0 means "none".
        let known = snapshots.iter().any(|snapshot| snapshot.uid == *uid);
        if !known && *uid != 0 {
            oddities.push(format!("{file}: snapshot.current is {uid}, which is no snapshot; taken as none"));
        }
        known
    });
    let needs_consolidation = values.get_bool("snapshot.needConsolidate", false)?;
    Ok(SnapshotList { snapshots, current, last_uid, needs_consolidation })
}

fn group_by_index(values: &KeyValues) -> Result<BTreeMap<u32, Fields<'_>>> {
    let mut by_index: BTreeMap<u32, Fields<'_>> = BTreeMap::new();
    for entry in values.entries() {
        let (key, value) = entry?;
        let Some((index, field)) = split_index(key, "snapshot") else { continue };
        let fields = by_index.entry(index).or_default();
        let earlier = fields.insert(field.to_ascii_lowercase(), (field, value));
        if let Some((_, earlier)) = earlier.filter(|(_, earlier)| *earlier != value) {
            let cause = format!("{key} is given twice, as {} and as {}", shown(earlier), shown(value));
            return Err(Error::damaged(values.file(), format!("{cause}; remove one of the lines")));
        }
    }
    Ok(by_index)
}

/// Splits `snapshot12.uid` with the prefix `snapshot` into (12, "uid"). All digits are read, so `snapshot12` is not
/// taken for index 1.
fn split_index<'a>(key: &'a str, prefix: &str) -> Option<(u32, &'a str)> {
    let (head, field) = key.split_once('.')?;
    let digits = head.get(prefix.len()..).filter(|_| head[..prefix.len()].eq_ignore_ascii_case(prefix))?;
    Some((decimal("", "", digits, "").ok()?, field))
}

fn read_snapshot(file: &str, index: u32, fields: &Fields<'_>) -> Result<Option<Snapshot>> {
    let text = |key: &str| fields.get(key).map(|(_, value)| *value);
    let number = |key: &str| -> Result<Option<i64>> {
        let Some(value) = text(key).filter(|value| !value.is_empty()) else { return Ok(None) };
        decimal(file, &format!("snapshot{index}.{key}"), value, "a number").map(Some)
    };
    let uid = |key: &str| -> Result<Option<u32>> {
        let Some(value) = text(key).filter(|value| !value.is_empty()) else { return Ok(None) };
        decimal_up_to(file, &format!("snapshot{index}.{key}"), value, SNAPSHOT_UID_MAX).map(Some)
    };
    let Some(own_uid) = uid("uid")? else { return Ok(None) };
    let created_us = match (number("createtimehigh")?, number("createtimelow")?) {
        (Some(high), Some(low)) => Some((i64::from(high as i32) << 32) | i64::from(low as u32)),
        _ => None,
    };
    for (key, max) in [("displayName", NAME_BYTES_MAX), ("description", DESCRIPTION_BYTES_MAX)] {
        let value = text(&key.to_ascii_lowercase()).unwrap_or_default();
        check_bytes(file, &format!("snapshot{index}.{key}"), value, max)?;
    }
    Ok(Some(Snapshot {
        uid: own_uid,
        parent: uid("parent")?.filter(|parent| *parent != 0),
        name: text("displayname").unwrap_or_default().into(),
        description: text("description").map(Into::into),
        created_us,
        disks: read_disks(file, index, fields)?,
        other: other_fields(fields),
    }))
}

fn read_disks(file: &str, index: u32, fields: &Fields<'_>) -> Result<Vec<SnapshotDisk>> {
    let mut disks: BTreeMap<u32, SnapshotDisk> = BTreeMap::new();
    for (key, (_, value)) in fields {
        match split_index(key, "disk") {
            Some((disk, "filename")) => disks.entry(disk).or_default().file_name = (*value).into(),
            Some((disk, "node")) => disks.entry(disk).or_default().node = (*value).into(),
            _ => {}
        }
    }
    let count: Option<u32> = match fields.get("numdisks") {
        Some((_, value)) => Some(decimal(file, &format!("snapshot{index}.numDisks"), value, "a number")?),
        None => None,
    };
    let live = disks.into_iter().filter(|(disk, _)| count.is_none_or(|count| *disk < count));
    let live: Vec<(u32, SnapshotDisk)> = live.collect();
    if live.len() > SNAPSHOT_DISKS_MAX {
        let field = format!("the number of disks of snapshot{index}");
        return Err(wrong(file, &field, live.len(), "at most 636, the places that a VM has"));
    }
    let live = live.into_iter();
    live.map(|(disk, found)| {
        if found.file_name.is_empty() || found.node.is_empty() {
            let field = format!("snapshot{index}.disk{disk}");
            return Err(wrong(file, &field, "incomplete", "both fileName and node"));
        }
        Ok(found)
    })
    .collect()
}

fn other_fields(fields: &Fields<'_>) -> Vec<(String, String)> {
    const KNOWN: [&str; 7] =
        ["uid", "parent", "displayname", "description", "createtimehigh", "createtimelow", "numdisks"];
    let known = |key: &str| {
        let disk_field =
            split_index(key, "disk").is_some_and(|(_, field)| field == "filename" || field == "node");
        disk_field || KNOWN.contains(&key)
    };
    let other = fields.iter().filter(|(key, _)| !known(key));
    other.map(|(_, (key, value))| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Checks that uids are unique, that parents exist, and that no snapshot descends from itself.
fn check_tree(file: &str, snapshots: &[Snapshot]) -> Result<()> {
    let mut parents: BTreeMap<u32, Option<u32>> = BTreeMap::new();
    for snapshot in snapshots {
        if parents.insert(snapshot.uid, snapshot.parent).is_some() {
            return Err(wrong(
                file,
                "uid",
                format!("{} in two snapshots", snapshot.uid),
                "a number of its own",
            ));
        }
    }
    let mut sound: BTreeSet<u32> = BTreeSet::new();
    for snapshot in snapshots {
        let mut path = BTreeSet::new();
        let mut at = Some(snapshot.uid);
        while let Some(uid) = at.filter(|uid| !sound.contains(uid)) {
            if !path.insert(uid) {
                let cause = format!("snapshot {uid} is its own ancestor");
                return Err(Error::damaged(file, format!("{cause}, expected a tree of parents")));
            }
            let Some(parent) = parents.get(&uid) else {
                return Err(wrong(
                    file,
                    "parent",
                    format!("{uid}, which is no snapshot"),
                    "the uid of a snapshot",
                ));
            };
            at = *parent;
        }
        sound.extend(path);
    }
    Ok(())
}

#[cfg(test)]
#[path = "vmsd_tests.rs"]
mod tests;
