use std::collections::VecDeque;

use blk::SECTOR;

use sim::oracle::{NEVER, sequence_of, stamp};

/// Sectors whose lower_bounds are kept together: 1 KiB of lower_bounds for 128 KiB of disk. A disk of 200 GiB therefore begins with
/// 13 MiB of absent pages, and takes 1.6 GiB when all of it is written.
const PAGE_SECTORS: u64 = 256;

/// Content that the sectors of a disk may show; fast enough for millions of I/Os a second.
///
/// Writes are numbered as they begin. A sector's *lower_bound* is the lowest number that it may still show. When a write
/// ends, it supersedes all writes that had ended before it began: those numbered below the oldest write under way at
/// its begin. Of writes that overlap in time either is therefore accepted. Of the last `outstanding` writes before a
/// write some may be accepted wrongly. The oracle of the crash simulation is exact and costs a hundred times as much.
pub(super) struct Stamps {
    disk: u32,
    /// Number of the oldest write in `open`, or of the next.
    front: u32,
    /// Whether each write from `front` on has ended.
    open: VecDeque<bool>,
    lower_bounds: Vec<Option<Box<[u32; PAGE_SECTORS as usize]>>>,
}

/// A write under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenWrite {
    number: u32,
    /// All writes with a lower number had ended when this one began.
    oldest: u32,
}

impl Stamps {
    /// Returns the stamps of a disk of zeros.
    pub(super) fn new(disk: u32, disk_bytes: u64) -> Stamps {
        let pages = disk_bytes.div_ceil(PAGE_SECTORS * SECTOR) as usize;
        let mut lower_bounds = Vec::new();
        lower_bounds.resize_with(pages, || None);
        Stamps { disk, front: NEVER as u32 + 1, open: VecDeque::new(), lower_bounds }
    }

    /// Begins a write and fills in its data.
    pub(super) fn begin(&mut self, offset: u64, data: &mut [u8]) -> Result<OpenWrite, String> {
        let number = self.front.checked_add(self.open.len() as u32);
        let number = number.ok_or_else(|| format!("disk {}: more than 2^32 writes to verify", self.disk))?;
        self.open.push_back(false);
        for (sector, bytes) in (offset / SECTOR..).zip(data.chunks_exact_mut(SECTOR as usize)) {
            stamp(bytes, self.disk, sector, u64::from(number));
        }
        Ok(OpenWrite { number, oldest: self.front })
    }

    /// Ends a write that was acknowledged.
    pub(super) fn end(&mut self, write: OpenWrite, offset: u64, len: u64) {
        self.open[(write.number - self.front) as usize] = true;
        while self.open.front() == Some(&true) {
            self.open.pop_front();
            self.front += 1;
        }
        for sector in offset / SECTOR..(offset + len) / SECTOR {
            let page = self.lower_bounds[(sector / PAGE_SECTORS) as usize]
                .get_or_insert_with(|| Box::new([NEVER as u32; PAGE_SECTORS as usize]));
            let lower_bound = &mut page[(sector % PAGE_SECTORS) as usize];
            *lower_bound = write.oldest.max(*lower_bound);
        }
    }

    /// Fills `lower_bounds` with the lower_bounds of a range. The caller does this when it submits a read, and passes them to
    /// `check` when the read has ended.
    pub(super) fn note(&self, offset: u64, len: u64, lower_bounds: &mut Vec<u32>) {
        lower_bounds.clear();
        lower_bounds.extend((offset / SECTOR..(offset + len) / SECTOR).map(|sector| {
            let page = &self.lower_bounds[(sector / PAGE_SECTORS) as usize];
            page.as_ref().map_or(NEVER as u32, |page| page[(sector % PAGE_SECTORS) as usize])
        }));
    }

    pub(super) fn check(&self, offset: u64, bytes: &[u8], lower_bounds: &[u32]) -> Result<(), String> {
        let sectors = (offset / SECTOR..).zip(bytes.chunks_exact(SECTOR as usize));
        for ((sector, found), lower_bound) in sectors.zip(lower_bounds) {
            let place = || format!("disk {} sector {sector} shows", self.disk);
            let number = sequence_of(found, self.disk, sector).map_err(|e| format!("{} {e}", place()))?;
            let newest = u64::from(self.front) + self.open.len() as u64;
            if number < u64::from(*lower_bound) || number >= newest {
                return Err(format!("{} write {number}, expected one of {lower_bound}..{newest}", place()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(stamps: &mut Stamps, offset: u64) -> Vec<u8> {
        let mut data = vec![0; 1024];
        let open = stamps.begin(offset, &mut data).unwrap();
        stamps.end(open, offset, 1024);
        data
    }

    fn read(stamps: &Stamps, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let mut lower_bounds = Vec::new();
        stamps.note(offset, bytes.len() as u64, &mut lower_bounds);
        stamps.check(offset, bytes, &lower_bounds)
    }

    #[test]
    fn an_old_write_and_the_zeros_before_it_are_refused() {
        let mut stamps = Stamps::new(1, 1 << 20);
        assert!(read(&stamps, 4096, &[0; 1024]).is_ok());
        let old = write(&mut stamps, 4096);
        assert!(read(&stamps, 4096, &[0; 1024]).unwrap_err().contains("disk 1 sector 8 shows write 0"));
        assert!(read(&stamps, 4096, &old).is_ok());
        let new = write(&mut stamps, 4096);
        assert!(read(&stamps, 4096, &new).is_ok());
        assert!(read(&stamps, 4096, &old).is_err());
        assert!(read(&stamps, 8192, &new).is_err(), "another sector's data");
    }

    #[test]
    fn writes_that_overlap_in_time_may_leave_either() {
        let mut stamps = Stamps::new(0, 1 << 20);
        let before = write(&mut stamps, 0);
        let (mut one, mut two) = (vec![0; 1024], vec![0; 1024]);
        let first = stamps.begin(0, &mut one).unwrap();
        let second = stamps.begin(0, &mut two).unwrap();
        stamps.end(second, 0, 1024);
        assert!(read(&stamps, 0, &before).is_err());
        stamps.end(first, 0, 1024);
        assert!(read(&stamps, 0, &one).is_ok());
        assert!(read(&stamps, 0, &two).is_ok());
    }

    #[test]
    fn a_read_may_show_what_was_there_when_it_was_submitted() {
        let mut stamps = Stamps::new(0, 1 << 20);
        let old = write(&mut stamps, 0);
        let mut lower_bounds = Vec::new();
        stamps.note(0, 1024, &mut lower_bounds);
        let new = write(&mut stamps, 0);
        assert!(stamps.check(0, &old, &lower_bounds).is_ok());
        assert!(stamps.check(0, &new, &lower_bounds).is_ok());
    }
}
