//! The virtual hardware of an OVF descriptor: where each disk is attached.
//!
//! Facts: DMTF DSP0243, "VirtualHardwareSection"; CIM_ResourceAllocationSettingData.ResourceType.

use std::collections::{BTreeMap, BTreeSet};

use blk::{Error, Result};
use roxmltree::Node;

use super::xml::{children, text};
use crate::text::{decimal, shown, wrong};
use crate::vmx::{Bus, Slot};

/// Numbers of the types of hardware.
pub(super) const PROCESSOR: &str = "3";
pub(super) const MEMORY: &str = "4";
const IDE_CONTROLLER: &str = "5";
pub(super) const SCSI_CONTROLLER: &str = "6";
const OTHER_STORAGE: &str = "20";
pub(super) const DISK: &str = "17";

/// Units of a controller of any bus.
const UNITS_MAX: u32 = 64;

/// Where a disk is attached. The order is that of a VM's disks: by bus, controller and unit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// Kind of the controller.
    pub bus: Bus,
    /// Number of the controller among those of its bus.
    pub controller: u32,
    /// Address of the disk on its controller, if the descriptor has one.
    pub unit: Option<u32>,
    /// Model of the controller as written (`lsilogic`, `VirtualSCSI`, `AHCI`); may be empty.
    pub model: String,
}

impl Attachment {
    /// Returns the slot; None without an address, and for an address that no VM has.
    pub fn slot(&self) -> Option<Slot> {
        self.unit.and_then(|unit| self.slot_of_unit(unit))
    }

    fn slot_of_unit(&self, unit: u32) -> Option<Slot> {
        Slot::new(self.bus, self.controller, unit).filter(|slot| !slot.is_controller())
    }
}

/// Returns the slots of disks by their attachments: that of the address, or the first free one of the controller. None for
/// a disk that is not attached, whose address no VM has, or whose address an earlier disk has.
pub fn slots<'a>(disks: impl Iterator<Item = Option<&'a Attachment>> + Clone) -> Vec<Option<Slot>> {
    let mut taken = BTreeSet::new();
    let mut given = |attachment: &Attachment| attachment.slot().filter(|slot| taken.insert(*slot));
    let mut found: Vec<_> = disks.clone().map(|attachment| attachment.and_then(&mut given)).collect();
    for (slot, attachment) in found.iter_mut().zip(disks) {
        let Some(attachment) = attachment.filter(|attachment| attachment.unit.is_none()) else { continue };
        *slot =
            (0..UNITS_MAX).filter_map(|unit| attachment.slot_of_unit(unit)).find(|slot| taken.insert(*slot));
    }
    found
}

struct Controller {
    bus: Bus,
    number: u32,
    model: String,
}

/// Returns the disks of a virtual system, by their ids, with their attachments. A disk on a controller of another kind has
/// none.
pub(crate) fn disks(file: &str, system: Node<'_, '_>) -> Result<BTreeMap<String, Option<Attachment>>> {
    // Further sections are alternatives for other platforms.
    let Some(section) = children(system, "VirtualHardwareSection").next() else {
        return Ok(BTreeMap::new());
    };
    let items = || children(section, "Item").chain(children(section, "StorageItem"));
    let known: BTreeSet<&str> = items().filter_map(|item| text(item, "InstanceID")).collect();
    let controllers = controllers(file, items())?;
    let mut disks = BTreeMap::new();
    for item in items().filter(|item| text(*item, "ResourceType") == Some(DISK)) {
        let Some(id) = disk_of(file, item)? else { continue };
        let parent = text(item, "Parent");
        if let Some(parent) = parent.filter(|parent| !known.contains(parent)) {
            let field = format!("Parent of the disk {}", shown(id));
            return Err(wrong(file, &field, shown(parent), "the InstanceID of a controller"));
        }
        let unit = number(file, item, "AddressOnParent")?;
        let attachment = parent.and_then(|parent| controllers.get(parent)).map(|controller| Attachment {
            bus: controller.bus,
            controller: controller.number,
            unit,
            model: controller.model.clone(),
        });
        if disks.insert(id.to_owned(), attachment).is_some() {
            let cause = format!("the disk {} is attached twice, expected each disk once", shown(id));
            return Err(Error::unsupported(file, cause));
        }
    }
    Ok(disks)
}

/// Returns the controllers by their ids. One without an address has the number after those before it.
fn controllers<'a, 'input: 'a>(
    file: &str,
    items: impl Iterator<Item = Node<'a, 'input>>,
) -> Result<BTreeMap<&'a str, Controller>> {
    let (mut controllers, mut next) = (BTreeMap::new(), BTreeMap::new());
    for item in items {
        let (kind, model) = (text(item, "ResourceType"), text(item, "ResourceSubType").unwrap_or_default());
        let bus = match kind {
            Some(IDE_CONTROLLER) => Bus::Ide,
            Some(SCSI_CONTROLLER) => Bus::Scsi,
            Some(OTHER_STORAGE) if model.to_ascii_lowercase().contains("nvme") => Bus::Nvme,
            Some(OTHER_STORAGE) => Bus::Sata,
            _ => continue,
        };
        let Some(id) = text(item, "InstanceID") else { continue };
        let next: &mut u32 = next.entry(bus).or_default();
        let number = text(item, "Address").and_then(|address| address.parse().ok()).unwrap_or(*next);
        *next = (*next).max(number.saturating_add(1));
        let controller = Controller { bus, number, model: model.to_owned() };
        if controllers.insert(id, controller).is_some() {
            return Err(wrong(
                file,
                "InstanceID of a controller",
                format!("{} again", shown(id)),
                "each id once",
            ));
        }
    }
    Ok(controllers)
}

/// Returns the id of the disk that an item attaches; None if it attaches none.
fn disk_of<'a>(file: &str, item: Node<'a, '_>) -> Result<Option<&'a str>> {
    let Some(resource) = text(item, "HostResource") else { return Ok(None) };
    match resource.trim_start_matches("ovf:").strip_prefix("/disk/") {
        Some(id) if !id.is_empty() => Ok(Some(id)),
        _ => {
            let cause = format!("HostResource of a disk is {}, expected \"ovf:/disk/ID\"", shown(resource));
            Err(Error::unsupported(file, cause))
        }
    }
}

fn number(file: &str, item: Node<'_, '_>, name: &'static str) -> Result<Option<u32>> {
    text(item, name).map(|value| decimal(file, name, value, "a number of at most 32 bits")).transpose()
}
