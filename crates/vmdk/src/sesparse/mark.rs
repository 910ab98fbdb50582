//! The journal's header, and the mark of unstun in it.
//!
//! Facts: reference/vmware-formats 4.6. The first 24 bytes are ESXi's. It leaves the rest of the sector as it happens to
//! be, and QEMU reads none of it, so the mark is there: that unstun wrote the file last, whether it was closed, where the
//! next grain goes, and the log in the host's memory.

use super::HEADER_BYTES;
use super::header::{set_word, word};
use crate::delta::LogName;

const JOURNAL_MAGIC: u64 = 0xDEAF_C0DE;
/// The third word of the journal's header in every file that was seen.
const JOURNAL_WORD: u64 = 1;
/// "unstunSE" as bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"unstunSE");

mod field {
    pub(super) const NEXT_TRANSACTION: usize = 8;
    pub(super) const WORD: usize = 16;
    pub(super) const MAGIC: usize = 24;
    pub(super) const UNCLEAN: usize = 32;
    pub(super) const FREE_GRAIN: usize = 40;
    pub(super) const LOG_ID: usize = 48;
    pub(super) const LOG_BOOT: usize = 56;
    /// `nextTxnSeqNumber` when the mark was written: ESXi's writes change it, and the mark is outdated then.
    pub(super) const AT_TRANSACTION: usize = 64;
}

/// What unstun notes in a delta that it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The log of the process that has the delta open; None: it was closed.
    pub unclean: Option<LogName>,
    /// First grain of the file that was never used; without meaning while the delta is unclean.
    pub free_grain: u64,
}

impl Mark {
    /// Decodes the first sector of the journal's header. None if another program wrote the file last.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES], next_transaction: u64) -> Option<Mark> {
        let is_ours = word(bytes, field::MAGIC) == MAGIC
            && word(bytes, field::AT_TRANSACTION) == next_transaction
            && word(bytes, field::NEXT_TRANSACTION) == next_transaction;
        let log = (word(bytes, field::LOG_ID), word(bytes, field::LOG_BOOT));
        let unclean = (word(bytes, field::UNCLEAN) != 0).then_some(log);
        is_ours.then(|| Mark { unclean, free_grain: word(bytes, field::FREE_GRAIN) })
    }

    pub(super) fn encode(&self, next_transaction: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let (id, boot) = self.unclean.unwrap_or_default();
        for (at, value) in [
            (0, JOURNAL_MAGIC),
            (field::NEXT_TRANSACTION, next_transaction),
            (field::WORD, JOURNAL_WORD),
            (field::MAGIC, MAGIC),
            (field::UNCLEAN, u64::from(self.unclean.is_some())),
            (field::FREE_GRAIN, self.free_grain),
            (field::LOG_ID, id),
            (field::LOG_BOOT, boot),
            (field::AT_TRANSACTION, next_transaction),
        ] {
            set_word(&mut bytes, at, value);
        }
        bytes
    }
}
