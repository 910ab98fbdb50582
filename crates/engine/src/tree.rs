//! The snapshot tree: pure functions over a VM's state, without I/O.

use std::collections::{BTreeMap, BTreeSet};

use blk::manifest::{BinnedState, Change, FoldState, LayerName, SnapshotState, VmState};
use blk::{Env, Error, Result};

use crate::operations::Rename;

/// Longest snapshot name and description, in bytes. VMware's own tools show a name of this length in full.
pub const NAME_BYTES_MAX: usize = 80;
/// Longest description of a snapshot that is written, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 4096;

/// Digits of an id, in hexadecimal.
const ID_DIGITS: usize = 32;

/// Finds a snapshot by its id in hexadecimal, or by name. Another snapshot with the id as its name is not meant.
pub fn find<'a>(state: &'a VmState, wanted: &str) -> Result<&'a SnapshotState> {
    if let Some(one) = state.snapshots.iter().find(|s| format!("{:032x}", s.id) == wanted) {
        return Ok(one);
    }
    let named: Vec<_> = state.snapshots.iter().filter(|s| s.name == wanted).collect();
    match named[..] {
        [one] => Ok(one),
        [] => {
            let known: Vec<_> = state.snapshots.iter().map(|s| s.name.as_str()).collect();
            let known = if known.is_empty() {
                "the VM has no snapshots".to_string()
            } else {
                format!("the VM has {}", known.join(", "))
            };
            Err(Error::not_found(&state.name, format!("no snapshot {wanted:?}; {known}")))
        }
        _ => {
            let ids: Vec<_> = named.iter().map(|s| format!("{:032x}", s.id)).collect();
            Err(Error::refused(
                &state.name,
                format!("{} snapshots are named {wanted:?}; use an id: {}", ids.len(), ids.join(", ")),
            ))
        }
    }
}

/// Creates the record of a snapshot that is about to be taken; the VM sets number, parent and disks.
pub fn new_snapshot(env: &Env, name: &str, description: &str) -> SnapshotState {
    SnapshotState {
        id: u128::from(env.random()) << 64 | u128::from(env.random()),
        uid: 0,
        parent: None,
        name: name.to_string(),
        description: description.to_string(),
        created_unix_us: env.unix_us(),
        disks: Vec::new(),
    }
}

/// Returns the snapshot that a revert to `wanted` goes to (None: the current snapshot).
pub fn revert_target<'a>(state: &'a VmState, wanted: Option<&str>) -> Result<&'a SnapshotState> {
    if let Some(name) = wanted {
        return find(state, name);
    }
    let latest = state.snapshots.iter().find(|s| Some(s.id) == state.current);
    latest.ok_or_else(|| {
        Error::refused(&state.name, "the VM has no current snapshot; name the snapshot to revert to")
    })
}

/// Finds a snapshot to commit. The end of a side branch has nothing to commit: its name alone keeps its state.
pub fn find_committable<'a>(state: &'a VmState, wanted: &str) -> Result<&'a SnapshotState> {
    let found = find(state, wanted)?;
    let leaf = !state.snapshots.iter().any(|s| s.parent == Some(found.id));
    if leaf && !is_running(state, found.id) {
        let cause = format!("{} is the end of a side branch, after which nothing was written", found.name);
        let why = "a commit would lose its state; to remove the state, discard the snapshot";
        return Err(Error::refused(&state.name, format!("{cause}, and {why}")));
    }
    Ok(found)
}

/// Returns the snapshots that the running state descends from, latest first.
pub fn running_names(state: &VmState) -> Vec<SnapshotState> {
    on_way_up(state).into_iter().cloned().collect()
}

fn on_way_up(state: &VmState) -> Vec<&SnapshotState> {
    let by_id: BTreeMap<u128, &SnapshotState> = state.snapshots.iter().map(|s| (s.id, s)).collect();
    let mut names = Vec::new();
    // A cycle of parents, in a damaged home, ends where it closes.
    let mut seen = BTreeSet::new();
    let mut at = state.current;
    while let Some(s) = at.and_then(|id| by_id.get(&id)).filter(|s| seen.insert(s.id)) {
        names.push(*s);
        at = s.parent;
    }
    names
}

