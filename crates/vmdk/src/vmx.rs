//! The .vmx: the configuration of a VM. It, and not the .vmsd, determines the running link of each disk.
//!
//! Facts: reference/vmware-formats 5.1. An absent `present` means FALSE, for controllers and for devices.

use std::collections::BTreeSet;
use std::fmt;

use blk::manifest::DiskMode;
use blk::{Error, Result};

use crate::keyvalue::KeyValues;
use crate::text::{check_name, decimal, shown, wrong};

/// SCSI controllers of one VM.
pub const SCSI_CONTROLLERS_MAX: u8 = 4;
/// Disks of one controller: 16 units less unit 7, which is the controller.
pub const SCSI_DISKS_PER_CONTROLLER: u8 = 15;
/// Maximum number of disks of a VM that unstun creates: 4 * 15.
pub const VM_DISKS_MAX: usize = SCSI_CONTROLLERS_MAX as usize * SCSI_DISKS_PER_CONTROLLER as usize;

const SCSI_UNIT_OF_CONTROLLER: u8 = 7;

/// Kind of a controller, in the order in which disks of different buses are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bus {
    /// `scsi`: 4 controllers; unit 7 of each is the controller.
    Scsi,
    /// `sata`.
    Sata,
    /// `nvme`.
    Nvme,
    /// `ide`.
    Ide,
}

impl Bus {
    const ALL: [Bus; 4] = [Bus::Scsi, Bus::Sata, Bus::Nvme, Bus::Ide];

    /// Returns the name that addresses begin with.
    pub fn name(self) -> &'static str {
        match self {
            Bus::Scsi => "scsi",
            Bus::Sata => "sata",
            Bus::Nvme => "nvme",
            Bus::Ide => "ide",
        }
    }

    /// Returns the number of controllers, and of units of each: 64 for paravirtual SCSI since hardware version 14.
    fn limits(self) -> (u8, u8) {
        match self {
            Bus::Scsi => (SCSI_CONTROLLERS_MAX, 64),
            Bus::Sata => (4, 30),
            Bus::Nvme => (4, 64),
            Bus::Ide => (2, 2),
        }
    }
}

/// Slot of a disk, such as `scsi0:0`; ordered by bus, controller and unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// The kind of controller.
    pub bus: Bus,
    /// Number of the controller on its bus, from 0.
    pub controller: u8,
    /// Number of the disk on its controller, from 0.
    pub unit: u8,
}

impl Slot {
    /// Returns the slot of the disk at `index` (from 0) of a VM that unstun creates; unit 7 is skipped.
    pub fn for_new_disk(index: usize) -> Option<Slot> {
        let index = u8::try_from(index).ok().filter(|index| usize::from(*index) < VM_DISKS_MAX)?;
        let unit = index % SCSI_DISKS_PER_CONTROLLER;
        let unit = if unit < SCSI_UNIT_OF_CONTROLLER { unit } else { unit + 1 };
        Some(Slot { bus: Bus::Scsi, controller: index / SCSI_DISKS_PER_CONTROLLER, unit })
    }

    /// Returns the slot of an address; None for one that no VM has.
    pub fn new(bus: Bus, controller: u32, unit: u32) -> Option<Slot> {
        let slot = Slot { bus, controller: u8::try_from(controller).ok()?, unit: u8::try_from(unit).ok()? };
        let (controllers, units) = bus.limits();
        (slot.controller < controllers && slot.unit < units).then_some(slot)
    }

    /// Returns whether the controller itself has the address, so that no disk can.
    pub fn is_controller(self) -> bool {
        self.bus == Bus::Scsi && self.unit == SCSI_UNIT_OF_CONTROLLER
    }

    /// Parses `scsi0:0` in any case. None for anything else, and for slots that no bus has.
    pub fn parse(text: &str) -> Option<Slot> {
        let lower = text.to_ascii_lowercase();
        let bus = Bus::ALL.into_iter().find(|bus| lower.starts_with(bus.name()))?;
        let (controller, unit) = lower[bus.name().len()..].split_once(':')?;
        let number = |digits: &str| decimal::<u32>("", "", digits, "").ok();
        Slot::new(bus, number(controller)?, number(unit)?)
    }

