//! Check of the .vmx and the .vmsd against the links: running links, links of snapshots, and links without an owner.

use std::collections::{BTreeMap, BTreeSet};

use blk::manifest::DiskMode;

use super::finding::{Faults, Finding, Severity};
use super::inventory::{Inventory, Place};
use super::{chain, quoted};
use crate::text::shown;
use crate::vmsd::{Snapshot, SnapshotList, Vmsd};
use crate::vmx::{Vmx, VmxDisk};

const REMEDY_CONSOLIDATE: &str = "consolidate: it commits what no snapshot owns";

/// A VM: its .vmx and its .vmsd.
pub(crate) struct Vm<'a> {
    inventory: &'a Inventory<'a>,
    vmx_path: String,
    /// Name of its .vmsd.
    pub vmsd: String,
    vmx: &'a Vmx,
    pub disks: Vec<VmxDisk>,
    /// Running link of each slot, if it is in this folder.
    tops: BTreeMap<String, &'a str>,
    pub list: SnapshotList,
}

pub(super) async fn check<'a>(inventory: &'a Inventory<'a>, out: &mut Faults) {
    check_names(inventory, out);
    for (file, vmsd) in &inventory.vmsd {
        check_alone(inventory, file, vmsd, out);
    }
    let Some(vm) = Vm::of(inventory, out) else { return };
    if !vm.is_list_readable() {
        return;
    }
    vm.check_snapshots(out).await;
    vm.check_ownership(out);
    vm.check_current(out);
    vm.check_unreferenced(out);
}

/// Checks that the folder has one .vmx, and so is the home of one VM.
fn check_names(inventory: &Inventory<'_>, out: &mut Faults) {
    let names: Vec<&String> =
        inventory.names.iter().filter(|name| name.to_ascii_lowercase().ends_with(".vmx")).collect();
    let (severity, expected, remedy) = match names.len() {
        1 => return,
        0 => {
            let remedy = "nothing for a folder of disks; which link runs, and which snapshots there are, was not checked";
            (Severity::Note, "one .vmx file", remedy)
        }
        _ => (Severity::Warning, "one .vmx file", "move the others away: which disks run was not checked"),
    };
    let found = if names.is_empty() { "empty".into() } else { quoted(names) };
    out.push(
        Finding::new(severity, inventory.dir.path().into(), "the list of .vmx files", found)
            .expected(expected)
            .remedy(remedy),
    );
}

/// Checks a list of snapshots on its own.
fn check_alone(inventory: &Inventory<'_>, file: &str, vmsd: &Vmsd, out: &mut Faults) {
    let path = inventory.path(file);
    for oddity in vmsd.oddities() {
        let said = oddity.strip_prefix(&path).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(oddity);
        out.push(
            Finding::new(Severity::Warning, path.clone(), "the list of snapshots", said)
                .expected("entries that agree")
                .remedy("nothing is lost; it is put right when the list next changes"),
        );
    }
    if vmsd.list().needs_consolidation {
        out.push(
            Finding::new(Severity::Warning, path, "snapshot.needConsolidate", "TRUE")
                .expected("FALSE: a commit did not end")
                .remedy("consolidate, once no backup holds the disks"),
        );
    }
}

impl<'a> Vm<'a> {
    /// Returns the VM of a folder with one readable .vmx. Faults of its disks are added to `out`.
    pub(crate) fn of(inventory: &'a Inventory<'a>, out: &mut Faults) -> Option<Self> {
        let [(name, vmx)] = inventory.vmx.iter().collect::<Vec<_>>()[..] else { return None };
        let disks = match vmx.disks() {
            Ok(disks) => disks,
            Err(error) => {
                let remedy = "correct the line; until then the VM's disks are not known";
                out.push(Finding::of_error(&error, remedy));
                return None;
            }
        };
        let stem = &name[..name.len() - ".vmx".len()];
        let vmsd = format!("{stem}.vmsd");
        let list = inventory.vmsd.get(&vmsd).map(|vmsd| vmsd.list().clone()).unwrap_or_default();
        let vmx_path = inventory.path(name);
        let mut vm = Self { inventory, vmx_path, vmsd, vmx, tops: BTreeMap::new(), disks, list };
        vm.find_tops(out);
        Some(vm)
    }

