//! streamOptimized disks that unstun wrote, as QEMU reads them.

use std::path::Path;

use blk::SECTOR;
use sim::Rng;
use vmdk::descriptor::ContentId;
use vmdk::stream::{GRAIN_BYTES, StreamWriter, compress};

use crate::support::{qemu_img, scratch};

/// Writes a disk with the content, which may be shorter than a grain at its end.
fn write(path: &Path, content: &[u8]) {
    let (name, id) = (path.file_name().unwrap().to_str().unwrap(), ContentId::from_random(3));
    let mut out = Vec::new();
    let mut writer = StreamWriter::begin(name, content.len() as u64, id, &mut out).unwrap();
    for grain in content.chunks(GRAIN_BYTES) {
        writer.grain(compress(grain).as_deref(), &mut out).unwrap();
    }
    writer.finish(&mut out).unwrap();
    std::fs::write(path, out).unwrap();
}

#[test]
fn qemu_reads_what_was_written() {
    let (_scratch, folder) = scratch();
    for (seed, bytes) in [(1, SECTOR), (2, 40 << 20), (3, (70 << 20) + 3 * SECTOR), (4, 33 << 20)] {
        let mut rng = Rng::new(seed);
        let mut content = vec![0; bytes as usize];
        // Text that compresses, and noise that does not; the last disk is all zeros.
        for _ in 0..if seed == 4 { 0 } else { 40 } {
            let sectors = rng.between(1, 600.min(bytes / SECTOR));
            let at = rng.below(bytes / SECTOR - sectors + 1) * SECTOR;
            let part = &mut content[at as usize..(at + sectors * SECTOR) as usize];
            if rng.coin() { rng.fill(part) } else { part.fill(rng.between(1, 255) as u8) }
        }
        let (raw, disk) = (folder.join("disk.raw"), folder.join("disk.vmdk"));
        std::fs::write(&raw, &content).unwrap();
        write(&disk, &content);
        let (raw, disk) = (raw.to_str().unwrap(), disk.to_str().unwrap());
        qemu_img(&folder, &["compare", "-f", "raw", "-F", "vmdk", raw, disk]);
        qemu_img(&folder, &["check", "-f", "vmdk", disk]);
    }
}
