//! Faults inside one descriptor: rows of 1.8 without a second file.

use super::*;

const TEXT: &str = "correct the line";
const CHILD: &str = "web-000002.vmdk";

/// Text of the descriptor, its replacement, the name of the fault, and the finding.
const FAULTS: &[(&str, &str, &str, Row)] = &[
    (
        "CID=00000003",
        "CID=zz",
        "a number that is none",
        (Damage, CHILD, "CID", "\"zz\"", "hexadecimal", TEXT),
    ),
    (
        "RW 6144",
        "RW 0",
        "no sectors",
        (Damage, CHILD, "the extent in line 7: the number of sectors", "0", "1 to 2^54", TEXT),
    ),
    (
        "RW 6144",
        "RW 99999999999999999999",
        "too many sectors",
        (
            Damage,
            CHILD,
            "the extent in line 7: the number of sectors",
            "\"99999999999999999999\"",
            "a decimal number",
            TEXT,
        ),
    ),
    (
        "CID=00000003",
        "CID=3\nCID=4",
        "a key given twice",
        (Damage, CHILD, "CID", "given twice, as \"3\" and as \"4\"", "", "remove one of the lines"),
    ),
    (
        "RW 6144 VMFSSPARSE \"web-000002-delta.vmdk\"\n",
        "",
        "no extent",
        (Damage, CHILD, "the list of extents", "empty", "at least one line", TEXT),
    ),
    (
        "parentCID=00000002",
        "parentCID=ffffffff",
        "a hint without parentCID",
        (Damage, CHILD, "parentCID", "ffffffff or absent", "parentFileNameHint is \"web-000001.vmdk\"", TEXT),
    ),
    (
        "parentFileNameHint=\"web-000001.vmdk\"\n",
        "",
        "a parentCID without hint",
        (Damage, CHILD, "parentFileNameHint", "absent", "parentCID is 00000002", TEXT),
    ),
    (
        "version=1",
        "version=9",
        "a version of the future",
        (Warning, CHILD, "version", "\"9\"", "1, 2 or 3", TEXT),
    ),
];

#[test]
fn descriptors() {
    // The delta of an unreadable descriptor appears to have none.
    let lost = nameless(
        "web-000002-delta.vmdk",
        "\"web-000002.vmdk\"",
        "RW 6144 VMFSSPARSE \"web-000002-delta.vmdk\"",
    );
    for (from, to, planted, row) in FAULTS {
        let mut files = sound();
        edit(&mut files, CHILD, from, to);
        expect(planted, &files, &[*row, lost]);
    }
}
