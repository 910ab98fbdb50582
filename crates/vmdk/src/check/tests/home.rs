//! Folders that unstun has created, or in which it has continued a VM.

use blk::layer::Where;
use blk::manifest::{Change, Manifest, SnapshotState, VmState};

use super::*;
use crate::home::{Folders, Home, NewVm};

const GROWTH: Growth = Growth { step_bytes: 16 << 10, chunk_bytes: 16 << 10 };

/// Puts a child on every disk, as a take does, and writes its first sector.
async fn take(home: &dyn Manifest, state: &VmState) -> VmState {
    let mut next = state.clone();
    next.last_uid += 1;
    let id = u128::from(next.last_uid) << 64;
    let disks = state.disks.iter().map(|disk| (disk.number, disk.top.clone())).collect();
    next.snapshots.push(SnapshotState {
        id,
        uid: next.last_uid,
        parent: state.current,
        name: "ours".into(),
        description: String::new(),
        created_unix_us: 1,
        disks,
    });
    next.current = Some(id);
    for disk in &mut next.disks {
        let child = home.create_child(&disk.top).await.unwrap();
        write(&*child, 0, &[0xAB; 512]).await.unwrap();
        flush(&*child).await.unwrap();
        child.seal().await.unwrap();
        disk.top = child.name().into();
    }
    home.publish(&Change { next: next.clone(), ..Change::default() }).await.unwrap();
    home.load().await.unwrap()
}

/// The only expected finding for a snapshot that unstun has taken.
fn assert_only_vmware_may_not_revert(report: &Report, snapshots: usize) {
    assert_eq!(report.findings.len(), snapshots, "{report:?}");
    for finding in &report.findings {
        assert_eq!(finding.severity, Note);
        assert!(finding.expected.contains("which may not revert to it"), "{finding}");
    }
}

#[test]
fn our_own_files_are_sound() {
    let world = SimWorld::new(1, Options::default());
    world.run(async |env| {
        let dir = env.open_root("/web").unwrap();
        let vm = NewVm::new("web", &[CAPACITY * SECTOR, 512 * 9]);
        let home = Home::create(dir.clone(), Folders::default(), GROWTH, vm).await.unwrap();
        let home: &dyn Manifest = &home;
        let mut state = home.load().await.unwrap();
        assert_eq!(check(&dir, Target::Folder).await.unwrap(), Report::default());
        for snapshots in 1..=3 {
            state = take(home, &state).await;
            assert_only_vmware_may_not_revert(&check(&dir, Target::Folder).await.unwrap(), snapshots);
        }
    });
}

/// A VM whose running link is SEsparse continues in a VMFSsparse child.
#[test]
fn a_child_on_sesparse() {
    let world = world_of(&sound());
    world.run(async |env| {
        let dir = env.open_root("/web").unwrap();
        let home = Home::new(dir.clone(), Folders::default(), GROWTH);
        let home: &dyn Manifest = &home;
        let state = home.load().await.unwrap();
        assert_eq!(state.disks[1].top, "db-000002.vmdk");
        let state = take(home, &state).await;
        let top = &state.disks[1].top;
        let text = String::from_utf8(dir.read_file(top, 4096).await.unwrap()).unwrap();
        assert!(text.contains("Not for VMFS6"), "{text}");
        let chain = home.chain(top).await.unwrap();
        let formats: Vec<&str> = chain.iter().map(|info| info.format.as_str()).collect();
        assert_eq!(formats, ["vmfs", "seSparse", "seSparse", "vmfsSparse"]);
        let below = home.open("db-000002.vmdk", true).await.unwrap();
        assert!(!below.shape().writable, "whatever is asked for");
        assert!(matches!(below.lookup(0..512).await.unwrap()[0].place, Where::Data { .. }));
        assert_only_vmware_may_not_revert(&check(&dir, Target::Folder).await.unwrap(), 1);
    });
}
