//! Locks and links that a repair moves aside.

use super::*;

/// Adds a link without references, beside web-000002 on web-000001.
pub(super) fn with_orphan(files: &mut Files) {
    let text = String::from_utf8(files["web-000002.vmdk"].clone()).unwrap();
    files.insert("web-000003.vmdk".into(), text.replace("web-000002", "web-000003").into());
    files.insert("web-000003-delta.vmdk".into(), files["web-000002-delta.vmdk"].clone());
}

pub(super) fn with_locks(files: &mut Files) {
    files.insert("web.vmdk.lck/M61234.lck".into(), b"a process".to_vec());
    files.insert("web.vmdk.lck/M61235.lck".into(), b"another".to_vec());
    files.insert(".lck-0123".into(), vec![1; 84]);
}

#[test]
fn locks_are_moved_aside_only_on_request() {
    let mut files = sound();
    with_locks(&mut files);
    let plan = planned(&files, RepairOptions::default());
    assert!(
        plan.is_empty() && reasons(&plan).matches("--stale-locks moves it aside").count() == 2,
        "{plan:?}"
    );
    let terms = RepairOptions { stale_locks: true, ..RepairOptions::default() };
    let plan = planned(&files, terms.clone());
    assert!(plan.mends.iter().all(|mend| mend.action == Action::MoveAside), "{plan:?}");
    assert_eq!(plan.after, Report::default());
    assert_eq!(plan.stale_locks().collect::<Vec<_>>(), [".lck-0123", "web.vmdk.lck/"]);
    assert_eq!(repaired(&files, terms), sound());
    // Locks that the plan leaves.
    files.insert("web.vmx.lck/deep/file".into(), Vec::new());
    let world = world_of(&files);
    let refused = world.run(async move |env| {
        let dir = env.open_root("/web").unwrap();
        let plan = super::plan(&dir, &vouched()).await.unwrap();
        (plan.refuse_foreign_use(&dir).await.unwrap_err(), reasons(&plan))
    });
    let (error, said) = refused.unwrap();
    assert!(error.kind == blk::ErrorKind::Locked && error.to_string().contains("web.vmx.lck"), "{error}");
    assert!(said.contains("has a folder \"deep/\" in it"), "{said}");
}

#[test]
fn an_orphan_is_moved_aside_with_its_extents_and_only_on_request() {
    let mut files = sound();
    with_orphan(&mut files);
    let plan = planned(&files, RepairOptions::default());
    assert!(plan.is_empty() && reasons(&plan).contains("--move-orphans moves it aside"), "{plan:?}");
    let terms = RepairOptions { move_orphans: true, ..RepairOptions::default() };
    let plan = planned(&files, terms.clone());
    let [mend] = &plan.mends[..] else { panic!("{plan:?}") };
    assert_eq!(mend.lines, ["web-000003.vmdk", "web-000003-delta.vmdk"]);
    assert_eq!(repaired(&files, terms), sound());
}

#[test]
fn a_file_that_may_be_needed_is_no_orphan() {
    type Plant = fn(&mut Files);
    let cases: [(Plant, &str); 5] = [
        // Moving one aside does not decide which of two was meant.
        (
            |files| {
                edit(files, "web-000003.vmdk", "CID=00000003", "CID=00000002");
                edit(files, "web-000002.vmdk", "Hint=\"web-000001.vmdk\"", "Hint=\"gone.vmdk\"");
            },
            "\"web-000002.vmdk\" has not found the link that it was made on",
        ),
        (
            |files| _ = files.remove("web.vmsd"),
            "is not here, so that nothing tells which snapshots there are",
        ),
        (
            |files| edit(files, "web.vmx", "\"db-000002.vmdk\"", "\"db-000009.vmdk\""),
            "names \"db-000009.vmdk\", which cannot be read",
        ),
        (
            |files| {
                files.remove("web-000003-delta.vmdk");
                edit(files, "web-000003.vmdk", "web-000003-delta", "web-000002-delta");
            },
            "\"web-000002.vmdk\" names its extent",
        ),
        (
            |files| {
                let mark = "# unstun: of VM 0000000000000000000000000000000a\nversion=1";
                edit(files, "web-000003.vmdk", "version=1", mark);
            },
            "another VM of unstun made it",
        ),
    ];
    for (plant, reason) in cases {
        let mut files = sound();
        with_orphan(&mut files);
        plant(&mut files);
        let plan = planned(&files, vouched());
        assert!(plan.mends.iter().all(|mend| mend.action != Action::MoveAside), "{reason}: {plan:?}");
        assert!(reasons(&plan).contains(reason), "{reason}: {}", reasons(&plan));
    }
}

#[test]
fn a_lock_that_is_taken_again_stops_an_undo() {
    let mut files = sound();
    with_locks(&mut files);
    let world = world_of(&files);
    let error = world.run(async move |env| {
        let dir = env.open_root("/web").unwrap();
        apply(&dir, &plan(&dir, &vouched()).await.unwrap()).await.unwrap();
        let lock = dir.open_dir("web.vmdk.lck", true).await.unwrap();
        drop(lock.create_new("M61234.lck").await.unwrap());
        undo(&dir).await.unwrap_err()
    });
    assert_eq!(error.unwrap().kind, blk::ErrorKind::Refused);
}
