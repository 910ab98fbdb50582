//! A tree of branches: files kept with each snapshot, restored lists of disks, and disks that are added, grown and
//! reset.

use blk::manifest::DiskMode;

use super::*;

fn new_disk(mode: DiskMode) -> NewDisk {
    NewDisk { size_bytes: 1 << 20, mode, folder: None, source: None }
}

/// Applies a revert to the snapshot with `id`: `disks` are those that were kept, each on a new child of its layer.
async fn revert(home: &Home, state: &VmState, id: u128, remove: Vec<LayerName>) -> Result<VmState> {
    let mut next = state.clone();
    next.current = Some(id);
    next.disks = home.disks_at(id).await?.expect("kept");
    for disk in &mut next.disks {
        disk.top = home.create_child(&disk.top).await?.name().to_owned();
    }
    home.publish(&Change { next: next.clone(), configuration: Some(id), remove, ..Change::default() })
        .await?;
    Ok(next)
}

/// Takes a snapshot of both disks, then replaces the second disk by a new one.
async fn changed_disks(home: &Home) -> VmState {
    let state = home.load().await.unwrap();
    let state = take_all(home, &state, 1).await.unwrap();
    let mut next = state.clone();
    next.disks.truncate(1);
    home.publish(&Change {
        next: next.clone(),
        remove: vec!["web_1-000001.vmdk".into()],
        ..Change::default()
    })
    .await
    .unwrap();
    let made = home.create_disk(&next, &new_disk(DiskMode::Persistent)).await.unwrap();
    assert_eq!((made.number, made.slot.as_str()), (2, "scsi0:1"));
    next.disks.push(made);
    home.publish(&Change { next: next.clone(), ..Change::default() }).await.unwrap();
    next
}

#[test]
fn a_revert_restores_the_list_of_disks() {
    let world = new_world(21);
    world.run(async |env| {
        let home = home(&env).await;
        let state = changed_disks(&home).await;
        assert_eq!(home.load().await.unwrap(), state);
        assert_eq!(state.disks[1].top, "web_2.vmdk", "the place is free, the names are not");
        assert_eq!(state.snapshots[0].disks[1], (1, "web_1.vmdk".into()), "the snapshot keeps its disk");
        let kept = home.disks_at(1).await.unwrap().unwrap();
        let kept: Vec<_> = kept.iter().map(|d| (d.number, d.top.as_str(), d.size_bytes)).collect();
        assert_eq!(kept, [(0, "web.vmdk", DISK_BYTES), (1, "web_1.vmdk", 4608)]);
        let reverted = revert(&home, &state, 1, vec!["web-000001.vmdk".into()]).await.unwrap();
        assert_eq!(home.load().await.unwrap(), reverted);
        assert_eq!(reverted.disks[1].slot, "scsi0:1");
        let next = home.create_disk(&reverted, &new_disk(DiskMode::Persistent)).await.unwrap();
        assert_eq!(next.number, 3, "a number is never used again");
    });
}

#[test]
fn a_power_cut_anywhere_in_a_revert_leaves_one_of_the_two_lists_of_disks() {
    cut_everywhere(
        &[],
        async |home| changed_disks(&home).await,
        async |home, state| revert(&home, &state, 1, vec!["web-000001.vmdk".into()]).await,
    );
}

#[test]
fn a_power_cut_anywhere_in_adding_a_disk_leaves_it_whole_or_not_at_all() {
    cut_everywhere(
        &["/fast"],
        async |home| home.load().await.unwrap(),
        async |home, state| {
            home.load().await?;
            let wanted =
                NewDisk { folder: Some("/fast".into()), ..new_disk(DiskMode::IndependentPersistent) };
            let mut next = state.clone();
            next.disks.push(home.create_disk(&state, &wanted).await?);
            home.publish(&Change { next: next.clone(), ..Change::default() }).await?;
            Ok(next)
        },
    );
}

