//! Oracle of a disk: the content that reads may return, modelled without a second copy of the data.
//!
//! Every written sector carries a stamp (disk, sector, sequence number), which identifies the write it came from. For
//! each sector the oracle keeps the writes that may still be visible, with the ticks at which each began and ended. A
//! write is *superseded* once a later one (begun after the first had ended) has certainly taken effect; a sector must
//! show a write that is not superseded. A write is certain if it ended before the read began (live reads), or before a
//! flush began that has ended (reads after a power cut).
//!
//! Not verified here: what a volume shows while two writes overlap, beyond "one of the two, per sector".

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use blk::SECTOR;

/// Sequence number of a sector that was never written, and reads as zeros.
pub const NEVER: u64 = 0;
const STAMP_BYTES: usize = 32;
const ZEROS: [u8; SECTOR as usize] = [0; SECTOR as usize];
const MAGIC: u64 = 0x756e_7374_756e_5354;
/// Tick of a write that has not ended.
const UNENDED: u64 = u64::MAX;

/// Fills one sector with its stamp, repeated, so that a torn or shifted sector is detected.
pub fn stamp(out: &mut [u8], disk: u32, sector: u64, sequence: u64) {
    let mut part = [0; STAMP_BYTES];
    let fields = [MAGIC, u64::from(disk), sector, sequence];
    part.as_chunks_mut().0.iter_mut().zip(fields).for_each(|(bytes, field)| *bytes = field.to_le_bytes());
    out.as_chunks_mut().0.fill(part);
}

/// Returns the sequence number of a sector, or what is wrong with it.
pub fn sequence_of(bytes: &[u8], disk: u32, sector: u64) -> Result<u64, String> {
    if bytes == ZEROS {
        return Ok(NEVER);
    }
    let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let own = field(0) == MAGIC && field(8) == u64::from(disk) && field(16) == sector;
    // Every part equals the one before it.
    if own && bytes[STAMP_BYTES..] == bytes[..bytes.len() - STAMP_BYTES] {
        return Ok(field(24));
    }
    if field(0) != MAGIC {
        return Err(format!("bytes of no known write: {:02x?}...", &bytes[..16]));
    }
    let (d, s, n) = (field(8), field(16), field(24));
    let torn = bytes.chunks_exact(STAMP_BYTES).any(|c| c != &bytes[..STAMP_BYTES]);
    let torn = if torn { ", and the sector is torn" } else { "" };
    Err(format!("the stamp of disk {d} sector {s} write {n}{torn}"))
}

/// One write of one sector.
#[derive(Debug, Clone, Copy)]
struct Write {
    sequence: u64,
    /// Tick of its start, which also identifies it: no two writes begin at one tick.
    began: u64,
    ended: u64,
    /// A hint (discard), which may have no effect, so it never supersedes a write.
    optional: bool,
}

/// The model of one disk, shared by all users of the disk.
#[derive(Clone)]
pub struct DiskModel {
    pub disk: u32,
    tick: Cell<u64>,
    next_sequence: Cell<u64>,
    sectors: RefCell<BTreeMap<u64, Vec<Write>>>,
    /// Start of the last flush that ended: writes that had ended by then survive a cut.
    durable: Cell<u64>,
    /// Tick at which the process ended while the machine continued. Writes that had ended by then are present until the
    /// power is lost.
    survived: Cell<Option<u64>>,
    /// A boot since `replace` has lost unflushed writes.
    loses: Cell<bool>,
}

/// A write under way.
pub struct OpenWrite {
    first: u64,
    count: u64,
    began: u64,
    pub sequence: u64,
}

impl DiskModel {
    pub fn new(disk: u32) -> DiskModel {
        DiskModel {
            disk,
            tick: Cell::new(1),
            next_sequence: Cell::new(NEVER + 1),
            sectors: RefCell::default(),
            durable: Cell::new(1),
            survived: Cell::default(),
            loses: Cell::default(),
        }
    }

    /// Creates a model whose sequence numbers start at `sequence`, for a disk that begins with the content of another.
    pub fn starting_at(disk: u32, sequence: u64) -> DiskModel {
        DiskModel { next_sequence: Cell::new(sequence), ..DiskModel::new(disk) }
    }

