//! Repairs of missing descriptors of bases.

use super::*;

fn without_base() -> Files {
    let mut files = sound();
    files.remove("web.vmdk");
    files
}

#[test]
fn a_base_is_described_as_its_children_expect() {
    let plan = planned(&without_base(), RepairOptions::default());
    assert_eq!(plan.mends.len(), 1, "{plan:?}");
    assert_eq!((plan.mends[0].file.as_str(), plan.mends[0].action), ("web.vmdk", Action::Create));
    for line in ["CID=00000001", "RW 6144 VMFS \"web-flat.vmdk\"", "ddb.adapterType = \"lsilogic\""] {
        assert!(plan.mends[0].lines.iter().any(|own| own == line), "{line} is not in {plan:?}");
    }
    assert!(!plan.before.is_sound() && plan.after == Report::default(), "{:?}", plan.after);
    let mut mended = repaired(&without_base(), RepairOptions::default());
    mended.remove("web.vmdk");
    assert_eq!(mended, without_base(), "no other file is written");
}

#[test]
fn a_base_without_children_is_described_by_its_extent() {
    let mut files = without_base();
    files.retain(|name, _| name == "web-flat.vmdk");
    let plan = planned(&files, RepairOptions::default());
    assert!(plan.mends.len() == 1 && plan.after.is_sound(), "{plan:?}");
    repaired(&files, RepairOptions::default());
}

#[test]
fn a_base_that_is_not_what_its_children_expect_is_not_described() {
    type Plant = fn(&mut Files);
    let cases: [(Plant, &str); 5] = [
        (
            |files| edit(files, "web-000001.vmdk", "Hint=\"web.vmdk\"", "Hint=\"/vmfs/volumes/x/web.vmdk\""),
            "was made on a \"web.vmdk\" of another folder",
        ),
        (|files| files.get_mut("web-flat.vmdk").unwrap().truncate(4096), "it was cut or resized"),
        (|files| _ = files.insert("web.vmdk".into(), b"not a descriptor".to_vec()), "move it away first"),
        (
            |files| {
                edit(
                    files,
                    "db-000001.vmdk",
                    "parentFileNameHint=\"db.vmdk\"",
                    "parentFileNameHint=\"web.vmdk\"",
                );
                edit(files, "db.vmdk", "CID=000000d1", "CID=000000ee");
            },
            "expect different bases: CID 00000001 and 6144 sectors, CID 000000d1 and 6144 sectors",
        ),
        (|files| files.get_mut("web-flat.vmdk").unwrap().clear(), "it was cut or resized"),
    ];
    for (plant, reason) in cases {
        let mut files = without_base();
        plant(&mut files);
        let plan = planned(&files, vouched());
        assert!(plan.mends.iter().all(|mend| mend.file != "web.vmdk"), "{reason}: {plan:?}");
        assert!(reasons(&plan).contains(reason), "{reason}: {}", reasons(&plan));
    }
}
