//! Descriptors of new links, in the form that ESXi writes.

use blk::{Error, Result, SECTOR};

use super::extent::{DISK_SECTORS_MAX, ExtentKind};
use super::{ContentId, Descriptor, NO_PARENT_CID, OWNER_MARK, PREPARED_MARK};
use crate::cowd::NEW_CAPACITY_SECTORS_MAX;

const CHILD_CREATE_TYPE: &str = "vmfsSparse";
const SESPARSE_CREATE_TYPE: &str = "seSparse";
const BASE_CREATE_TYPE: &str = "vmfs";
const FLAT_CREATE_TYPE: &str = "monolithicFlat";
const STREAM_CREATE_TYPE: &str = "streamOptimized";

/// A thin base disk with one plain extent.
#[derive(Debug, Clone)]
pub(crate) struct NewBase<'a> {
    /// Such as `web-flat.vmdk`.
    pub extent_file: &'a str,
    pub capacity_sectors: u64,
    pub content_id: ContentId,
    /// 128 random bits for the ID that the guest sees.
    pub uuid: u128,
    /// The VM that prepares the disk, if no configuration names it yet: see `Descriptor::is_prepared`.
    pub prepared_for: Option<u128>,
}

/// An empty child with one extent, VMFSsparse or SEsparse.
#[derive(Debug, Clone)]
pub(crate) struct NewChild<'a> {
    /// Such as `web-000001-delta.vmdk`.
    pub extent_file: &'a str,
    pub capacity_sectors: u64,
    pub content_id: ContentId,
    /// The parent's descriptor: its file name if it is in the same folder, otherwise its absolute path.
    pub parent: &'a str,
    pub parent_cid: u32,
    /// ID of the VM for which it is made: see `Descriptor::owner`.
    pub owner: Option<u128>,
    /// A comment for people, without line breaks: see `note_for_child_of`.
    pub note: Option<&'a str>,
}

/// Returns the comment for the descriptor of a child of `parent`.
pub(crate) fn note_for_child_of(parent: &Descriptor, kind: ExtentKind) -> Option<&'static str> {
    let sesparse = parent.extents().iter().any(|extent| extent.kind == ExtentKind::SeSparse);
    (sesparse && kind != ExtentKind::SeSparse).then_some(
        "unstun: a VMFSsparse delta on an SEsparse one. Not for VMFS6, which takes SEsparse only: \
         before it goes back to ESXi, copy the disk as its guest sees it into a new one",
    )
}

/// A disk in one streamOptimized file, with its descriptor inside.
#[derive(Debug, Clone)]
pub(crate) struct NewStream<'a> {
    pub extent_file: &'a str,
    pub capacity_sectors: u64,
    pub content_id: ContentId,
}

impl NewStream<'_> {
    pub(crate) fn descriptor(&self, file: &str) -> Result<Descriptor> {
        check_capacity(file, self.capacity_sectors)?;
        let (cylinders, heads, sectors) = geometry(self.capacity_sectors);
        let text = format!(
            "# Disk DescriptorFile\n\
             version=1\n\
             encoding=\"UTF-8\"\n\
             CID={cid:08x}\n\
             parentCID={NO_PARENT_CID:08x}\n\
             createType=\"{STREAM_CREATE_TYPE}\"\n\
             \n\
             # Extent description\n\
             RW {capacity} {kind} \"{extent}\"\n\
             \n\
             # The Disk Data Base\n\
             #DDB\n\
             \n\
             ddb.adapterType = \"lsilogic\"\n\
             ddb.geometry.cylinders = \"{cylinders}\"\n\
             ddb.geometry.heads = \"{heads}\"\n\
             ddb.geometry.sectors = \"{sectors}\"\n\
             ddb.longContentID = \"{long}\"\n\
             ddb.virtualHWVersion = \"13\"\n",
            cid = self.content_id.cid(),
            capacity = self.capacity_sectors,
            kind = ExtentKind::Sparse.keyword(),
            extent = self.extent_file,
            long = self.content_id.long(),
        );
        Descriptor::parse(file, text.as_bytes())
    }
}

/// Returns the text of a descriptor in `file` for a disk whose bytes are in `extent_file` beside it (`monolithicFlat`), as
/// other programs than ours keep it.
pub fn flat_text(file: &str, extent_file: &str, size_bytes: u64) -> Result<Vec<u8>> {
    let capacity = size_bytes / SECTOR;
    check_capacity(file, capacity)?;
    let (cylinders, heads, sectors) = geometry(capacity);
    let text = format!(
        "# Disk DescriptorFile\n\
         version=1\n\
         encoding=\"UTF-8\"\n\
         CID=fffffffe\n\
         parentCID={NO_PARENT_CID:08x}\n\
         createType=\"{FLAT_CREATE_TYPE}\"\n\
         \n\
         # Extent description\n\
         RW {capacity} {kind} \"{extent_file}\" 0\n\
         \n\
         # The Disk Data Base\n\
         #DDB\n\
         \n\
         ddb.adapterType = \"lsilogic\"\n\
         ddb.geometry.cylinders = \"{cylinders}\"\n\
         ddb.geometry.heads = \"{heads}\"\n\
         ddb.geometry.sectors = \"{sectors}\"\n\
         ddb.virtualHWVersion = \"13\"\n",
        kind = ExtentKind::Flat.keyword(),
    );
    Descriptor::parse(file, text.as_bytes()).map(|descriptor| descriptor.to_bytes())
}

