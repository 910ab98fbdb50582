use blk::ErrorKind;
use proptest::prelude::*;

use super::*;

/// In the form of a file from ESXi: lines in any order, stale entries, an index of two digits.
const REAL: &str = concat!(
    ".encoding = \"UTF-8\"\n",
    "snapshot.lastUID = \"12\"\n",
    "snapshot1.parent = \"2\"\n",
    "snapshot.current = \"7\"\n",
    "snapshot.numSnapshots = \"2\"\n",
    "snapshot0.uid = \"2\"\n",
    "snapshot0.filename = \"web-Snapshot2.vmsn\"\n",
    "snapshot0.displayName = \"before |22it|22\"\n",
    "snapshot0.description = \"two|0Alines\"\n",
    "snapshot0.createTimeHigh = \"310596\"\n",
    "snapshot0.createTimeLow = \"938781285\"\n",
    "snapshot0.numDisks = \"2\"\n",
    "snapshot0.disk1.fileName = \"web_1.vmdk\"\n",
    "snapshot0.disk1.node = \"scsi0:1\"\n",
    "snapshot0.disk0.fileName = \"web.vmdk\"\n",
    "snapshot0.disk0.node = \"scsi0:0\"\n",
    "snapshot0.disk2.fileName = \"left over.vmdk\"\n",
    "snapshot1.uid = \"7\"\n",
    "snapshot1.displayName = \"later\"\n",
    "snapshot1.createTimeHigh = \"388801\"\n",
    "snapshot1.createTimeLow = \"-814770620\"\n",
    "snapshot10.uid = \"3\"\n",
    "snapshot.mru0.uid = \"7\"\n",
    "# kept\n",
);

fn parse(text: &str) -> Result<Vmsd> {
    Vmsd::parse("web.vmsd", text.as_bytes())
}

#[test]
fn a_real_file() {
    let vmsd = parse(REAL).unwrap();
    let list = vmsd.list();
    assert_eq!((list.last_uid, list.current, list.needs_consolidation), (12, Some(7), false));
    assert_eq!(list.snapshots.len(), 2);
    let first = &list.snapshots[0];
    assert_eq!((first.uid, first.parent, first.name.as_str()), (2, None, "before \"it\""));
    assert_eq!(first.description.as_deref(), Some("two\nlines"));
    // 2012-04-09 19:43:21 UTC, the time of the file in the article these numbers are from.
    assert_eq!(first.created_us.unwrap() / 1_000_000, 1_334_000_601);
    assert_eq!(first.other, [("filename".to_owned(), "web-Snapshot2.vmsn".to_owned())]);
    let disks: Vec<&str> = first.disks.iter().map(|disk| disk.file_name.as_str()).collect();
    assert_eq!(disks, ["web.vmdk", "web_1.vmdk"]);
    // 2022-12-01 10:37:39 UTC.
    assert_eq!(list.snapshots[1].created_us.unwrap() / 1_000_000, 1_669_891_059);
    assert_eq!(vmsd.oddities(), ["web.vmsd: snapshot10 left over, numSnapshots is 2"]);
}

#[test]
fn lines_that_do_not_concern_snapshots_stay() {
    let mut vmsd = parse(REAL).unwrap();
    vmsd.set_list(vmsd.list().clone());
    assert_eq!(vmsd.to_bytes(), REAL.as_bytes());

    let mut list = vmsd.list().clone();
    list.snapshots.remove(1);
    list.current = Some(2);
    vmsd.set_list(list.clone());
    let text = String::from_utf8(vmsd.to_bytes()).unwrap();
    assert!(text.contains("snapshot.mru0.uid = \"7\"\n# kept\n"), "{text}");
    assert!(text.contains("snapshot0.filename = \"web-Snapshot2.vmsn\"\n"), "{text}");
    assert!(!text.contains("snapshot1.") && !text.contains("snapshot10."), "{text}");
    assert_eq!(parse(&text).unwrap().list(), &list);
}

#[test]
fn a_list_without_snapshots_is_empty() {
    assert_eq!(parse("").unwrap().list(), &SnapshotList::default());
    let stale = "snapshot.numSnapshots = \"0\"\nsnapshot.current = \"1\"\nsnapshot0.uid = \"1\"\n";
    let vmsd = parse(stale).unwrap();
    assert!(vmsd.list().snapshots.is_empty() && vmsd.list().current.is_none());
    assert_eq!(vmsd.oddities().len(), 2);
}

