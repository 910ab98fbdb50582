//! Decoder of a block request: from a chain of descriptors to a checked command.

use std::ops::Range;

use blk::SECTOR;

use super::address_space::AddressSpace;
use super::protocol::*;
use super::ring::{Chain, Fault, Segment};
use crate::memory::{LIST_BYTES_MAX, SHORT_LIST_BYTES};

/// What a guest requests. Ranges are inside the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Read {
        offset: u64,
        len: u64,
    },
    Write {
        offset: u64,
        len: u64,
    },
    Flush,
    GetId,
    Discard(Vec<Range<u64>>),
    /// Whether the range may be deallocated stands beside it.
    Zero(Vec<(Range<u64>, bool)>),
    /// The request is answered with this status.
    Refused(u8),
}

/// Data of a request: the readable bytes behind the header, and the writable ones in front of the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub payload: Vec<Segment>,
    pub answer: Vec<Segment>,
    /// Guest address of the status byte.
    pub status: u64,
}

/// Segments up to which a list is not moved to release memory: the first four are allocated together.
const LIST_SPARE: usize = 4;

/// Returns the most memory of both lists of a request.
const fn list_bytes_max(segments: usize) -> u64 {
    ((segments + 2 * LIST_SPARE) * size_of::<Segment>()) as u64
}

const _: () = assert!(list_bytes_max(CHAIN_DESCRIPTORS_SHORT) <= SHORT_LIST_BYTES);
const _: () = assert!(list_bytes_max(CHAIN_DESCRIPTORS_MAX) <= LIST_BYTES_MAX);

impl Layout {
    /// Returns the bytes of memory that the lists of segments take.
    pub(super) fn list_bytes(&self) -> u64 {
        ((self.payload.capacity() + self.answer.capacity()) * size_of::<Segment>()) as u64
    }
}

/// The disk, as far as a request must keep to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Disk {
    pub size_bytes: u64,
    pub read_only: bool,
}

pub(super) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Copies bytes out of a list of segments, from position `skip` on.
pub(super) fn gather(space: &AddressSpace, segments: &[Segment], skip: u64, to: &mut [u8]) -> Option<()> {
    let mut done = 0;
    for (address, len) in parts(segments, skip, to.len() as u64) {
        space.read(address, &mut to[done..done + len])?;
        done += len;
    }
    (done == to.len()).then_some(())
}

/// Copies bytes into a list of segments, from position `skip` on.
pub(super) fn scatter(space: &AddressSpace, segments: &[Segment], skip: u64, from: &[u8]) -> Option<()> {
    let mut done = 0;
    for (address, len) in parts(segments, skip, from.len() as u64) {
        space.write(address, &from[done..done + len])?;
        done += len;
    }
    (done == from.len()).then_some(())
}

/// Returns the runs that have the `len` bytes behind the first `skip` ones.
fn parts(segments: &[Segment], skip: u64, len: u64) -> impl Iterator<Item = (u64, usize)> + '_ {
    let (mut skip, mut left) = (skip, len);
    segments.iter().filter_map(move |segment| {
        let bytes = u64::from(segment.len);
        let skipped = skip.min(bytes);
        skip -= skipped;
        let now = (bytes - skipped).min(left);
        left -= now;
        (now > 0).then_some((segment.address + skipped, now as usize))
    })
}

/// Returns the segments of the `len` bytes behind the first `skip` ones, without memory that they do not need.
fn part(mut segments: Vec<Segment>, skip: u64, len: u64) -> Vec<Segment> {
    let (mut skip, mut left) = (skip, len);
    segments.retain_mut(|segment| {
        let bytes = u64::from(segment.len);
        let skipped = skip.min(bytes);
        let kept = (bytes - skipped).min(left);
        (skip, left) = (skip - skipped, left - kept);
        (segment.address, segment.len) = (segment.address + skipped, kept as u32);
        kept > 0
    });
    if segments.len() > LIST_SPARE {
        segments.shrink_to_fit();
    }
    segments
}

