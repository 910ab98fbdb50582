//! Check of chains: the parent of each link, and whether it is the parent with which the link was made.

use std::collections::{BTreeMap, BTreeSet};

use blk::manifest::CHAIN_LAYERS_MAX;

use super::finding::{Faults, Finding, Severity};
use super::inventory::{Inventory, Place};
use super::quoted;
use crate::descriptor::Descriptor;
use crate::steps;
use crate::text::shown;

/// Number of links in one chain that VMware supports.
const CHAIN_LAYERS_SUPPORTED: usize = 32;

/// Returns `name` and the links below it in this folder, top first. A cycle is walked once. The result has at most one
/// link more than a chain may have: the chains of a folder may share their lower parts, and are together longer than
/// the folder.
pub(crate) fn ancestry<'a>(inventory: &'a Inventory<'_>, name: &str) -> Vec<&'a str> {
    let mut path: Vec<&str> = Vec::new();
    let mut seen = BTreeSet::new();
    walk(inventory, name, |name| {
        let goes_on = path.len() <= CHAIN_LAYERS_MAX && seen.insert(name);
        path.extend(goes_on.then_some(name));
        goes_on
    });
    path
}

/// Adds `name` and those links below it that are not marked yet.
pub(super) fn mark<'a>(inventory: &'a Inventory<'_>, name: &str, marked: &mut BTreeSet<&'a str>) {
    walk(inventory, name, |name| marked.insert(name));
}

/// Walks down from `name` while `visit` returns true.
fn walk<'a>(inventory: &'a Inventory<'_>, name: &str, mut visit: impl FnMut(&'a str) -> bool) {
    let mut at = inventory.links.get_key_value(name);
    while let Some((_, link)) = at.filter(|(name, _)| visit(name)) {
        steps::count(1);
        at = inventory.parent_of(link).and_then(|parent| inventory.links.get_key_value(parent));
    }
}

/// Lengths of the chains of all links, found in one walk.
#[derive(Default)]
struct Depths<'a> {
    /// Number of links from each link down to its base.
    depth: BTreeMap<&'a str, usize>,
    circles: Vec<Vec<&'a str>>,
}

impl<'a> Depths<'a> {
    async fn of(inventory: &'a Inventory<'_>, names: &BTreeSet<&str>) -> Self {
        let mut depths = Self::default();
        for name in names {
            depths.add(inventory, name);
            inventory.dir.env().next_turn().await;
        }
        depths
    }

    fn add(&mut self, inventory: &'a Inventory<'_>, name: &str) {
        let (mut path, mut places) = (Vec::new(), BTreeMap::new());
        let mut stopped_at = None;
        walk(inventory, name, |name| {
            let is_new = !self.depth.contains_key(name) && !places.contains_key(name);
            match is_new {
                true => _ = (places.insert(name, path.len()), path.push(name)),
                false => stopped_at = Some(name),
            }
            is_new
        });
        let circle = stopped_at.and_then(|name| places.get(name)).copied();
        self.circles.extend(circle.map(|entry| path[entry..].to_vec()));
        let below = stopped_at.and_then(|name| self.depth.get(name)).copied().unwrap_or(0);
        // Each link of a cycle has all others below it.
        let in_circle = circle.map_or(0, |entry| path.len() - entry);
        for (place, name) in path.iter().enumerate() {
            self.depth.insert(name, below + (path.len() - place).max(in_circle));
        }
    }
}

/// Checks the links of `names` with their parents, and the chains that end in them.
pub(super) async fn check(inventory: &Inventory<'_>, names: &BTreeSet<&str>, out: &mut Faults) {
    for name in names {
        check_parent(inventory, name, &inventory.links[*name], out);
        inventory.dir.env().next_turn().await;
    }
    check_shared_extents(inventory, names, out);
    let parents: BTreeSet<&str> =
        names.iter().filter_map(|name| inventory.parent_of(&inventory.links[*name])).collect();
    let depths = Depths::of(inventory, names).await;
    for leaf in names.iter().filter(|name| !parents.contains(**name)) {
        let links = depths.depth.get(leaf).copied().unwrap_or_default();
        check_depth(inventory, leaf, links, out);
        // A longer chain has a finding of its own instead.
        if links <= CHAIN_LAYERS_SUPPORTED {
            check_order(inventory, leaf, &ancestry(inventory, leaf), out);
        }
        inventory.dir.env().next_turn().await;
    }
    depths.circles.iter().for_each(|circle| check_circle(inventory, circle, out));
}

fn check_parent(inventory: &Inventory<'_>, name: &str, link: &Descriptor, out: &mut Faults) {
    let Some(hint) = link.parent_hint() else { return };
    let finding = |severity, expected: &str, remedy: String| {
        Finding::new(severity, inventory.path(name), "parentFileNameHint", shown(hint))
            .expected(expected)
            .remedy(remedy)
    };
    match inventory.locate_parent(link).unwrap_or(Place::Missing) {
        Place::Outside => {
            let remedy = "nothing to do for a linked clone; that folder must stay, and is checked by itself";
            let expected = "a link of this folder: the parent is elsewhere, and was not checked";
            out.push(finding(Severity::Note, expected, remedy.into()));
        }
        Place::Missing => {
            let remedy = "find the file in a backup; if only the descriptor is lost and its extent is here, write it anew: \
                          copy a sibling's, with this link's parentCID as its CID";
            out.push(finding(
                Severity::Damage,
                "the descriptor of its parent, which is not here",
                remedy.into(),
            ));
        }
        Place::Here(parent) => match inventory.links.get(&parent) {
            Some(below) => check_pair(inventory, (name, link), (&parent, below), out),
            None => {
                let what = inventory.contents.get(&parent).map_or("no disk", |content| content.name());
                let expected = format!("a descriptor that can be read, but {} is {what}", shown(&parent));
                out.push(finding(Severity::Damage, &expected, "repair or convert that file first".into()));
            }
        },
    }
}