#[test]
fn bad_files_are_named() {
    let two = "snapshot0.uid = \"1\"\nsnapshot1.uid = \"2\"\n";
    let table = [
        ("snapshot0.uid = \"x\"\n".to_owned(), "uid is \"x\""),
        ("snapshot0.uid = \"-1\"\n".to_owned(), "uid is \"-1\""),
        ("snapshot.numSnapshots = \"many\"\n".to_owned(), "numSnapshots is \"many\""),
        ("snapshot0.uid = \"1\"\nsnapshot1.uid = \"1\"\n".to_owned(), "1 in two snapshots"),
        (format!("{two}snapshot0.parent = \"3\"\n"), "3, which is no snapshot"),
        (format!("{two}snapshot0.parent = \"2\"\nsnapshot1.parent = \"1\"\n"), "its own ancestor"),
        (format!("{two}snapshot0.uid = \"5\"\n"), "given twice"),
        (format!("{two}snapshot0.numDisks = \"1\"\nsnapshot0.disk0.node = \"scsi0:0\"\n"), "incomplete"),
    ];
    for (text, message) in table {
        let error = parse(&text).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Damaged);
        assert!(error.to_string().contains(message), "{error}");
    }
}

fn any_snapshot(uid: u32) -> impl Strategy<Value = Snapshot> {
    let disk = ("scsi[0-3]:[0-9]", "[a-z]{1,8}\\.vmdk")
        .prop_map(|(node, file_name)| SnapshotDisk { node, file_name });
    let other = proptest::collection::btree_map("[a-c][a-z]{8,9}", ".*", 0..3);
    let disks = proptest::collection::vec(disk, 0..4);
    (".*", proptest::option::of(".*"), any::<Option<i64>>(), disks, other, 0..=uid - 1).prop_map(
        move |(name, description, created_us, disks, other, parent)| Snapshot {
            uid,
            parent: Some(parent).filter(|parent| *parent != 0),
            name,
            description,
            created_us,
            disks,
            other: other.into_iter().collect(),
        },
    )
}

fn any_list() -> impl Strategy<Value = SnapshotList> {
    let snapshots = (0u32..13).prop_flat_map(|count| (1..=count).map(any_snapshot).collect::<Vec<_>>());
    (snapshots, any::<bool>()).prop_map(|(snapshots, needs_consolidation)| {
        let last_uid = snapshots.len() as u32;
        SnapshotList {
            current: Some(last_uid).filter(|uid| *uid != 0),
            last_uid,
            snapshots,
            needs_consolidation,
        }
    })
}

proptest! {
    #[test]
    fn every_list_survives(list in any_list()) {
        let mut vmsd = Vmsd::create("web.vmsd");
        vmsd.set_list(list.clone());
        let again = Vmsd::parse("web.vmsd", &vmsd.to_bytes()).unwrap();
        prop_assert_eq!(again.list(), &list);
    }

    #[test]
    fn any_text_is_read_without_panic(text in "(snapshot[0-9]{0,2}\\.(uid|parent|numDisks|disk[0-9]\\.node|createTimeLow) = \"-?[0-9]{0,3}\"\n){0,30}") {
        let _ = parse(&text);
    }
}

#[test]
fn a_snapshot_has_no_more_disks_than_a_vm_has_places() {
    let text = |disks: usize| {
        let line =
            |n| format!("snapshot0.disk{n}.fileName = \"a.vmdk\"\nsnapshot0.disk{n}.node = \"scsi0:0\"\n");
        "snapshot0.uid = \"1\"\nsnapshot.numSnapshots = \"1\"\n".to_owned()
            + &(0..disks).map(line).collect::<String>()
    };
    assert_eq!(Vmsd::parse("a.vmsd", text(636).as_bytes()).unwrap().list().snapshots[0].disks.len(), 636);
    let error = Vmsd::parse("a.vmsd", text(637).as_bytes()).unwrap_err().to_string();
    let expected =
        "a.vmsd: the number of disks of snapshot0 is 637, expected at most 636, the places that a VM has";
    assert_eq!(error, expected);
}

#[test]
fn texts_and_numbers_beyond_their_limits_are_refused_by_name() {
    let list = |key: &str, value: &str| {
        let text = format!("snapshot0.uid = \"1\"\nsnapshot.numSnapshots = \"1\"\n{key} = \"{value}\"\n");
        Vmsd::parse("web.vmsd", text.as_bytes())
    };
    list("snapshot0.displayName", &"x".repeat(512)).unwrap();
    list("snapshot.lastUID", "2147483647").unwrap();
    for (key, value) in [
        ("snapshot0.displayName", "x".repeat(513)),
        ("snapshot0.description", "x".repeat(64 * 1024 + 1)),
        ("snapshot0.displayName", "x".repeat(3 << 20)),
        ("snapshot.lastUID", "2147483648".to_owned()),
        ("snapshot.current", u32::MAX.to_string()),
        ("snapshot0.parent", "4294967295".to_owned()),
    ] {
        let said = list(key, &value).unwrap_err().to_string();
        assert!(said.starts_with("web.vmsd") && said.contains(key) && said.contains("expected"), "{said}");
        assert!(said.len() < 300, "{} bytes", said.len());
    }
}