impl NewBase<'_> {
    pub(crate) fn descriptor(&self, file: &str) -> Result<Descriptor> {
        check_capacity(file, self.capacity_sectors)?;
        let (cylinders, heads, sectors) = geometry(self.capacity_sectors);
        let text = format!(
            "# Disk DescriptorFile\n\
             {marks}\
             version=1\n\
             encoding=\"UTF-8\"\n\
             CID={cid:08x}\n\
             parentCID={NO_PARENT_CID:08x}\n\
             createType=\"{BASE_CREATE_TYPE}\"\n\
             \n\
             # Extent description\n\
             RW {capacity} {kind} \"{extent}\"\n\
             \n\
             # The Disk Data Base\n\
             #DDB\n\
             \n\
             ddb.adapterType = \"lsilogic\"\n\
             ddb.geometry.cylinders = \"{cylinders}\"\n\
             ddb.geometry.heads = \"{heads}\"\n\
             ddb.geometry.sectors = \"{sectors}\"\n\
             ddb.longContentID = \"{long}\"\n\
             ddb.thinProvisioned = \"1\"\n\
             ddb.uuid = \"{uuid}\"\n\
             ddb.virtualHWVersion = \"13\"\n",
            marks = self.prepared_for.map(|vm| marks(Some(vm))).unwrap_or_default(),
            cid = self.content_id.cid(),
            capacity = self.capacity_sectors,
            kind = ExtentKind::Vmfs.keyword(),
            extent = self.extent_file,
            long = self.content_id.long(),
            uuid = naa_uuid(self.uuid),
        );
        Descriptor::parse(file, text.as_bytes())
    }
}

impl NewChild<'_> {
    /// Returns the descriptor, marked as prepared: see `Descriptor::is_prepared`.
    pub(crate) fn descriptor(&self, file: &str, kind: ExtentKind) -> Result<Descriptor> {
        if kind == ExtentKind::VmfsSparse {
            check_delta_capacity(file, self.capacity_sectors)?;
        }
        self.write(file, &marks(self.owner), kind)
    }

    /// Returns the descriptor of an existing delta, which is in use.
    pub(crate) fn of_delta(&self, file: &str, kind: ExtentKind) -> Result<Descriptor> {
        self.write(file, "", kind)
    }

    fn write(&self, file: &str, marks: &str, kind: ExtentKind) -> Result<Descriptor> {
        check_capacity(file, self.capacity_sectors)?;
        let (create_type, more) = match kind {
            ExtentKind::SeSparse => (SESPARSE_CREATE_TYPE, "ddb.encoding = \"UTF-8\"\nddb.grain = \"8\"\n"),
            _ => (CHILD_CREATE_TYPE, ""),
        };
        let note = self.note.map_or(String::new(), |note| format!("# {note}\n"));
        let text = format!(
            "# Disk DescriptorFile\n\
             {marks}\
             {note}\
             version=1\n\
             encoding=\"UTF-8\"\n\
             CID={cid:08x}\n\
             parentCID={parent_cid:08x}\n\
             createType=\"{create_type}\"\n\
             parentFileNameHint=\"{parent}\"\n\
             # Extent description\n\
             RW {capacity} {kind} \"{extent}\"\n\
             \n\
             # The Disk Data Base\n\
             #DDB\n\
             \n\
             {more}\
             ddb.longContentID = \"{long}\"\n",
            cid = self.content_id.cid(),
            parent_cid = self.parent_cid,
            parent = self.parent,
            capacity = self.capacity_sectors,
            kind = kind.keyword(),
            extent = self.extent_file,
            long = self.content_id.long(),
        );
        Descriptor::parse(file, text.as_bytes())
    }
}

/// Returns the comments of a prepared link.
fn marks(owner: Option<u128>) -> String {
    let owner = owner.map(|vm| format!("{OWNER_MARK}{vm:032x}\n")).unwrap_or_default();
    format!("{PREPARED_MARK}\n{owner}")
}

/// Returns the cylinders of a size, for a disk whose heads and sectors are fixed.
pub(super) fn cylinders(capacity_sectors: u64, heads: u64, sectors: u64) -> Option<u64> {
    Some(capacity_sectors.checked_div(heads.checked_mul(sectors)?)?.max(1))
}

