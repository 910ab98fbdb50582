//! Regions of the demo's disk (load, depth-1 writer, marker), and the initial fill.
//!
//! The marker is the disk's last block. The demo never writes to a disk with other content, because a guest may be
//! installed on it.

use api::error::{Error, Result};
use indicatif::ProgressBar;

use crate::demo::nbd::{self, Connection};
use crate::demo::stamp::{self, BLOCK_BYTES, Random};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Size of the depth-1 writer's region: 16 MiB.
const GAP_BLOCKS: u64 = 4096;
/// Minimum size of the disk; on a smaller one the load would hit the same blocks over and over.
const DISK_BYTES_MIN: u64 = 64 << 20;
/// Maximum size of the disk; filling a larger one would take minutes.
const DISK_BYTES_MAX: u64 = 16 << 30;
/// Maximum size of the load's region: 256 MiB. A delta, and with it the commit, thus stays small enough for a demo. 12
/// s of writes at 8,000 a second still find about a quarter of it unwritten.
const LOAD_BLOCKS_MAX: u64 = 65_536;
/// Size of one prefill write.
const PREFILL_BLOCKS: u64 = 256;
/// Number of blocks that are checked before a disk counts as the demo's own.
const SAMPLES: u64 = 64;
const FILLING: &[u8] = b"unstun demo disk: filling\n";
const FILLED: &[u8] = b"unstun demo disk: filled\n";

/// Regions of the disk in blocks of 4 KiB. The load's region starts at 0.
#[derive(Debug, Clone, Copy)]
pub struct Regions {
    pub load_blocks: u64,
    pub gap_first_block: u64,
    pub gap_blocks: u64,
    marker_block: u64,
}

impl Regions {
    pub fn of(size_bytes: u64) -> Result<Self> {
        if !(DISK_BYTES_MIN..=DISK_BYTES_MAX).contains(&size_bytes) {
            return Err(Error::refused(format!(
                "demo disk of {size_bytes} bytes: expected 64 MiB to 16 GiB"
            )));
        }
        let marker_block = size_bytes / BLOCK - 1;
        let gap_first_block = marker_block - GAP_BLOCKS;
        let load_blocks = gap_first_block.min(LOAD_BLOCKS_MAX);
        Ok(Self { load_blocks, gap_first_block, gap_blocks: GAP_BLOCKS, marker_block })
    }

    pub fn load_bytes(&self) -> u64 {
        self.load_blocks * BLOCK
    }

    pub fn fill_bytes(&self) -> u64 {
        self.marker_block * BLOCK
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Content {
    Filled,
    /// The disk is fresh, or an interrupted fill left it.
    ToFill,
    Foreign,
}

/// Returns the content of the disk without writing to it.
pub async fn inspect(connection: &mut Connection, regions: &Regions) -> Result<Content> {
    let marker = read_block(connection, regions.marker_block).await?;
    if marker.starts_with(FILLING) {
        return Ok(Content::ToFill);
    }
    let marked = marker.starts_with(FILLED);
    if !marked && marker.iter().any(|&byte| byte != 0) {
        return Ok(Content::Foreign);
    }
    for sample in 0..SAMPLES {
        let block = sample * (regions.gap_first_block - 1) / (SAMPLES - 1);
        let data = read_block(connection, block).await?;
        let own = match marked {
            true => stamp::lowest_sequence(block, &data).is_some(),
            false => data.iter().all(|&byte| byte == 0),
        };
        if !own {
            return Ok(Content::Foreign);
        }
    }
    Ok(if marked { Content::Filled } else { Content::ToFill })
}

/// Writes every block once, then the marker.
pub async fn fill(
    connection: &mut Connection,
    regions: &Regions,
    sequence: u64,
    bar: &ProgressBar,
) -> Result<()> {
    write_marker(connection, regions, FILLING).await?;
    let mut data = vec![0; PREFILL_BLOCKS as usize * BLOCK_BYTES];
    Random(sequence).fill(&mut data);
    let mut block = 0;
    while block < regions.marker_block || !connection.is_idle() {
        while connection.has_room() && block < regions.marker_block {
            let count = PREFILL_BLOCKS.min(regions.marker_block - block);
            let piece = &mut data[..count as usize * BLOCK_BYTES];
            for (number, block_data) in (block..).zip(piece.chunks_exact_mut(BLOCK_BYTES)) {
                stamp::write(number, sequence, block_data);
            }
            connection.write(block * BLOCK, piece, 0);
            block += count;
        }
        let request = connection.next().await?;
        nbd::check(&request)?;
        bar.inc(u64::from(request.length));
    }
    flush(connection).await?;
    write_marker(connection, regions, FILLED).await
}

async fn write_marker(connection: &mut Connection, regions: &Regions, text: &[u8]) -> Result<()> {
    let mut data = vec![0; BLOCK_BYTES];
    data[..text.len()].copy_from_slice(text);
    connection.write(regions.marker_block * BLOCK, &data, 0);
    connection.only().await?;
    flush(connection).await
}

async fn flush(connection: &mut Connection) -> Result<()> {
    if connection.has_flush {
        connection.flush(0);
        connection.only().await?;
    }
    Ok(())
}

async fn read_block(connection: &mut Connection, block: u64) -> Result<Vec<u8>> {
    connection.read(block * BLOCK, BLOCK_BYTES as u32, 0);
    Ok(connection.only().await?.data)
}
