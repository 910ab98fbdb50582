//! Use of the reserved space: guests' writes are held back from its release until the operation has used it.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use blk::Result;
use blk::manifest::Manifest;
use blk::sync::{Admitted, RangeGuard, Signal};

use super::disk::Disk;

/// By how much less is tried when the whole reserve cannot be had.
const RESERVE_STEP_BYTES: u64 = 256 << 10;

/// How many hold a disk's writes back, and who waits for them.
#[derive(Default)]
pub(crate) struct Holds {
    count: Cell<usize>,
    released: Signal,
}

/// While it lives no guest write of these disks begins; those under way have ended. Reads go on.
pub(crate) struct SpaceHold(Vec<Rc<Disk>>);

impl SpaceHold {
    pub async fn over(disks: &[Rc<Disk>]) -> SpaceHold {
        disks.iter().for_each(|disk| disk.holds.count.update(|count| count + 1));
        let hold = SpaceHold(disks.to_vec());
        // A write that was admitted may need space yet, and growth ahead of need would take all there is.
        for disk in disks {
            disk.write_gate.drain().await;
            for link in &disk.chain().links {
                // What cannot be had from one layer may come from the next.
                let _ = link.layer.give_back().await;
            }
        }
        hold
    }
}

/// Sets `bytes` aside again, or what there is of them: the file system's own records take a little each time.
pub(crate) async fn set_aside(manifest: &dyn Manifest, bytes: u64) {
    let mut wanted = bytes;
    while let Err(e) = manifest.reserve(wanted).await {
        if !e.is_no_space() || wanted <= bytes / 2 {
            return;
        }
        wanted -= RESERVE_STEP_BYTES.min(wanted);
    }
}

impl Drop for SpaceHold {
    fn drop(&mut self) {
        for disk in &self.0 {
            disk.holds.count.update(|count| count - 1);
            disk.holds.released.notify();
        }
    }
}

impl Disk {
    /// Admits a write of `range`: no other is at work in the grains that it touches, and nobody holds the disk's writes
    /// back. From here to its end the write belongs to the chain that is there now.
    pub(crate) async fn admit(&self, range: Range<u64>) -> Result<(Admitted, RangeGuard)> {
        loop {
            let grains = self.chain().whole_grains(&range);
            let guard = self.writes.lock(grains.clone()).await;
            self.refuse_when_closing()?;
            // A take meanwhile may have brought a layer with larger grains.
            if self.chain().whole_grains(&range) != grains {
                continue;
            }
            if self.holds.count.get() == 0 {
                return Ok((self.write_gate.enter(), guard));
            }
            let released = self.holds.released.wait();
            // The mover takes ranges too.
            drop(guard);
            released.await;
        }
    }
}
