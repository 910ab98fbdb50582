//! The OVF descriptor of a VM: its name and its disks, with the files that hold them.
//!
//! Facts: DMTF DSP0243, "References", "DiskSection" and "Allocation units".

use std::collections::BTreeMap;

use blk::{Error, Result, SECTOR};
use roxmltree::Node;

use super::hardware::{self, Attachment};
use super::xml::{self, attribute, children, required, text};
use crate::descriptor::DISK_SECTORS_MAX;
use crate::text::{decimal, shown, wrong};

/// Maximum number of disks: 4 SCSI controllers of 64, 4 of SATA of 30, 4 of NVMe of 64, and 4 of IDE are 636.
const DISKS_MAX: usize = 1024;

/// A VM in an OVA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub name: String,
    /// In the order of controllers and units; disks that are not attached come last.
    pub disks: Vec<Disk>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    pub id: String,
    pub capacity_bytes: u64,
    /// Unit in which the capacity is written: it may be rounded up to one.
    pub unit_bytes: u64,
    /// URI of the format as written.
    pub format: String,
    /// None for an empty disk.
    pub file: Option<FileEntry>,
    pub attachment: Option<Attachment>,
}

/// A file that the descriptor refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEntry {
    pub href: String,
    pub bytes: Option<u64>,
}

/// Parses a descriptor.
///
/// # Errors
/// `Damaged` for what the format does not allow, `Unsupported` for several VMs, and for disks that are compressed, chunked or
/// on a parent.
pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Package> {
    let document = xml::parse(file, bytes)?;
    let root = document.root_element();
    if root.tag_name().name() != "Envelope" {
        return Err(wrong(file, "the root element", shown(root.tag_name().name()), "\"Envelope\""));
    }
    let system = system_of(file, root)?;
    let name = text(system, "Name").or_else(|| attribute(system, "id")).unwrap_or_default();
    let mut attached = hardware::disks(file, system)?;
    let files = files_of(file, root)?;
    let mut disks: Vec<Disk> = Vec::new();
    for node in children(root, "DiskSection").flat_map(|section| children(section, "Disk")) {
        if disks.len() == DISKS_MAX {
            let cause = format!("the descriptor has more than {DISKS_MAX} disks, expected those of one VM");
            return Err(Error::unsupported(file, cause));
        }
        let id = required(file, node, "diskId")?;
        if disks.iter().any(|disk| disk.id == id) {
            return Err(wrong(file, "diskId", format!("{} again", shown(id)), "each id once"));
        }
        disks.push(disk(file, node, id, &files, attached.remove(id).flatten())?);
    }
    if let Some(id) = attached.keys().next() {
        let expected = "a diskId of the DiskSection";
        return Err(wrong(file, "HostResource of a disk", shown(id), expected));
    }
    disks.sort_by(|left, right| {
        let order = |disk: &Disk| (disk.attachment.is_none(), disk.attachment.clone());
        order(left).cmp(&order(right))
    });
    Ok(Package { name: name.to_owned(), disks })
}

/// Returns the only VM.
fn system_of<'a, 'input>(file: &str, root: Node<'a, 'input>) -> Result<Node<'a, 'input>> {
    let named = |node: &Node<'_, '_>| node.is_element() && node.tag_name().name() == "VirtualSystem";
    let mut systems = root.descendants().filter(named);
    match (systems.next(), systems.count()) {
        (Some(system), 0) => Ok(system),
        (None, _) => Err(wrong(file, "the number of elements VirtualSystem", 0, "1: the VM")),
        (Some(_), more) => {
            let cause = format!("the number of VMs (VirtualSystem) is {}, expected 1", more + 1);
            Err(Error::unsupported(file, format!("{cause}: export each VM on its own")))
        }
    }
}

/// A file with what prevents its use for a disk.
struct Reference<'a> {
    entry: FileEntry,
    compression: Option<&'a str>,
    chunk_bytes: Option<&'a str>,
}

/// Returns the files by their ids.
fn files_of<'a, 'input: 'a>(file: &str, root: Node<'a, 'input>) -> Result<BTreeMap<&'a str, Reference<'a>>> {
    let mut files = BTreeMap::new();
    for node in children(root, "References").flat_map(|section| children(section, "File")) {
        let (id, href) = (required(file, node, "id")?, required(file, node, "href")?);
        let size = attribute(node, "size");
        let bytes =
            size.map(|size| decimal(file, "size of a File", size, "a number of bytes")).transpose()?;
        let compression = attribute(node, "compression").filter(|name| !matches!(*name, "" | "identity"));
        let entry = FileEntry { href: href.to_owned(), bytes };
        let reference = Reference { entry, compression, chunk_bytes: attribute(node, "chunkSize") };
        if files.insert(id, reference).is_some() {
            return Err(wrong(file, "id of a File", format!("{} again", shown(id)), "each id once"));
        }
    }
    Ok(files)
}

