//! One disk of the VM: its chain, and the guest's I/O.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::RangeLock;
use blk::volume::{Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Local, Result, Slice};

use super::chain::Chain;
use super::fifo_lock::FifoLock;
use super::fills::Fills;
use super::gate::Gate;
use super::host::{Host, Purpose};
use super::rules::Rules;

/// Bytes of zeros that one write carries.
const ZERO_BYTES: u64 = 1 << 20;

pub(super) struct Disk {
    pub index: u32,
    /// Name of the base in the VM's directory.
    pub file_name: String,
    pub size_bytes: u64,
    pub rules: Rules,
    pub host: Rc<Host>,
    pub gate: Rc<Gate>,
    /// Replaced only while the gate is closed.
    chain: RefCell<Rc<Chain>>,
    /// Queue for what the rules do one at a time per disk.
    pub lock: FifoLock,
    /// Queue for the time that the rules have each guest I/O spend alone.
    section: FifoLock,
    /// Guest writes under way, and the piece that a mirroring committer copies. Overlapping ranges proceed in order of
    /// arrival.
    pub writes: RangeLock,
    pub fills: Fills,
    /// While a commit mirrors: below this byte the topmost delta and the layers below it have the same content.
    pub mirrored_to: Cell<Option<u64>>,
}

impl Disk {
    pub(super) fn new(
        index: u32,
        file_name: String,
        size_bytes: u64,
        rules: Rules,
        host: Rc<Host>,
        gate: Rc<Gate>,
        chain: Chain,
    ) -> Disk {
        Disk {
            index,
            file_name,
            size_bytes,
            rules,
            host,
            gate,
            chain: RefCell::new(Rc::new(chain)),
            lock: FifoLock::default(),
            section: FifoLock::default(),
            writes: RangeLock::default(),
            fills: Fills::default(),
            mirrored_to: Cell::new(None),
        }
    }

    pub(super) fn chain(&self) -> Rc<Chain> {
        self.chain.borrow().clone()
    }

    /// Replaces the chain. The caller has closed the gate, and no I/O is under way.
    pub(super) fn set_chain(&self, chain: Chain) {
        *self.chain.borrow_mut() = Rc::new(chain);
    }

    async fn read_guest(&self, offset: u64, buf: Buf) -> (Buf, Result<()>) {
        let _inside = self.gate.enter().await;
        let chain = self.chain();
        if chain.deltas.is_empty() {
            return self.host.read(&chain.base.file, offset, buf, Purpose::Guest).await;
        }
        self.spend_alone().await;
        self.read_chain(&chain, offset, buf).await
    }

    async fn write_guest(&self, offset: u64, data: Slice) -> Result<()> {
        let _inside = self.gate.enter().await;
        let chain = self.chain();
        if chain.deltas.is_empty() {
            return chain.base.write(&self.host, offset, data, Purpose::Guest).await;
        }
        self.spend_alone().await;
        self.write_chain(&chain, offset, data).await
    }

    /// Waits for the section that the rules give to one guest I/O at a time, and spends its time.
    async fn spend_alone(&self) {
        if self.rules.section_us > 0 {
            let _alone = self.section.lock().await;
            self.host.spend_us(self.rules.section_us.into()).await;
        }
    }

    /// Flushes the topmost delta, and the layer below it that a mirroring commit writes.
    async fn flush_guest(&self) -> Result<()> {
        let _inside = self.gate.enter().await;
        let chain = self.chain();
        let written = if self.mirrored_to.get().is_some() { 2 } else { 1 };
        for delta in chain.deltas.iter().rev().take(written) {
            delta.flush().await?;
        }
        if chain.deltas.len() < written {
            self.host.flush(&chain.base.file).await?;
        }
        Ok(())
    }

    async fn write_zeros(&self, range: Range<u64>) -> Result<()> {
        let len = ZERO_BYTES.min(range.end - range.start);
        let zeros = Buf::zeroed(len as usize).freeze();
        for at in range.clone().step_by(ZERO_BYTES as usize) {
            let len = ZERO_BYTES.min(range.end - at) as usize;
            self.write_guest(at, zeros.slice(0..len)).await?;
        }
        Ok(())
    }
}

/// A discard has no effect: deltas of that time could not free a grain.
impl Volume for Disk {
    fn info(&self) -> VolumeInfo {
        let preferred_bytes = super::format::DISK_ALIGN as u32;
        VolumeInfo { size_bytes: self.size_bytes, read_only: false, preferred_bytes, fast_zero: false }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move { self.read_guest(offset, buf).await })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move { self.write_guest(offset, data).await })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move { self.flush_guest().await })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move {
            if mode.fast_only {
                let cause = "zeros are written here, byte by byte";
                return Err(blk::Error::unsupported(format!("disk {}", self.index), cause));
            }
            self.write_zeros(range).await
        })
    }
}
