use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env, Result};

/// The reads of a backup: a snapshot's disks from front to back, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copier {
    pub block_bytes: u32,
    pub outstanding: u32,
    /// Bytes of each disk; None: all of it.
    pub bytes: Option<u64>,
}

impl Copier {
    /// Reads the disks. Resolves with the bytes read, at the end of the disks or soon after `over` is set.
    pub(super) async fn run(self, env: Env, disks: Vec<Rc<dyn Volume>>, over: Rc<Cell<bool>>) -> Result<u64> {
        let mut copied = 0;
        for disk in disks {
            let end = self.bytes.unwrap_or(u64::MAX).min(disk.info().size_bytes);
            let cursor = Rc::new(Cell::new(0));
            let failure = Rc::new(RefCell::new(None));
            let readers: Vec<_> = (0..self.outstanding.max(1))
                .map(|_| {
                    let (disk, cursor, failure) = (disk.clone(), cursor.clone(), failure.clone());
                    let over = over.clone();
                    env.spawn(async move { self.read_parts(disk, &cursor, end, &failure, &over).await })
                })
                .collect();
            for reader in readers {
                reader.join().await;
            }
            if let Some(e) = failure.take() {
                return Err(e);
            }
            copied += end;
        }
        Ok(copied)
    }

    async fn read_parts(
        self,
        disk: Rc<dyn Volume>,
        cursor: &Cell<u64>,
        end: u64,
        failure: &RefCell<Option<blk::Error>>,
        over: &Cell<bool>,
    ) {
        let mut buf = Buf::alloc(self.block_bytes as usize);
        while cursor.get() < end && failure.borrow().is_none() && !over.get() {
            let offset = cursor.get();
            let len = u64::from(self.block_bytes).min(end - offset);
            cursor.set(offset + len);
            buf.truncate(len as usize);
            let (read, result) = disk.clone().read(offset, buf).await;
            buf = read;
            if let Err(e) = result {
                failure.borrow_mut().get_or_insert(e);
            }
        }
    }
}
