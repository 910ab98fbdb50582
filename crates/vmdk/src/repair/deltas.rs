//! Writes missing or unreadable descriptors of deltas, derived from the delta's own header, the links that were made on
//! it, the rest of the old text, and the list of snapshots. The header does not contain the parent: if no other source
//! does, the user must name it.

use std::collections::BTreeSet;

use blk::reactor::OpenMode;

use super::{Action, Mend, PlanDraft, RepairOptions};
use crate::check::{
    Faults, Inventory, Place, TEXT_LIKELY_BYTES_MAX, Vm, ancestry, capacity_of, descriptor_of, quoted,
};
use crate::descriptor::{ContentId, ExtentKind, NewChild};
use crate::probe::Content;
use crate::text::{check_name, shown};

const FIELD: &str = "its descriptor";

/// A delta whose descriptor is to be written.
struct LostDescriptor<'a> {
    /// Name of the descriptor.
    name: String,
    extent: &'a str,
    kind: ExtentKind,
    capacity_sectors: u64,
    old: OldText,
}

/// Values that can still be read in a damaged descriptor.
#[derive(Default)]
struct OldText {
    is_there: bool,
    cid: Option<u32>,
    parent_cid: Option<u32>,
    hint: Option<String>,
}

/// The link on which a delta was made, and the evidence for it.
struct Parent {
    name: String,
    reason: String,
}

/// Plans a descriptor for each delta that no descriptor names.
pub(super) async fn mend(inventory: &Inventory<'_>, terms: &RepairOptions, draft: &mut PlanDraft) {
    let vm = Vm::of(inventory, &mut Faults::default());
    let nameless = nameless(inventory);
    for (extent, kind) in &nameless {
        let planned = match lost(inventory, extent, *kind).await {
            Ok(lost) => rebuilt(inventory, vm.as_ref(), terms, nameless.len(), lost),
            Err(reason) => Err(reason),
        };
        match planned {
            Ok((mend, text)) => {
                draft.changes.like.insert(mend.file.clone(), (*extent).to_owned());
                draft.write(text, mend);
            }
            Err(reason) => draft.refuse(inventory.path(extent), FIELD, reason),
        }
        inventory.dir.env().next_turn().await;
    }
}

fn nameless<'a>(inventory: &'a Inventory<'_>) -> Vec<(&'a str, ExtentKind)> {
    let kind = |content: Content| match content {
        Content::VmfsSparse => Some(ExtentKind::VmfsSparse),
        Content::SeSparse => Some(ExtentKind::SeSparse),
        _ => None,
    };
    let unnamed = inventory.contents.iter().filter(|(name, _)| inventory.who_names(name).is_empty());
    unnamed.filter_map(|(name, content)| Some((name.as_str(), kind(*content)?))).collect()
}

async fn lost<'a>(
    inventory: &Inventory<'_>,
    extent: &'a str,
    kind: ExtentKind,
) -> Result<LostDescriptor<'a>, String> {
    check_name(inventory.dir.path(), "the file name", extent).map_err(|error| error.to_string())?;
    let name = descriptor_of(extent).ok_or("its name does not tell that of its descriptor")?;
    if inventory.links.contains_key(&name) {
        return Err(format!("{} is here and does not name this file; move it away first", shown(&name)));
    }
    let content = inventory.contents[extent];
    let capacity_sectors =
        capacity_of(inventory, extent, content).await.map_err(|error| error.to_string())?;
    let old = match inventory.names.contains(&name) {
        true => OldText::read(inventory, &name).await?,
        false => OldText::default(),
    };
    Ok(LostDescriptor { name, extent, kind, capacity_sectors, old })
}

impl OldText {
    /// Reads a delta without a descriptor.
    ///
    /// # Errors
    /// The file is too large for a descriptor, or is an extent.
    async fn read(inventory: &Inventory<'_>, name: &str) -> Result<Self, String> {
        let odd = || format!("{} is here and is no text; move it away first", shown(name));
        match inventory.contents.get(name) {
            Some(Content::Descriptor | Content::Other) => {}
            _ => return Err(odd()),
        }
        let read = async {
            let file = inventory.dir.open(name, OpenMode::Read).await?;
            file.read_all(TEXT_LIKELY_BYTES_MAX).await
        };
        let bytes = read.await.map_err(|_| odd())?;
        Ok(Self::of(&String::from_utf8_lossy(&bytes)))
    }

    /// Parses complete lines. A value that is given twice is ignored.
    fn of(text: &str) -> Self {
        let value = |key: &str| {
            let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let values: BTreeSet<&str> = lines
                .filter_map(|line| line.split_once('='))
                .filter(|(own, _)| own.trim().eq_ignore_ascii_case(key))
                .map(|(_, value)| value.trim())
                .collect();
            if values.len() == 1 { values.first().copied() } else { None }
        };
        let cid = |key: &str| {
            let value = value(key).filter(|value| (1..=8).contains(&value.len()))?;
            u32::from_str_radix(value, 16).ok()
        };
        let hint = value("parentFileNameHint").and_then(|hint| hint.strip_prefix('"')?.strip_suffix('"'));
        Self { is_there: true, cid: cid("CID"), parent_cid: cid("parentCID"), hint: hint.map(str::to_owned) }
    }
}

