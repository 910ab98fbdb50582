//! Repairs of lists of snapshots.

use super::*;

const LIST: &str = "web.vmsd";

fn mended(plant: impl FnOnce(&mut Files), lines: &[&str]) -> Files {
    let mut files = sound();
    plant(&mut files);
    let plan = planned(&files, RepairOptions::default());
    let said: Vec<&str> = plan.mends.iter().flat_map(|mend| &mend.lines).map(String::as_str).collect();
    assert_eq!(said, lines, "{plan:?}");
    assert!(plan.mends.iter().all(|mend| mend.file == LIST) && plan.after == Report::default(), "{plan:?}");
    repaired(&files, RepairOptions::default())
}

fn text(files: &Files) -> String {
    String::from_utf8(files[LIST].clone()).unwrap()
}

#[test]
fn entries_past_the_count_are_removed() {
    let left = |files: &mut Files| {
        let text = text(files) + "snapshot2.uid = \"7\"\nsnapshot2.displayName = \"old\"\n";
        files.insert(LIST.into(), text.into());
    };
    let files = mended(left, &["put right: snapshot2 left over, numSnapshots is 2"]);
    assert!(!text(&files).contains("old"));
}

#[test]
fn a_missing_current_snapshot_is_derived_from_the_running_disks() {
    let odd = |files: &mut Files| edit(files, LIST, "current = \"2\"", "current = \"9\"");
    let lines =
        ["put right: snapshot.current is 9, which is no snapshot; taken as none", "snapshot.current = \"2\""];
    assert!(text(&mended(odd, &lines)).contains("snapshot.current = \"2\""));
    let unset = |files: &mut Files| edit(files, LIST, "snapshot.current = \"2\"\n", "");
    mended(unset, &["snapshot.current = \"2\""]);
}

#[test]
fn a_snapshot_without_links_is_left_out() {
    let gone = |files: &mut Files| {
        let entry = "snapshot2.uid = \"3\"\nsnapshot2.parent = \"2\"\nsnapshot2.displayName = \"gone\"\n\
                     snapshot2.filename = \"web-Snapshot2.vmsn\"\nsnapshot2.numDisks = \"1\"\n\
                     snapshot2.disk0.fileName = \"web-000009.vmdk\"\nsnapshot2.disk0.node = \"scsi0:0\"\n";
        let text = text(files).replace("numSnapshots = \"2\"", "numSnapshots = \"3\"") + entry;
        files.insert(LIST.into(), text.into());
        edit(files, LIST, "current = \"2\"", "current = \"3\"");
    };
    let line =
        "without snapshot \"gone\" (uid 3): the links with its state are gone, and no link was made on them";
    let files = mended(gone, &[line]);
    assert!(text(&files).contains("snapshot.current = \"2\"") && !text(&files).contains("000009"));
}

#[test]
fn numbers_and_parents_that_are_no_tree_follow_the_links() {
    let circle =
        |files: &mut Files| edit(files, LIST, "snapshot1.parent = \"1\"", "snapshot1.parent = \"2\"");
    mended(circle, &["parent of \"two\" (uid 2): 1"]);
    let none = |files: &mut Files| edit(files, LIST, "snapshot1.parent = \"1\"", "snapshot1.parent = \"8\"");
    mended(none, &["parent of \"two\" (uid 2): 1"]);
    let twice = |files: &mut Files| edit(files, LIST, "snapshot1.uid = \"2\"", "snapshot1.uid = \"1\"");
    mended(
        twice,
        &[
            "put right: snapshot.current is 2, which is no snapshot; taken as none",
            "uid of \"two\": 3, not 1",
            "snapshot.current = \"3\"",
        ],
    );
}

#[test]
fn a_snapshot_whose_links_may_come_back_stays() {
    type Plant = fn(&mut Files);
    let cases: [(Plant, &str); 3] = [
        // The repair of its child depends on it.
        (
            |files| {
                files.retain(|name, _| !["db.vmdk", "db-flat.vmdk"].contains(&name.as_str()));
                edit(files, LIST, "snapshot0.numDisks = \"2\"", "snapshot0.numDisks = \"1\"");
                edit(
                    files,
                    LIST,
                    "snapshot0.disk0.fileName = \"web.vmdk\"",
                    "snapshot0.disk0.fileName = \"db.vmdk\"",
                );
            },
            "\"db-000001.vmdk\" was made on it: it is lost, and not stale",
        ),
        // One disk of two.
        (
            |files| {
                edit(files, LIST, "disk0.fileName = \"web.vmdk\"", "disk0.fileName = \"web-000007.vmdk\"");
            },
            "its other disks are here",
        ),
        // Its extent is here, and its parent is unknown.
        (
            |files| {
                files.remove("web.vmdk");
                files.get_mut("web-flat.vmdk").unwrap().truncate(512);
                edit(files, LIST, "snapshot0.numDisks = \"2\"", "snapshot0.numDisks = \"1\"");
            },
            "its descriptor comes first",
        ),
    ];
    for (plant, reason) in cases {
        let mut files = sound();
        plant(&mut files);
        let plan = planned(&files, RepairOptions::default());
        assert!(plan.mends.iter().all(|mend| mend.file != LIST), "{reason}: {plan:?}");
        assert!(reasons(&plan).contains(reason), "{reason}: {}", reasons(&plan));
    }
}
