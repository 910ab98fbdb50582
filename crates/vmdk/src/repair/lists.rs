//! Repairs the list of snapshots so that it agrees with itself and with the links: counts and leftovers, numbers and
//! parents that are no tree, snapshots without links, and the current snapshot.

use std::collections::{BTreeMap, BTreeSet};

use blk::Result;
use blk::manifest::SNAPSHOT_UID_MAX;

use super::{Action, Mend, PlanDraft};
use crate::check::{Faults, Inventory, Place, Vm, ancestry, descriptor_of};
use crate::read::parse;
use crate::text::{TEXT_BYTES_MAX, shown};
use crate::vmsd::{Snapshot, SnapshotList, Vmsd};

const CAUTION: &str = "names and times of what is left out are in the copy of the old list alone";

/// The repaired list, and its changes.
struct Changed {
    vmsd: Vmsd,
    list: SnapshotList,
    lines: Vec<String>,
}

/// Plans the list of the folder's VM.
pub(super) async fn mend(inventory: &Inventory<'_>, draft: &mut PlanDraft) {
    let Some(vm) = Vm::of(inventory, &mut Faults::default()) else { return };
    if !inventory.names.contains(&vm.vmsd) {
        return;
    }
    let Ok(vmsd) = read(inventory, &vm.vmsd).await else { return };
    let is_tree = vm.is_list_readable();
    let mut changed = Changed { list: vmsd.list().clone(), vmsd, lines: Vec::new() };
    changed.note_oddities(&inventory.path(&vm.vmsd));
    if !is_tree && let Err(reason) = changed.plant(inventory) {
        draft.refuse_file(inventory.path(&vm.vmsd), reason);
        return;
    }
    changed.drop_gone(inventory, &vm.vmsd, draft);
    if is_tree && !vm.is_current_sound() {
        changed.find_current(inventory, &vm);
    }
    if changed.lines.is_empty() {
        return;
    }
    let Changed { mut vmsd, list, lines } = changed;
    vmsd.write_list(list);
    let reason = "the links that are here, and the parents that they were made on, say so";
    let mend = Mend {
        file: vm.vmsd.clone(),
        action: Action::Edit,
        lines,
        reason: reason.into(),
        caution: Some(CAUTION.into()),
    };
    draft.write(vmsd.to_bytes(), mend);
}

async fn read(inventory: &Inventory<'_>, name: &str) -> Result<Vmsd> {
    let bytes = match inventory.planned_text(name) {
        Some(text) => text.to_vec(),
        None => inventory.dir.read_file(name, TEXT_BYTES_MAX as u64).await?,
    };
    parse(inventory.dir.env(), inventory.path(name), bytes, Vmsd::parse_loose).await
}

/// Returns the link with the state of each disk, if it is in this folder.
fn links_of<'a>(inventory: &'a Inventory<'_>, snapshot: &Snapshot) -> Vec<(String, &'a str)> {
    let found = snapshot.disks.iter().filter_map(|disk| {
        let Place::Here(name) = inventory.locate(&disk.file_name) else { return None };
        let (name, _) = inventory.links.get_key_value(&name)?;
        Some((disk.node.to_ascii_lowercase(), name.as_str()))
    });
    found.collect()
}

impl Changed {
    /// Records oddities, which are omitted from the new list.
    fn note_oddities(&mut self, path: &str) {
        let said = self.vmsd.oddities().iter();
        let said =
            said.map(|odd| odd.strip_prefix(path).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(odd));
        self.lines.extend(said.map(|odd| format!("put right: {odd}")));
    }

    /// Gives each snapshot a unique number, and snapshots without a sound parent the nearest one on which their links
    /// were made.
    ///
    /// # Errors
    /// Two snapshots are possible, or the links that would decide are not here.
    fn plant(&mut self, inventory: &Inventory<'_>) -> Result<(), String> {
        let doubles = self.number_anew()?;
        let astray = self.astray(&doubles);
        let mut parents = Vec::new();
        for at in &astray {
            parents.push((*at, self.parent_by_links(inventory, *at)?));
        }
        for (at, parent) in parents {
            let snapshot = &mut self.list.snapshots[at];
            if snapshot.parent != parent {
                snapshot.parent = parent;
                let said = parent.map_or("none".to_owned(), |uid| uid.to_string());
                self.lines.push(format!(
                    "parent of {} (uid {}): {said}",
                    shown(&snapshot.name),
                    snapshot.uid
                ));
            }
        }
        match self.astray(&BTreeSet::new()).is_empty() {
            true => Ok(()),
            false => Err("its snapshots are no tree, and their links do not tell what it was".into()),
        }
    }

    /// Renumbers snapshots. Returns the numbers that were given twice.
    fn number_anew(&mut self) -> Result<BTreeSet<u32>, String> {
        let (mut seen, mut doubles) = (BTreeSet::new(), BTreeSet::new());
        for snapshot in &mut self.list.snapshots {
            if seen.insert(snapshot.uid) {
                continue;
            }
            doubles.insert(snapshot.uid);
            if self.list.last_uid >= SNAPSHOT_UID_MAX {
                return Err("a uid is given twice, and there is no higher one".into());
            }
            self.list.last_uid += 1;
            let line =
                format!("uid of {}: {}, not {}", shown(&snapshot.name), self.list.last_uid, snapshot.uid);
            snapshot.uid = self.list.last_uid;
            self.lines.push(line);
        }
        // The links show which of the two was meant, once the list is a tree.
        self.list.current = self.list.current.filter(|uid| !doubles.contains(uid));
        Ok(doubles)
    }

