//! The meaning of a column: `\\host\category(instance)\counter`. The instance may contain parentheses and colons.

use crate::import::base::bare_name;

/// The level at which a counter measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// A disk of a VM, or of the measured machine.
    Guest,
    /// A sum of the same I/O over the disks of a VM or the volumes of a disk; used where nothing finer exists.
    GuestSum,
    /// A device or datastore of the host.
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Reads,
    Writes,
    ReadBytes,
    WriteBytes,
    ReadLatency,
    WriteLatency,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Column<'a> {
    /// The computer or host whose counter this is.
    pub machine: &'a str,
    pub category: &'a str,
    pub instance: &'a str,
    pub counter: &'a str,
    pub layer: Layer,
    pub role: Role,
    /// Factor that converts to I/Os or bytes a second, or to microseconds.
    pub scale: f64,
}

const MIB: f64 = 1_048_576.0;

/// Counters: those of esxtop first, then those of Windows.
const COUNTERS: [(&str, Role, f64); 12] = [
    ("Reads/sec", Role::Reads, 1.0),
    ("Writes/sec", Role::Writes, 1.0),
    ("MBytes Read/sec", Role::ReadBytes, MIB),
    ("MBytes Written/sec", Role::WriteBytes, MIB),
    ("Average MilliSec/Read", Role::ReadLatency, 1e3),
    ("Average MilliSec/Write", Role::WriteLatency, 1e3),
    ("Disk Reads/sec", Role::Reads, 1.0),
    ("Disk Writes/sec", Role::Writes, 1.0),
    ("Disk Read Bytes/sec", Role::ReadBytes, 1.0),
    ("Disk Write Bytes/sec", Role::WriteBytes, 1.0),
    ("Avg. Disk sec/Read", Role::ReadLatency, 1e6),
    ("Avg. Disk sec/Write", Role::WriteLatency, 1e6),
];

/// Parses a column; None where it does not belong to a disk.
pub(super) fn column(path: &str) -> Option<Column<'_>> {
    let (machine, category, instance, counter) = parts(path)?;
    let (_, role, scale) = *COUNTERS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(counter))?;
    let layer = match category {
        "Virtual Disk" if is_disk(instance) => Layer::Guest,
        "Virtual Disk" => Layer::GuestSum,
        "PhysicalDisk" if instance != "_Total" => Layer::Guest,
        "LogicalDisk" if instance != "_Total" => Layer::GuestSum,
        "Physical Disk SCSI Device" | "Physical Disk NFS Volume" => Layer::Host,
        _ => return None,
    };
    Some(Column { machine, category, instance, counter, layer, role, scale })
}

/// Splits a path into machine, category, instance and counter. The instance ends at the last `)\`.
fn parts(path: &str) -> Option<(&str, &str, &str, &str)> {
    let (machine, path) = match path.strip_prefix("\\\\") {
        Some(with_host) => with_host.split_once('\\')?,
        None => ("", path.strip_prefix('\\')?),
    };
    let (object, counter) = path.rsplit_once(")\\")?;
    let (category, instance) = object.split_once('(')?;
    Some((machine, category, instance, counter))
}

/// Recognises a disk, such as `SQL01:scsi0:1`, as opposed to the VM itself.
fn is_disk(instance: &str) -> bool {
    [":scsi", ":sata", ":nvme", ":ide"].iter().any(|bus| instance.contains(bus))
}

/// Whose I/O a column counts. Columns of different owners are never added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner<'a> {
    Vm(&'a str),
    /// The disks of the measured machine itself.
    Computer,
    /// The devices below all VMs of a host.
    Host,
}

impl<'a> Column<'a> {
    pub(super) fn owner(&self) -> Owner<'a> {
        match (self.layer, self.category) {
            (Layer::Host, _) => Owner::Host,
            (_, "Virtual Disk") => Owner::Vm(self.vm()),
            _ => Owner::Computer,
        }
    }

    /// Returns the VM of a virtual disk; empty for other columns.
    pub(super) fn vm(&self) -> &'a str {
        match self.category {
            "Virtual Disk" if is_disk(self.instance) => {
                self.instance.rsplitn(3, ':').last().unwrap_or_default()
            }
            "Virtual Disk" => self.instance,
            _ => "",
        }
    }
}

impl<'a> Owner<'a> {
    /// Returns the owner without the UUID that follows a VM's name in the columns of its disks, and is absent from its
    /// sums.
    pub(super) fn bare(self) -> Owner<'a> {
        match self {
            Owner::Vm(name) => Owner::Vm(bare_name(name)),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_have_parentheses_and_colons() {
        let path = r"\\local\Virtual Disk(SQL01 (104c07ff-3663-44fb-9d89-a563c801611c):scsi0:1)\Reads/sec";
        let found = column(path).unwrap();
        assert_eq!((found.layer, found.role), (Layer::Guest, Role::Reads));
        assert_eq!(found.owner(), Owner::Vm("SQL01 (104c07ff-3663-44fb-9d89-a563c801611c)"));
        assert_eq!((found.machine, found.owner().bare()), ("local", Owner::Vm("SQL01")));
        assert_eq!(bare_name("web (old)"), "web (old)");
        let found = column(r"\\SERVER\PhysicalDisk(1 E:)\Avg. Disk sec/Write").unwrap();
        assert_eq!((found.instance, found.scale), ("1 E:", 1e6));
        assert_eq!(column(r"\\local\Virtual Disk(SQL01)\Writes/sec").unwrap().layer, Layer::GuestSum);
        for other in [
            r"\\local\Memory\Memory Overcommit (1 Minute Avg)",
            r"\\S\PhysicalDisk(_Total)\Disk Reads/sec",
            "",
            "(",
        ] {
            assert_eq!(column(other), None, "{other}");
        }
    }
}
