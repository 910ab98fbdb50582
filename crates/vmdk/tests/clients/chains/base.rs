//! Bases of many forms.
//!
//! QEMU skips extent lines that are not RW or have no file, so that the disk is shorter (reference/vmware-formats 11).
//! Such lines are last here, and only what is read through a child is compared: QEMU shows zeros past the end of a
//! parent, and so do those lines.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use blk::SECTOR;
use sim::Rng;

use super::write_at;
use crate::support::qemu_img;

/// How a base is made: by which program, and with which extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Vmfs,
    FlatAtOffset,
    /// Several files.
    Split,
    /// Ranges of one file in any order, optionally followed by a line that reads as zeros.
    Shuffled,
    /// By `qemu-img create`, with that subformat.
    Created(&'static str),
    /// By `qemu-img convert`.
    Converted(&'static str),
}

pub(super) const BASES: [Base; 8] = [
    Base::Vmfs,
    Base::FlatAtOffset,
    Base::Split,
    Base::Shuffled,
    Base::Created("monolithicFlat"),
    Base::Created("twoGbMaxExtentFlat"),
    Base::Converted("monolithicFlat"),
    Base::Converted("twoGbMaxExtentFlat"),
];

const PIECES_MAX: u64 = 6;
/// Maximum gap between two ranges of a file, in sectors.
const GAP_SECTORS_MAX: u64 = 200;

/// A finished base: `web.vmdk`.
pub(super) struct Made {
    pub content: Vec<u8>,
    /// Its first file.
    pub extent: String,
    /// Sectors at its end that QEMU does not show.
    pub unseen: u64,
}

/// Content of an extent line.
struct Extent {
    file: String,
    at_sector: u64,
    sectors: Range<u64>,
}

pub(super) fn make(rng: &mut Rng, folder: &Path, sectors: u64, base: Base) -> Made {
    let mut content = vec![0; (sectors * SECTOR) as usize];
    if !matches!(base, Base::Created(_)) {
        rng.fill(&mut content);
    }
    match base {
        Base::Created(subformat) => {
            let (option, size) = (format!("subformat={subformat}"), content.len().to_string());
            qemu_img(folder, &["create", "-q", "-f", "vmdk", "-o", &option, "web.vmdk", &size]);
            Made { content, extent: extent_by_qemu(subformat), unseen: 0 }
        }
        Base::Converted(subformat) => {
            let option = format!("subformat={subformat}");
            std::fs::write(folder.join("in.raw"), &content).unwrap();
            qemu_img(folder, &["convert", "-f", "raw", "-O", "vmdk", "-o", &option, "in.raw", "web.vmdk"]);
            Made { content, extent: extent_by_qemu(subformat), unseen: 0 }
        }
        _ => write(rng, folder, content, base),
    }
}

fn extent_by_qemu(subformat: &str) -> String {
    let name = if subformat == "monolithicFlat" { "web-flat.vmdk" } else { "web-f001.vmdk" };
    name.into()
}

fn write(rng: &mut Rng, folder: &Path, mut content: Vec<u8>, base: Base) -> Made {
    let sectors = content.len() as u64 / SECTOR;
    let unseen = if base == Base::Shuffled && rng.coin() { rng.below(sectors) } else { 0 };
    let seen = sectors - unseen;
    content[(seen * SECTOR) as usize..].fill(0);
    let extents = extents(rng, seen, base);
    let mut lines = String::new();
    for extent in &extents {
        let part = (extent.sectors.start * SECTOR) as usize..(extent.sectors.end * SECTOR) as usize;
        write_at(&folder.join(&extent.file), extent.at_sector * SECTOR, &content[part]);
        lines.push_str(&line(base, extent));
    }
    if unseen > 0 {
        std::fs::write(folder.join("zeros"), vec![0; (unseen * SECTOR) as usize]).unwrap();
        let last = [
            format!("RW {unseen} ZERO\n"),
            format!("NOACCESS {unseen} FLAT \"web-flat.vmdk\" 0\n"),
            format!("RDONLY {unseen} FLAT \"zeros\" 0\n"),
        ];
        lines.push_str(&last[rng.below(3) as usize]);
    }
    let create_type = match base {
        Base::Vmfs => "vmfs",
        Base::FlatAtOffset => "monolithicFlat",
        _ => "twoGbMaxExtentFlat",
    };
    let text = format!(
        "# Disk DescriptorFile\nversion=1\nCID={:08x}\nparentCID=ffffffff\ncreateType=\"{create_type}\"\n{lines}",
        rng.below(0xffff_ffff),
    );
    std::fs::write(folder.join("web.vmdk"), text).unwrap();
    Made { content, extent: extents[0].file.clone(), unseen }
}

fn line(base: Base, extent: &Extent) -> String {
    let Extent { file, at_sector, sectors } = extent;
    let count = sectors.end - sectors.start;
    match base {
        Base::Vmfs => format!("RW {count} VMFS \"{file}\"\n"),
        _ => format!("RW {count} FLAT \"{file}\" {at_sector}\n"),
    }
}

/// Returns `sectors` of a disk in random pieces, by their position on it.
fn pieces(rng: &mut Rng, sectors: u64, count: u64) -> Vec<Range<u64>> {
    let mut edges: BTreeSet<u64> = (1..count).map(|_| rng.below(sectors)).collect();
    edges.extend([0, sectors]);
    let edges: Vec<u64> = edges.into_iter().collect();
    edges.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn extents(rng: &mut Rng, sectors: u64, base: Base) -> Vec<Extent> {
    let several = matches!(base, Base::Split | Base::Shuffled);
    let count = if several { rng.between(1, PIECES_MAX) } else { 1 };
    let mut pieces: Vec<(usize, Range<u64>)> = pieces(rng, sectors, count).into_iter().enumerate().collect();
    if base == Base::Shuffled {
        rng.shuffle(&mut pieces);
    }
    let mut extents = Vec::new();
    let mut next = 0;
    for (index, sectors) in pieces {
        let (file, begin) = match base {
            Base::Split => (format!("web f{:03}.vmdk", index + 1), 0),
            _ => ("web-flat.vmdk".into(), next),
        };
        let at_sector = if base == Base::Vmfs { 0 } else { begin + rng.below(GAP_SECTORS_MAX) };
        next = at_sector + (sectors.end - sectors.start);
        extents.push(Extent { file, at_sector, sectors });
    }
    extents.sort_by_key(|extent| extent.sectors.start);
    extents
}