    pub fn now(&self) -> u64 {
        self.tick.update(|tick| tick + 1);
        self.tick.get()
    }

    /// Begins a write of `count` sectors with the data `fill(sequence)`.
    pub fn begin(&self, first: u64, count: u64) -> OpenWrite {
        let sequence = self.next_sequence.get();
        self.next_sequence.set(sequence + 1);
        self.open(first, count, sequence, false)
    }

    /// Begins a write of zeros; `optional` for a discard, which may have no effect.
    pub fn begin_zero(&self, first: u64, count: u64, optional: bool) -> OpenWrite {
        self.open(first, count, NEVER, optional)
    }

    fn open(&self, first: u64, count: u64, sequence: u64, optional: bool) -> OpenWrite {
        let began = self.now();
        let initial = Write { sequence: NEVER, began: 0, ended: 0, optional: false };
        let mut sectors = self.sectors.borrow_mut();
        for sector in first..first + count {
            let writes = sectors.entry(sector).or_insert_with(|| vec![initial]);
            writes.push(Write { sequence, began, ended: UNENDED, optional });
        }
        OpenWrite { first, count, began, sequence }
    }

    /// Ends a write, which was acknowledged.
    pub fn end(&self, write: &OpenWrite) {
        let ended = self.now();
        let mut sectors = self.sectors.borrow_mut();
        for sector in write.first..write.first + write.count {
            let writes = sectors.get_mut(&sector).expect("begun");
            let open = writes.iter_mut().find(|w| w.began == write.began);
            open.expect("begun").ended = ended;
        }
    }

    /// Returns a mark when a flush is submitted, to be passed to `flushed` when it is acknowledged.
    pub fn flush_begins(&self) -> u64 {
        self.now()
    }

    pub fn flushed(&self, began: u64) {
        self.durable.update(|durable| durable.max(began));
    }

    /// Notes a clean stop, which has made earlier writes durable.
    pub fn closed(&self) {
        self.flushed(self.flush_begins());
    }

    /// Notes the end of an interrupted boot. `all_there`: only the process ended, and all acknowledged writes are
    /// present.
    pub fn ended(&self, all_there: bool) {
        let now = self.now();
        self.loses.update(|loses| loses | !all_there);
        self.survived.set((!self.loses.get()).then_some(now));
    }

    /// Returns the tick before which ended writes are present after an interrupted boot.
    fn certain(&self) -> u64 {
        self.survived.get().map_or(self.durable.get(), |survived| survived.max(self.durable.get()))
    }

    pub fn data(&self, write: &OpenWrite) -> Vec<u8> {
        let mut bytes = vec![0; (write.count * SECTOR) as usize];
        if write.sequence != NEVER {
            for (i, sector) in bytes.chunks_exact_mut(SECTOR as usize).enumerate() {
                stamp(sector, self.disk, write.first + i as u64, write.sequence);
            }
        }
        bytes
    }

    /// Checks sectors of a live read that was submitted at tick `began`.
    pub fn check_read(&self, first: u64, bytes: &[u8], began: u64) -> Result<(), String> {
        self.check(first, bytes, began, UNENDED, "a read")
    }

    /// Checks the content of a snapshot whose take was submitted at `began` and acknowledged at `ended`; None: a power
    /// cut interrupted the take after its commit point.
    pub fn check_snapshot(&self, bytes: &[u8], began: u64, ended: Option<u64>) -> Result<(), String> {
        match ended {
            Some(ended) => self.check(0, bytes, began, ended, "a sealed snapshot"),
            None => self.check(0, bytes, began.min(self.certain()), UNENDED, "a snapshot whose take was cut"),
        }
    }

    /// Checks sectors. Writes that ended before tick `certain` have taken effect; writes that began after `latest` have
    /// not.
    fn check(&self, first: u64, bytes: &[u8], certain: u64, latest: u64, what: &str) -> Result<(), String> {
        for (i, found) in bytes.chunks_exact(SECTOR as usize).enumerate() {
            let sector = first + i as u64;
            let place = || format!("disk {} sector {sector}: {what} shows", self.disk);
            let sequence = sequence_of(found, self.disk, sector).map_err(|e| format!("{} {e}", place()))?;
            if !self.allows(sector, sequence, certain, latest) {
                let allowed = self.allowed(sector, certain, latest);
                return Err(format!("{} write {sequence}, expected one of {allowed:?}", place()));
            }
        }
        Ok(())
    }

