//! Operations on a VM that a core runs, and their previews. Those of a native VM run where its store is.

use std::rc::Rc;

use blk::manifest::{DeltaFormat, DiskMode, DiskState, NewDisk, SnapshotState};
use engine::{CommitPreview, CommitWhat, GenerationChange, Loss, Rename};

use crate::daemon::cores::vm_handle::VmHandle;
use crate::daemon::running::vm::RunningVm;

impl VmHandle {
    // Previews.

    pub(crate) async fn commit_preview(&self, what: &CommitWhat) -> blk::Result<CommitPreview> {
        let what = what.clone();
        self.on_machine(async move |vm| vm.commit_preview(&what).await).await
    }

    pub(crate) async fn revert_preview(&self, wanted: Option<&str>, keeps: bool) -> blk::Result<Loss> {
        let wanted = wanted.map(str::to_owned);
        self.on_machine(async move |vm| vm.revert_preview(wanted.as_deref(), keeps).await).await
    }

    pub(crate) async fn discard_preview(&self, wanted: &str) -> blk::Result<Loss> {
        let wanted = wanted.to_owned();
        self.on_machine(async move |vm| vm.discard_preview(&wanted).await).await
    }

    pub(crate) async fn reset_preview(&self) -> blk::Result<Loss> {
        self.on_machine(async |vm| vm.reset_preview().await).await
    }

    pub(crate) async fn restore_preview(&self, id: u64) -> blk::Result<Loss> {
        self.on_machine(async move |vm| vm.restore_preview(id).await).await
    }

    // Operations.

    /// Takes a snapshot with the id, the name, the description and the time of `label`.
    pub(crate) async fn take(&self, label: SnapshotState, format: DeltaFormat) -> blk::Result<SnapshotState> {
        self.on_machine(async move |vm| vm.take_as(&label, format).await).await
    }

    pub(crate) async fn revert(
        &self,
        wanted: Option<&str>,
        take_first: Option<&str>,
        keep: bool,
    ) -> blk::Result<SnapshotState> {
        let (wanted, first) = (wanted.map(str::to_owned), take_first.map(str::to_owned));
        self.on_machine_without_clients(async move |vm| {
            vm.revert(wanted.as_deref(), first.as_deref(), keep).await
        })
        .await
    }

    pub(crate) async fn rename(&self, wanted: &str, rename: Rename) -> blk::Result<SnapshotState> {
        let wanted = wanted.to_owned();
        self.on_machine(async move |vm| vm.rename(&wanted, &rename).await).await
    }

    pub(crate) async fn discard(&self, wanted: &str, keep: bool) -> blk::Result<Loss> {
        let wanted = wanted.to_owned();
        self.on_machine_without_clients(async move |vm| vm.discard(&wanted, keep).await).await
    }

    pub(crate) async fn reset(&self, keep: bool) -> blk::Result<Loss> {
        self.on_machine_without_clients(async move |vm| vm.reset(keep).await).await
    }

    pub(crate) async fn restore(&self, id: u64, keep: bool) -> blk::Result<Loss> {
        self.on_machine_without_clients(async move |vm| vm.restore(id, keep).await).await
    }

    pub(crate) async fn empty_bin(&self, ids: Vec<u64>) -> blk::Result<u64> {
        self.on_machine(async move |vm| vm.empty_bin(ids).await).await
    }

    pub(crate) async fn add_disk(&self, wanted: &NewDisk) -> blk::Result<DiskState> {
        let wanted = wanted.clone();
        self.on_machine(async move |vm| vm.add_disk(&wanted).await).await
    }

    pub(crate) async fn remove_disk(&self, number: u32, remove_files: bool) -> blk::Result<()> {
        self.on_machine_without_clients(async move |vm| vm.remove_disk(number, remove_files).await).await
    }

    pub(crate) async fn grow_disk(&self, number: u32, size_bytes: u64) -> blk::Result<()> {
        self.on_machine_without_clients(async move |vm| vm.grow_disk(number, size_bytes).await).await
    }

    pub(crate) async fn set_mode(&self, number: u32, mode: DiskMode) -> blk::Result<()> {
        self.on_machine_without_clients(async move |vm| vm.set_mode(number, mode).await).await
    }

    pub(crate) async fn change_generation(&self, change: GenerationChange) -> blk::Result<()> {
        self.on_machine(async move |vm| vm.change_generation(change).await).await
    }

    pub(crate) async fn close(&self) -> blk::Result<()> {
        if self.native.is_some() {
            let close_disks = async |_, vm: Rc<RunningVm>| {
                if let Some(remote) = &vm.remote {
                    remote.close_disks();
                }
            };
            self.run(close_disks).await;
        }
        self.on_machine_without_clients(async |vm| vm.close().await).await
    }
}
