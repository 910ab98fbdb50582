//! Faults of the .vmx, and leftover files: rows of 8.

use super::*;

const DISKS: &[Case] = &[
    (
        "a disk that is gone",
        |files| edit(files, "web.vmx", "web-000002.vmdk", "web-000009.vmdk"),
        &[
            (
                Damage,
                "web.vmx",
                "scsi0:0.fileName",
                "\"web-000009.vmdk\"",
                "which is not here",
                "newest link",
            ),
            unreferred("web-000002.vmdk"),
        ],
    ),
    (
        "a disk in another folder",
        |files| edit(files, "web.vmx", "\"web-000002.vmdk\"", "\"/vmfs/volumes/2/x.vmdk\""),
        &[(
            Note,
            "web.vmx",
            "scsi0:0.fileName",
            "\"/vmfs/volumes/2/x.vmdk\"",
            "it is elsewhere",
            "by itself",
        )],
    ),
    (
        "a VM set on an older link",
        |files| edit(files, "web.vmx", "web-000002.vmdk", "web.vmdk"),
        &[
            (
                Damage,
                "web.vmx",
                "scsi0:0.fileName",
                "\"web.vmdk\"",
                "but \"web-000001.vmdk\" is made on it",
                "do not start the VM",
            ),
            beside_current(
                "the current snapshot \"two\", fileName of scsi0:0",
                "\"web-000001.vmdk\"",
                "a link under \"web.vmdk\"",
            ),
            unreferred("web-000002.vmdk"),
        ],
    ),
    (
        "two disks on one link",
        |files| {
            edit(
                files,
                "web.vmx",
                "scsi0:1.present",
                "scsi0:2.present = \"TRUE\"\nscsi0:2.fileName = \"db-000002.vmdk\"\nscsi0:1.present",
            );
        },
        &[(
            Damage,
            "web.vmx",
            "scsi0:2.fileName",
            "\"db-000002.vmdk\"",
            "but scsi0:1 runs on it too",
            "its own link",
        )],
    ),
    (
        "a mode that is none",
        |files| edit(files, "web.vmx", "scsi0:1.present", "scsi0:0.mode = \"odd\"\nscsi0:1.present"),
        &[(Damage, "web.vmx", "scsi0:0.mode", "\"odd\"", "\"persistent\"", "correct the line")],
    ),
    (
        "a link that was prepared and not used",
        |files| {
            let text = link(9, Some(("web-000002.vmdk", 3)), COWD, "web-000003-delta.vmdk");
            let text = String::from_utf8(text).unwrap();
            let mark = "# unstun: prepared, and not in use before this line is removed\nversion=1";
            files.insert("web-000003.vmdk".into(), text.replace("version=1", mark).into());
            files.insert("web-000003-delta.vmdk".into(), files["web-000001-delta.vmdk"].clone());
        },
        &[(
            Note,
            "web-000003.vmdk",
            "the link",
            "not referred to by the .vmx or the .vmsd",
            "an interrupted take",
            "removes it",
        )],
    ),
    (
        "two .vmx files",
        |files| _ = files.insert("copy.vmx".into(), files["web.vmx"].clone()),
        &[(
            Warning,
            "",
            "the list of .vmx files",
            "\"copy.vmx\", \"web.vmx\"",
            "one .vmx file",
            "move the others away",
        )],
    ),
    (
        "no .vmx file",
        |files| _ = files.remove("web.vmx"),
        &[(Note, "", "the list of .vmx files", "empty", "one .vmx file", "nothing")],
    ),
];

#[test]
fn disks() {
    expect_each(DISKS);
}

#[test]
fn locks_redo_logs_and_orphans_are_reported() {
    let plant: &[(&str, Row)] = &[
        (
            "web.vmx.lck",
            (Warning, "web.vmx.lck", "the lock", "present", "a program has the VM open", "power the VM off"),
        ),
        (
            ".lck-3409000000000000",
            (Warning, ".lck-3409000000000000", "the lock", "present", "", "remove the lock"),
        ),
        (
            "web.vmdk.REDO_a01234",
            (Note, "web.vmdk.REDO_a01234", "the redo log", "present", "nonpersistent", "next power-on"),
        ),
        (
            "web.vmss",
            (Note, "web.vmss", "the suspended state", "present", "only while they are not written", "resume"),
        ),
        (
            "web.vmx.unstun-tmp",
            (
                Note,
                "web.vmx.unstun-tmp",
                "the temporary file",
                "present",
                "before it began",
                "open the VM with unstun",
            ),
        ),
        (
            "old-flat.vmdk",
            nameless(
                "old-flat.vmdk",
                "\"old.vmdk\"",
                "CID=fffffffe, parentCID=ffffffff, createType=\"vmfs\", RW 1 VMFS \"old-flat.vmdk\"",
            ),
        ),
        ("old.vmdk", (Damage, "old.vmdk", "line 1", "\"\\u{1}\\u{1}\\u{1}\"", "", "after a sibling's")),
    ];
    for (name, row) in plant {
        let mut files = sound();
        let bytes = if *name == "old.vmdk" { vec![1; 3] } else { vec![1; 512] };
        files.insert((*name).into(), bytes);
        expect(name, &files, &[*row]);
    }
}