    fn allows(&self, sector: u64, sequence: u64, certain: u64, latest: u64) -> bool {
        let sectors = self.sectors.borrow();
        let Some(writes) = sectors.get(&sector) else { return sequence == NEVER };
        let mut of_sequence = writes.iter().filter(|w| w.sequence == sequence && w.began < latest);
        of_sequence.any(|w| !superseded(w, writes, certain))
    }

    fn allowed(&self, sector: u64, certain: u64, latest: u64) -> Vec<u64> {
        let sectors = self.sectors.borrow();
        let Some(writes) = sectors.get(&sector) else { return vec![NEVER] };
        let visible = |w: &&Write| w.began < latest && !superseded(w, writes, certain);
        writes.iter().filter(visible).map(|w| w.sequence).collect()
    }

    /// Returns whether a write of the sector may or may not have survived a power cut.
    pub fn is_in_doubt(&self, sector: u64) -> bool {
        let sectors = self.sectors.borrow();
        let writes = sectors.get(&sector);
        writes
            .is_some_and(|writes| writes.iter().any(|write| write.began > 0 && write.ended >= self.certain()))
    }

    /// Checks the whole content after a power cut.
    pub fn check_cut(&self, bytes: &[u8]) -> Result<(), String> {
        self.check(0, bytes, self.certain(), UNENDED, "after the power cut, the disk")
    }

    /// Takes `bytes` as the whole, durable content: after a cut, or after a revert.
    pub fn replace(&self, bytes: &[u8]) {
        let mut sectors = self.sectors.borrow_mut();
        sectors.clear();
        for (i, found) in bytes.chunks_exact(SECTOR as usize).enumerate() {
            let sector = i as u64;
            match sequence_of(found, self.disk, sector) {
                Ok(NEVER) | Err(_) => {}
                Ok(sequence) => {
                    let seen = Write { sequence, began: 0, ended: 0, optional: false };
                    sectors.insert(sector, vec![seen]);
                }
            }
        }
        self.durable.set(self.now());
        self.survived.set(None);
        self.loses.set(false);
    }
}

fn superseded(write: &Write, all: &[Write], certain: u64) -> bool {
    all.iter().any(|later| !later.optional && later.began > write.ended && later.ended < certain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(model: &DiskModel, sector: u64) -> Vec<u8> {
        let open = model.begin(sector, 1);
        let data = model.data(&open);
        model.end(&open);
        data
    }

    #[test]
    fn a_live_read_shows_the_last_write_that_ended() {
        let model = DiskModel::new(1);
        let old = write(&model, 5);
        let new = write(&model, 5);
        let now = model.now();
        assert!(model.check_read(5, &new, now).is_ok());
        assert!(model.check_read(5, &old, now).is_err());
    }

    #[test]
    fn overlapping_writes_may_leave_either() {
        let model = DiskModel::new(1);
        let (a, b) = (model.begin(0, 1), model.begin(0, 1));
        let (first, second) = (model.data(&a), model.data(&b));
        model.end(&b);
        model.end(&a);
        let now = model.now();
        assert!(model.check_read(0, &first, now).is_ok());
        assert!(model.check_read(0, &second, now).is_ok());
    }

    #[test]
    fn a_cut_may_lose_only_what_was_not_flushed() {
        let model = DiskModel::new(1);
        let flushed = write(&model, 0);
        let began = model.flush_begins();
        model.flushed(began);
        let lost = write(&model, 0);
        for survivor in [&flushed, &lost] {
            assert!(model.check_cut(survivor).is_ok());
        }
        assert!(model.check_cut(&[0; 512]).is_err(), "the flushed write must not be lost");
    }

    #[test]
    fn another_disks_or_sectors_bytes_are_named() {
        let mut sector = vec![0; 512];
        stamp(&mut sector, 2, 9, 4);
        assert!(sequence_of(&sector, 1, 9).unwrap_err().contains("disk 2 sector 9 write 4"));
        sector[40] ^= 1;
        assert!(sequence_of(&sector, 2, 9).unwrap_err().contains("torn"));
    }
}