    /// Returns false for a list that exists and cannot be read, so that owners of links are unknown.
    pub(crate) fn is_list_readable(&self) -> bool {
        !self.inventory.names.contains(&self.vmsd) || self.inventory.vmsd.contains_key(&self.vmsd)
    }

    fn in_vmx(&self, severity: Severity, field: &str, found: impl Into<String>) -> Finding {
        Finding::new(severity, self.vmx_path.clone(), field, found)
    }

    fn in_vmsd(&self, severity: Severity, field: &str, found: impl Into<String>) -> Finding {
        Finding::new(severity, self.inventory.path(&self.vmsd), field, found)
    }

    /// Finds the running link of each disk: a descriptor of this folder on which no other link was made.
    fn find_tops(&mut self, out: &mut Faults) {
        let mut seen: BTreeMap<&str, String> = BTreeMap::new();
        let redo: BTreeSet<&str> = self.disks.iter().filter_map(|disk| self.redo_of(disk)).collect();
        for disk in self.disks.clone() {
            let field = format!("{}.fileName", disk.slot);
            let found = shown(&disk.file_name);
            let name = match self.inventory.locate(&disk.file_name) {
                Place::Here(name) => name,
                Place::Missing => {
                    let remedy = "find the file in a backup, or name the newest link that is here";
                    let expected = "the descriptor of a link, which is not here";
                    out.push(self.in_vmx(Severity::Damage, &field, found).expected(expected).remedy(remedy));
                    continue;
                }
                Place::Outside => {
                    let expected = "a link of this folder: it is elsewhere, and was not checked";
                    out.push(
                        self.in_vmx(Severity::Note, &field, found)
                            .expected(expected)
                            .remedy("check that folder by itself"),
                    );
                    continue;
                }
            };
            // An unreadable descriptor has been reported.
            let Some((top, _)) = self.inventory.links.get_key_value(&name) else { continue };
            if let Some(other) = seen.insert(top, disk.slot.to_string()) {
                let expected = format!("a link of its own, but {other} runs on it too");
                let remedy = "give one of the two its own link: both would write this one";
                out.push(
                    self.in_vmx(Severity::Damage, &field, found.clone()).expected(expected).remedy(remedy),
                );
            }
            self.check_children(&field, &found, top, &redo, out);
            self.tops.insert(disk.slot.to_string(), top);
        }
    }

    /// Reports children of a running link: a write to the link corrupts them.
    fn check_children(&self, field: &str, found: &str, top: &str, redo: &BTreeSet<&str>, out: &mut Faults) {
        let is_used = |name: &&str| {
            let kept = redo.contains(name) || self.inventory.binned.contains(*name);
            !self.inventory.links[*name].is_prepared() && !kept
        };
        let children = self.inventory.children_of(top).iter().map(String::as_str);
        let children: Vec<&str> = children.filter(is_used).collect();
        if children.is_empty() {
            return;
        }
        let expected = format!("the newest link of its chain, but {} is made on it", quoted(&children));
        let remedy = "do not start the VM: each write would change what those links show; name the newest link instead";
        out.push(self.in_vmx(Severity::Damage, field, found).expected(expected).remedy(remedy));
    }

