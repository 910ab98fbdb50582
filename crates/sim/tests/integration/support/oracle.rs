//! What each sector of one file may show after a power cut, modelled without a second copy of the content.
//!
//! Every written sector identifies its disk, sector and write. For each sector the oracle keeps the writes that may be
//! visible. A completed flush removes those that had ended before a write began that the flush covers. Overlapping
//! writes may take effect in either order, so both are kept.

use blk::Buf;

use super::SECTOR;

/// Sequence of a sector that was zeroed or never written.
const ZEROS: u64 = 0;
const UNDER_WAY: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    /// `ZEROS`, or the number of the write.
    shows: u64,
    issued: u64,
    completed: u64,
}

pub(crate) struct Oracle {
    disk: u64,
    /// Increases with every call: the order in which the caller made observations.
    clock: u64,
    sectors: Vec<Vec<Candidate>>,
}

/// A write or zeroing under way.
pub(crate) struct Ticket {
    issued: u64,
    first: usize,
    count: usize,
}

impl Oracle {
    /// Creates the model of a file of durable zeros.
    pub(crate) fn new(disk: u64, sectors: usize) -> Oracle {
        let zeros = Candidate { shows: ZEROS, issued: 0, completed: 0 };
        Oracle { disk, clock: 0, sectors: vec![vec![zeros]; sectors] }
    }

    pub(crate) fn len(&self) -> usize {
        self.sectors.len()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Begins a write of `count` sectors, and returns its data.
    pub(crate) fn write(&mut self, first: usize, count: usize) -> (Ticket, Buf) {
        let ticket = self.issue(first, count, true);
        let mut buf = Buf::alloc(count * SECTOR);
        for (at, sector) in buf.chunks_mut(SECTOR).enumerate() {
            sector.copy_from_slice(&self.stamp(first + at, ticket.issued));
        }
        (ticket, buf)
    }

    pub(crate) fn zero(&mut self, first: usize, count: usize) -> Ticket {
        self.issue(first, count, false)
    }

    fn issue(&mut self, first: usize, count: usize, stamped: bool) -> Ticket {
        let issued = self.tick();
        let shows = if stamped { issued } else { ZEROS };
        for sector in &mut self.sectors[first..first + count] {
            sector.push(Candidate { shows, issued, completed: UNDER_WAY });
        }
        Ticket { issued, first, count }
    }

    pub(crate) fn completed(&mut self, ticket: &Ticket) {
        let now = self.tick();
        for sector in &mut self.sectors[ticket.first..ticket.first + ticket.count] {
            let own = sector.iter_mut().find(|c| c.issued == ticket.issued);
            own.expect("only a flush of a later write strikes it").completed = now;
        }
    }

    /// Begins a flush.
    pub(crate) fn flush(&mut self) -> u64 {
        self.tick()
    }

    pub(crate) fn flushed(&mut self, submitted: u64) {
        for sector in &mut self.sectors {
            let covered = sector.iter().filter(|c| c.completed < submitted);
            let newest = covered.map(|c| c.issued).max().unwrap_or(0);
            sector.retain(|c| c.completed >= newest);
        }
    }

    fn stamp(&self, sector: usize, sequence: u64) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        let words = [0x756e_7374_756e_2121, self.disk, sector as u64, sequence];
        for (at, chunk) in bytes.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&words[at % 4].wrapping_add(at as u64 / 4).to_le_bytes());
        }
        bytes
    }

    /// Compares the whole content with what is allowed. The content is durable and certain from then on.
    pub(crate) fn check(&mut self, content: &[u8]) -> Result<(), String> {
        if content.len() != self.len() * SECTOR {
            return Err(format!("{} bytes, {} expected", content.len(), self.len() * SECTOR));
        }
        for (at, bytes) in content.chunks(SECTOR).enumerate() {
            let found = self.check_sector(at, bytes)?;
            self.sectors[at] = vec![Candidate { issued: 0, completed: 0, ..found }];
        }
        Ok(())
    }

    fn check_sector(&self, at: usize, bytes: &[u8]) -> Result<Candidate, String> {
        let shows = |c: &&Candidate| match c.shows {
            ZEROS => bytes.iter().all(|&byte| byte == 0),
            sequence => bytes == self.stamp(at, sequence),
        };
        self.sectors[at].iter().find(shows).copied().ok_or_else(|| self.describe(at, bytes))
    }

    fn describe(&self, at: usize, bytes: &[u8]) -> String {
        let word = |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("eight bytes"));
        let allowed: Vec<u64> = self.sectors[at].iter().map(|c| c.shows).collect();
        let (disk, sector, sequence) = (word(1), word(2), word(3));
        format!(
            "sector {at} shows disk {disk}, sector {sector}, write {sequence}; allowed are writes {allowed:?}"
        )
    }
}