/// Refuses a name or a description that a snapshot of `state` cannot have.
///
/// # Errors
///
/// `Invalid` for what no snapshot may be named, `Exists` for the name of another one.
pub fn check_name(state: &VmState, name: &str, description: &str) -> Result<()> {
    let expected = format!("expected 1 to {NAME_BYTES_MAX} bytes without control characters, '/' and '@'");
    let bad = name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || name.contains(|c: char| c.is_control() || "/@".contains(c));
    if bad || name.trim() != name {
        return Err(Error::invalid(&state.name, format!("{name:?} cannot name a snapshot: {expected}")));
    }
    if description.len() > DESCRIPTION_BYTES_MAX {
        let cause = format!(
            "the description has {} bytes, at most {DESCRIPTION_BYTES_MAX} are kept",
            description.len()
        );
        return Err(Error::invalid(&state.name, cause));
    }
    if state.snapshots.iter().any(|s| s.name == name) {
        let cause = format!("a snapshot named {name:?} exists; choose another name or commit that one");
        return Err(Error::new(blk::ErrorKind::Exists, &state.name, cause));
    }
    Ok(())
}

/// Refuses a new name that looks like an id, which may be another snapshot's. Snapshots of other software and of earlier versions
/// have such names, and keep them.
pub fn refuse_id(state: &VmState, name: &str) -> Result<()> {
    if name.len() == ID_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let cause =
            format!("{name:?} cannot name a snapshot: it looks like an id, which may be another one's");
        return Err(Error::invalid(&state.name, cause));
    }
    Ok(())
}

/// Returns the state in which a snapshot has another name or description, and the snapshot before and after. A snapshot keeps its own name
/// if it gets only another description.
///
/// # Errors
/// `NotFound`; `Invalid` or `Exists` for the name.
pub fn renamed(
    state: &VmState,
    wanted: &str,
    label: &Rename,
) -> Result<(VmState, SnapshotState, SnapshotState)> {
    let before = find(state, wanted)?.clone();
    let mut after = before.clone();
    after.name = label.name.clone().unwrap_or(after.name);
    after.description = label.description.clone().unwrap_or(after.description);
    let mut next = state.clone();
    next.snapshots.retain(|snapshot| snapshot.id != before.id);
    check_name(&next, &after.name, &after.description)?;
    if after.name != before.name {
        refuse_id(&next, &after.name)?;
    }
    next.snapshots.clone_from(&state.snapshots);
    next.snapshots.iter_mut().filter(|snapshot| snapshot.id == before.id).for_each(|s| *s = after.clone());
    Ok((next, before, after))
}

/// Returns what a renaming did, for its event.
pub fn renaming(before: &SnapshotState, after: &SnapshotState) -> String {
    match before.name == after.name {
        true => "another description".to_owned(),
        false => format!("its name was {}", before.name),
    }
}

/// Returns `wanted`, with a number if a snapshot has that name already.
pub fn free_name(state: &VmState, wanted: &str) -> String {
    let is_free = |name: &str| !state.snapshots.iter().any(|s| s.name == name);
    let numbered = (2u32..).map(|number| format!("{wanted}-{number}"));
    let mut names = std::iter::once(wanted.to_owned()).chain(numbered);
    names.find(|name| is_free(name)).expect("there are more numbers than snapshots")
}

/// Returns the state after a take. `tops` are (disk number, new top); the old tops belong to the snapshot.
pub fn after_take(state: &VmState, snapshot: SnapshotState, tops: &[(u32, LayerName)]) -> VmState {
    let mut next = state.clone();
    next.last_uid = snapshot.uid;
    next.current = Some(snapshot.id);
    next.snapshots.push(snapshot);
    for disk in &mut next.disks {
        if let Some((_, top)) = tops.iter().find(|(number, _)| *number == disk.number) {
            disk.top = top.clone();
        }
    }
    next
}

