//! A VM's file on its datastore, and what VMFS does before one of its blocks is first written.
//!
//! A block that was never written must not show what somebody else left there: VMFS zeroes it when it is first written,
//! whether its space was reserved (a lazily zeroed disk) or came as the file grew (a delta). Each block has a mark that
//! says whether it was, in the pointer block; the mark changes by the journal.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::RangeLock;
use blk::{Buf, File, Result, SECTOR, Slice};

use super::host::{Host, Purpose};
use super::records::Records;

/// VMFS's file block, bytes: VMFS3's default of 1 to 8 MB, and that of all that came later.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// Who zeroes a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeroing {
    /// Nobody: a file server's files show zeros where nothing was written.
    Nothing,
    /// The host, with one write.
    Host,
    /// The storage, told by one command without data (WRITE SAME).
    Storage,
}

/// How a datastore's files are zeroed.
#[derive(Clone)]
pub struct Datastore {
    pub zeroing: Zeroing,
    /// Records that change a block's mark, each of them a write: 0 to 2.
    pub marks: u32,
    /// None: not VMFS.
    pub records: Option<Rc<Records>>,
}

/// A handle; copies are the same file.
#[derive(Clone)]
pub struct Extent {
    pub file: File,
    blocks: Option<Rc<Blocks>>,
}

struct Blocks {
    datastore: Datastore,
    /// Of the file, bytes.
    len: Cell<u64>,
    /// A bit for each block that was written, and so zeroed.
    written: RefCell<Vec<u64>>,
    /// Blocks that are being zeroed: whoever writes there waits.
    busy: RangeLock,
}

impl Extent {
    /// A new file of `len` bytes.
    pub fn new(file: File, len: u64, datastore: &Datastore) -> Extent {
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

    /// The first block counts as written: a file that is made small begins in a block for small files.
    pub fn begun_small(self) -> Extent {
        if let Some(blocks) = &self.blocks {
            blocks.set_written(0);
        }
        self
    }

    pub async fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).await?;
        if let Some(blocks) = &self.blocks {
            blocks.len.set(len);
        }
        Ok(())
    }

    /// Zeroes the blocks of the range that were never written, then writes.
    pub async fn write(&self, host: &Host, offset: u64, data: Slice, purpose: Purpose) -> Result<()> {
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
