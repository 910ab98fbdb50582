//! A walk over the blocks of a tree that have no space in the store: those of sources, and lost ones.

use std::ops::Range;

use blk::{Error, ErrorKind, Result};

use super::cache::Nodes;
use super::entry::*;
use super::walk::{LeafOf, Side, Task, compare};
use crate::native::layout::device_of;

/// Visits the blocks of `root` that are on a device, with the device, and that `base` does not have in the same way.
/// Continues behind damaged pages.
pub(crate) async fn on_devices(
    nodes: &Nodes,
    root: Option<&Root>,
    base: Option<&Root>,
    visit: &mut dyn FnMut(Range<u64>, u8),
) -> Result<()> {
    compare(nodes, root, base, 0..u64::MAX, usize::MAX, &mut DeviceTask(visit)).await.map(drop)
}

struct DeviceTask<'a>(&'a mut dyn FnMut(Range<u64>, u8));

impl Task for DeviceTask<'_> {
    fn wants(&self, a: &Source, _: &Source) -> bool {
        !matches!(a, Source::Hole)
    }

    fn apart(&mut self, blocks: Range<u64>, a: &Source) {
        if let Source::Device(word) = a {
            (self.0)(blocks, device_of(*word));
        }
    }

    fn leaf(&mut self, blocks: Range<u64>, a: &LeafOf<'_>, b: &LeafOf<'_>) {
        let (a, b) = (a.entries(), b.entries());
        for block in blocks {
            let index = (block % span(0)) as usize;
            if device_of(a[index].addr) != 0 && a[index] != b[index] {
                (self.0)(block..block + 1, device_of(a[index].addr));
            }
        }
    }

    fn failed(&mut self, _: Side, _: &Spot, error: Error) -> Result<()> {
        match error.kind {
            ErrorKind::Damaged | ErrorKind::Io => Ok(()),
            _ => Err(error),
        }
    }
}