/// Returns the repair and the text, or why there is none.
fn rebuilt(
    inventory: &Inventory<'_>,
    vm: Option<&Vm<'_>>,
    terms: &RepairOptions,
    nameless: usize,
    lost: LostDescriptor<'_>,
) -> Result<(Mend, Vec<u8>), String> {
    let expected = expected_cid(inventory, &lost)?;
    let parent = parent(inventory, vm, terms, nameless, &lost)?;
    let below = &inventory.links[&parent.name];
    let expected_parent = lost.old.parent_cid.filter(|cid| *cid != below.cid());
    if let Some(expected_parent) = expected_parent.filter(|_| !terms.ignore_content_ids) {
        let cause = format!(
            "what is left of {} expects a parent with the CID {expected_parent:08x}",
            shown(&lost.name)
        );
        let found = format!("and {} has {:08x}", shown(&parent.name), below.cid());
        return Err(format!("{cause}, {found}; --ignore-content-ids takes it all the same"));
    }
    let env = inventory.dir.env();
    let random = || (u128::from(env.random()) << 64) | u128::from(env.random());
    let content_id = match expected.or(lost.old.cid) {
        Some(cid) => ContentId::with_cid(random(), cid),
        None => ContentId::from_random(random()),
    };
    let child = NewChild {
        extent_file: lost.extent,
        capacity_sectors: lost.capacity_sectors,
        content_id,
        parent: &parent.name,
        parent_cid: below.cid(),
        owner: None,
        note: None,
    };
    let link = child.of_delta(&inventory.path(&lost.name), lost.kind).map_err(|error| error.to_string())?;
    let text = link.to_bytes();
    let mend = Mend {
        file: lost.name,
        action: if lost.old.is_there { Action::Edit } else { Action::Create },
        lines: String::from_utf8_lossy(&text).lines().map(str::to_owned).collect(),
        reason: format!("the header of {} has this size; {}", shown(lost.extent), parent.reason),
        caution: Some(format!(
            "whether {} was written after this delta was made on it is lost with the old descriptor",
            shown(&parent.name)
        )),
    };
    Ok((mend, text))
}

/// Returns the CID that the links made on the delta expect.
fn expected_cid(inventory: &Inventory<'_>, lost: &LostDescriptor<'_>) -> Result<Option<u32>, String> {
    let children = inventory.links.values().filter(|link| {
        let hint = link.parent_hint().and_then(|hint| hint.rsplit(['/', '\\']).next());
        hint == Some(&lost.name)
    });
    let mut expected = BTreeSet::new();
    for child in children {
        if child.capacity_sectors() != lost.capacity_sectors {
            let (own, needed) = (lost.capacity_sectors, child.capacity_sectors());
            let child = child.file();
            return Err(format!("{child} was made on it and has {needed} sectors, and this delta {own}"));
        }
        expected.extend(child.parent_cid());
    }
    match expected.len() {
        0 | 1 => Ok(expected.first().copied()),
        _ => {
            let said: Vec<String> = expected.iter().map(|cid| format!("{cid:08x}")).collect();
            Err(format!("the links made on it expect different CIDs: {}", said.join(", ")))
        }
    }
}

/// Returns the link on which the delta was made.
fn parent(
    inventory: &Inventory<'_>,
    vm: Option<&Vm<'_>>,
    terms: &RepairOptions,
    nameless: usize,
    lost: &LostDescriptor<'_>,
) -> Result<Parent, String> {
    let fits = |name: &str| {
        let link = &inventory.links[name];
        link.capacity_sectors() == lost.capacity_sectors
            && !link.is_prepared()
            && !leads_to(inventory, name, &lost.name)
    };
    let candidates: Vec<&str> =
        inventory.links.keys().map(String::as_str).filter(|name| fits(name)).collect();
    if let Some(named) = terms.parents.get(&lost.name) {
        return match candidates.contains(&named.as_str()) {
            true => Ok(Parent { name: named.clone(), reason: "you name its parent".into() }),
            false => Err(format!(
                "{} cannot be its parent: expected a link here of {} sectors that was not made on it",
                shown(named),
                lost.capacity_sectors
            )),
        };
    }
    let known = by_old_text(inventory, &candidates, lost)
        .or_else(|| by_list(inventory, vm, &candidates, lost))
        .or_else(|| by_exclusion(inventory, &candidates, nameless, lost));
    known.ok_or_else(|| {
        let remedy = format!("--parent {}=LINK names the link that it was made on", lost.name);
        match candidates.is_empty() {
            true => "no other link here has its size: find its parent in a backup first".to_owned(),
            false => {
                format!("nothing tells which of these it was made on; {remedy}: {}", quoted(&candidates))
            }
        }
    })
}

