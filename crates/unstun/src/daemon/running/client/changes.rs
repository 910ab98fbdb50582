//! Comparison of an export with the snapshots of its VM, for clients that copy only what has changed.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{Changes, OtherState};
use blk::{Local, Result};

use crate::daemon::running::messages::{Compared, ControlSide};
use crate::daemon::running::vm::RunningVm;

/// Comparisons begin at multiples of this: a native store compares blocks.
const ALIGNED_BYTES: u64 = 4096;

/// An export of a disk. The control side compares: the client's core may not be that of the VM, or of its store.
pub(crate) struct DiskChanges {
    control: ControlSide,
    vm: String,
    number: u32,
    /// ID of the sealed state; None for the running one.
    sealed: Option<u128>,
    /// As of the attachment.
    states: Vec<OtherState>,
}

impl DiskChanges {
    pub(crate) fn of_running(vm: &RunningVm, control: &ControlSide, number: u32) -> Option<Rc<dyn Changes>> {
        Some(Self::of(vm, control, number, None))
    }

    /// Returns None if the snapshot has another name by now.
    pub(crate) fn of_sealed(
        vm: &RunningVm,
        control: &ControlSide,
        number: u32,
        snapshot: &str,
    ) -> Option<Rc<dyn Changes>> {
        let state = vm.machine.state();
        let is_it = |name: &str, id: u128| name == snapshot || hex(id) == snapshot;
        let sealed = state.snapshots.iter().find(|found| is_it(&found.name, found.id))?;
        Some(Self::of(vm, control, number, Some(sealed.id)))
    }

    fn of(vm: &RunningVm, control: &ControlSide, number: u32, sealed: Option<u128>) -> Rc<dyn Changes> {
        let state = vm.machine.state();
        let has_disk = |disks: &[(u32, String)]| disks.iter().any(|(disk, _)| *disk == number);
        let others = state.snapshots.iter().filter(|snapshot| {
            Some(snapshot.id) != sealed && vm.machine.is_sealed(snapshot.id) && has_disk(&snapshot.disks)
        });
        let other = others.map(|found| OtherState { name: found.name.clone(), id: hex(found.id) });
        let (control, vm, states) = (control.clone(), vm.name.clone(), other.collect());
        Rc::new(DiskChanges { control, vm, number, sealed, states })
    }

    async fn compare(&self, id: &str, range: Range<u64>) -> Result<(Vec<Range<u64>>, u64)> {
        let start = range.start / ALIGNED_BYTES * ALIGNED_BYTES;
        let between = Compared {
            disk: self.number,
            from: id.to_owned(),
            to: self.sealed.map(hex),
            range: start..range.end,
        };
        let found = self.control.differences(&self.vm, between).await?;
        let clip = |part: &Range<u64>| part.start.max(range.start)..part.end.min(range.end);
        let changed = found.ranges.iter().map(clip).filter(|part| part.start < part.end).collect();
        Ok((changed, found.end.min(range.end)))
    }
}

impl Changes for DiskChanges {
    fn states(&self) -> Vec<OtherState> {
        self.states.clone()
    }

    fn since<'a>(&'a self, id: &'a str, range: Range<u64>) -> Local<'a, Result<(Vec<Range<u64>>, u64)>> {
        Box::pin(self.compare(id, range))
    }
}

/// Returns a snapshot's ID as clients see it.
pub(crate) fn hex(id: u128) -> String {
    format!("{id:032x}")
}
