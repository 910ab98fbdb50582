//! Repairs parents of links. A wrong hint is corrected by the parent's content ID, and a wrong content ID by the
//! parent.

use std::collections::BTreeMap;

use super::{Action, Mend, PlanDraft, RepairOptions};
use crate::check::{Inventory, Place, ancestry, quoted};
use crate::descriptor::Descriptor;
use crate::steps;
use crate::text::shown;

const HINT: &str = "parentFileNameHint";
const PARENT_CID: &str = "parentCID";

/// CIDs that products write into many disks: of a disk that was never written, and of one made by vmware-vdiskmanager.
const COMMON_CIDS: [u32; 2] = [0xffff_fffe, 0];

/// Plans repairs of the parents of the folder's links.
pub(super) async fn mend(inventory: &Inventory<'_>, terms: &RepairOptions, draft: &mut PlanDraft) {
    let by_cid = Candidates::new(inventory);
    for (name, link) in &inventory.links {
        mend_one(inventory, &by_cid, (name, link), terms, draft);
        inventory.dir.env().next_turn().await;
    }
}

/// Links of a folder by CID.
struct Candidates<'a>(BTreeMap<u32, Vec<&'a str>>);

/// Maximum number of links with one CID that are examined. If there are more, all of them are candidates.
const CANDIDATES_MAX: usize = 8;

impl<'a> Candidates<'a> {
    fn new(inventory: &'a Inventory<'_>) -> Self {
        let mut by_cid: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for (name, link) in &inventory.links {
            by_cid.entry(link.cid()).or_default().push(name);
        }
        Self(by_cid)
    }

    /// Returns the links on which `link` may have been made, by CID and size.
    fn of(&self, inventory: &Inventory<'_>, name: &str, link: &Descriptor) -> Vec<&'a str> {
        let cid = link.parent_cid().filter(|cid| !COMMON_CIDS.contains(cid));
        let same = cid.and_then(|cid| self.0.get(&cid)).map_or(&[][..], Vec::as_slice);
        let may_be = |other: &&&str| {
            steps::count(1);
            let below = &inventory.links[**other];
            below.capacity_sectors() == link.capacity_sectors()
                && !below.is_prepared()
                && !ancestry(inventory, other).contains(&name)
        };
        match same.len() > CANDIDATES_MAX {
            true => same.to_vec(),
            false => same.iter().filter(may_be).copied().collect(),
        }
    }
}

/// Returns why `parent` is not identified by its CID alone.
fn doubt(inventory: &Inventory<'_>, parent: &str) -> Option<String> {
    let link = &inventory.links[parent];
    if link.parent_cid() == Some(link.cid()) {
        return Some(format!("{} still has the CID of its own parent", shown(parent)));
    }
    let shares = link.extents().iter().filter(|extent| !extent.file.is_empty()).any(|extent| {
        let Place::Here(file) = inventory.locate(&extent.file) else { return true };
        inventory.who_names(&file).len() > 1
    });
    shares.then(|| format!("the extent of {} is not here, or another descriptor names it too", shown(parent)))
}

fn mend_one(
    inventory: &Inventory<'_>,
    by_cid: &Candidates<'_>,
    (name, link): (&str, &Descriptor),
    terms: &RepairOptions,
    draft: &mut PlanDraft,
) {
    let (Some(place), Some(cid)) = (inventory.locate_parent(link), link.parent_cid()) else { return };
    if link.is_embedded() {
        // The text is inside of the data's file.
        return;
    }
    let parent = match &place {
        Place::Outside => return,
        Place::Missing => None,
        Place::Here(parent) => match inventory.links.get_key_value(parent) {
            Some((_, below)) if below.cid() == cid => return,
            Some(found) => Some(found),
            None => return,
        },
    };
    let field = if parent.is_some() { PARENT_CID } else { HINT };
    let candidates = by_cid.of(inventory, name, link);
    match (&candidates[..], parent) {
        (&[only], _) => match doubt(inventory, only) {
            None => point_to(name, link, only, draft),
            Some(doubt) => {
                let reason = format!("{} has the CID {cid:08x}, but {doubt}", shown(only));
                draft.refuse(inventory.path(name), field, by_hand(name, &[only], &reason));
            }
        },
        ([], Some((parent, below))) => mend_cid(inventory, (name, link), (parent, below), terms, draft),
        ([], None) => {
            let reason = format!("no other link here has the CID {cid:08x} and the size of this disk");
            let common = COMMON_CIDS.contains(&cid);
            let reason = if common { format!("many disks have the CID {cid:08x}") } else { reason };
            let remedy = "find the parent in a backup, or name it by hand";
            draft.refuse(inventory.path(name), field, format!("{reason}; {remedy}"));
        }
        (several, _) => {
            let reason = format!("{} have the CID {cid:08x} and the size of this disk", quoted(several));
            draft.refuse(inventory.path(name), field, by_hand(name, several, &reason));
        }
    }
}

fn by_hand(name: &str, candidates: &[&str], reason: &str) -> String {
    let candidates = quoted(candidates);
    format!(
        "{reason}; write the right one into {HINT} of {} on a copy, and read it: {candidates}",
        shown(name)
    )
}

/// Corrects a hint: the content ID identifies the link.
fn point_to(name: &str, link: &Descriptor, parent: &str, draft: &mut PlanDraft) {
    let hint = link.parent_hint().unwrap_or_default();
    let cid = link.parent_cid().unwrap_or_default();
    let mut mended = link.clone();
    mended.set_parent(parent, cid);
    draft.write(mended.to_bytes(), Mend {
        file: name.into(),
        action: Action::Edit,
        lines: vec![format!("{HINT}=\"{parent}\"")],
        reason: format!(
            "it is {}; {} is the only link here with the expected CID {cid:08x} and the size of this disk",
            shown(hint),
            shown(parent)
        ),
        caution: None,
    });
}

/// Corrects a content ID: the hint leads to a link with another one, and no other link has the expected one.
fn mend_cid(
    inventory: &Inventory<'_>,
    (name, link): (&str, &Descriptor),
    (parent, below): (&str, &Descriptor),
    terms: &RepairOptions,
    draft: &mut PlanDraft,
) {
    let (found, cid) = (link.parent_cid().unwrap_or_default(), below.cid());
    let unproven = format!(
        "it is right only if the data of {} was not written since {} was made on it, which no file proves",
        shown(parent),
        shown(name)
    );
    if link.capacity_sectors() != below.capacity_sectors() {
        let reason = format!("{} has another size too, so it may be another disk", shown(parent));
        draft.refuse(inventory.path(name), PARENT_CID, format!("{reason}; {unproven}"));
        return;
    }
    if !terms.ignore_content_ids {
        let reason = format!("--ignore-content-ids writes {PARENT_CID}={cid:08x}; {unproven}");
        draft.refuse(inventory.path(name), PARENT_CID, reason);
        return;
    }
    let mut mended = link.clone();
    mended.set_parent(link.parent_hint().unwrap_or_default(), cid);
    draft.write(
        mended.to_bytes(),
        Mend {
            file: name.into(),
            action: Action::Edit,
            lines: vec![format!("{PARENT_CID}={cid:08x}")],
            reason: format!(
                "it is {found:08x}; {cid:08x} is the CID of {}, which its hint names",
                shown(parent)
            ),
            caution: Some(unproven),
        },
    );
}
