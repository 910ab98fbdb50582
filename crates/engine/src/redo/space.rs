//! Use of the reserved space: guest writes are held back from its release until the operation has used it.

use std::ops::Range;
use std::rc::Rc;

use blk::Result;
use blk::manifest::Manifest;
use blk::sync::{Admitted, RangeGuard};

use super::disk::Disk;
use crate::options::Options;

/// Step by which the reserve is reduced when all of it cannot be had.
const RESERVE_STEP_BYTES: u64 = 256 << 10;

/// A hold: no guest write of these disks begins while it exists, and those under way have ended. Reads go on.
pub(crate) struct SpaceHold(Vec<Rc<Disk>>);

impl SpaceHold {
    pub(super) async fn over(disks: &[Rc<Disk>]) -> SpaceHold {
        disks.iter().for_each(|disk| disk.holds.count.update(|count| count + 1));
        let hold = SpaceHold(disks.to_vec());
        // An admitted write may still need space, and growth ahead of need would take all there is.
        for disk in disks {
            disk.write_gate.drain().await;
            for link in &disk.chain().links {
                // What one layer cannot give back, the next one may.
                let _ = link.layer.give_back().await;
            }
        }
        hold
    }
}

/// The region of VMFSsparse, for which `Options::reserve_bytes` is; and that of SEsparse, the largest that unstun makes.
const REGION_BYTES: u64 = 2 << 20;
const REGION_BYTES_MAX: u64 = 16 << 20;

/// Returns the space to set aside for a VM with these disks: a commit moves a region of its largest kind at once.
pub(crate) fn reserve_bytes(options: &Options, disks: &[Rc<Disk>]) -> u64 {
    let chains = disks.iter().map(|disk| disk.chain());
    let regions = chains.flat_map(|chain| {
        let deltas = chain.links.iter().map(|link| link.layer.shape()).filter(|shape| !shape.flat);
        deltas.map(|shape| shape.region_bytes).collect::<Vec<u64>>()
    });
    let region = regions.max().unwrap_or(REGION_BYTES).clamp(REGION_BYTES, REGION_BYTES_MAX);
    match options.reserve_bytes {
        0 => 0,
        bytes => bytes + 2 * (region - REGION_BYTES),
    }
}

/// Sets `bytes` aside again, or as much as there is: the file system's own records take a little each time.
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
    /// Admits a write of `range` when no other write works on the grains that it touches and no hold is on the disk's
    /// writes. From here to its end the write uses the present chain.
    pub(crate) async fn admit(&self, range: Range<u64>) -> Result<(Admitted, RangeGuard)> {
        loop {
            let grains = self.chain().whole_grains(&range);
            let guard = self.writes.lock(grains.clone()).await;
            self.refuse_when_closing()?;
            // A take may have added a layer with larger grains meanwhile.
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
