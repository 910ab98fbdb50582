//! Detection of the present content of a device: file systems, partition tables, arrays and images, by their first
//! bytes.
//!
//! The result decides what may be overwritten, so unknown content counts too: a device with any byte at its edges is
//! not empty.

/// Number of bytes examined at the beginning and at the end. Every signature below is within them.
pub(crate) const EDGE_BYTES: u64 = 1 << 20;

struct Signature {
    at: usize,
    bytes: &'static [u8],
    what: &'static str,
}

const fn signature(at: usize, bytes: &'static [u8], what: &'static str) -> Signature {
    Signature { at, bytes, what }
}

/// Signatures at the beginning. A partition table's mark comes late, because boot blocks of file systems end with it
/// too.
const FIRST: [Signature; 21] = [
    signature(0, b"unstunSB", "a store of unstun"),
    signature(512, b"EFI PART", "a partition table (GPT)"),
    signature(4096, b"EFI PART", "a partition table (GPT)"),
    signature(0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    signature(0, b"XFSB", "an XFS file system"),
    signature(0x10040, b"_BHRfS_M", "a Btrfs file system"),
    signature(1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    signature(512, b"LABELONE", "an LVM volume"),
    signature(0, b"LUKS\xba\xbe", "a LUKS volume"),
    signature(4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of a Linux array (md)"),
    signature(0, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of a Linux array (md)"),
    signature(4086, b"SWAPSPACE2", "swap space"),
    signature(4096 + 24, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca], "a bcache device"),
    signature(3, b"NTFS    ", "an NTFS file system"),
    signature(3, b"EXFAT   ", "an exFAT file system"),
    signature(82, b"FAT32   ", "a FAT file system"),
    signature(54, b"FAT1", "a FAT file system"),
    signature(32769, b"CD001", "an ISO 9660 file system"),
    signature(0, b"QFI\xfb", "a qcow2 image"),
    signature(0, b"KDMV", "a VMDK image"),
    signature(510, &[0x55, 0xaa], "a partition table (MBR) or a boot block"),
];

/// Signatures at the end; the offset is counted from the end.
const LAST: [Signature; 3] = [
    signature(512, b"EFI PART", "the copy of a partition table (GPT)"),
    signature(4096, b"EFI PART", "the copy of a partition table (GPT)"),
    signature(8192, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of a Linux array (md)"),
];

/// Returns what is on a device, by its edges `first` and `last` of `EDGE_BYTES` each. None: both contain only zeros.
pub(crate) fn find(first: &[u8], last: &[u8]) -> Option<String> {
    let known = FIRST.iter().find(|s| first[s.at..].starts_with(s.bytes));
    let known = known.or_else(|| LAST.iter().find(|s| last[last.len() - s.at..].starts_with(s.bytes)));
    if let Some(known) = known {
        return Some(known.what.to_owned());
    }
    let unknown = |bytes: &[u8], where_: &str| {
        let at = bytes.iter().position(|byte| *byte != 0)?;
        Some(format!("unknown content at byte {at} of its {where_} MiB"))
    };
    unknown(first, "first").or_else(|| unknown(last, "last"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge() -> Vec<u8> {
        vec![0; EDGE_BYTES as usize]
    }

    #[test]
    fn only_zeros_are_nothing() {
        assert_eq!(find(&edge(), &edge()), None);
        let mut first = edge();
        first[77] = 1;
        assert!(find(&first, &edge()).unwrap().contains("byte 77 of its first"));
        assert!(find(&edge(), &first).unwrap().contains("byte 77 of its last"));
    }

    #[test]
    fn each_is_found_where_it_lies() {
        for known in FIRST {
            let mut first = edge();
            first[known.at..known.at + known.bytes.len()].copy_from_slice(known.bytes);
            assert_eq!(find(&first, &edge()).unwrap(), known.what);
        }
        for known in LAST {
            let mut last = edge();
            let at = last.len() - known.at;
            last[at..at + known.bytes.len()].copy_from_slice(known.bytes);
            assert_eq!(find(&edge(), &last).unwrap(), known.what);
        }
    }
}
