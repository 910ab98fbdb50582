//! The page of a lease on the device, its reads and its writes.

use std::cell::Cell;
use std::rc::Rc;

use blk::reactor::Reservation;
use blk::{Buf, Env, Fence, File, Result};

use super::page::LeasePage;
use crate::native::layout::{BLOCK, LEASE_BLOCK};

/// The lease's page on the device, and the fence of its writes. It has one user at a time.
pub(super) struct LeaseFile {
    pub env: Env,
    pub file: File,
    pub store_id: u64,
    starts: Rc<Fence>,
    /// The key with which this opening is registered with the device.
    pub registered: Cell<Option<u64>>,
}

/// Result of a read.
pub(super) struct LeaseRead {
    /// The page, or an error if it cannot be decoded.
    pub page: Result<LeasePage>,
    pub bytes: Buf,
    /// Boot time before the read was submitted.
    pub at_ns: u64,
}

impl LeaseFile {
    pub(super) fn new(env: &Env, file: File, store_id: u64) -> LeaseFile {
        let starts = Fence::failing(env);
        file.set_fence(starts.clone());
        LeaseFile { env: env.clone(), file, store_id, starts, registered: Cell::new(None) }
    }

    /// Takes a step of the device's reservations. Fails with `LeaseLost` if it has not started by `until_ns` of the boot
    /// time.
    pub(super) async fn reserve(&self, step: Reservation, until_ns: u64) -> Result<bool> {
        self.starts.open_until(until_ns);
        self.file.reserve(step).await
    }

    pub(super) async fn read(&self) -> Result<LeaseRead> {
        self.starts.open_until(u64::MAX);
        let at_ns = self.env.boot_ns();
        let offset = LEASE_BLOCK * BLOCK;
        let (bytes, read) = self.file.tables().read(offset, Buf::alloc(BLOCK as usize)).await;
        read?;
        let page = LeasePage::decode(&bytes, self.store_id, self.file.name());
        Ok(LeaseRead { page, bytes, at_ns })
    }

    /// Writes the page. Fails with `LeaseLost` if the write has not started by `until_ns` of the boot time.
    pub(super) async fn write(&self, page: &LeasePage, until_ns: u64) -> Result<()> {
        self.starts.open_until(until_ns);
        self.file.tables().write(LEASE_BLOCK * BLOCK, page.encode()).await
    }

    pub(super) async fn flush(&self) -> Result<()> {
        self.starts.open_until(u64::MAX);
        self.file.flush().await
    }
}
