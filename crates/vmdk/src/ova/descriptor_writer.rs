//! The OVF descriptor of a new OVA, with the kinds of hardware that VMware, VirtualBox and virt-v2v read.
//!
//! Facts: DMTF DSP0243 1.1; CIM_ResourceAllocationSettingData.ResourceType.

use std::fmt::Write;

use super::hardware::{DISK, MEMORY, PROCESSOR, SCSI_CONTROLLER};

/// A disk of a new OVA, as a streamOptimized file.
#[derive(Debug, Clone)]
pub struct NewDisk {
    /// Name of its file in the archive.
    pub file: String,
    /// Bytes of that file.
    pub file_bytes: u64,
    /// Size of the disk.
    pub capacity_bytes: u64,
}

/// A VM that a new OVA describes.
#[derive(Debug, Clone)]
pub struct NewVm<'a> {
    /// Name, which is escaped.
    pub name: &'a str,
    /// Number of processors.
    pub cpus: u32,
    /// Size of the memory; whole MiB count.
    pub memory_bytes: u64,
    /// Disks in the order of their slots.
    pub disks: &'a [NewDisk],
}

/// Disks of one SCSI controller: sixteen targets, of which the controller is one.
const DISKS_OF_CONTROLLER: usize = 15;
const STREAM_FORMAT: &str = "http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized";
/// Returns the target of a disk on its controller: 7 is the controller's.
fn target(of_controller: usize) -> usize {
    if of_controller < 7 { of_controller } else { of_controller + 1 }
}

impl NewVm<'_> {
    /// Returns the text of the descriptor.
    pub fn descriptor(&self) -> String {
        let mut out = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <Envelope xmlns=\"http://schemas.dmtf.org/ovf/envelope/1\" \
             xmlns:ovf=\"http://schemas.dmtf.org/ovf/envelope/1\" \
             xmlns:rasd=\"http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData\" \
             xmlns:vssd=\"http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData\">\n  <References>\n",
        );
        for (n, disk) in self.disks.iter().enumerate() {
            let (file, bytes) = (escaped(&disk.file), disk.file_bytes);
            let _ = writeln!(out, "    <File ovf:href=\"{file}\" ovf:id=\"file{n}\" ovf:size=\"{bytes}\"/>");
        }
        out.push_str("  </References>\n  <DiskSection>\n    <Info>The disks of the VM</Info>\n");
        for (n, disk) in self.disks.iter().enumerate() {
            let _ = writeln!(
                out,
                "    <Disk ovf:capacity=\"{}\" ovf:capacityAllocationUnits=\"byte\" ovf:diskId=\"disk{n}\" \
                 ovf:fileRef=\"file{n}\" ovf:format=\"{STREAM_FORMAT}\"/>",
                disk.capacity_bytes
            );
        }
        let name = escaped(self.name);
        let _ = write!(
            out,
            "  </DiskSection>\n  <VirtualSystem ovf:id=\"{name}\">\n    <Info>A virtual machine</Info>\n    \
             <Name>{name}</Name>\n    <OperatingSystemSection ovf:id=\"1\">\n      <Info>The kind of guest is not \
             known</Info>\n    </OperatingSystemSection>\n    <VirtualHardwareSection>\n      <Info>Virtual \
             hardware</Info>\n      <System>\n        <vssd:ElementName>Virtual Hardware Family</vssd:ElementName>\n        \
             <vssd:InstanceID>0</vssd:InstanceID>\n        \
             <vssd:VirtualSystemIdentifier>{name}</vssd:VirtualSystemIdentifier>\n        \
             <vssd:VirtualSystemType>vmx-13</vssd:VirtualSystemType>\n      </System>\n"
        );
        self.hardware(&mut out);
        out.push_str("    </VirtualHardwareSection>\n  </VirtualSystem>\n</Envelope>\n");
        out
    }

    fn hardware(&self, out: &mut String) {
        let (cpus, mebibytes) = (self.cpus, self.memory_bytes >> 20);
        let mut items = Items { out, last: 0 };
        items.add(&[
            ("AllocationUnits", "hertz * 10^6"),
            ("ElementName", &format!("{cpus} virtual CPUs")),
            ("ResourceType", PROCESSOR),
            ("VirtualQuantity", &cpus.to_string()),
        ]);
        items.add(&[
            ("AllocationUnits", "byte * 2^20"),
            ("ElementName", &format!("{mebibytes} MB of memory")),
            ("ResourceType", MEMORY),
            ("VirtualQuantity", &mebibytes.to_string()),
        ]);
        for (controller, disks) in self.disks.chunks(DISKS_OF_CONTROLLER).enumerate() {
            let parent = items.add(&[
                ("Address", &controller.to_string()),
                ("ElementName", &format!("SCSI controller {controller}")),
                ("ResourceSubType", "lsilogic"),
                ("ResourceType", SCSI_CONTROLLER),
            ]);
            for n in 0..disks.len() {
                let number = controller * DISKS_OF_CONTROLLER + n;
                items.add(&[
                    ("AddressOnParent", &target(n).to_string()),
                    ("ElementName", &format!("Hard disk {}", number + 1)),
                    ("HostResource", &format!("ovf:/disk/disk{number}")),
                    ("Parent", &parent.to_string()),
                    ("ResourceType", DISK),
                ]);
            }
        }
    }
}

struct Items<'a> {
    out: &'a mut String,
    last: u32,
}

impl Items<'_> {
    /// Adds an item whose elements are in the order of their names, which the schema requires. Returns its number.
    fn add(&mut self, elements: &[(&str, &str)]) -> u32 {
        self.last += 1;
        let id = self.last.to_string();
        let mut all: Vec<_> = elements.iter().copied().chain([("InstanceID", id.as_str())]).collect();
        all.sort_unstable();
        self.out.push_str("      <Item>\n");
        for (name, value) in all {
            let _ = writeln!(self.out, "        <rasd:{name}>{}</rasd:{name}>", escaped(value));
        }
        self.out.push_str("      </Item>\n");
        self.last
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_on_controllers_of_fifteen() {
        let disk =
            |n: u64| NewDisk { file: format!("a&b-disk{n}.vmdk"), file_bytes: n, capacity_bytes: 1 << 30 };
        let disks: Vec<_> = (0..17).map(disk).collect();
        let vm = NewVm { name: "a<b", cpus: 2, memory_bytes: 2 << 30, disks: &disks };
        let text = vm.descriptor();
        assert_eq!(text.matches("<Item>").count(), 2 + 2 + 17);
        assert_eq!(text.matches("<rasd:AddressOnParent>7<").count(), 0);
        assert_eq!(text.matches("<rasd:AddressOnParent>15<").count(), 1);
        assert!(text.contains("<Name>a&lt;b</Name>") && text.contains("a&amp;b-disk3.vmdk"), "{text}");
        assert!(text.contains("<rasd:VirtualQuantity>2048<"), "{text}");
    }
}