fn check_capacity(file: &str, sectors: u64) -> Result<()> {
    if sectors == 0 || sectors > DISK_SECTORS_MAX {
        let cause = format!("a disk of {sectors} sectors was asked for, expected 1 to {DISK_SECTORS_MAX}");
        return Err(Error::invalid(file, cause));
    }
    Ok(())
}

/// Checks the size of a delta. A larger disk can be read, and served without snapshots.
fn check_delta_capacity(file: &str, sectors: u64) -> Result<()> {
    if sectors <= NEW_CAPACITY_SECTORS_MAX {
        return Ok(());
    }
    let cause = format!("a snapshot of a disk of {sectors} sectors was asked for");
    let cause = format!("{cause}, expected at most {NEW_CAPACITY_SECTORS_MAX} (2,032 GiB)");
    Err(Error::unsupported(file, format!("{cause}: a VMFSsparse delta cannot be larger")))
}

/// Returns cylinders, heads and sectors as VMware chooses them for an LSI Logic adapter. Only old boot loaders use
/// them.
fn geometry(capacity_sectors: u64) -> (u64, u64, u64) {
    const GIB_SECTORS: u64 = (1 << 30) / blk::SECTOR;
    let (heads, sectors) = match capacity_sectors {
        small if small < GIB_SECTORS => (64, 32),
        middle if middle <= 2 * GIB_SECTORS => (128, 32),
        _ => (255, 63),
    };
    ((capacity_sectors / (heads * sectors)).max(1), heads, sectors)
}

/// Returns an ID in the form of VMware's SCSI IDs: `60 00 C2 9x xx xx xx xx-xx ...`, NAA type 6 with VMware's company
/// ID.
fn naa_uuid(random: u128) -> String {
    let mut bytes = random.to_be_bytes();
    bytes[..3].copy_from_slice(&[0x60, 0x00, 0xC2]);
    bytes[3] = 0x90 | (bytes[3] & 0x0f);
    let half = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
    format!("{}-{}", half(&bytes[..8]), half(&bytes[8..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_of_observed_disks() {
        assert_eq!(geometry(4096), (2, 64, 32));
        assert_eq!(geometry(2_097_152), (512, 128, 32));
        assert_eq!(geometry(67_108_864), (4177, 255, 63));
        assert_eq!(geometry(1), (1, 64, 32));
    }

    #[test]
    fn uuid_has_the_naa_form() {
        assert_eq!(naa_uuid(u128::MAX), "60 00 c2 9f ff ff ff ff-ff ff ff ff ff ff ff ff");
        assert_eq!(naa_uuid(0), "60 00 c2 90 00 00 00 00-00 00 00 00 00 00 00 00");
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let new = |capacity_sectors| NewBase {
            extent_file: "x-flat.vmdk",
            capacity_sectors,
            content_id: ContentId::from_random(1),
            uuid: 0,
            prepared_for: None,
        };
        for bad in [0, u64::MAX] {
            assert_eq!(new(bad).descriptor("x.vmdk").unwrap_err().kind, blk::ErrorKind::Invalid);
        }
    }

    #[test]
    fn a_child_records_its_parent() {
        let parent = |kind: &str| {
            let text = format!("version=1\nCID=1\ncreateType=\"x\"\nRW 8 {kind} \"a\"\n");
            Descriptor::parse("x.vmdk", text.as_bytes()).unwrap()
        };
        let (kind, sesparse) = (ExtentKind::VmfsSparse, ExtentKind::SeSparse);
        assert_eq!(note_for_child_of(&parent("VMFSSPARSE"), kind), None);
        assert_eq!(note_for_child_of(&parent("SESPARSE"), sesparse), None);
        let mut child = NewChild {
            extent_file: "x-000001-delta.vmdk",
            capacity_sectors: NEW_CAPACITY_SECTORS_MAX,
            content_id: ContentId::from_random(1),
            parent: "x.vmdk",
            parent_cid: 1,
            owner: None,
            note: note_for_child_of(&parent("SESPARSE"), kind),
        };
        let text = child.descriptor("x-000001.vmdk", kind).unwrap().to_bytes();
        let text = String::from_utf8(text).unwrap();
        assert!(text.lines().any(|line| line.starts_with("# ") && line.contains("Not for VMFS6")), "{text}");
        child.capacity_sectors += 1;
        let error = child.descriptor("x-000001.vmdk", kind).unwrap_err();
        assert_eq!(error.kind, blk::ErrorKind::Unsupported);
        assert!(error.cause.contains("2,032 GiB"), "{error}");
        let text = child.descriptor("x-000001.vmdk", sesparse).unwrap().to_bytes();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("createType=\"seSparse\"") && text.contains("ddb.grain = \"8\""), "{text}");
    }
}