fn check_pair(
    inventory: &Inventory<'_>,
    (name, link): (&str, &Descriptor),
    (parent, below): (&str, &Descriptor),
    out: &mut Faults,
) {
    let parent_cid = link.parent_cid().unwrap_or_default();
    if parent_cid != below.cid() {
        let cid = below.cid();
        let remedy = format!(
            "set parentCID={cid:08x} in {}, but only if the parent's data was not written since this link was made, \
             which cannot be proven from the files; else take the parent from a backup",
            shown(name)
        );
        let found = format!("{parent_cid:08x}");
        out.push(
            Finding::new(Severity::Damage, inventory.path(name), "parentCID", found)
                .expected(format!("{cid:08x}, the CID of {}", shown(parent)))
                .remedy(remedy),
        );
    }
    let (own, needed) = (link.capacity_sectors(), below.capacity_sectors());
    if own != needed {
        let remedy = format!(
            "if the parent was resized under its snapshots, put {own} back into the extent line of {}, and copy the disk \
             as its guest sees it",
            shown(parent)
        );
        let found = format!("{own} sectors");
        out.push(
            Finding::new(Severity::Damage, inventory.path(name), "the size of the disk", found)
                .expected(format!("{needed} sectors, as in its parent {}", shown(parent)))
                .remedy(remedy),
        );
    }
}

/// Maximum number of descriptors that each finding of a shared extent names: naming all would make a report of
/// quadratic length.
const OTHERS_MAX: usize = 5;

/// Checks for extents of several descriptors: two descriptors of one delta would both write it. Several pieces of one
/// flat file in one descriptor are correct.
fn check_shared_extents(inventory: &Inventory<'_>, names: &BTreeSet<&str>, out: &mut Faults) {
    let mut owners: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, link) in &inventory.links {
        for extent in link.extents().iter().filter(|extent| !extent.file.is_empty()) {
            owners.entry(extent.file.clone()).or_default().insert(name);
        }
    }
    for (extent, owners) in owners.into_iter().filter(|(_, owners)| owners.len() > 1) {
        for name in owners.iter().filter(|name| names.contains(**name)) {
            steps::count(1);
            let others = owners.iter().filter(|other| *other != name).take(OTHERS_MAX);
            out.push(
                Finding::new(Severity::Damage, inventory.path(name), "the extent line", shown(&extent))
                    .expected(format!("a file of its own, but {} names it too", quoted(others)))
                    .remedy("keep the descriptor that the .vmx or a hint names, and move the other away"),
            );
        }
    }
}

fn check_depth(inventory: &Inventory<'_>, leaf: &str, links: usize, out: &mut Faults) {
    if links <= CHAIN_LAYERS_SUPPORTED {
        return;
    }
    let (severity, expected, remedy) = match links > CHAIN_LAYERS_MAX {
        true => {
            let expected = format!("at most {CHAIN_LAYERS_MAX}, which is VMware's limit");
            (
                Severity::Damage,
                expected,
                "copy the disk as its guest sees it into a new one: no program opens this chain",
            )
        }
        false => {
            let expected = format!("at most {CHAIN_LAYERS_SUPPORTED}, which VMware supports");
            (Severity::Warning, expected, "commit snapshots")
        }
    };
    out.push(
        Finding::new(severity, inventory.path(leaf), "the length of the chain", format!("{links} links"))
            .expected(expected)
            .remedy(remedy),
    );
}

/// Returns the number of a delta: 2 for `web-000002.vmdk`.
fn number(name: &str) -> Option<u32> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let (_, digits) = stem.rsplit_once('-')?;
    (digits.len() == 6).then(|| digits.parse().ok()).flatten()
}

fn check_order(inventory: &Inventory<'_>, leaf: &str, chain: &[&str], out: &mut Faults) {
    let numbers: Vec<u32> = chain.iter().rev().filter_map(|name| number(name)).collect();
    if numbers.is_sorted() {
        return;
    }
    let found = format!("{}, base first", quoted(chain.iter().rev()));
    out.push(
        Finding::new(Severity::Note, inventory.path(leaf), "the order of its chain", found)
            .expected("any: numbers are used again, and carry no order")
            .remedy("nothing; a repair by hand follows the hints, never the numbers"),
    );
}

/// Reports a cycle, at its first name.
fn check_circle(inventory: &Inventory<'_>, circle: &[&str], out: &mut Faults) {
    let Some(first) = circle.iter().min() else { return };
    let found = format!("its own ancestor, by way of {}", quoted(circle));
    let remedy =
        "take the descriptors from a backup, or find the base by its -flat extent and mend the hints";
    out.push(
        Finding::new(Severity::Damage, inventory.path(first), "parentFileNameHint", found)
            .expected("a chain that ends in a base")
            .remedy(remedy),
    );
}
