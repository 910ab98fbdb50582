//! Repairs of planted damage: the findings of a check afterwards, and the result of an undo.

mod bases;
mod crash;
mod cuts;
mod deltas;
mod lists;
mod moved;
mod parents;

use sim::{SimWorld, View};

use super::*;
use crate::check::tests::{Files, edit, world_of};

/// Returns terms in which the user confirms everything.
fn vouched() -> RepairOptions {
    RepairOptions {
        ignore_content_ids: true,
        cut_deltas: true,
        stale_locks: true,
        move_orphans: true,
        parents: BTreeMap::new(),
    }
}

/// Returns a sound folder whose two disks have no content ID in common.
fn sound() -> Files {
    let mut files = crate::check::tests::sound();
    for (name, text) in files.iter_mut().filter(|(name, _)| name.starts_with("db")) {
        if ["db.vmdk", "db-000001.vmdk", "db-000002.vmdk"].contains(&name.as_str()) {
            *text =
                String::from_utf8(text.clone()).unwrap().replace("CID=0000000", "CID=000000d").into_bytes();
        }
    }
    files
}

fn planned(files: &Files, terms: RepairOptions) -> Plan {
    let world = world_of(files);
    let plan = world.run(async move |env| plan(&env.open_root("/web").unwrap(), &terms).await);
    assert_eq!(contents(&world), *files, "a plan writes nothing");
    plan.expect("nothing waits for ever").unwrap()
}

/// Returns the files of the folder and those of its locks, without the copies of repairs.
fn contents(world: &SimWorld) -> Files {
    let names = world.list("web", View::Current).unwrap();
    let mut files = Files::new();
    for name in names.into_iter().filter(|name| !name.starts_with("unstun-repair")) {
        let name = name.trim_end_matches('/');
        let inside = world.list(&format!("web/{name}"), View::Current);
        let paths = match inside {
            Some(inside) => inside.into_iter().map(|file| format!("{name}/{file}")).collect(),
            None => vec![name.to_owned()],
        };
        for path in paths {
            let bytes = world.read_file(&format!("web/{path}"), View::Current).unwrap();
            files.insert(path, bytes);
        }
    }
    files
}

/// Repairs, checks that the folder equals the plan, undoes the repair, and returns the repaired files.
fn repaired(files: &Files, terms: RepairOptions) -> Files {
    let world = world_of(files);
    let applied = world.run(async move |env| {
        let dir = env.open_root("/web").unwrap();
        let plan = plan(&dir, &terms).await?;
        apply(&dir, &plan).await?;
        assert_eq!(check::check(&dir, Target::Folder).await?, plan.after, "what the plan says");
        Ok::<(), blk::Error>(())
    });
    applied.unwrap().unwrap();
    let mended = contents(&world);
    let undone = world.run(async move |env| undo(&env.open_root("/web").unwrap()).await);
    let undone = undone.unwrap().unwrap();
    assert_eq!(undone.copies, "/web/unstun-repair/0001");
    assert_eq!(contents(&world), *files, "an undo brings every file back");
    mended
}

fn reasons(plan: &Plan) -> String {
    plan.unmended.iter().map(|one| format!("{}: {}\n", one.finding.file, one.reason)).collect()
}

#[test]
fn a_sound_folder_is_left_alone() {
    let plan = planned(&sound(), vouched());
    assert!(plan.is_empty() && plan.unmended.is_empty(), "{plan:?}");
}

#[test]
fn a_file_that_was_changed_since_is_not_undone() {
    let mut files = sound();
    edit(&mut files, "web-000002.vmdk", "web-000001.vmdk", "gone.vmdk");
    edit(&mut files, "db-000002.vmdk", "db-000001.vmdk", "gone.vmdk");
    let world = world_of(&files);
    let (after, none) = world
        .run(async move |env| {
            let dir = env.open_root("/web").unwrap();
            apply(&dir, &plan(&dir, &RepairOptions::default()).await.unwrap()).await.unwrap();
            let text = dir.read_file("web-000002.vmdk", 1 << 20).await.unwrap();
            dir.replace_file("web-000002.vmdk", &[&text[..], b"# used\n"].concat()).await.unwrap();
            let refused = undo(&dir).await.unwrap_err();
            assert_eq!(refused.kind, blk::ErrorKind::Refused);
            assert!(refused.to_string().contains("web-000002.vmdk"), "{refused}");
            let after = dir.read_file("db-000002.vmdk", 1 << 20).await.unwrap();
            dir.replace_file("web-000002.vmdk", &text).await.unwrap();
            undo(&dir).await.unwrap();
            (after, undo(&dir).await.unwrap_err())
        })
        .unwrap();
    assert!(String::from_utf8(after).unwrap().contains("db-000001.vmdk"), "nothing was taken back");
    assert_eq!(none.kind, blk::ErrorKind::NotFound);
    assert_eq!(contents(&world), files);
}