    /// Returns the indices of snapshots whose parent is ambiguous or missing, or leads back to them.
    fn astray(&self, doubles: &BTreeSet<u32>) -> Vec<usize> {
        let parents: BTreeMap<u32, Option<u32>> =
            self.list.snapshots.iter().map(|own| (own.uid, own.parent)).collect();
        let is_astray = |own: &Snapshot| {
            let mut seen = BTreeSet::from([own.uid]);
            let mut at = own.parent;
            if at.is_some_and(|uid| doubles.contains(&uid)) {
                return true;
            }
            while let Some(uid) = at {
                let known = parents.get(&uid);
                // A cycle further down belongs to other snapshots.
                if known.is_none() || !seen.insert(uid) {
                    return known.is_none() && own.parent == Some(uid) || uid == own.uid;
                }
                at = known.copied().flatten();
            }
            false
        };
        let all = self.list.snapshots.iter().enumerate();
        all.filter(|(_, own)| is_astray(own)).map(|(at, _)| at).collect()
    }

    /// Returns the snapshot whose links are the nearest below those of the one at `at`, on every disk that both have.
    fn parent_by_links(&self, inventory: &Inventory<'_>, at: usize) -> Result<Option<u32>, String> {
        let own = &self.list.snapshots[at];
        let unknown =
            || format!("the parent of {} (uid {}) does not follow from its links", shown(&own.name), own.uid);
        let links = links_of(inventory, own);
        if links.is_empty() || links.len() != own.disks.len() {
            return Err(unknown());
        }
        let mut nearest = BTreeSet::new();
        for (node, link) in &links {
            let below = ancestry(inventory, link);
            let under = below.iter().skip(1).find_map(|link| self.named(inventory, node, link, at));
            nearest.insert(under);
        }
        match nearest.first() {
            Some(Some(uids)) if nearest.len() == 1 && uids.len() == 1 => Ok(uids.first().copied()),
            Some(None) if nearest.len() == 1 => Ok(None),
            _ => Err(unknown()),
        }
    }

    /// Returns the snapshots, except the one at `at`, whose state of a disk is `link`.
    fn named(&self, inventory: &Inventory<'_>, node: &str, link: &str, at: usize) -> Option<BTreeSet<u32>> {
        let others = self.list.snapshots.iter().enumerate().filter(|(other, _)| *other != at);
        let is_named = |own: &Snapshot| links_of(inventory, own).iter().any(|(n, l)| n == node && *l == link);
        let uids: BTreeSet<u32> = others.filter(|(_, own)| is_named(own)).map(|(_, own)| own.uid).collect();
        (!uids.is_empty()).then_some(uids)
    }

    /// Removes snapshots none of whose links is here, and to which no file here could belong.
    fn drop_gone(&mut self, inventory: &Inventory<'_>, vmsd: &str, draft: &mut PlanDraft) {
        for snapshot in self.list.snapshots.clone() {
            let missing = |path: &str| inventory.locate(path) == Place::Missing;
            let gone = snapshot.disks.iter().filter(|disk| missing(&disk.file_name)).count();
            if gone == 0 {
                continue;
            }
            let name = format!("snapshot {} (uid {})", shown(&snapshot.name), snapshot.uid);
            let doubt = match gone < snapshot.disks.len() {
                true => Some("its other disks are here; find the file in a backup".to_owned()),
                false => snapshot.disks.iter().find_map(|disk| may_come_back(inventory, &disk.file_name)),
            };
            if let Some(doubt) = doubt {
                for disk in &snapshot.disks {
                    let field = format!("{name}, fileName of {}", disk.node);
                    draft.refuse(inventory.path(vmsd), &field, doubt.clone());
                }
                continue;
            }
            self.leave_out(&snapshot);
            self.lines.push(format!(
                "without {name}: the links with its state are gone, and no link was made on them"
            ));
        }
    }

    fn leave_out(&mut self, gone: &Snapshot) {
        self.list.snapshots.retain(|own| own.uid != gone.uid);
        for own in self.list.snapshots.iter_mut().filter(|own| own.parent == Some(gone.uid)) {
            own.parent = gone.parent;
        }
        if self.list.current == Some(gone.uid) {
            self.list.current = gone.parent;
        }
    }

    /// Finds the snapshot whose links are the nearest below the running ones, if all disks agree.
    fn find_current(&mut self, inventory: &Inventory<'_>, vm: &Vm<'_>) {
        let mut found = BTreeSet::new();
        for (disk, chain) in vm.chains() {
            let node = disk.slot.to_string();
            let nearest =
                chain.iter().skip(1).find_map(|link| self.named(inventory, &node, link, usize::MAX));
            // A disk that was added after the snapshots is no evidence.
            found.extend(nearest);
        }
        let [uids] = &found.into_iter().collect::<Vec<_>>()[..] else { return };
        let (Some(&uid), 1) = (uids.first(), uids.len()) else { return };
        if self.list.current != Some(uid) {
            self.list.current = Some(uid);
            self.lines.push(format!("snapshot.current = \"{uid}\""));
        }
    }
}

/// Returns why a missing link may be found again: an extent of its name, or a link that was made on it.
fn may_come_back(inventory: &Inventory<'_>, path: &str) -> Option<String> {
    let name = path.rsplit(['/', '\\']).next()?;
    let extent = inventory.contents.keys().find(|extent| descriptor_of(extent).as_deref() == Some(name));
    if let Some(extent) = extent {
        return Some(format!("its extent {} is here: its descriptor comes first", shown(extent)));
    }
    let mut links = inventory.links.iter();
    let child = links
        .find(|(_, link)| link.parent_hint().and_then(|hint| hint.rsplit(['/', '\\']).next()) == Some(name));
    child.map(|(child, _)| {
        format!("{} was made on it: it is lost, and not stale; find it in a backup", shown(child))
    })
}
