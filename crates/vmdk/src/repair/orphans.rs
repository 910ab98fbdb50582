//! Moves links aside, with their extents, to which no disk, snapshot or link refers, if the user confirms that no VM of
//! another folder depends on them.

use super::{Action, Mend, PlanDraft, RepairOptions};
use crate::check::{Faults, Inventory, Place, Vm, keyword_of, quoted};
use crate::descriptor::Descriptor;
use crate::text::shown;

const FIELD: &str = "the link";

pub(super) async fn mend(inventory: &Inventory<'_>, terms: &RepairOptions, draft: &mut PlanDraft) {
    let Some(vm) = Vm::of(inventory, &mut Faults::default()) else { return };
    if !vm.is_list_readable() || vm.leads_outside() {
        return;
    }
    let referenced = vm.referenced();
    let orphans = inventory.links.iter().filter(|(name, _)| !referenced.contains(name.as_str()));
    let doubt = doubt(inventory, &vm);
    for (name, link) in orphans.filter(|(_, link)| !link.is_prepared()) {
        let planned = match (&doubt, terms.move_orphans) {
            (Some(doubt), _) => Err(doubt.clone()),
            (None, false) => {
                Err("--move-orphans moves it aside with its extents; it is right only if no VM of another \
                                  folder was made on it, which no file here proves"
                    .into())
            }
            (None, true) => files_of(inventory, name, link),
        };
        match planned {
            Ok(files) => move_aside(name, files, draft),
            Err(reason) => draft.refuse(inventory.path(name), FIELD, reason),
        }
        inventory.dir.env().next_turn().await;
    }
}

/// Returns why any link without references may be needed nevertheless.
fn doubt(inventory: &Inventory<'_>, vm: &Vm<'_>) -> Option<String> {
    if !inventory.names.contains(&vm.vmsd) {
        let cause =
            format!("{} is not here, so that nothing tells which snapshots there are", shown(&vm.vmsd));
        return Some(format!("{cause}: this may be the state of one; bring the list back first"));
    }
    let broken = inventory.links.iter().find(|(_, link)| is_astray(inventory, link));
    if let Some((name, _)) = broken {
        let cause = format!("{} has not found the link that it was made on", shown(name));
        return Some(format!("{cause}: this may be it; mend that first"));
    }
    let nameless = inventory
        .contents
        .iter()
        .find(|(name, content)| keyword_of(**content).is_some() && inventory.who_names(name).is_empty());
    if let Some((extent, _)) = nameless {
        let cause = format!("the descriptor of {} is lost", shown(extent));
        return Some(format!("{cause}, and it may have been made on this; mend that first"));
    }
    let kept = vm.list.snapshots.iter().flat_map(|snapshot| &snapshot.disks).map(|disk| &disk.file_name);
    let mut named = vm.disks.iter().map(|disk| &disk.file_name).chain(kept);
    let missing = named.find(|path| match inventory.locate(path) {
        Place::Here(name) => !inventory.links.contains_key(&name),
        place => place == Place::Missing,
    })?;
    Some(format!(
        "a disk or a snapshot names {}, which cannot be read: this may be what it stands for",
        shown(missing)
    ))
}

/// Returns whether a link's parent, in this folder or another, does not have the expected CID.
fn is_astray(inventory: &Inventory<'_>, link: &Descriptor) -> bool {
    match inventory.locate_parent(link) {
        None | Some(Place::Outside) => false,
        Some(Place::Missing) => true,
        Some(Place::Here(parent)) => {
            inventory.links.get(&parent).is_none_or(|below| Some(below.cid()) != link.parent_cid())
        }
    }
}

/// Returns the files that belong to a link.
fn files_of(inventory: &Inventory<'_>, name: &str, link: &Descriptor) -> Result<Vec<String>, String> {
    if link.owner().is_some() {
        return Err("another VM of unstun made it, which may need it; remove that VM with unstun".into());
    }
    if inventory.children_of(name).iter().any(|child| inventory.links[child].is_prepared()) {
        return Err(
            "a take that was interrupted left a link on it; open the VM with unstun, which removes that"
                .into(),
        );
    }
    let mut files = vec![name.to_owned()];
    for extent in link.extents().iter().filter(|extent| !extent.file.is_empty()) {
        let Place::Here(file) = inventory.locate(&extent.file) else { continue };
        let others: Vec<&String> = inventory.who_names(&file).iter().filter(|other| *other != name).collect();
        if !others.is_empty() {
            return Err(format!("{} names its extent {} too", quoted(others), shown(&file)));
        }
        if !files.contains(&file) {
            files.push(file);
        }
    }
    Ok(files)
}

fn move_aside(name: &str, files: Vec<String>, draft: &mut PlanDraft) {
    let lines = files.clone();
    draft.move_aside(
        files,
        Mend {
            file: name.into(),
            action: Action::MoveAside,
            lines,
            reason: "neither the .vmx, the .vmsd nor a link that they lead to names it".into(),
            caution: Some(
                "it may be a snapshot whose entry was lost, or a disk that was taken out of the VM: look at what it holds before \
                 the folder with the copies is removed"
                    .into(),
            ),
        },
    );
}
