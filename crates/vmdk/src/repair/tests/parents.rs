//! Repairs of hints and content IDs.

use super::*;

/// Replaces the name of the file in the text.
fn lost_hint(files: &mut Files) {
    edit(files, "web-000002.vmdk", "Hint=\"web-000001.vmdk\"", "Hint=\"old-000001.vmdk\"");
}

#[test]
fn a_hint_is_found_by_the_content_id() {
    let mut files = sound();
    lost_hint(&mut files);
    let plan = planned(&files, RepairOptions::default());
    assert_eq!(plan.mends.len(), 1, "{plan:?}");
    assert_eq!(plan.mends[0].lines, ["parentFileNameHint=\"web-000001.vmdk\""]);
    assert!(!plan.before.is_sound() && plan.after.is_sound() && plan.unmended.is_empty());
    assert_eq!(repaired(&files, RepairOptions::default()), sound());
}

#[test]
fn a_hint_to_another_link_is_found_by_the_content_id() {
    let mut files = sound();
    edit(&mut files, "web-000002.vmdk", "Hint=\"web-000001.vmdk\"", "Hint=\"db-000002.vmdk\"");
    assert_eq!(repaired(&files, RepairOptions::default()), sound());
}

#[test]
fn two_candidates_are_named_and_none_is_chosen() {
    let mut files = sound();
    lost_hint(&mut files);
    let copy = files["web-000001.vmdk"].clone();
    files.insert("copy.vmdk".into(), copy);
    let delta = files["web-000001-delta.vmdk"].clone();
    files.insert("copy-delta.vmdk".into(), delta);
    edit(&mut files, "copy.vmdk", "web-000001-delta.vmdk", "copy-delta.vmdk");
    let plan = planned(&files, vouched());
    assert!(plan.is_empty(), "{plan:?}");
    let said = reasons(&plan);
    assert!(said.contains("\"copy.vmdk\", \"web-000001.vmdk\""), "{said}");
}

#[test]
fn a_content_id_that_proves_nothing_is_not_followed() {
    type Plant = fn(&mut Files);
    let cases: [(Plant, &str); 3] = [
        (
            |files| edit(files, "web-000001.vmdk", "CID=00000002", "CID=00000009"),
            "no other link here has the CID 00000002",
        ),
        (
            |files| {
                edit(files, "web-000002.vmdk", "parentCID=00000002", "parentCID=fffffffe");
                edit(files, "web-000001.vmdk", "CID=00000002", "CID=fffffffe");
            },
            "many disks have the CID fffffffe",
        ),
        (
            |files| {
                edit(files, "web-000001.vmdk", "CID=00000002", "CID=00000001");
                edit(files, "web-000002.vmdk", "parentCID=00000002", "parentCID=00000001");
                edit(files, "web.vmdk", "CID=00000001", "CID=00000007");
            },
            "still has the CID of its own parent",
        ),
    ];
    for (plant, reason) in cases {
        let mut files = sound();
        lost_hint(&mut files);
        plant(&mut files);
        let plan = planned(&files, RepairOptions::default());
        assert!(plan.is_empty(), "{reason}: {plan:?}");
        assert!(reasons(&plan).contains(reason), "{reason}: {}", reasons(&plan));
    }
}

#[test]
fn a_parent_that_was_opened_for_writing_is_believed_only_when_vouched_for() {
    let mut files = sound();
    edit(&mut files, "web.vmdk", "CID=00000001", "CID=000000aa");
    let plan = planned(&files, RepairOptions::default());
    assert!(plan.is_empty(), "{plan:?}");
    assert!(reasons(&plan).contains("--ignore-content-ids writes parentCID=000000aa"), "{}", reasons(&plan));
    let plan = planned(&files, vouched());
    assert!(plan.after.is_sound() && plan.mends[0].caution.as_ref().unwrap().contains("no file proves"));
    let mended = repaired(&files, vouched());
    edit(&mut files, "web-000001.vmdk", "parentCID=00000001", "parentCID=000000aa");
    assert_eq!(mended, files);
}