/// Changes of the remaining tree when names leave it.
pub struct NameRemoval {
    /// The snapshot that the running state descends from now.
    pub current: Option<u128>,
    /// Snapshots that get another parent, with that parent.
    pub moved: BTreeMap<u128, Option<u128>>,
}

/// Returns these changes: the children of the names in `gone` move up.
pub fn leaving(state: &VmState, gone: &BTreeSet<u128>) -> NameRemoval {
    let stays = nearest_staying(state, gone);
    let up = |id: Option<u128>| id.and_then(|id| stays.get(&id).copied().unwrap_or(Some(id)));
    let stay = state.snapshots.iter().filter(|s| !gone.contains(&s.id));
    let moved = stay.filter(|s| up(s.parent) != s.parent).map(|s| (s.id, up(s.parent))).collect();
    NameRemoval { current: up(state.current), moved }
}

/// Returns, for each name in `gone`, its nearest ancestor that stays.
fn nearest_staying(state: &VmState, gone: &BTreeSet<u128>) -> BTreeMap<u128, Option<u128>> {
    let leave = state.snapshots.iter().filter(|s| gone.contains(&s.id));
    let parents: BTreeMap<u128, Option<u128>> = leave.map(|s| (s.id, s.parent)).collect();
    let mut found: BTreeMap<u128, Option<u128>> = BTreeMap::new();
    for id in gone {
        let (mut way, mut at) = (Vec::new(), Some(*id));
        while let Some(here) = at.filter(|here| gone.contains(here) && !found.contains_key(here)) {
            // A cycle of parents, in a damaged home, ends here.
            found.insert(here, None);
            way.push(here);
            at = parents.get(&here).copied().flatten();
        }
        let stays = at.and_then(|here| found.get(&here).copied().unwrap_or(Some(here)));
        found.extend(way.into_iter().map(|here| (here, stays)));
    }
    found
}

/// Returns the state after the names in `gone` have left the tree: their children move up, and `folds` are recorded.
pub fn after_names_leave(state: &VmState, gone: &[u128], folds: Vec<FoldState>) -> VmState {
    let gone: BTreeSet<u128> = gone.iter().copied().collect();
    let leaving = leaving(state, &gone);
    let mut next = state.clone();
    next.snapshots.retain(|s| !gone.contains(&s.id));
    for snapshot in &mut next.snapshots {
        snapshot.parent = leaving.moved.get(&snapshot.id).copied().unwrap_or(snapshot.parent);
    }
    next.current = leaving.current;
    for fold in folds {
        next.folds.retain(|f| (f.disk, &f.layer) != (fold.disk, &fold.layer));
        next.folds.push(fold);
    }
    next
}

/// Returns a snapshot and all of its descendants.
pub fn with_later(state: &VmState, id: u128) -> Vec<u128> {
    let mut children: BTreeMap<u128, Vec<u128>> = BTreeMap::new();
    for s in &state.snapshots {
        s.parent.into_iter().for_each(|parent| children.entry(parent).or_default().push(s.id));
    }
    let (mut found, mut known) = (vec![id], BTreeSet::from([id]));
    let mut at = 0;
    while at < found.len() {
        let below = children.get(&found[at]).cloned().unwrap_or_default();
        // A cycle of parents, in a damaged home, ends here.
        found.extend(below.into_iter().filter(|id| known.insert(*id)));
        at += 1;
    }
    found
}

/// Returns whether the running state descends from the snapshot.
pub fn is_running(state: &VmState, id: u128) -> bool {
    on_way_up(state).iter().any(|s| s.id == id)
}

/// Returns the change that ends a fold: `source` is empty, and every reference to it becomes one to `target`.
/// `children` are the layers over `source`; their new parent is `target`.
pub fn fold_end(state: &VmState, disk: u32, source: &str, target: &str, children: &[LayerName]) -> Change {
    let mut next = state.clone();
    next.folds.retain(|f| !(f.disk == disk && f.layer == source));
    let (mut disks, mut snapshots) =
        (next.disks.iter_mut().collect::<Vec<_>>(), next.snapshots.iter_mut().collect::<Vec<_>>());
    for binned in &mut next.bin {
        disks.extend(&mut binned.disks);
        snapshots.extend(&mut binned.snapshots);
    }
    let running = disks.into_iter().flat_map(|disk| [Some(&mut disk.top), disk.reset_to.as_mut()]).flatten();
    let frozen = snapshots.into_iter().flat_map(|s| s.disks.iter_mut().map(|(_, layer)| layer));
    for layer in running.chain(frozen).filter(|layer| *layer == source) {
        *layer = target.to_string();
    }
    let reparent = children.iter().map(|c| (c.clone(), target.to_string())).collect();
    Change { next, reparent, remove: vec![source.to_string()], ..Change::default() }
}