/// Returns whether `name` is a descendant of the lost link.
fn leads_to(inventory: &Inventory<'_>, name: &str, lost: &str) -> bool {
    let bottom = ancestry(inventory, name).last().copied().unwrap_or(name);
    let hint = inventory.links[bottom].parent_hint().and_then(|hint| hint.rsplit(['/', '\\']).next());
    hint == Some(lost)
}

/// Returns the parent if the hint and the CID in the rest of the old descriptor agree.
fn by_old_text(inventory: &Inventory<'_>, candidates: &[&str], lost: &LostDescriptor<'_>) -> Option<Parent> {
    let hint = lost.old.hint.as_deref()?.rsplit(['/', '\\']).next()?;
    let parent_cid = lost.old.parent_cid?;
    let name = candidates.iter().find(|name| **name == hint)?;
    (inventory.links[*name].cid() == parent_cid).then(|| Parent {
        name: (*name).to_owned(),
        reason: format!("what is left of the old text names {} with its CID", shown(name)),
    })
}

/// Returns the parent by the list of snapshots: the running link was made on the current snapshot, and a snapshot on
/// its parent.
fn by_list(
    inventory: &Inventory<'_>,
    vm: Option<&Vm<'_>>,
    candidates: &[&str],
    lost: &LostDescriptor<'_>,
) -> Option<Parent> {
    let vm = vm.filter(|vm| vm.is_list_readable())?;
    let is_lost = |path: &str| path.rsplit(['/', '\\']).next() == Some(&lost.name);
    let find = |uid: Option<u32>| vm.list.snapshots.iter().find(|own| Some(own.uid) == uid);
    let running = vm.disks.iter().find(|disk| is_lost(&disk.file_name));
    let (before, node) = match running {
        Some(disk) => (find(vm.list.current)?, disk.slot.to_string()),
        None => {
            let mut kept =
                vm.list.snapshots.iter().flat_map(|own| own.disks.iter().map(move |disk| (own, disk)));
            let (own, disk) = kept.find(|(_, disk)| is_lost(&disk.file_name))?;
            (find(own.parent)?, disk.node.clone())
        }
    };
    let state = before.disks.iter().find(|disk| disk.node.eq_ignore_ascii_case(&node))?;
    let Place::Here(name) = inventory.locate(&state.file_name) else { return None };
    candidates.contains(&name.as_str()).then(|| Parent {
        reason: format!("the snapshot before it, {}, has {} as its state", shown(&before.name), shown(&name)),
        name,
    })
}

/// Returns the only link with this disk's name and size, if nothing else is lost or elsewhere.
fn by_exclusion(
    inventory: &Inventory<'_>,
    candidates: &[&str],
    nameless: usize,
    lost: &LostDescriptor<'_>,
) -> Option<Parent> {
    let same_disk = candidates.iter().filter(|name| disk_of(name) == disk_of(&lost.name));
    let [only] = same_disk.copied().collect::<Vec<_>>()[..] else { return None };
    let is_elsewhere = |place: Option<Place>| matches!(place, Some(Place::Outside | Place::Missing));
    let mut links = inventory.links.iter();
    let broken = links.any(|(_, link)| {
        let hint = link.parent_hint().and_then(|hint| hint.rsplit(['/', '\\']).next());
        is_elsewhere(inventory.locate_parent(link)) && hint != Some(&lost.name)
    });
    if nameless > 1 || broken || !inventory.children_of(only).is_empty() {
        return None;
    }
    Some(Parent {
        name: only.to_owned(),
        reason: format!("{} is the only link here of its disk's name and size", shown(only)),
    })
}

/// Returns the disk's name: `web` for `web.vmdk` and `web-000002.vmdk`.
fn disk_of(name: &str) -> &str {
    let stem = name.strip_suffix(".vmdk").unwrap_or(name);
    match stem.rsplit_once('-') {
        Some((disk, digits)) if digits.len() == 6 && digits.bytes().all(|b| b.is_ascii_digit()) => disk,
        _ => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_text_is_read_by_whole_lines() {
        let old = OldText::of("version=1\nCID=0a\nparentCID=0000000b\nparentFileNameHint=\"a b.vmdk\"\nRW 5");
        assert_eq!((old.cid, old.parent_cid, old.hint.as_deref()), (Some(10), Some(11), Some("a b.vmdk")));
        let torn = OldText::of("CID=0000000a\nCID=0000000b\nparentCID=000");
        assert_eq!((torn.cid, torn.parent_cid), (None, None));
    }

    #[test]
    fn names_of_one_disk() {
        for (name, disk) in
            [("web.vmdk", "web"), ("web-000002.vmdk", "web"), ("web_1.vmdk", "web_1"), ("a-b.vmdk", "a-b")]
        {
            assert_eq!(disk_of(name), disk);
        }
    }
}