    /// Returns the link that receives the writes of an independent-nonpersistent disk.
    fn redo_of(&self, disk: &VmxDisk) -> Option<&'a str> {
        let written = self.vmx.values().get(&format!("{}.redo", disk.slot)).ok().flatten()?;
        let Place::Here(name) = self.inventory.locate(written) else { return None };
        self.inventory.links.get_key_value(&name).map(|(name, _)| name.as_str())
    }

    async fn check_snapshots(&self, out: &mut Faults) {
        for snapshot in &self.list.snapshots {
            self.inventory.dir.env().next_turn().await;
            let field = format!("snapshot {} (uid {})", shown(&snapshot.name), snapshot.uid);
            for disk in &snapshot.disks {
                if self.inventory.locate(&disk.file_name) == Place::Missing {
                    let field = format!("{field}, fileName of {}", disk.node);
                    let expected =
                        "the link with its state, which is not here: the entry is stale, or the link lost";
                    let remedy =
                        "find the file in a backup; if the snapshot was committed, discard its entry";
                    out.push(
                        self.in_vmsd(Severity::Damage, &field, shown(&disk.file_name))
                            .expected(expected)
                            .remedy(remedy),
                    );
                }
            }
            self.check_state_file(&field, snapshot, out);
        }
    }

    /// Checks the .vmsn, which only VMware writes.
    fn check_state_file(&self, field: &str, snapshot: &Snapshot, out: &mut Faults) {
        let named = snapshot.other.iter().find(|(key, _)| key.eq_ignore_ascii_case("filename"));
        let field = format!("{field}, filename");
        match named.map(|(_, file)| file).filter(|file| !file.is_empty()) {
            None => {
                let expected =
                    "a .vmsn file: the snapshot was not taken by VMware, which may not revert to it";
                let remedy = "nothing for unstun; before the VM goes back to VMware, commit its snapshots";
                out.push(self.in_vmsd(Severity::Note, &field, "absent").expected(expected).remedy(remedy));
            }
            Some(file) if self.inventory.locate(file) == Place::Missing => {
                let expected = "a file, which is not here: VMware will not revert to this snapshot";
                let remedy = "find the file in a backup; its disks can be read all the same";
                out.push(
                    self.in_vmsd(Severity::Warning, &field, shown(file)).expected(expected).remedy(remedy),
                );
            }
            Some(_) => {}
        }
    }

    /// Returns the links that snapshots name.
    fn owned(&self) -> BTreeSet<String> {
        let disks = self.list.snapshots.iter().flat_map(|snapshot| &snapshot.disks);
        let located = disks.map(|disk| self.inventory.locate(&disk.file_name));
        located.filter_map(|place| if let Place::Here(name) = place { Some(name) } else { None }).collect()
    }

    /// Returns the disks that are part of snapshots, with their running chains, top first.
    pub(crate) fn chains(&self) -> impl Iterator<Item = (&VmxDisk, Vec<&'a str>)> {
        let persistent = self.disks.iter().filter(|disk| disk.mode == DiskMode::Persistent);
        persistent.filter_map(|disk| {
            let top = self.tops.get(&disk.slot.to_string())?;
            Some((disk, chain::ancestry(self.inventory, top)))
        })
    }

    /// Checks that every frozen link below a running one is the state of a snapshot; otherwise the delta on it has no
    /// owner.
    fn check_ownership(&self, out: &mut Faults) {
        let owned = self.owned();
        for (disk, chain) in self.chains() {
            let frozen = &chain[1..];
            let unowned: Vec<&&str> = frozen.iter().filter(|name| !owned.contains(**name)).collect();
            if unowned.is_empty() {
                continue;
            }
            if self.list.snapshots.is_empty() {
                let expected = format!(
                    "a snapshot for each link under {}, on which {} runs",
                    shown(chain[0]),
                    disk.slot
                );
                let finding = self
                    .in_vmsd(Severity::Warning, "snapshot.numSnapshots", "0")
                    .expected(expected)
                    .remedy(REMEDY_CONSOLIDATE);
                out.push(finding);
                continue;
            }
            let field = format!("the chain of {}", disk.slot);
            let found = format!("made of links that no snapshot names, {}", quoted(unowned));
            out.push(
                self.in_vmsd(Severity::Warning, &field, found)
                    .expected("a snapshot for each frozen link")
                    .remedy(REMEDY_CONSOLIDATE),
            );
        }
    }

    pub(crate) fn is_current_sound(&self) -> bool {
        let mut out = Faults::default();
        self.check_current(&mut out);
        out.into_vec().is_empty()
    }

    /// Checks that the running links descend from the current snapshot.
    fn check_current(&self, out: &mut Faults) {
        let current = self.list.snapshots.iter().find(|snapshot| Some(snapshot.uid) == self.list.current);
        let Some(current) = current else {
            let on_delta =
                self.chains().any(|(_, chain)| self.inventory.links[chain[0]].parent_hint().is_some());
            if !self.list.snapshots.is_empty() && on_delta {
                let expected = "the uid of the snapshot it runs on: its disks run on deltas";
                let remedy = "take a snapshot, or consolidate";
                out.push(
                    self.in_vmsd(Severity::Warning, "snapshot.current", "unset")
                        .expected(expected)
                        .remedy(remedy),
                );
            }
            return;
        };
        let by_node = current.disks.iter().rev().map(|kept| (kept.node.to_ascii_lowercase(), kept));
        let by_node: BTreeMap<String, _> = by_node.collect();
        for (disk, chain) in self.chains() {
            let slot = disk.slot.to_string();
            let Some(kept) = by_node.get(&slot) else { continue };
            let Place::Here(name) = self.inventory.locate(&kept.file_name) else { continue };
            if chain[1..].contains(&name.as_str()) || !self.inventory.links.contains_key(&name) {
                continue;
            }
            let field = format!("the current snapshot {}, fileName of {slot}", shown(&current.name));
            let expected = format!("a link under {}, on which {slot} runs", shown(chain[0]));
            let remedy = "do not commit or revert before it is clear which of the two is right: the .vmx says what ran last";
            out.push(self.in_vmsd(Severity::Warning, &field, shown(&name)).expected(expected).remedy(remedy));
        }
    }

    /// Returns whether a disk or a snapshot names a link of another folder, whose chain may lead back into this one.
    pub(crate) fn leads_outside(&self) -> bool {
        let kept =
            self.list.snapshots.iter().flat_map(|snapshot| &snapshot.disks).map(|disk| &disk.file_name);
        let mut paths = self.disks.iter().map(|disk| &disk.file_name).chain(kept);
        paths.any(|path| self.inventory.locate(path) == Place::Outside)
    }

    /// Returns the links to which a disk, a snapshot or the bin refers.
    pub(crate) fn referenced(&self) -> BTreeSet<&'a str> {
        let redo = self.disks.iter().filter_map(|disk| self.redo_of(disk)).map(str::to_owned);
        let roots = self.tops.values().map(|top| (*top).to_owned()).chain(self.owned()).chain(redo);
        let roots = roots.chain(self.inventory.binned.iter().cloned());
        let mut referenced: BTreeSet<&'a str> = BTreeSet::new();
        for root in roots {
            chain::mark(self.inventory, &root, &mut referenced);
        }
        referenced
    }

    /// Reports links to which no disk, snapshot or link refers.
    fn check_unreferenced(&self, out: &mut Faults) {
        let may_be_referenced = self.leads_outside();
        let referenced = self.referenced();
        for (name, link) in &self.inventory.links {
            if referenced.contains(name.as_str()) || !self.inventory.children_of(name).is_empty() {
                continue;
            }
            if may_be_referenced && !link.is_prepared() {
                continue;
            }
            let (severity, expected, remedy) = if link.is_prepared() {
                let remedy = "open the VM with unstun, which removes it";
                (Severity::Note, "none: what an interrupted take left, with nothing of a guest in it", remedy)
            } else {
                let remedy = "keep it until it is known what it holds: a snapshot whose entry was lost, or a disk taken out of the VM";
                (Severity::Warning, "a disk or a snapshot of the VM that leads to it", remedy)
            };
            let found = "not referred to by the .vmx or the .vmsd";
            out.push(
                Finding::new(severity, self.inventory.path(name), "the link", found)
                    .expected(expected)
                    .remedy(remedy),
            );
        }
    }
}
