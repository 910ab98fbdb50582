//! Operations that fail in the middle, and the state that they leave.

use super::*;

#[test]
fn running_out_of_space_before_the_commit_point_changes_nothing_and_after_it_is_no_lack_of_space() {
    let mut without_space = 0;
    for nth in 1..400 {
        let world = new_world(7);
        let before = world.run(async |env| home(&env).await.load().await.unwrap()).unwrap();
        let (state, faults) = (before.clone(), world.clone());
        let outcome = world.run(async move |env| {
            let home = home(&env).await;
            faults.add_fault(Fault::nth(nth, Action::Fail(blk::Errno::ENOSPC)));
            take_all(&home, &state, 1).await
        });
        world.clear_faults();
        let (after, _) = world.run(evidence).unwrap();
        match outcome.unwrap() {
            Ok(state) => assert_eq!(after, state),
            Err(e) if e.is_no_space() => {
                assert_eq!(after, before, "operation {nth}: {e}");
                without_space += 1;
            }
            Err(_) => {}
        }
    }
    assert!(without_space > 50, "{without_space} operations before the commit point");
}

#[test]
fn a_vm_that_could_not_be_made_leaves_nothing_in_the_folders_of_its_disks() {
    let mut failed = 0;
    for nth in 1.. {
        let world = SimWorld::new(18, Options::default());
        let faults = world.clone();
        let made = world.run(async move |env| {
            let dir = root(&env).open_dir("web", true).await.unwrap();
            let own = Folders { own: vec![env.open_root("/fast").unwrap()], ..Folders::default() };
            let mut vm = NewVm::new("web", &[DISK_BYTES, DISK_BYTES, DISK_BYTES]);
            vm.disks[0].folder = Some("/fast".into());
            vm.disks[2].folder = Some("/fast".into());
            faults.add_fault(Fault::nth(nth, Action::Fail(blk::Errno::EIO)));
            Home::create(dir, own, GROWTH, vm).await.map(drop)
        });
        if made.unwrap().is_ok() {
            break;
        }
        failed += 1;
        let fast = world.list("fast", View::Current).unwrap_or_default();
        assert!(fast.iter().all(|name| name == ".unstun-names"), "operation {nth}: {fast:?}");
    }
    assert!(failed > 20, "{failed} operations in all");
}
