//! A VM's file on its datastore, and what VMFS does before the first write to a block.
//!
//! A block that was never written must not expose what its space held before. VMFS therefore zeroes each block at its
//! first write. This holds for reserved space (a lazily zeroed disk) and for space that came as the file grew (a
//! delta). The pointer block has a mark for each block that says whether it was zeroed; the journal records each change
//! of a mark.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::RangeLock;
use blk::{Buf, File, Result, SECTOR, Slice};

use super::host::{Host, Purpose};
use super::records::Records;

/// VMFS's file block, bytes: the default of VMFS3, which offers 1 to 8 MB, and the only size of later versions.
pub(super) const BLOCK_BYTES: u64 = 1 << 20;

/// The component that zeroes a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeroing {
    /// None: a file server's files read as zeros where they were never written.
    Nothing,
    /// The host, with one write.
    Host,
    /// The storage, on one command without data (WRITE SAME).
    Storage,
}

/// How a datastore's files are zeroed.
#[derive(Clone)]
pub(super) struct Datastore {
    pub zeroing: Zeroing,
    /// Records that change a block's mark, each of them a write: 0 to 2.
    pub marks: u32,
    /// None: the datastore is not VMFS.
    pub records: Option<Rc<Records>>,
}

/// A handle of a file; clones refer to the same file.
#[derive(Clone)]
pub(super) struct Extent {
    pub file: File,
    blocks: Option<Rc<Blocks>>,
}

struct Blocks {
    datastore: Datastore,
    /// Length of the file, bytes.
    len: Cell<u64>,
    /// One bit for each block that was written, and so zeroed.
    written: RefCell<Vec<u64>>,
    /// Blocks that are being zeroed; a writer to one of them waits.
    busy: RangeLock,
}

impl Extent {
    /// Describes a new file of `len` bytes.
    pub(super) fn new(file: File, len: u64, datastore: &Datastore) -> Extent {
        let blocks = match datastore.zeroing {
            Zeroing::Nothing => None,
            _ => Some(Rc::new(Blocks {
                datastore: datastore.clone(),
                len: Cell::new(len),
                written: RefCell::default(),
                busy: RangeLock::default(),
            })),
        };
        Extent { file, blocks }
    }

    /// Marks the first block as written: a file that is created small begins in a block for small files.
    pub(super) fn begun_small(self) -> Extent {
        if let Some(blocks) = &self.blocks {
            blocks.set_written(0);
        }
        self
    }

    pub(super) async fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).await?;
        if let Some(blocks) = &self.blocks {
            blocks.len.set(len);
        }
        Ok(())
    }

    /// Zeroes the blocks of the range that were never written, then writes.
    pub(super) async fn write(&self, host: &Host, offset: u64, data: Slice, purpose: Purpose) -> Result<()> {
        if let Some(blocks) = &self.blocks {
            let of_write = offset / BLOCK_BYTES..(offset + data.len() as u64).div_ceil(BLOCK_BYTES);
            if !of_write.clone().all(|block| blocks.is_written(block)) {
                blocks.zero(host, &self.file, of_write).await?;
            }
        }
        host.write(&self.file, offset, data, purpose).await
    }
}

impl Blocks {
    fn is_written(&self, block: u64) -> bool {
        let words = self.written.borrow();
        words.get((block / 64) as usize).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    fn set_written(&self, block: u64) {
        let (mut words, at) = (self.written.borrow_mut(), (block / 64) as usize);
        if words.len() <= at {
            words.resize(at + 1, 0);
        }
        words[at] |= 1 << (block % 64);
    }

    async fn zero(&self, host: &Host, file: &File, blocks: Range<u64>) -> Result<()> {
        let _own = self.busy.lock(blocks.clone()).await;
        for block in blocks {
            if self.is_written(block) {
                continue;
            }
            let at = block * BLOCK_BYTES;
            let len = match self.datastore.zeroing {
                Zeroing::Host => BLOCK_BYTES.min(self.len.get() - at),
                Zeroing::Storage | Zeroing::Nothing => SECTOR,
            };
            host.write(file, at, Buf::zeroed(len as usize).freeze(), Purpose::Table).await?;
            if let Some(records) = &self.datastore.records {
                records.of_block(host, self.datastore.marks).await?;
            }
            self.set_written(block);
        }
        Ok(())
    }
}