    fn key(self, field: &str) -> String {
        format!("{self}.{field}")
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}:{}", self.bus.name(), self.controller, self.unit)
    }
}

/// A hard disk of the VM, with the descriptor of its running link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmxDisk {
    /// Address on the guest's controller.
    pub slot: Slot,
    /// Path as written: relative to the .vmx, or absolute. Untrusted.
    pub file_name: String,
    /// Mode; `persistent` unless `scsiN:M.mode` sets another one.
    pub mode: DiskMode,
    /// For an independent-nonpersistent disk: the link that receives its writes, if there is one. As written;
    /// untrusted.
    pub redo: Option<String>,
}

/// Configuration of a VM. Unchanged lines are written back byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vmx {
    values: KeyValues,
}

impl Vmx {
    /// Parses the text; `file` is its name in errors.
    ///
    /// # Errors
    ///
    /// `Damaged` if it is not a list of keys and values. Values are checked when they are read.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        Ok(Self { values: KeyValues::parse(file, bytes)? })
    }

    /// Returns a copy that has the name `file` in errors.
    pub fn named(&self, file: &str) -> Self {
        Self { values: self.values.named(file) }
    }

    /// Returns the configuration of a new VM whose disks, in order, have these descriptors, with an LSI Logic
    /// controller for each 15 disks.
    pub fn create(file: &str, vm: &str, descriptors: &[String]) -> Result<Self> {
        check_name(file, "VM name", vm)?;
        if descriptors.len() > VM_DISKS_MAX {
            let cause = format!("{} disks asked for, expected at most {VM_DISKS_MAX}", descriptors.len());
            return Err(Error::invalid(file, format!("{cause} (4 SCSI controllers of 15)")));
        }
        let mut vmx = Self { values: KeyValues::new(file) };
        for (key, value) in NEW_VM {
            vmx.values.set(key, value);
        }
        vmx.values.set("displayName", vm);
        for (index, descriptor) in descriptors.iter().enumerate() {
            // Bounded by VM_DISKS_MAX above.
            let Some(slot) = Slot::for_new_disk(index) else { break };
            vmx.add_disk(slot, descriptor);
        }
        Ok(vmx)
    }

    /// Adds a disk to a free slot. Creates the controller if it is missing; an existing one is not changed.
    pub fn add_disk(&mut self, slot: Slot, descriptor: &str) {
        let controller = format!("{}{}", slot.bus.name(), slot.controller);
        let is_new = !self.values.get_bool(&format!("{controller}.present"), false).unwrap_or(false);
        if is_new && slot.bus != Bus::Ide {
            self.values.set(&format!("{controller}.present"), "TRUE");
        }
        if is_new && slot.bus == Bus::Scsi {
            self.values.set(&format!("{controller}.virtualDev"), "lsilogic");
        }
        self.values.set(&slot.key("present"), "TRUE");
        if slot.bus == Bus::Scsi {
            self.values.set(&slot.key("deviceType"), "scsi-hardDisk");
        }
        self.values.set(&slot.key("fileName"), descriptor);
    }

    /// Removes every line about the slots.
    pub fn remove_disks(&mut self, slots: &BTreeSet<Slot>) {
        self.values.replace(|key| slot_of_key(key).is_some_and(|slot| slots.contains(&slot)), []);
    }

    /// Returns the first free slot for a new disk that is not among `taken`.
    pub fn free_slot(&self, taken: &[Slot]) -> Option<Slot> {
        let used: Vec<Slot> = self.values.keys().filter_map(slot_of_key).collect();
        let slots = (0..VM_DISKS_MAX).filter_map(Slot::for_new_disk);
        slots.into_iter().find(|slot| !used.contains(slot) && !taken.contains(slot))
    }

    /// Returns the folder of all deltas, as written in `workingDir`, if the VM does not keep deltas beside their
    /// parents.
    pub fn snapshot_folder(&self) -> Result<Option<&str>> {
        if !self.values.get_bool("snapshot.redoNotWithParent", false)? {
            return Ok(None);
        }
        Ok(self.values.get("workingDir")?.filter(|folder| !folder.is_empty()))
    }

    /// Returns the text; unchanged lines are byte for byte as read.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.values.to_bytes()
    }

    /// Returns all keys with their values.
    pub fn values(&self) -> &KeyValues {
        &self.values
    }

    /// Returns all keys with their values, for changes.
    pub(crate) fn values_mut(&mut self) -> &mut KeyValues {
        &mut self.values
    }

    /// Returns the hard disks that are present, in slot order.
    pub fn disks(&self) -> Result<Vec<VmxDisk>> {
        let mut slots: Vec<Slot> = self.values.keys().filter_map(slot_of_file_name).collect();
        slots.sort();
        slots.dedup();
        slots.into_iter().filter_map(|slot| self.disk(slot).transpose()).collect()
    }

    /// Returns the hard disk in one slot, if one is present.
    pub fn disk(&self, slot: Slot) -> Result<Option<VmxDisk>> {
        let file = self.values.file();
        let Some(file_name) = self.values.get(&slot.key("fileName"))? else { return Ok(None) };
        if !self.is_present(slot)? || !self.is_hard_disk(slot)? || file_name.is_empty() {
            return Ok(None);
        }
        if slot.bus == Bus::Scsi && slot.unit == SCSI_UNIT_OF_CONTROLLER {
            return Err(wrong(
                file,
                &slot.key("fileName"),
                shown(file_name),
                "nothing: unit 7 is the controller",
            ));
        }
        let mode = self.mode(slot)?;
        let redo = self.values.get(&slot.key("redo"))?.filter(|redo| !redo.is_empty());
        let redo = redo.filter(|_| mode == DiskMode::IndependentNonpersistent).map(Into::into);
        Ok(Some(VmxDisk { slot, file_name: file_name.into(), mode, redo }))
    }

    fn is_present(&self, slot: Slot) -> Result<bool> {
        // IDE channels always exist, and have no key of their own.
        let controller = format!("{}{}.present", slot.bus.name(), slot.controller);
        let controller_present = slot.bus == Bus::Ide || self.values.get_bool(&controller, false)?;
        Ok(controller_present && self.values.get_bool(&slot.key("present"), false)?)
    }

    fn is_hard_disk(&self, slot: Slot) -> Result<bool> {
        let device = self.values.get(&slot.key("deviceType"))?.unwrap_or_default().to_ascii_lowercase();
        let removable = device.contains("cdrom") || device.contains("floppy") || device.contains("passthru");
        Ok(!removable)
    }

    fn mode(&self, slot: Slot) -> Result<DiskMode> {
        let key = slot.key("mode");
        // Absent means persistent, as in VMware.
        let mode = self.values.get(&key)?.unwrap_or_default();
        match mode.to_ascii_lowercase().as_str() {
            "" | "persistent" => Ok(DiskMode::Persistent),
            "independent-persistent" => Ok(DiskMode::IndependentPersistent),
            "independent-nonpersistent" => Ok(DiskMode::IndependentNonpersistent),
            "undoable" | "append" | "nonpersistent" => {
                let cause = format!("{key} is {}, a mode of old hosted products", shown(mode));
                Err(Error::unsupported(self.values.file(), format!("{cause}; set it to \"persistent\"")))
            }
            _ => Err(wrong(self.values.file(), &key, shown(mode), "\"persistent\" or \"independent-...\"")),
        }
    }

    /// Sets `descriptor` as the running link of the disk in `slot`.
    pub fn set_disk_file(&mut self, slot: Slot, descriptor: &str) {
        self.values.set(&slot.key("fileName"), descriptor);
    }

    /// Sets the link that receives the writes of an independent-nonpersistent disk. A line is added only for a value.
    pub fn set_redo(&mut self, slot: Slot, descriptor: Option<&str>) {
        let key = slot.key("redo");
        if self.values.has(&key) || descriptor.is_some() {
            self.values.set(&key, descriptor.unwrap_or_default());
        }
    }
}