#[test]
fn the_files_of_a_snapshot_are_removed_with_it() {
    let world = new_world(22);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        let state = take_all(&home, &state, 1).await.unwrap();
        let state = take_all(&home, &state, 2).await.unwrap();
        let vmsd = String::from_utf8(home.dir().read_file("web.vmsd", 1 << 20).await.unwrap()).unwrap();
        let vmsd = format!(
            "{vmsd}snapshot0.filename = \"web-Snapshot1.vmsn\"\nsnapshot1.filename = \"web-flat.vmdk\"\n"
        );
        home.dir().replace_file("web.vmsd", vmsd.as_bytes()).await.unwrap();
        for name in ["web-Snapshot1.vmsn", "web-Snapshot1.vmem", "web-Snapshot2.vmsn"] {
            home.dir().replace_file(name, b"x").await.unwrap();
        }
        let private = home.dir().open_dir(OWN_FOLDER, false).await.unwrap();
        assert!(private.list().await.unwrap().contains(&"snapshot-1.vmx".to_owned()));
        let mut next = state.clone();
        next.snapshots.clear();
        next.current = None;
        home.publish(&Change { next, ..Change::default() }).await.unwrap();
        let names = home.dir().list().await.unwrap();
        assert!(!names.iter().any(|name| name.starts_with("web-Snapshot1")), "{names:?}");
        for name in ["web-Snapshot2.vmsn", "web-flat.vmdk"] {
            assert!(names.contains(&name.to_owned()), "{name} was not this snapshot's to remove");
        }
        let ours = private.list().await.unwrap();
        assert!(!ours.iter().any(|name| name.starts_with("snapshot-")), "{ours:?}");
    });
}

#[test]
fn no_configuration_is_stored_for_a_snapshot_that_vmware_took() {
    let world = new_world(23);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        let state = take_all(&home, &state, 1).await.unwrap();
        let private = home.dir().open_dir(OWN_FOLDER, false).await.unwrap();
        private.unlink("snapshot-1.vmx").await.unwrap();
        assert_eq!(home.disks_at(1).await.unwrap(), None);
        assert_eq!(home.disks_at(9).await.unwrap_err().kind, ErrorKind::NotFound);
        let mut next = state.clone();
        next.disks[0].top = home.create_child("web.vmdk").await.unwrap().name().to_owned();
        let change = Change { next: next.clone(), configuration: Some(1), ..Change::default() };
        home.publish(&change).await.unwrap();
        assert_eq!(home.load().await.unwrap(), next);
    });
}

#[test]
fn writes_of_a_nonpersistent_disk_go_to_its_redo_and_a_reset_drops_them() {
    let world = new_world(24);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        let mut next = state.clone();
        let mut made = home.create_disk(&state, &new_disk(DiskMode::IndependentNonpersistent)).await.unwrap();
        made.reset_to = Some(made.top.clone());
        made.top = home.create_child(&made.top).await.unwrap().name().to_owned();
        next.disks.push(made);
        home.publish(&Change { next: next.clone(), ..Change::default() }).await.unwrap();
        assert_eq!(home.load().await.unwrap(), next);
        let disk = next.disks.last().unwrap().clone();
        assert_eq!((disk.top.as_str(), disk.reset_to.as_deref()), ("web_2-000001.vmdk", Some("web_2.vmdk")));
        let base = links::read(&home.folders, "web_2.vmdk").await.unwrap();
        assert!(!base.is_prepared(), "it is named, though not as a top");
        let top = home.create_child("web_2.vmdk").await.unwrap().name().to_owned();
        next.disks.last_mut().unwrap().top = top;
        let change = Change { next: next.clone(), remove: vec![disk.top], ..Change::default() };
        home.publish(&change).await.unwrap();
        assert_eq!(home.load().await.unwrap(), next);
    });
    let names = world.run(evidence).unwrap().1;
    assert!(!names.contains(&"web_2-000001-delta.vmdk".to_owned()), "{names:?}");
}