const LOST_DESCRIPTORS: &[Case] = &[
    (
        "of a VMFSsparse delta",
        |files| {
            files.remove("web-000002.vmdk");
            edit(files, "web.vmx", "web-000002.vmdk", "web-000001.vmdk");
        },
        &[
            nameless(
                "web-000002-delta.vmdk",
                "\"web-000002.vmdk\"",
                "createType=\"vmfsSparse\", RW 6144 VMFSSPARSE \"web-000002-delta.vmdk\"",
            ),
            beside_current(
                "the current snapshot \"two\", fileName of scsi0:0",
                "\"web-000001.vmdk\"",
                "a link under \"web-000001.vmdk\"",
            ),
        ],
    ),
    (
        "of an SEsparse delta",
        |files| {
            files.remove("db-000002.vmdk");
            edit(files, "web.vmx", "db-000002.vmdk", "db-000001.vmdk");
        },
        &[
            nameless(
                "db-000002-sesparse.vmdk",
                "\"db-000002.vmdk\"",
                "createType=\"seSparse\", RW 6144 SESPARSE \"db-000002-sesparse.vmdk\"",
            ),
            beside_current(
                "the current snapshot \"two\", fileName of scsi0:1",
                "\"db-000001.vmdk\"",
                "a link under \"db-000001.vmdk\"",
            ),
        ],
    ),
];

#[test]
fn findings_of_lost_descriptors_name_the_repair() {
    expect_each(LOST_DESCRIPTORS);
}

/// No fault hides another.
#[test]
fn one_fault_hides_no_other() {
    let mut files = sound();
    edit(&mut files, "web.vmdk", "CID=00000001", "CID=zz");
    edit(&mut files, "db-000002.vmdk", "parentCID=00000002", "parentCID=00000005");
    patch(&mut files, "web-000002-delta.vmdk", 0, b"JUNK");
    cut(&mut files, "db-flat.vmdk", 512);
    edit(
        &mut files,
        "web.vmsd",
        "numSnapshots = \"2\"",
        "numSnapshots = \"2\"\nsnapshot.needConsolidate = \"TRUE\"",
    );
    let report = examine(&files, None).unwrap();
    for (file, field) in [
        ("web.vmdk", "CID"),
        ("db-000002.vmdk", "parentCID"),
        ("web-000002-delta.vmdk", "the magic"),
        ("db-flat.vmdk", "the length"),
        ("web.vmsd", "snapshot.needConsolidate"),
    ] {
        let found = report.findings.iter().any(|f| f.file.ends_with(file) && f.field == field);
        assert!(found, "{file}, {field} is not in {report:?}");
    }
    assert!(report.findings.is_sorted_by_key(|finding| finding.severity), "worst first");
}

#[test]
fn one_file_and_its_chain() {
    let mut files = sound();
    edit(&mut files, "db-000002.vmdk", "parentCID=00000002", "parentCID=00000005");
    cut(&mut files, "web-flat.vmdk", 512);
    files.insert("broken.vmdk".into(), b"version=1\n".into());
    let found = |what: &str| {
        let report = examine(&files, Some(what)).unwrap();
        let names = report.findings.iter().map(|finding| finding.file.rsplit('/').next().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(found("web-000001.vmdk"), ["web-flat.vmdk"]);
    assert_eq!(found("db-000002.vmdk"), ["db-000002.vmdk"]);
    assert_eq!(found("db-000001.vmdk"), [""; 0]);
    assert_eq!(found("db-000001-sesparse.vmdk"), [""; 0]);
    assert_eq!(found("web-flat.vmdk"), ["web-flat.vmdk"]);
    assert_eq!(found("broken.vmdk"), ["broken.vmdk"]);
    assert_eq!(found("web.vmx").len(), 3);
    assert_eq!(examine(&files, Some("gone.vmdk")).unwrap_err().kind, blk::ErrorKind::NotFound);
    // An extent that no descriptor names is examined on its own.
    let mut alone =
        Files::from([("x-sesparse.vmdk".to_owned(), sesparse()), ("x.bin".to_owned(), vec![1; 512])]);
    let report = examine(&alone, Some("x-sesparse.vmdk")).unwrap();
    assert_eq!(report, Report::default());
    assert_eq!(examine(&alone, Some("x.bin")).unwrap().findings[0].severity, Note);
    cut(&mut alone, "x-sesparse.vmdk", 300);
    assert!(!examine(&alone, Some("x-sesparse.vmdk")).unwrap().is_sound());
}

#[test]
fn findings_above_the_limit_are_counted() {
    let finding = |n: usize| Finding::of_error(&Error::damaged(format!("{n:06}.vmdk"), "CID is \"zz\""), "");
    let listed = |count: usize| {
        let mut faults = Faults::default();
        faults.extend((0..count).map(finding));
        faults.into_vec()
    };
    let all: Vec<Finding> = (0..REPORT_FINDINGS_MAX).map(finding).collect();
    assert_eq!(listed(REPORT_FINDINGS_MAX), all);
    let more = listed(REPORT_FINDINGS_MAX + 2);
    assert_eq!((&more[..REPORT_FINDINGS_MAX], more.len()), (&all[..], REPORT_FINDINGS_MAX + 1));
    assert_eq!(more.last().unwrap().found, "2 more than are listed");
}
