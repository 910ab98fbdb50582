//! Power cuts in a repair: each file is as it was or as it was planned, and an undo brings all back.

use sim::Cut;

use super::*;

fn damaged() -> Files {
    let mut files = sound();
    files.retain(|name, _| !name.ends_with(".vmsn"));
    edit(&mut files, "web.vmdk", "CID=00000001", "CID=000000aa");
    edit(&mut files, "db.vmdk", "CID=000000d1", "CID=000000bb");
    files
}

/// Repairs a folder that loses power at `event`; true when the repair was done by then.
fn cut(files: &Files, mended: &Files, event: u64) -> bool {
    let world = world_of(files);
    world.cut_at(Cut::Event(event));
    let done = world.run(async move |env| {
        let dir = env.open_root("/web").unwrap();
        let plan = plan(&dir, VOUCHED).await?;
        apply(&dir, &plan).await
    });
    world.cancel_cut();
    world.power_cut();
    for (name, now) in contents(&world).into_iter().filter(|(name, _)| files.contains_key(name)) {
        assert!(now == files[&name] || now == mended[&name], "event {event}: {name} is neither");
    }
    let undone = world.run(async move |env| undo(&env.open_root("/web").unwrap()).await).unwrap();
    assert!(undone.is_ok() || undone.unwrap_err().kind == blk::ErrorKind::NotFound, "event {event}");
    let mut now = contents(&world);
    now.retain(|name, _| !name.ends_with(blk::dir::TEMPORARY_SUFFIX));
    assert_eq!(now, *files, "event {event}");
    done.is_some_and(|done| done.is_ok())
}

#[test]
fn a_power_cut_leaves_what_can_be_taken_back() {
    let files = damaged();
    let mended = repaired(&files, VOUCHED);
    assert_ne!(mended, files);
    let mut event = 1;
    while !cut(&files, &mended, event) {
        event += 1;
    }
    assert!(event > 100, "{event} cuts");
}