#[test]
fn a_base_grows_and_nothing_else_does() {
    let world = new_world(25);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        home.grow("web.vmdk", 2 << 30).await.unwrap();
        let link = links::read(&home.folders, "web.vmdk").await.unwrap();
        assert_eq!(
            (link.capacity_sectors() * SECTOR, link.ddb("geometry.cylinders")),
            (2 << 30, Some("2048"))
        );
        let size = home.open("web.vmdk", true).await.unwrap().shape().size_bytes;
        assert_eq!((size, home.load().await.unwrap().disks[0].size_bytes), (2 << 30, 2 << 30));
        for (bytes, message) in [(1 << 30, "would shrink"), (0, "a multiple of 512"), (65 << 40, "64 TiB")] {
            let error = home.grow("web.vmdk", bytes).await.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
        let state = VmState { disks: home.load().await.unwrap().disks, ..state };
        take_all(&home, &state, 1).await.unwrap();
        let error = home.grow("web.vmdk", 3 << 30).await.unwrap_err();
        assert!(error.to_string().contains("error 67"), "{error}");
        let error = home.grow("web-000001.vmdk", 3 << 30).await.unwrap_err();
        assert!(error.to_string().contains("it is a delta"), "{error}");
    });
}

#[test]
fn a_power_cut_anywhere_in_growing_leaves_the_old_size_or_the_new_one() {
    let sizes = std::cell::RefCell::new(BTreeSet::new());
    for nth in 1.. {
        let world = new_world(nth);
        world.cut_at(Cut::Event(nth));
        let finished = world.run(async |env| home(&env).await.grow("web.vmdk", 4 << 20).await.unwrap());
        world.cancel_cut();
        world.power_cut();
        let (state, _) = world.run(evidence).unwrap();
        sizes.borrow_mut().insert(state.disks[0].size_bytes);
        if finished.is_some() {
            assert_eq!(state.disks[0].size_bytes, 4 << 20);
            break;
        }
    }
    assert_eq!(sizes.into_inner(), BTreeSet::from([DISK_BYTES, 4 << 20]));
}

#[test]
fn links_include_all_branches_and_unowned_files() {
    let world = new_world(26);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        let state = take_all(&home, &state, 1).await.unwrap();
        let state = take_all(&home, &state, 2).await.unwrap();
        // A side branch: the running state returns to the first snapshot, and the second keeps its layers.
        let state = revert(&home, &state, 1, Vec::new()).await.unwrap();
        let prepared = home.create_child("web.vmdk").await.unwrap().name().to_owned();
        let links = home.links().await.unwrap();
        let parent_of = |name: &str| {
            let found = links.iter().find(|link| link.name == name);
            found.map(|link| link.parent.clone())
        };
        assert_eq!(parent_of("web.vmdk"), Some(None));
        assert_eq!(parent_of("web-000001.vmdk"), Some(Some("web.vmdk".into())), "of the side branch");
        assert_eq!(parent_of("web-000002.vmdk"), Some(Some("web-000001.vmdk".into())), "no snapshot owns it");
        assert_eq!(parent_of(&state.disks[0].top), Some(Some("web.vmdk".into())));
        assert_eq!(parent_of(&prepared), None);
        assert_eq!(links.len(), 8);
    });
}

#[test]
fn forty_snapshots_in_branches_load_as_they_were_published() {
    let world = new_world(27);
    world.run(async |env| {
        let home = home(&env).await;
        let mut state = home.load().await.unwrap();
        for uid in 1..=40 {
            state = take_all(&home, &state, uid).await.unwrap();
            if uid % 7 == 0 {
                state = revert(&home, &state, u128::from(uid / 2), Vec::new()).await.unwrap();
            }
        }
        assert_eq!(home.load().await.unwrap(), state);
        assert_eq!(home.links().await.unwrap().len(), 2 * (1 + 40 + 5));
        home.chain(&state.disks[0].top).await.unwrap();
    });
}
