//! What the layer of deltas does one at a time, and which tables it reads: the hypotheses.
//!
//! None of this is published. Each hypothesis is a set of [`Rules`]. The path through the deltas reads the rules and
//! never the hypothesis.

use std::fmt;
use std::str::FromStr;

/// Unit in which tables are read, written and kept in memory, bytes. The exact size hardly matters: 512 bytes to 16 KiB
/// change the saturated rates of the 2009 article by 5 %.
pub const TABLE_PAGE_BYTES: u64 = 4096;

/// Table pages that an SEsparse delta keeps in memory: 256 MiB of pages of 4 KiB. That is the size of the metadata
/// cache that later hosts show in their options.
const LATER_CACHE_PAGES: u32 = 65_536;

/// Most sectors that a record of SEsparse's journal carries. It limits the first writes too: each has at least one
/// sector of its own, unless they are neighbours. Counted in a file that a host wrote.
pub const JOURNAL_RECORD_SECTORS: u32 = 24;
/// Records after which the journal starts over: 1 MiB of slots, each with one sector for the record and those it
/// carries. Same file.
pub const JOURNAL_SLOTS: u64 = (1 << 20) / ((1 + JOURNAL_RECORD_SECTORS as u64) * 512);

/// Length of the section of `serial-section`. No source gives one: it is 1 s over the 20,000 I/Os of the 2021 article, and
/// its rate with a snapshot is implied by it.
const SECTION_US: u32 = 50;

/// What is serialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serial {
    Nothing,
    /// Table look-up and allocation, per disk; data is concurrent.
    Tables,
    /// Whole guest I/Os, per disk that has a delta.
    Everything,
    /// Whole guest reads, per disk that has a delta; writes are concurrent with them and with one another.
    Reads,
    /// Per delta: a read from its look-up to the end of its data, a change of tables, and the committer's piece. Data
    /// is written concurrently.
    Delta,
}

/// Table pages kept in memory, per open delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableCache {
    Nothing,
    Pages(u32),
    Everything,
}

/// When the table of a first write is written to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableWrites {
    /// Before the write is acknowledged; SEsparse uses its journal for this.
    WithEachFirstWrite,
    /// At the guest's next flush, after the data; each page once.
    AtFlush,
}

/// The rules by which the layer of deltas works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub serial: Serial,
    /// A write looks its range up in the tables first, as a read does.
    pub look_up_on_write: bool,
    /// Time that every guest I/O spends alone, per disk that has a delta, before all else.
    pub section_us: u32,
    pub table_cache: TableCache,
    /// A filter in memory spares a read the table of a delta that holds nothing of its range.
    pub read_filter: bool,
    pub table_writes: TableWrites,
    /// Most first writes whose entries share one record of SEsparse's journal.
    pub journal_writes: u32,
    /// Bytes that the committer moves in one I/O.
    pub piece_bytes: u64,
    /// Pieces under way at a time, at least 1.
    pub pieces_at_once: u32,
}

/// Assumptions about what the published articles leave open; results show all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hypothesis {
    Concurrent,
    TableLock,
    IoLock,
    /// A write is blind: it looks no table up.
    IoLockBlind,
    DeltaLock,
    ReadLock,
    TableLockCached,
    ConcurrentCached,
    JournalEach,
    SerialSection,
}