/// Returns the slot of a key: scsi0:0 for `scsi0:0.mode`; None for other keys.
fn slot_of_key(key: &str) -> Option<Slot> {
    Slot::parse(key.split_once('.')?.0)
}

fn slot_of_file_name(key: &str) -> Option<Slot> {
    let (slot, field) = key.split_once('.')?;
    field.eq_ignore_ascii_case("fileName").then(|| Slot::parse(slot)).flatten()
}

/// Keys that VMware's own tools expect in any .vmx. Sizes are placeholders that a user edits.
const NEW_VM: [(&str, &str); 8] = [
    (".encoding", "UTF-8"),
    ("config.version", "8"),
    ("virtualHW.version", "13"),
    ("guestOS", "other-64"),
    ("numvcpus", "1"),
    ("memSize", "1024"),
    // A stable ID of the disk in the guest.
    ("disk.EnableUUID", "TRUE"),
    ("displayName", ""),
];

#[cfg(test)]
mod tests {
    use blk::ErrorKind;
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Vmx {
        Vmx::parse("web.vmx", text.as_bytes()).unwrap()
    }

    #[test]
    fn disks_in_slot_order() {
        let vmx = parse(concat!(
            "SCSI0.present = \"true\"\nscsi0:10.present = \"TRUE\"\nscsi0:10.fileName = \"ten.vmdk\"\n",
            "scsi0:2.PRESENT = \"TRUE\"\nscsi0:2.FileName = \"/vmfs/volumes/a/two.vmdk\"\n",
            "scsi0:2.mode = \"Independent-Persistent\"\n",
            "scsi0:3.fileName = \"not present.vmdk\"\n",
            "scsi1:0.present = \"TRUE\"\nscsi1:0.fileName = \"no controller.vmdk\"\n",
            "ide0:0.present = \"TRUE\"\nide0:0.fileName = \"ide.vmdk\"\n",
            "ide1:0.present = \"TRUE\"\nide1:0.fileName = \"x.iso\"\nide1:0.deviceType = \"cdrom-image\"\n",
            "scsi0:2.redo = \"\"\nscsi0:99.fileName = \"nowhere.vmdk\"\nfloppy0.fileName = \"f.flp\"\n",
        ));
        let disks = vmx.disks().unwrap();
        let found: Vec<(String, &str, DiskMode)> =
            disks.iter().map(|d| (d.slot.to_string(), d.file_name.as_str(), d.mode)).collect();
        let expected = [
            ("scsi0:2".into(), "/vmfs/volumes/a/two.vmdk", DiskMode::IndependentPersistent),
            ("scsi0:10".into(), "ten.vmdk", DiskMode::Persistent),
            ("ide0:0".into(), "ide.vmdk", DiskMode::Persistent),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_new_vm_reads_back() {
        let descriptors: Vec<String> = (0..VM_DISKS_MAX).map(|i| format!("web_{i}.vmdk")).collect();
        let vmx = Vmx::create("web.vmx", "web", &descriptors).unwrap();
        let disks = Vmx::parse("web.vmx", &vmx.to_bytes()).unwrap().disks().unwrap();
        let files: Vec<&String> = disks.iter().map(|d| &d.file_name).collect();
        assert_eq!(files, descriptors.iter().collect::<Vec<_>>());
        let slots: Vec<String> = disks.iter().map(|d| d.slot.to_string()).collect();
        assert_eq!(slots[6..9], ["scsi0:6", "scsi0:8", "scsi0:9"]);
        assert_eq!(slots[14..16], ["scsi0:15", "scsi1:0"]);
        assert_eq!(slots[59], "scsi3:15");
        let too_many = vec![String::from("x.vmdk"); VM_DISKS_MAX + 1];
        assert_eq!(Vmx::create("web.vmx", "web", &too_many).unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(Slot::for_new_disk(VM_DISKS_MAX), None);
    }

    #[test]
    fn a_switch_changes_one_line() {
        let text = "# mine\nscsi0.present = \"TRUE\"\nscsi0:0.present = \"TRUE\"\nscsi0:0.fileName = \"a.vmdk\"\nx\n";
        let mut vmx = parse(text);
        vmx.set_disk_file(vmx.disks().unwrap()[0].slot, "a-000001.vmdk");
        assert_eq!(vmx.to_bytes(), text.replace("a.vmdk", "a-000001.vmdk").into_bytes());
    }

    #[test]
    fn a_disk_is_added_and_removed() {
        let text = "scsi0.present = \"TRUE\"\nscsi0.virtualDev = \"pvscsi\"\nscsi0:0.present = \"TRUE\"\nscsi0:0.fileName = \"a.vmdk\"\n\
            scsi0:1.deviceType = \"cdrom-image\"\n";
        let mut vmx = parse(text);
        let slot = vmx.free_slot(&[Slot::parse("scsi0:2").unwrap()]).unwrap();
        assert_eq!(slot.to_string(), "scsi0:3");
        vmx.add_disk(slot, "b.vmdk");
        assert_eq!(vmx.values().get("scsi0.virtualDev").unwrap(), Some("pvscsi"));
        assert_eq!(vmx.disks().unwrap().len(), 2);
        vmx.remove_disks(&BTreeSet::from([slot]));
        assert_eq!(vmx.to_bytes(), text.as_bytes());
        let other = Slot::parse("scsi1:0").unwrap();
        vmx.add_disk(other, "c.vmdk");
        assert_eq!(vmx.disks().unwrap()[1].slot, other);
    }

    #[test]
    fn writes_of_a_nonpersistent_disk_go_to_its_redo() {
        let mut vmx = parse(concat!(
            "scsi0.present = \"TRUE\"\nscsi0:0.present = \"TRUE\"\nscsi0:0.fileName = \"a.vmdk\"\n",
            "scsi0:0.mode = \"independent-nonpersistent\"\n",
        ));
        let slot = Slot::parse("scsi0:0").unwrap();
        let before = vmx.to_bytes();
        vmx.set_redo(slot, None);
        assert_eq!(vmx.to_bytes(), before);
        vmx.set_redo(slot, Some("a-000001.vmdk"));
        assert_eq!(vmx.disks().unwrap()[0].redo.as_deref(), Some("a-000001.vmdk"));
        vmx.set_redo(slot, None);
        assert_eq!(vmx.disks().unwrap()[0].redo, None);
        vmx.values_mut().set("workingDir", "/fast");
        assert_eq!(vmx.snapshot_folder().unwrap(), None);
        vmx.values_mut().set("snapshot.redoNotWithParent", "true");
        assert_eq!(vmx.snapshot_folder().unwrap(), Some("/fast"));
    }

    #[test]
    fn bad_values_are_named() {
        let head = "scsi0.present = \"TRUE\"\nscsi0:0.present = \"TRUE\"\nscsi0:0.fileName = \"a.vmdk\"\n";
        let table = [
            ("scsi0:0.mode = \"undoable\"", ErrorKind::Unsupported, "scsi0:0.mode is \"undoable\""),
            ("scsi0:0.mode = \"odd\"", ErrorKind::Damaged, "scsi0:0.mode is \"odd\""),
            ("scsi0:0.fileName = \"b.vmdk\"", ErrorKind::Damaged, "given twice"),
            ("scsi0:7.present = \"TRUE\"\nscsi0:7.fileName = \"c.vmdk\"", ErrorKind::Damaged, "unit 7"),
        ];
        for (line, kind, message) in table {
            let error = parse(&format!("{head}{line}\n")).disks().unwrap_err();
            assert_eq!(error.kind, kind, "{line}");
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn slots() {
        for (text, slot) in [("scsi0:0", true), ("NVMe3:14", true), ("ide1:1", true), ("sata0:29", true)] {
            assert_eq!(Slot::parse(text).is_some(), slot, "{text}");
        }
        for text in
            ["scsi4:0", "scsi0:64", "ide2:0", "scsi0", "scsi:0", "scsi0:-1", "usb0:0", "scsi0:256", ""]
        {
            assert_eq!(Slot::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "((scsi|ide|nvme)?[0-9]?(:[0-9])?\\.?(present|fileName|mode)? ?=? ?\"?[a-zA-Z|]{0,5}\"?\n){0,20}") {
            let _ = parse(&text).disks();
        }
    }
}
