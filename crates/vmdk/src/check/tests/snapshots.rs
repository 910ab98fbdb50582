//! Faults of the .vmsd: rows of 8.

use super::*;

const CONSOLIDATE: &str = "consolidate";

/// A VMware list without its entries.
const EMPTY_VMSD: &str = "snapshot.numSnapshots = \"0\"\n";

const SNAPSHOTS: &[Case] = &[
    (
        "orphan deltas and an empty .vmsd",
        |files| _ = files.insert("web.vmsd".into(), EMPTY_VMSD.into()),
        &[
            (
                Warning,
                "web.vmsd",
                "snapshot.numSnapshots",
                "0",
                "a snapshot for each link under \"web-000002.vmdk\", on which scsi0:0 runs",
                CONSOLIDATE,
            ),
            (
                Warning,
                "web.vmsd",
                "snapshot.numSnapshots",
                "0",
                "a snapshot for each link under \"db-000002.vmdk\", on which scsi0:1 runs",
                CONSOLIDATE,
            ),
        ],
    ),
    (
        "a link that no snapshot owns",
        |files| edit(files, "web.vmsd", "\"web.vmdk\"", "\"web-000001.vmdk\""),
        &[(
            Warning,
            "web.vmsd",
            "the chain of scsi0:0",
            "made of links that no snapshot names, \"web.vmdk\"",
            "a snapshot for each frozen link",
            CONSOLIDATE,
        )],
    ),
    (
        "entries left over",
        |files| {
            edit(files, "web.vmsd", "numSnapshots = \"2\"", "numSnapshots = \"2\"\nsnapshot7.uid = \"7\"");
        },
        &[(
            Warning,
            "web.vmsd",
            "the list of snapshots",
            "snapshot7 left over, numSnapshots is 2",
            "",
            "nothing is lost",
        )],
    ),
    (
        "a stale entry",
        |files| edit(files, "web.vmsd", "\"web.vmdk\"", "\"web-000007.vmdk\""),
        &[
            (
                Damage,
                "web.vmsd",
                "snapshot \"one\" (uid 1), fileName of scsi0:0",
                "\"web-000007.vmdk\"",
                "not here",
                "discard its entry",
            ),
            (
                Warning,
                "web.vmsd",
                "the chain of scsi0:0",
                "made of links that no snapshot names, \"web.vmdk\"",
                "",
                CONSOLIDATE,
            ),
        ],
    ),
    (
        "no current snapshot",
        |files| edit(files, "web.vmsd", "current = \"2\"", "current = \"0\""),
        &[(Warning, "web.vmsd", "snapshot.current", "unset", "its disks run on deltas", CONSOLIDATE)],
    ),
    (
        "a current snapshot that is none",
        |files| edit(files, "web.vmsd", "current = \"2\"", "current = \"9\""),
        &[
            (
                Warning,
                "web.vmsd",
                "the list of snapshots",
                "snapshot.current is 9, which is no snapshot; taken as none",
                "",
                "",
            ),
            (Warning, "web.vmsd", "snapshot.current", "unset", "its disks run on deltas", CONSOLIDATE),
        ],
    ),
    (
        "a current snapshot of another branch",
        |files| {
            files.insert(
                "web-000003.vmdk".into(),
                link(9, Some(("web.vmdk", 1)), COWD, "web-000003-delta.vmdk"),
            );
            files.insert("web-000003-delta.vmdk".into(), files["web-000001-delta.vmdk"].clone());
            edit(
                files,
                "web.vmsd",
                "snapshot1.disk0.fileName = \"web-000001.vmdk\"",
                "snapshot1.disk0.fileName = \"web-000003.vmdk\"",
            );
        },
        &[
            beside_current(
                "the current snapshot \"two\", fileName of scsi0:0",
                "\"web-000003.vmdk\"",
                "a link under \"web-000002.vmdk\"",
            ),
            (
                Warning,
                "web.vmsd",
                "the chain of scsi0:0",
                "made of links that no snapshot names, \"web-000001.vmdk\"",
                "",
                CONSOLIDATE,
            ),
        ],
    ),
    (
        "a commit that did not end",
        |files| {
            edit(
                files,
                "web.vmsd",
                "numSnapshots = \"2\"",
                "numSnapshots = \"2\"\nsnapshot.needConsolidate = \"TRUE\"",
            );
        },
        &[(Warning, "web.vmsd", "snapshot.needConsolidate", "TRUE", "a commit did not end", CONSOLIDATE)],
    ),
    (
        "a tree that is none",
        |files| edit(files, "web.vmsd", "snapshot1.parent = \"1\"", "snapshot1.parent = \"2\""),
        &[(Damage, "web.vmsd", "snapshot 2", "its own ancestor", "a tree of parents", "backup")],
    ),
    (
        "a snapshot of ours",
        |files| edit(files, "web.vmsd", "snapshot1.filename = \"web-Snapshot2.vmsn\"\n", ""),
        &[(
            Note,
            "web.vmsd",
            "snapshot \"two\" (uid 2), filename",
            "absent",
            "VMware, which may not revert to it",
            "commit its snapshots",
        )],
    ),
    (
        "a state file that is gone",
        |files| _ = files.remove("web-Snapshot2.vmsn"),
        &[(
            Warning,
            "web.vmsd",
            "snapshot \"two\" (uid 2), filename",
            "\"web-Snapshot2.vmsn\"",
            "VMware will not revert",
            "backup",
        )],
    ),
];

#[test]
fn snapshots() {
    expect_each(SNAPSHOTS);
}
