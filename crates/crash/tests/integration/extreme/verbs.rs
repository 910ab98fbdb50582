//! Every verb of a VM, one after the other, whatever its result.

use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::{Buf, Result, SECTOR};
use engine::relocate::refuse_unmovable;
use engine::{CommitWhat, DiffRequest, Machine};

/// Carries out every verb; an error is a valid result.
pub(super) async fn carry_out(vm: Rc<dyn Machine>) {
    look(&vm).await;
    write(&vm).await;
    let _ = vm.clone().take("new", "of the test").await;
    let snapshots: Vec<String> = vm.state().snapshots.iter().map(|s| format!("{:032x}", s.id)).collect();
    for snapshot in &snapshots {
        let _ = vm.revert_preview(Some(snapshot), true).await;
        let _ = vm.discard_preview(snapshot).await;
        let _ = vm.commit_preview(&CommitWhat::One(snapshot.clone())).await;
    }
    commit(&vm, CommitWhat::One("new".to_owned())).await;
    if let Some(first) = snapshots.first() {
        let _ = vm.clone().revert(Some(first), Some("before"), false).await;
    }
    write(&vm).await;
    let _ = vm.clone().discard("before", true).await;
    for binned in vm.state().bin {
        let _ = (vm.binned_bytes(binned.id).await, vm.restore_preview(binned.id).await);
        let _ = vm.clone().restore(binned.id, true).await;
    }
    let entries = vm.state().bin.iter().map(|binned| binned.id).collect();
    let _ = vm.clone().empty_bin(entries).await;
    disks(&vm).await;
    let _ = vm.clone().reset(false).await;
    commit(&vm, CommitWhat::All).await;
    commit(&vm, CommitWhat::Unowned).await;
    look(&vm).await;
    let _ = vm.close().await;
}

async fn look(vm: &Rc<dyn Machine>) {
    let state = vm.state();
    let _ = (vm.listing().await, vm.delta_bytes().await, vm.used().await, vm.reset_preview().await);
    let _ = refuse_unmovable("web", &state.disks);
    for disk in vm.disks() {
        let _ = (disk.worst_growth_bytes().await, disk.layer_counters());
    }
    for disk in &state.disks {
        let Ok((volume, _client)) = vm.attach(disk.number, "test").await else { continue };
        for at in ends(volume.info().size_bytes) {
            let _ = volume.clone().read(at, Buf::alloc(SECTOR as usize)).await;
        }
    }
    for snapshot in &state.snapshots {
        for (disk, _) in &snapshot.disks {
            let from = snapshot.name.as_str();
            let _ =
                vm.differences(DiffRequest { disk: *disk, from, to: None, start: 0, end: u64::MAX }).await;
            let _ = vm
                .differences(DiffRequest { disk: *disk, from, to: None, start: u64::MAX, end: u64::MAX })
                .await;
            if let Ok((view, _client)) = vm.open_view(from, *disk, "test").await {
                let _ = view.clone().read(0, Buf::alloc(SECTOR as usize)).await;
            }
        }
    }
}

/// Writes to each disk, and skips those that cannot be attached.
async fn write(vm: &Rc<dyn Machine>) {
    for disk in vm.state().disks {
        let Ok((volume, _client)) = vm.attach(disk.number, "test").await else { continue };
        for at in ends(volume.info().size_bytes) {
            let _ = volume.clone().write(at, Buf::zeroed(SECTOR as usize).freeze()).await;
        }
        let _ = volume.clone().flush().await;
    }
}

/// Returns the offsets of the first sector, one in the middle, and the last.
fn ends(size_bytes: u64) -> [u64; 3] {
    let last = size_bytes.saturating_sub(SECTOR);
    [0, last / 2 / SECTOR * SECTOR, last]
}

async fn commit(vm: &Rc<dyn Machine>, what: CommitWhat) {
    let _ = vm.commit_preview(&what).await;
    if let Ok(job) = vm.clone().commit(&what).await {
        job.wait().await;
    }
}

async fn disks(vm: &Rc<dyn Machine>) {
    let new = NewDisk { size_bytes: 1 << 20, mode: DiskMode::Persistent, folder: None, source: None };
    let added: Result<_> = vm.clone().add_disk(&new).await;
    let sizes: Vec<(u32, u64)> = vm.state().disks.iter().map(|d| (d.number, d.size_bytes)).collect();
    for (number, size) in sizes {
        for wanted in [size.saturating_add(1 << 20), u64::MAX, u64::MAX - 4095, 1 << 62] {
            let _ = vm.clone().grow_disk(number, wanted).await;
        }
        for mode in
            [DiskMode::IndependentNonpersistent, DiskMode::IndependentPersistent, DiskMode::Persistent]
        {
            let _ = vm.clone().set_mode(number, mode).await;
        }
    }
    if let Ok(added) = added {
        let _ = vm.clone().remove_disk(added.number, true).await;
    }
    let _ = vm.clone().remove_disk(u32::MAX, true).await;
}
