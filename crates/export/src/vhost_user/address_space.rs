//! The guest's memory: regions by guest address, and by the address in the client's process.
//!
//! A table is never changed. A new one replaces it, and requests under way keep theirs, so that no memory disappears
//! under a copy.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::passed::Descriptor;
use blk::uring::SharedMemory;
use blk::{Error, Result};

use super::message::Region;
use super::protocol::{MAPPINGS_MAX, REGIONS_MAX};

/// Unit of the log of dirty memory.
const LOG_PAGE: u64 = 4096;

/// One mapped region.
#[derive(Clone)]
struct Mapped {
    region: Region,
    memory: Rc<SharedMemory>,
    _counted: Rc<Counted>,
}

/// Counts a mapping until the last table that has it is dropped.
struct Counted(Rc<Cell<usize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.update(|n| n - 1);
    }
}

/// All regions of one guest, sorted by guest address, and the log of the pages that this process writes.
#[derive(Default, Clone)]
pub(super) struct AddressSpace {
    regions: Vec<Mapped>,
    /// Shared by all tables of a guest: a request that began before the log is kept writes into it too.
    log: Rc<RefCell<Option<SharedMemory>>>,
    /// Number of mappings of all tables of a guest.
    mappings: Rc<Cell<usize>>,
}

/// A run of bytes inside one region, for a ring. The memory stays mapped as long as it lives.
#[derive(Clone)]
pub(super) struct Place {
    pub memory: Rc<SharedMemory>,
    pub at: u64,
}

impl AddressSpace {
    /// Maps a whole table. The log stays.
    pub(super) fn replaced(&self, regions: &[Region], files: &[Descriptor]) -> Result<AddressSpace> {
        let empty = AddressSpace { regions: Vec::new(), ..self.clone() };
        regions.iter().zip(files).try_fold(empty, |space, (region, file)| space.with(region, file))
    }

    /// Returns the table with one more region.
    ///
    /// # Errors
    /// `Invalid` for a region that overlaps another, or is one too many; `Refused` for memory that could shrink, and
    /// while requests under way keep too many earlier tables.
    pub(super) fn with(&self, region: &Region, file: &Descriptor) -> Result<AddressSpace> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(Error::invalid("guest memory", format!("more than {REGIONS_MAX} regions")));
        }
        let overlaps = |a: u64, b: u64, b_len: u64| a < b + b_len && b < a + region.len;
        let collides = |known: &Mapped| {
            let known = &known.region;
            overlaps(region.guest, known.guest, known.len) || overlaps(region.user, known.user, known.len)
        };
        if self.regions.iter().any(collides) {
            return Err(Error::invalid(
                "guest memory",
                format!("two regions overlap at {:#x}", region.guest),
            ));
        }
        let mapped = self.map(region, file)?;
        let mut next = self.clone();
        let at = next.regions.partition_point(|known| known.region.guest < region.guest);
        next.regions.insert(at, mapped);
        Ok(next)
    }

    fn map(&self, region: &Region, file: &Descriptor) -> Result<Mapped> {
        let mappings = self.mappings.get();
        if mappings >= MAPPINGS_MAX {
            let cause = format!(
                "{mappings} regions are mapped, expected at most {MAPPINGS_MAX}: requests under way use earlier tables; \
                 wait for them before the next table"
            );
            return Err(Error::refused("guest memory", cause));
        }
        let memory = Rc::new(SharedMemory::map(file, region.offset, region.len)?);
        self.mappings.set(mappings + 1);
        Ok(Mapped { region: *region, memory, _counted: Rc::new(Counted(self.mappings.clone())) })
    }

    /// Returns the table without one region.
    pub(super) fn without(&self, region: &Region) -> Result<AddressSpace> {
        let mut next = self.clone();
        let is_same = |known: &Mapped| (known.region.guest, known.region.len) == (region.guest, region.len);
        next.regions.retain(|known| !is_same(known));
        match next.regions.len() < self.regions.len() {
            true => Ok(next),
            false => Err(Error::invalid("guest memory", format!("no region begins at {:#x}", region.guest))),
        }
    }

    /// Logs the pages that are written from now on.
    pub(super) fn set_log(&self, log: SharedMemory) {
        self.log.replace(Some(log));
    }

    /// Returns the place of `len` bytes at an address of the client's process; None if one region does not have them
    /// all, or the address is not a multiple of `align`.
    pub(super) fn place(&self, user: u64, len: u64, align: u64) -> Option<Place> {
        let end = user.checked_add(len)?;
        let inside = |m: &&Mapped| m.region.user <= user && end <= m.region.user + m.region.len;
        let found = self.regions.iter().find(inside).filter(|_| user.is_multiple_of(align))?;
        Some(Place { memory: found.memory.clone(), at: user - found.region.user })
    }

    /// Calls `act` with the memory, the place in it and the part of the buffer, for each piece of a range. Returns None
    /// as soon as a byte is in no region.
    fn pieces(
        &self,
        guest: u64,
        len: usize,
        mut act: impl FnMut(&SharedMemory, u64, std::ops::Range<usize>) -> Option<()>,
    ) -> Option<()> {
        guest.checked_add(len as u64)?;
        let mut done = 0;
        while done < len {
            let at = guest + done as u64;
            let after = self.regions.partition_point(|m| m.region.guest <= at);
            let Mapped { region, memory, .. } = self.regions.get(after.checked_sub(1)?)?;
            let inside = at - region.guest;
            let left = region.len.checked_sub(inside).filter(|left| *left > 0)?;
            let now = (len - done).min(usize::try_from(left).unwrap_or(usize::MAX));
            act(memory, inside, done..done + now)?;
            done += now;
        }
        Some(())
    }

    /// Returns whether all bytes of a range are memory.
    pub(super) fn contains(&self, guest: u64, len: u32) -> bool {
        self.pieces(guest, len as usize, |_, _, _| Some(())).is_some()
    }

    /// Copies bytes of the guest. None if a byte is in no region.
    #[must_use = "nothing is copied from outside"]
    pub(super) fn read(&self, guest: u64, to: &mut [u8]) -> Option<()> {
        self.pieces(guest, to.len(), |memory, at, part| memory.read(at, &mut to[part]))
    }

    /// Copies bytes into the guest, and logs its pages. None if a byte is in no region.
    #[must_use = "nothing is copied to the outside"]
    pub(super) fn write(&self, guest: u64, from: &[u8]) -> Option<()> {
        self.pieces(guest, from.len(), |memory, at, part| memory.write(at, &from[part]))?;
        self.log_dirty(guest, from.len() as u64);
        Some(())
    }

    /// Marks the pages of a range as written, if the client keeps a log. The bits follow the bytes, so that the client
    /// never copies a page before they are in it and misses them.
    pub(super) fn log_dirty(&self, guest: u64, len: u64) {
        let log = self.log.borrow();
        let Some(log) = log.as_ref().filter(|_| len > 0) else { return };
        for page in guest / LOG_PAGE..=(guest.saturating_add(len - 1)) / LOG_PAGE {
            // A page that the log does not have is none of the guest's memory at the time of the migration.
            let _ = log.set_bits(page / 8, 1 << (page % 8));
        }
    }
}