impl Hypothesis {
    /// All hypotheses, in the order of the columns.
    pub const ALL: [Hypothesis; 10] = [
        Hypothesis::Concurrent,
        Hypothesis::TableLock,
        Hypothesis::IoLock,
        Hypothesis::IoLockBlind,
        Hypothesis::DeltaLock,
        Hypothesis::ReadLock,
        Hypothesis::TableLockCached,
        Hypothesis::ConcurrentCached,
        Hypothesis::JournalEach,
        Hypothesis::SerialSection,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Hypothesis::Concurrent => "concurrent",
            Hypothesis::TableLock => "table-lock",
            Hypothesis::IoLock => "io-lock",
            Hypothesis::IoLockBlind => "io-lock-blind",
            Hypothesis::DeltaLock => "delta-lock",
            Hypothesis::ReadLock => "read-lock",
            Hypothesis::TableLockCached => "table-lock-cached",
            Hypothesis::ConcurrentCached => "concurrent-cached",
            Hypothesis::JournalEach => "journal-each",
            Hypothesis::SerialSection => "serial-section",
        }
    }

    /// Returns one sentence for a table's legend.
    pub fn meaning(self) -> &'static str {
        match self {
            Hypothesis::Concurrent => "everything concurrent, tables not cached",
            Hypothesis::TableLock => {
                "look-up and allocation one at a time per disk, tables not cached, data beside them"
            }
            Hypothesis::IoLock => "one guest I/O at a time per disk with a delta, each looks its table up",
            Hypothesis::IoLockBlind => {
                "as io-lock, but a write needs no look-up: the 2009 article's own count"
            }
            Hypothesis::DeltaLock => {
                "a lock per delta, held by reads through their data and by the committer for each piece; written data \
                 outside of it, no look-up for a write"
            }
            Hypothesis::ReadLock => {
                "one guest read at a time per disk with a delta; writes beside it, without a look-up"
            }
            Hypothesis::TableLockCached => "as table-lock with all tables in memory",
            Hypothesis::ConcurrentCached => "everything concurrent, 256 MiB of tables in memory per delta",
            Hypothesis::JournalEach => {
                "as concurrent-cached, with a record of SEsparse's journal for each first write"
            }
            Hypothesis::SerialSection => {
                "as concurrent-cached, with 50 us in which each guest I/O is alone: the 2021 article's rate with a snapshot"
            }
        }
    }

    /// Returns whether the hypothesis explains SEsparse alone. With VMFSsparse it is `concurrent-cached`, or has no row to
    /// explain.
    pub fn is_about_sesparse(self) -> bool {
        matches!(self, Hypothesis::JournalEach | Hypothesis::SerialSection)
    }

    pub fn rules(self) -> Rules {
        let rules =
            |serial, look_up_on_write, table_cache| Rules { serial, look_up_on_write, table_cache, ..BASE };
        let none = TableCache::Nothing;
        match self {
            Hypothesis::Concurrent => rules(Serial::Nothing, true, none),
            Hypothesis::TableLock => rules(Serial::Tables, true, none),
            Hypothesis::IoLock => rules(Serial::Everything, true, none),
            Hypothesis::IoLockBlind => rules(Serial::Everything, false, none),
            Hypothesis::DeltaLock => rules(Serial::Delta, false, none),
            Hypothesis::ReadLock => rules(Serial::Reads, false, none),
            Hypothesis::TableLockCached => rules(Serial::Tables, true, TableCache::Everything),
            Hypothesis::ConcurrentCached => {
                rules(Serial::Nothing, true, TableCache::Pages(LATER_CACHE_PAGES))
            }
            Hypothesis::JournalEach => Rules { journal_writes: 1, ..Hypothesis::ConcurrentCached.rules() },
            Hypothesis::SerialSection => {
                Rules { section_us: SECTION_US, ..Hypothesis::ConcurrentCached.rules() }
            }
        }
    }
}

/// Bytes that the committer moves in one I/O. The articles give no size; VMware names 64 KiB for its own copies.
pub const PIECE_BYTES: u64 = 64 << 10;

/// Pieces under way at a time: those of VMware's data mover (vSphere blog, 2012), the only figure it has published. Its
/// support tells of a removal that is nearly serial; experiments print that end as a band.
pub const PIECES_AT_ONCE: u32 = 32;

/// What the hypotheses and our own rules have in common.
const BASE: Rules = Rules {
    serial: Serial::Nothing,
    look_up_on_write: false,
    section_us: 0,
    table_cache: TableCache::Nothing,
    read_filter: false,
    table_writes: TableWrites::WithEachFirstWrite,
    journal_writes: JOURNAL_RECORD_SECTORS,
    piece_bytes: PIECE_BYTES,
    pieces_at_once: PIECES_AT_ONCE,
};

impl Rules {
    /// Returns the rules of our own redo layers as a committer would meet them: tables in memory, written after the
    /// data at a flush, nothing serialised.
    pub fn redo() -> Rules {
        Rules { table_cache: TableCache::Everything, table_writes: TableWrites::AtFlush, ..BASE }
    }
}

impl fmt::Display for Hypothesis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Hypothesis {
    type Err = String;

    fn from_str(text: &str) -> Result<Hypothesis, String> {
        let all = Hypothesis::ALL;
        all.into_iter().find(|h| h.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            let names = all.map(Hypothesis::name).join(", ");
            format!("hypothesis {text:?}: expected one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hypothesis_is_found_by_its_name() {
        for hypothesis in Hypothesis::ALL {
            assert_eq!(hypothesis.name().to_lowercase().parse(), Ok(hypothesis));
        }
        assert!("lock".parse::<Hypothesis>().unwrap_err().contains("io-lock-blind"));
    }
}