/// Decodes a request.
///
/// # Errors
/// The chain has no header or no place for the status, so that it cannot even be refused.
pub(super) fn decode(space: &AddressSpace, chain: Chain, disk: Disk) -> Result<(Layout, Command), Fault> {
    let mut header = [0; BLK_HEADER_BYTES];
    gather(space, &chain.readable, 0, &mut header).ok_or("a request without a whole header")?;
    let writable = total(&chain.writable);
    let before_status = writable.checked_sub(1).ok_or("a request without a place for its status")?;
    let status = parts(&chain.writable, before_status, 1).next().ok_or("a request without a status")?.0;
    let layout = Layout {
        payload: part(chain.readable, BLK_HEADER_BYTES as u64, u64::MAX),
        answer: part(chain.writable, 0, before_status),
        status,
    };
    let (kind, rest) = header.split_first_chunk().expect("16 bytes");
    let sector = u64::from_le_bytes(rest[4..].try_into().expect("8 bytes"));
    let command = command(space, u32::from_le_bytes(*kind), sector, &layout, disk);
    Ok((layout, command))
}

fn command(space: &AddressSpace, kind: u32, sector: u64, layout: &Layout, disk: Disk) -> Command {
    let changes = matches!(kind, BLK_OUT | BLK_DISCARD | BLK_WRITE_ZEROES);
    if changes && disk.read_only {
        return Command::Refused(STATUS_IOERR);
    }
    let refused = Command::Refused(STATUS_IOERR);
    match kind {
        BLK_IN => range(sector, total(&layout.answer), disk)
            .map_or(refused, |range| Command::Read { offset: range.start, len: range.end - range.start }),
        BLK_OUT => range(sector, total(&layout.payload), disk)
            .map_or(refused, |range| Command::Write { offset: range.start, len: range.end - range.start }),
        BLK_FLUSH => Command::Flush,
        BLK_GET_ID if total(&layout.answer) >= SERIAL_BYTES as u64 => Command::GetId,
        BLK_GET_ID => refused,
        BLK_DISCARD | BLK_WRITE_ZEROES => {
            let ranges = ranges(space, kind == BLK_WRITE_ZEROES, &layout.payload, disk);
            match (ranges, kind) {
                (Err(status), _) => Command::Refused(status),
                (Ok(ranges), BLK_DISCARD) => {
                    Command::Discard(ranges.into_iter().map(|(range, _)| range).collect())
                }
                (Ok(ranges), _) => Command::Zero(ranges),
            }
        }
        _ => Command::Refused(STATUS_UNSUPPORTED),
    }
}

/// Returns the range of a transfer: whole sectors, at least one, inside the disk.
fn range(sector: u64, len: u64, disk: Disk) -> Option<Range<u64>> {
    let start = sector.checked_mul(SECTOR)?;
    let end = start.checked_add(len)?;
    let valid = len > 0 && len.is_multiple_of(SECTOR) && end <= disk.size_bytes;
    valid.then_some(start..end)
}

/// Decodes the list of a discard or a write-zeroes.
fn ranges(
    space: &AddressSpace,
    zeroes: bool,
    payload: &[Segment],
    disk: Disk,
) -> Result<Vec<(Range<u64>, bool)>, u8> {
    let len = total(payload);
    let count = len / RANGE_BYTES as u64;
    if count == 0 || count > u64::from(RANGES_MAX) || !len.is_multiple_of(RANGE_BYTES as u64) {
        return Err(STATUS_IOERR);
    }
    let mut list = vec![0; len as usize];
    gather(space, payload, 0, &mut list).ok_or(STATUS_IOERR)?;
    let (items, _) = list.as_chunks::<RANGE_BYTES>();
    let allowed = if zeroes { RANGE_UNMAP } else { 0 };
    let decode = |item: &[u8; RANGE_BYTES]| {
        let sector = u64::from_le_bytes(item[..8].try_into().expect("8 bytes"));
        let sectors = u32::from_le_bytes(item[8..12].try_into().expect("4 bytes"));
        let flags = u32::from_le_bytes(item[12..].try_into().expect("4 bytes"));
        if flags & !allowed != 0 {
            return Err(STATUS_UNSUPPORTED);
        }
        if sectors > RANGE_SECTORS_MAX {
            return Err(STATUS_IOERR);
        }
        let range = range(sector, u64::from(sectors) * SECTOR, disk).ok_or(STATUS_IOERR)?;
        Ok((range, flags & RANGE_UNMAP != 0))
    };
    items.iter().map(decode).collect()
}
