//! The numbers of a [`Spec`] as a record shows them, each with its source.

use super::delta::STEP_BYTES;
use super::extent::{BLOCK_BYTES, Zeroing};
use super::format::Format;
use super::rules::{JOURNAL_RECORD_SECTORS, JOURNAL_SLOTS, TABLE_PAGE_BYTES, TableCache};
use super::spec::{FileOperation, Spec};
use crate::run::{Constant, ConstantSource};

const KNOWN: ConstantSource = ConstantSource::DataSheet;
const MEASURED: ConstantSource = ConstantSource::Measured;
const DECLARED: ConstantSource = ConstantSource::Declared;

fn constant(name: &str, value: u64, unit: &str, source: ConstantSource, note: &str) -> Constant {
    let [name, unit, note] = [name, unit, note].map(String::from);
    Constant { name, value: value as f64, unit, source, note }
}

impl Spec {
    /// Returns every number that the model depends on.
    pub fn constants(&self) -> Vec<Constant> {
        let parts =
            [self.of_deltas(), self.of_journal(), self.of_commits(), self.of_stuns(), self.of_blocks()];
        parts.into_iter().flatten().collect()
    }

    fn of_deltas(&self) -> Vec<Constant> {
        let format = self.format.name();
        let mut all = vec![
            constant("grain", self.format.grain_bytes(), "bytes", KNOWN, format),
            constant("grain table", self.format.table_bytes(), "bytes", KNOWN, format),
            constant("growth step", STEP_BYTES, "bytes", KNOWN, "2009 article; VMware support"),
            constant("table page", TABLE_PAGE_BYTES, "bytes", DECLARED, "unit of table I/O; hardly matters"),
        ];
        if self.rules.section_us > 0 {
            let us = self.rules.section_us.into();
            all.push(constant(
                "serial section",
                us,
                "us",
                DECLARED,
                "from the 2021 article's rate with a snapshot",
            ));
        }
        if let TableCache::Pages(pages) = self.rules.table_cache {
            let bytes = u64::from(pages) * TABLE_PAGE_BYTES;
            all.push(constant("table cache", bytes, "bytes", KNOWN, "host option; taken per open delta"));
        }
        all
    }

    fn of_journal(&self) -> Vec<Constant> {
        if self.format != Format::SeSparse {
            return Vec::new();
        }
        let seen = "seen in a host's file";
        let writes = self.rules.journal_writes.into();
        let filter = self.rules.read_filter.into();
        vec![
            constant("filter for reads", filter, "", DECLARED, "1: 7.0 U2 and later (VMware KB 83550)"),
            constant("journal record", JOURNAL_RECORD_SECTORS.into(), "sectors", MEASURED, seen),
            constant("journal", JOURNAL_SLOTS, "records", MEASURED, seen),
            constant("journal sharing", writes, "", DECLARED, "first writes in one record at most"),
        ]
    }

    fn of_commits(&self) -> Vec<Constant> {
        let pieces = self.rules.pieces_at_once.into();
        let note = "VMware tells of 64 KiB for its own copies";
        vec![
            constant("committer's piece", self.rules.piece_bytes, "bytes", DECLARED, note),
            constant("committer's pieces", pieces, "", DECLARED, "under way at a time"),
        ]
    }

    fn of_stuns(&self) -> Vec<Constant> {
        let note = "stopping and resuming, files apart";
        let mut all = vec![constant("checkpoint", self.stun.checkpoint_us, "us", DECLARED, note)];
        if let FileOperation::DeclaredUs(us) = self.stun.file_operation {
            all.push(constant("file operation", us, "us", DECLARED, "closing, opening or creating a file"));
        }
        all
    }

    fn of_blocks(&self) -> Vec<Constant> {
        let who = match self.zeroing {
            _ if !self.vmfs => return Vec::new(),
            Zeroing::Nothing => "not zeroed",
            Zeroing::Host => "the host zeroes it before its first write",
            Zeroing::Storage => "the storage zeroes it before its first write, on request of one command",
        };
        vec![
            constant("block of VMFS", BLOCK_BYTES, "bytes", KNOWN, who),
            constant(
                "marks of a block",
                self.marks.into(),
                "",
                DECLARED,
                "records written when it was zeroed",
            ),
        ]
    }
}
