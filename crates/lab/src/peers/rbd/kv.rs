//! The log of BlueStore's key-value store. Transactions that arrive while it is written are written together.

use std::cell::Cell;

use blk::{Buf, File, Result};

use crate::peers::vm::Vm;
use crate::vmware::fifo_lock::FifoLock;
use crate::vmware::host::Purpose;

/// Length of the log before it begins anew.
const LOG_BYTES: u64 = 256 << 20;
/// The shortest write.
const WRITE_BYTES: u64 = 4096;

pub(super) struct Kv {
    log: File,
    at: Cell<u64>,
    /// Bytes of the transactions that wait, and their group.
    waiting_bytes: Cell<u64>,
    group: Cell<u64>,
    writer: FifoLock,
}

impl Kv {
    pub(super) async fn create(vm: &Vm, name: &str) -> Result<Kv> {
        let log = vm.create_file(name).await?;
        let (at, waiting_bytes, group) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Ok(Kv { log, at, waiting_bytes, group, writer: FifoLock::default() })
    }

    /// Resolves when the transaction, and data that was written before it, are durable (Ceph
    /// `src/os/bluestore/BlueStore.cc`, _kv_sync_thread).
    pub(super) async fn commit(&self, vm: &Vm, data: &File, bytes: u64) -> Result<()> {
        self.waiting_bytes.set(self.waiting_bytes.get() + bytes);
        let group = self.group.get();
        let _own = self.writer.lock().await;
        if self.group.get() != group {
            return Ok(());
        }
        self.group.set(group + 1);
        let len = self.waiting_bytes.take().next_multiple_of(WRITE_BYTES).min(LOG_BYTES);
        vm.host.flush(data).await?;
        let at = if self.at.get() + len > LOG_BYTES { 0 } else { self.at.get() };
        self.at.set(at + len);
        vm.host.write(&self.log, at, Buf::zeroed(len as usize).freeze(), Purpose::Table).await?;
        vm.host.flush(&self.log).await
    }
}