/// Returns whether a snapshot or an entry of the bin names one of the layers.
pub fn named(state: &VmState, layers: &[&str]) -> bool {
    let frozen = state.snapshots.iter().flat_map(|s| s.disks.iter().map(|(_, layer)| layer));
    let mut named = frozen.chain(state.bin.iter().flat_map(BinnedState::layers));
    named.any(|layer| layers.contains(&layer.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(id: u128, parent: Option<u128>, layer: &str) -> SnapshotState {
        SnapshotState {
            id,
            uid: id as u32,
            parent,
            name: format!("s{id}"),
            description: String::new(),
            created_unix_us: 0,
            disks: vec![(0, layer.to_string())],
        }
    }

    #[test]
    fn children_of_a_committed_name_move_up() {
        let state = VmState {
            snapshots: vec![snapshot(1, None, "a"), snapshot(2, Some(1), "b"), snapshot(3, Some(2), "c")],
            current: Some(3),
            ..VmState::default()
        };
        let next = after_names_leave(&state, &[2], vec![]);
        assert_eq!(next.snapshots[1].parent, Some(1));
        assert_eq!(after_names_leave(&state, &[1, 2, 3], vec![]).current, None);
        assert_eq!(after_names_leave(&state, &[3], vec![]).current, Some(2));
    }

    #[test]
    fn the_end_of_an_older_fold_renames_its_snapshot() {
        let state =
            VmState { snapshots: vec![snapshot(2, None, "d1")], current: Some(2), ..VmState::default() };
        let change = fold_end(&state, 0, "d1", "base", &["d2".to_string()]);
        assert_eq!(change.next.snapshots[0].disks, [(0, "base".to_string())]);
        assert_eq!(change.reparent, [("d2".to_string(), "base".to_string())]);
        assert_eq!(change.remove, ["d1"]);
    }

    #[test]
    fn names_are_checked_and_found() {
        let state = VmState { snapshots: vec![snapshot(7, None, "a")], ..VmState::default() };
        assert!(check_name(&state, "ok", "").is_ok());
        for bad in ["", " a", "a/b", "a@b", "s7", "a\nb"] {
            assert!(check_name(&state, bad, "").is_err(), "{bad:?}");
        }
        let id = "0123456789abcdefABCDEF0123456789";
        // One that has such a name keeps it.
        let state = VmState {
            snapshots: vec![
                snapshot(7, None, "a"),
                SnapshotState { name: id.into(), ..snapshot(8, None, "b") },
            ],
            ..VmState::default()
        };
        let described = Rename { description: Some("old".into()), ..Rename::default() };
        assert_eq!(renamed(&state, id, &described).unwrap().2.description, "old");
        let other = Rename { name: Some(id.replace('0', "1")), ..Rename::default() };
        assert!(renamed(&state, "s7", &other).is_err());
        assert_eq!(find(&state, "s7").unwrap().id, 7);
        assert_eq!(find(&state, &format!("{:032x}", 7)).unwrap().id, 7);
        let id = format!("{:032x}", 7);
        assert!(refuse_id(&state, &id).is_err() && refuse_id(&state, &id[1..]).is_ok());
        // An imported one may have any name.
        let state = VmState { snapshots: vec![snapshot(8, None, &id), snapshot(7, Some(8), "a")], ..state };
        assert_eq!(find(&state, &id).unwrap().id, 7);
        assert_eq!(find(&state, "nope").unwrap_err().kind, blk::ErrorKind::NotFound);
    }
}
