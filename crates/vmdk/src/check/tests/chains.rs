//! Faults between two descriptors (rows of 1.8), and of chains (rows of 8).

use super::*;

const CHAINS: &[Case] = &[
    (
        "a parent that was written",
        |files| edit(files, "web-000001.vmdk", "CID=00000002", "CID=000000aa"),
        &[(
            Damage,
            "web-000002.vmdk",
            "parentCID",
            "00000002",
            "000000aa, the CID of \"web-000001.vmdk\"",
            "set parentCID=000000aa in \"web-000002.vmdk\", but only if",
        )],
    ),
    (
        "a base that was resized",
        |files| {
            edit(files, "web.vmdk", "RW 6144", "RW 8192");
            files.insert("web-flat.vmdk".into(), vec![7; 4 << 20]);
        },
        &[(
            Damage,
            "web-000001.vmdk",
            "the size of the disk",
            "6144 sectors",
            "8192 sectors, as in its parent \"web.vmdk\"",
            "put 6144 back into the extent line of \"web.vmdk\"",
        )],
    ),
    (
        "a lost parent",
        |files| {
            _ = (
                files.remove("web.vmdk"),
                edit(files, "web.vmsd", "\"web.vmdk\"", "\"/else/where/web.vmdk\""),
            );
        },
        &[
            (
                Damage,
                "web-000001.vmdk",
                "parentFileNameHint",
                "\"web.vmdk\"",
                "which is not here",
                "with this link's parentCID as its CID",
            ),
            nameless(
                "web-flat.vmdk",
                "\"web.vmdk\"",
                "CID=00000001, parentCID=ffffffff, createType=\"vmfs\", RW 6144 VMFS \"web-flat.vmdk\"",
            ),
        ],
    ),
    (
        "a linked clone",
        |files| {
            for name in ["web.vmdk", "web-flat.vmdk"] {
                files.remove(name);
            }
            edit(files, "web-000001.vmdk", "\"web.vmdk\"", "\"/vmfs/volumes/1/base/web.vmdk\"");
            edit(files, "web.vmsd", "\"web.vmdk\"", "\"/vmfs/volumes/1/base/web.vmdk\"");
        },
        &[(
            Note,
            "web-000001.vmdk",
            "parentFileNameHint",
            "\"/vmfs/volumes/1/base/web.vmdk\"",
            "the parent is elsewhere",
            "linked clone",
        )],
    ),
    (
        "a circle",
        |files| {
            files.insert("a.vmdk".into(), link(9, Some(("b.vmdk", 9)), COWD, "web-000002-delta.vmdk"));
            files.insert("b.vmdk".into(), link(9, Some(("a.vmdk", 9)), COWD, "web-000001-delta.vmdk"));
        },
        &[
            (
                Damage,
                "a.vmdk",
                "parentFileNameHint",
                "its own ancestor, by way of \"a.vmdk\", \"b.vmdk\"",
                "ends in a base",
                "from a backup",
            ),
            shared("a.vmdk", "\"web-000002-delta.vmdk\"", "but \"web-000002.vmdk\" names it too"),
            shared("b.vmdk", "\"web-000001-delta.vmdk\"", "but \"web-000001.vmdk\" names it too"),
            shared("web-000001.vmdk", "\"web-000001-delta.vmdk\"", "but \"b.vmdk\" names it too"),
            shared("web-000002.vmdk", "\"web-000002-delta.vmdk\"", "but \"a.vmdk\" names it too"),
        ],
    ),
    (
        "a chain not in the order of its numbers",
        |files| {
            let link = files.remove("web-000001.vmdk").unwrap();
            files.insert("web-000009.vmdk".into(), link);
            edit(files, "web-000002.vmdk", "web-000001.vmdk", "web-000009.vmdk");
            edit(files, "web.vmsd", "web-000001.vmdk", "web-000009.vmdk");
        },
        &[(
            Note,
            "web-000002.vmdk",
            "the order of its chain",
            "\"web.vmdk\", \"web-000009.vmdk\", \"web-000002.vmdk\", base first",
            "carry no order",
            "follows the hints",
        )],
    ),
    (
        "a parent that is no link",
        |files| {
            edit(files, "web-000001.vmdk", "\"web.vmdk\"", "\"hosted.vmdk\"");
            files.insert("hosted.vmdk".into(), [&b"KDMV"[..], &[0; 2044]].concat());
        },
        &[
            (
                Damage,
                "web-000001.vmdk",
                "parentFileNameHint",
                "\"hosted.vmdk\"",
                "\"hosted.vmdk\" is a hosted sparse disk (\"KDMV\")",
                "convert",
            ),
            (Warning, "hosted.vmdk", "version", "0", "1 to 3", "take the file from a backup"),
        ],
    ),
];

#[test]
fn chains() {
    expect_each(CHAINS);
}

#[test]
fn long_chains() {
    for (links, severity, expected) in [(33, Warning, "at most 32"), (256, Damage, "at most 255")] {
        let mut files = Files::new();
        files.insert("x.vmdk".into(), link(1, None, ("custom", "ZERO"), ""));
        for number in 1..links {
            let below = if number == 1 { "x.vmdk".into() } else { format!("x-{:06}.vmdk", number - 1) };
            let zero = link(1, Some((&below, 1)), ("custom", "ZERO"), "");
            files.insert(format!("x-{number:06}.vmdk"), zero);
        }
        let report = examine(&files, None).unwrap();
        let long: Vec<&Finding> =
            report.findings.iter().filter(|finding| finding.field == "the length of the chain").collect();
        let [long] = &long[..] else { panic!("{report:?}") };
        assert_eq!((long.severity, long.found.clone()), (severity, format!("{links} links")));
        assert!(
            long.file.ends_with(&format!("x-{:06}.vmdk", links - 1)) && long.expected.contains(expected),
            "{long}"
        );
        assert_eq!(report.is_sound(), severity != Damage);
    }
}