fn disk(
    file: &str,
    node: Node<'_, '_>,
    id: &str,
    files: &BTreeMap<&str, Reference<'_>>,
    attachment: Option<Attachment>,
) -> Result<Disk> {
    if let Some(parent) = attribute(node, "parentRef") {
        let cause = format!("parentRef of the disk {} is {}, expected none", shown(id), shown(parent));
        return Err(Error::unsupported(file, format!("{cause}: export the VM again without snapshots")));
    }
    let (capacity_bytes, unit_bytes) = capacity(file, node, id)?;
    let entry = match attribute(node, "fileRef").filter(|reference| !reference.is_empty()) {
        None => None,
        Some(reference) => {
            let Some(found) = files.get(reference) else {
                let field = format!("fileRef of the disk {}", shown(id));
                return Err(wrong(file, &field, shown(reference), "the id of a File in References"));
            };
            check_whole(file, found)?;
            Some(found.entry.clone())
        }
    };
    let format = attribute(node, "format").unwrap_or_default().to_owned();
    Ok(Disk { id: id.to_owned(), capacity_bytes, unit_bytes, format, file: entry, attachment })
}

/// Refuses a file that is compressed as a whole, or in parts.
fn check_whole(file: &str, found: &Reference<'_>) -> Result<()> {
    let (field, value) = match (found.compression, found.chunk_bytes) {
        (Some(compression), _) => ("compression", compression),
        (None, Some(chunk)) => ("chunkSize", chunk),
        (None, None) => return Ok(()),
    };
    let cause =
        format!("{field} of the File {} is {}, expected none", shown(&found.entry.href), shown(value));
    let remedy = "export the VM again without it (`ovftool` without --compress and --chunkSize): its disks are compressed anyway";
    Err(Error::unsupported(file, format!("{cause}; {remedy}")))
}

/// Returns the capacity in bytes, a multiple of a sector, and the unit in which it is written.
fn capacity(file: &str, node: Node<'_, '_>, id: &str) -> Result<(u64, u64)> {
    let field = format!("capacity of the disk {}", shown(id));
    let written = required(file, node, "capacity")?;
    if written.starts_with("${") {
        let cause = format!("{field} is {}, a property, expected a number", shown(written));
        return Err(Error::unsupported(
            file,
            format!("{cause}: deploy the OVA in VMware, and export the VM"),
        ));
    }
    let count: u64 = decimal(file, &field, written, "a number")?;
    let units = attribute(node, "capacityAllocationUnits").filter(|units| !units.is_empty());
    let unit = unit_bytes(units.unwrap_or("byte")).ok_or_else(|| {
        let field = format!("capacityAllocationUnits of the disk {}", shown(id));
        wrong(file, &field, shown(units.unwrap_or_default()), "bytes, as in \"byte * 2^30\"")
    })?;
    let bytes = count.checked_mul(unit).filter(|bytes| *bytes > 0 && *bytes <= DISK_SECTORS_MAX * SECTOR);
    let Some(bytes) = bytes else {
        let found = format!("{count} times {unit} bytes");
        return Err(wrong(file, &field, found, "1 byte to 64 TiB"));
    };
    Ok((bytes.next_multiple_of(SECTOR), unit))
}

/// Returns the bytes of a unit: `byte`, `byte * 2^30`, `byte * 10^9`, `byte * 512`, and the names that OVF 0.9 used.
fn unit_bytes(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let factor = |factor: &str| match factor.trim() {
        "byte" | "bytes" => Some(1),
        "kilobyte" | "kilobytes" => Some(1 << 10),
        "megabyte" | "megabytes" => Some(1 << 20),
        "gigabyte" | "gigabytes" => Some(1 << 30),
        number => match number.split_once('^') {
            Some((base, power)) => base.trim().parse::<u64>().ok()?.checked_pow(power.trim().parse().ok()?),
            None => number.parse().ok(),
        },
    };
    text.split('*')
        .try_fold(1_u64, |product, part| product.checked_mul(factor(part)?))
        .filter(|unit| *unit > 0)
}
