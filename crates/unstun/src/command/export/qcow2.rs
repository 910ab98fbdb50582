//! A qcow2 file, version 3, written once from begin to end: data in the order of the disk, each table behind its data, and
//! the tables of references at the end. Facts: QEMU's docs/interop/qcow2.txt.

use api::error::Result;

use super::file::OutputFile;
use crate::command::pieces::{PIECE_BYTES, Piece};

const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// Clusters that a table of the second level maps, 8 bytes each.
const TABLE_ENTRIES: u64 = CLUSTER / 8;
/// References of a block, 16 bits each.
const BLOCK_ENTRIES: u64 = CLUSTER / 2;
/// A cluster or a table with one reference, which may be written in place.
const COPIED: u64 = 1 << 63;
/// The header occupies this cluster alone.
const HEADER_CLUSTERS: u64 = 1;
const HEADER_BYTES: u32 = 104;
const _: () = assert!(PIECE_BYTES.is_multiple_of(CLUSTER));

pub(super) struct Qcow2 {
    size_bytes: u64,
    /// Tables of the second level, by their place; the first one that is not written yet is `table`.
    first_level: Vec<u64>,
    table: Vec<u64>,
    /// Number of the next cluster of the disk.
    next: u64,
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl Qcow2 {
    pub(super) fn begin(size_bytes: u64, file: &mut OutputFile) -> Result<Qcow2> {
        // The header is written last: an unfinished file is no image.
        file.append(&vec![0; (HEADER_CLUSTERS * CLUSTER) as usize])?;
        Ok(Qcow2 { size_bytes, first_level: Vec::new(), table: Vec::new(), next: 0 })
    }

    pub(super) fn piece(&mut self, piece: &Piece, file: &mut OutputFile) -> Result<()> {
        let data = piece.data.as_deref();
        for start in (0..piece.bytes).step_by(CLUSTER as usize) {
            let end = piece.bytes.min(start + CLUSTER);
            let cluster = data.map(|data| &data[start as usize..end as usize]).filter(|data| !is_zero(data));
            self.cluster(cluster, file)?;
        }
        Ok(())
    }

    fn cluster(&mut self, data: Option<&[u8]>, file: &mut OutputFile) -> Result<()> {
        let entry = match data {
            Some(data) => {
                let at = file.end();
                file.append(data)?;
                // The last cluster of a disk may be short.
                file.append(&vec![0; CLUSTER as usize - data.len()])?;
                at | COPIED
            }
            None => 0,
        };
        self.table.push(entry);
        self.next += 1;
        let is_last = self.next * CLUSTER >= self.size_bytes;
        if self.table.len() as u64 == TABLE_ENTRIES || is_last {
            self.end_table(file)?;
        }
        Ok(())
    }

    fn end_table(&mut self, file: &mut OutputFile) -> Result<()> {
        let mut table = std::mem::take(&mut self.table);
        if table.iter().all(|entry| *entry == 0) {
            self.first_level.push(0);
            return Ok(());
        }
        table.resize(TABLE_ENTRIES as usize, 0);
        self.first_level.push(file.end() | COPIED);
        file.append(&words(&table))
    }

    pub(super) fn finish(self, file: &mut OutputFile) -> Result<()> {
        let first_level_at = file.end();
        let mut first_level = words(&self.first_level);
        first_level.resize(first_level.len().next_multiple_of(CLUSTER as usize), 0);
        file.append(&first_level)?;
        let (table_at, table_clusters) = append_references(file)?;
        let mut header = Vec::new();
        header.extend_from_slice(b"QFI\xfb");
        header.extend_from_slice(&3_u32.to_be_bytes());
        header.extend_from_slice(&[0; 12]);
        header.extend_from_slice(&CLUSTER_BITS.to_be_bytes());
        header.extend_from_slice(&self.size_bytes.to_be_bytes());
        header.extend_from_slice(&0_u32.to_be_bytes());
        header.extend_from_slice(&(self.first_level.len() as u32).to_be_bytes());
        header.extend_from_slice(&first_level_at.to_be_bytes());
        header.extend_from_slice(&table_at.to_be_bytes());
        header.extend_from_slice(&(table_clusters as u32).to_be_bytes());
        // No internal snapshots; no features.
        header.extend_from_slice(&[0; 12 + 24]);
        // References of 2^4 bits.
        header.extend_from_slice(&4_u32.to_be_bytes());
        header.extend_from_slice(&HEADER_BYTES.to_be_bytes());
        assert_eq!(header.len(), HEADER_BYTES as usize);
        file.write_at(0, &header)
    }
}

fn words(entries: &[u64]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_be_bytes()).collect()
}

/// Appends blocks with one reference for each cluster of the file, these blocks and their table included. Returns the place
/// of the table and its clusters.
fn append_references(file: &mut OutputFile) -> Result<(u64, u64)> {
    let used = file.end() / CLUSTER;
    let (mut blocks, mut table_clusters) = (0, 0);
    loop {
        let all = used + blocks + table_clusters;
        let wanted = (all.div_ceil(BLOCK_ENTRIES), blocks.max(1).div_ceil(TABLE_ENTRIES));
        if wanted == (blocks, table_clusters) {
            break;
        }
        (blocks, table_clusters) = wanted;
    }
    let all = used + blocks + table_clusters;
    let first = file.end();
    for block in 0..blocks {
        let count = BLOCK_ENTRIES.min(all - block * BLOCK_ENTRIES);
        let mut references = 1_u16.to_be_bytes().repeat(count as usize);
        references.resize(CLUSTER as usize, 0);
        file.append(&references)?;
    }
    let at = file.end();
    let places: Vec<u64> = (0..blocks).map(|block| first + block * CLUSTER).collect();
    let mut table = words(&places);
    table.resize((table_clusters * CLUSTER) as usize, 0);
    file.append(&table)?;
    Ok((at, table_clusters))
}
