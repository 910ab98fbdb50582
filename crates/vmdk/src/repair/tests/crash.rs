//! Power cuts during a repair: each file, and each sector of a delta, is in its old or its planned state, and an undo
//! restores everything.

use sim::Cut;

use super::moved::{with_locks, with_orphan};
use super::*;

fn with_texts(files: &mut Files) {
    files.retain(|name, _| !name.ends_with(".vmsn"));
    edit(files, "web.vmdk", "CID=00000001", "CID=000000aa");
    edit(files, "db.vmdk", "CID=000000d1", "CID=000000bb");
}

fn with_lost_descriptors(files: &mut Files) {
    files.remove("web-000001.vmdk");
    let text = &files["db-000002.vmdk"];
    let half = text[..text.len() / 2].to_vec();
    files.insert("db-000002.vmdk".into(), half);
}

fn with_cut_deltas(files: &mut Files) {
    for (name, sectors) in [("web-000001-delta.vmdk", 43), ("web-000002-delta.vmdk", 80)] {
        files.get_mut(name).unwrap().truncate(sectors * 512);
    }
}

fn with_odd_list(files: &mut Files) {
    edit(files, "web.vmsd", "snapshot1.parent = \"1\"", "snapshot1.parent = \"8\"");
}

/// Compares by sectors. All sectors of a text are of one state, because a rename replaces it.
fn is_between(now: &[u8], before: &[u8], after: &[u8]) -> bool {
    let is_delta = before.starts_with(b"COWD");
    let mut sectors = now.chunks(512).zip(before.chunks(512).zip(after.chunks(512)));
    now == before
        || now == after
        || is_delta && now.len() == before.len() && sectors.all(|(now, (a, b))| now == a || now == b)
}

/// Repairs a folder that loses power at `event`. Returns true if the repair was complete by then.
fn cut(files: &Files, mended: &Files, event: u64) -> bool {
    let world = world_of(files);
    world.cut_at(Cut::Event(event));
    let done = world.run(async move |env| {
        let dir = env.open_root("/web").unwrap();
        let plan = plan(&dir, &vouched()).await?;
        apply(&dir, &plan).await
    });
    world.cancel_cut();
    world.power_cut();
    let now = contents(&world);
    for (name, before) in files {
        let gone_as_planned = !now.contains_key(name) && !mended.contains_key(name);
        let as_planned = || {
            let after = mended.get(name).unwrap_or(before);
            now.get(name).is_some_and(|now| is_between(now, before, after))
        };
        assert!(gone_as_planned || as_planned(), "event {event}: {name} is neither");
    }
    let undone = world.run(async move |env| undo(&env.open_root("/web").unwrap()).await).unwrap();
    assert!(
        undone.as_ref().is_ok() || undone.as_ref().unwrap_err().kind == blk::ErrorKind::NotFound,
        "event {event}: {undone:?}"
    );
    let mut now = contents(&world);
    now.retain(|name, _| !name.ends_with(blk::dir::TEMPORARY_SUFFIX));
    let differs: Vec<&String> =
        files.keys().chain(now.keys()).filter(|n| files.get(*n) != now.get(*n)).collect();
    assert!(differs.is_empty(), "event {event}: {differs:?} after the undo");
    done.is_some_and(|done| done.is_ok())
}

#[test]
fn a_repair_can_be_undone_after_a_power_cut() {
    type Plant = fn(&mut Files);
    let cases: [(Plant, u64); 6] = [
        (with_texts, 100),
        (with_lost_descriptors, 100),
        (with_cut_deltas, 100),
        (with_odd_list, 50),
        (with_locks, 50),
        (with_orphan, 50),
    ];
    for (plant, cuts) in cases {
        let mut files = sound();
        // Their content does not matter here, and every cut would read it.
        files
            .iter_mut()
            .filter(|(name, _)| name.ends_with("-flat.vmdk"))
            .for_each(|(_, bytes)| bytes.clear());
        plant(&mut files);
        let mended = repaired(&files, vouched());
        assert_ne!(mended, files);
        let mut event = 1;
        while !cut(&files, &mended, event) {
            event += 1;
        }
        assert!(event > cuts, "{event} cuts");
    }
}
