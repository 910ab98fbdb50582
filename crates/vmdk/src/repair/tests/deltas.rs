//! Repairs of missing descriptors of deltas.

use super::*;

fn without(names: &[&str]) -> Files {
    let mut files = sound();
    files.retain(|name, _| !names.contains(&name.as_str()));
    files
}

/// Repairs without any confirmed facts, and checks that the folder is sound afterwards.
fn mended(files: &Files, lines: &[(&str, &[&str])]) {
    let plan = planned(files, RepairOptions::default());
    assert!(plan.after.is_sound() && plan.unmended.is_empty(), "{plan:?}");
    for (name, wanted) in lines {
        let mend = plan.mends.iter().find(|mend| mend.file == *name).unwrap_or_else(|| panic!("{plan:?}"));
        for line in *wanted {
            assert!(mend.lines.iter().any(|own| own == line), "{name}: {line} is not in {mend:?}");
        }
    }
    let now = repaired(files, RepairOptions::default());
    assert!(now.iter().all(|(name, bytes)| files.get(name).is_none_or(|old| old == bytes)
        || lines.iter().any(|(mended, _)| mended == name)));
}

#[test]
fn a_link_in_the_middle_is_described_as_its_child_and_the_list_say() {
    let lines: &[&str] = &[
        "CID=00000002",
        "parentCID=00000001",
        "parentFileNameHint=\"web.vmdk\"",
        "createType=\"vmfsSparse\"",
        "RW 6144 VMFSSPARSE \"web-000001-delta.vmdk\"",
    ];
    mended(&without(&["web-000001.vmdk"]), &[("web-000001.vmdk", lines)]);
}

#[test]
fn a_running_link_is_described_as_made_on_the_current_snapshot() {
    let lines: &[&str] = &["parentCID=00000002", "parentFileNameHint=\"web-000001.vmdk\""];
    mended(&without(&["web-000002.vmdk"]), &[("web-000002.vmdk", lines)]);
}

#[test]
fn all_links_of_two_formats_are_described_one_after_the_other() {
    let names = ["web-000001.vmdk", "web-000002.vmdk", "db-000001.vmdk", "db-000002.vmdk"];
    let lines: &[&str] = &["parentFileNameHint=\"db-000001.vmdk\"", "createType=\"seSparse\""];
    let sectors: &[&str] = &["RW 6144 SESPARSE \"db-000002-sesparse.vmdk\""];
    mended(
        &without(&names),
        &[
            ("web-000001.vmdk", &["parentFileNameHint=\"web.vmdk\""]),
            ("web-000002.vmdk", &["parentFileNameHint=\"web-000001.vmdk\""]),
            ("db-000001.vmdk", &["parentFileNameHint=\"db.vmdk\""]),
            ("db-000002.vmdk", lines),
            ("db-000002.vmdk", sectors),
        ],
    );
}

#[test]
fn a_damaged_text_still_identifies_the_parent() {
    let mut files = without(&["web.vmsd", "web.vmx"]);
    let torn = "# Disk DescriptorFile\nversion=1\nCID=0000000c\nparentCID=00000002\n\
                parentFileNameHint=\"web-000001.vmdk\"\ncreateType=\"vmfs";
    files.insert("web-000002.vmdk".into(), torn.into());
    let plan = planned(&files, RepairOptions::default());
    let [mend] = &plan.mends[..] else { panic!("{plan:?}") };
    assert_eq!((mend.file.as_str(), mend.action), ("web-000002.vmdk", Action::Edit));
    assert!(mend.reason.contains("what is left of the old text"), "{mend:?}");
    let lines = ["CID=0000000c", "parentCID=00000002", "parentFileNameHint=\"web-000001.vmdk\""];
    assert!(lines.iter().all(|line| mend.lines.iter().any(|own| own == line)), "{mend:?}");
    assert!(!plan.before.is_sound() && plan.after.is_sound(), "{plan:?}");
    repaired(&files, RepairOptions::default());
}

#[test]
fn the_only_link_of_the_disk_is_the_parent_where_nothing_else_is_lost() {
    let files =
        without(&["web.vmsd", "web.vmx", "web-000001.vmdk", "web-000002.vmdk", "web-000002-delta.vmdk"]);
    let plan = planned(&files, RepairOptions::default());
    let [mend] = &plan.mends[..] else { panic!("{plan:?}") };
    assert!(mend.reason.contains("\"web.vmdk\" is the only link here of its disk's name"), "{mend:?}");
}

#[test]
fn a_parent_that_no_file_names_must_be_given() {
    let files = without(&["web.vmsd", "web.vmx", "web-000001.vmdk", "web-000002.vmdk"]);
    let plan = planned(&files, RepairOptions { parents: BTreeMap::new(), ..vouched() });
    assert!(plan.is_empty(), "{plan:?}");
    let said = reasons(&plan);
    assert!(said.contains("--parent web-000001.vmdk=LINK"), "{said}");
    assert!(said.contains("\"web.vmdk\""), "{said}");
    let named = |pairs: &[(&str, &str)]| RepairOptions {
        parents: pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
        ..RepairOptions::default()
    };
    let terms = named(&[("web-000001.vmdk", "web.vmdk"), ("web-000002.vmdk", "web-000001.vmdk")]);
    let plan = planned(&files, terms.clone());
    assert!(plan.mends.len() == 2 && plan.after.is_sound(), "{plan:?}");
    repaired(&files, terms);
    let odd = planned(&files, named(&[("web-000001.vmdk", "gone.vmdk")]));
    assert!(reasons(&odd).contains("\"gone.vmdk\" cannot be its parent"), "{}", reasons(&odd));
}

#[test]
fn a_delta_that_contradicts_its_neighbours_is_not_described() {
    type Plant = fn(&mut Files);
    let cases: [(Plant, &str); 4] = [
        (
            |files| edit(files, "web-000002.vmdk", "RW 6144", "RW 8192"),
            "was made on it and has 8192 sectors, and this delta 6144",
        ),
        (
            |files| {
                let other = String::from_utf8(files["web-000002.vmdk"].clone()).unwrap();
                files.insert(
                    "web-000003.vmdk".into(),
                    other.replace("parentCID=00000002", "parentCID=0000000e").into(),
                );
            },
            "the links made on it expect different CIDs: 00000002, 0000000e",
        ),
        (
            |files| {
                let torn = "version=1\nCID=2\nparentCID=0000000f\nRW 6144 VMFS";
                files.insert("web-000001.vmdk".into(), torn.into());
            },
            "expects a parent with the CID 0000000f, and \"web.vmdk\" has 00000001",
        ),
        (|files| _ = files.insert("web-000001.vmdk".into(), vec![7; 64 << 10]), "is no text"),
    ];
    for (plant, reason) in cases {
        let mut files = without(&["web-000001.vmdk"]);
        plant(&mut files);
        let plan = planned(&files, RepairOptions::default());
        assert!(plan.mends.iter().all(|mend| mend.file != "web-000001.vmdk"), "{reason}: {plan:?}");
        assert!(reasons(&plan).contains(reason), "{reason}: {}", reasons(&plan));
    }
}
