//! The work of a check grows linearly with the folder, whatever its shape. The tests count steps and measure no time.

use super::*;
use crate::steps;
use crate::text::{FOLDER_TEXT_LINES_MAX, TEXT_LINES_MAX};

/// Creates a folder of about `n` objects of some kind.
type Shape = fn(n: usize) -> Files;

fn links(count: usize, parent: impl Fn(usize) -> Option<String>, extent: impl Fn(usize) -> String) -> Files {
    let one = |n| {
        let parent = parent(n);
        let parent = parent.as_deref().map(|hint| (hint, 1));
        (format!("x-{n:06}.vmdk"), link(1, parent, COWD, &extent(n)))
    };
    (0..count).map(one).collect()
}

fn sharing_one_delta(n: usize) -> Files {
    let mut files = links(n, |_| None, |_| "shared-delta.vmdk".into());
    files.insert("shared-delta.vmdk".into(), delta());
    files
}

/// Half of the links form a chain, and each of these has one more child.
fn comb(n: usize) -> Files {
    let below = |at: usize| format!("x-{at:06}.vmdk");
    let half = n / 2;
    let parent = move |at: usize| match at {
        0 => None,
        at if at < half => Some(below(at - 1)),
        at => Some(below(at - half)),
    };
    links(n, parent, |at| format!("x-{at:06}-delta.vmdk"))
}

fn circle(n: usize) -> Files {
    links(n, |at| Some(format!("x-{:06}.vmdk", (at + 1) % n)), |at| format!("x-{at:06}-delta.vmdk"))
}

fn lines_of_one_extent(n: usize) -> Files {
    let mut text = link(1, None, FLAT, "x-flat.vmdk");
    text.extend("RW 1 VMFS \"x-flat.vmdk\" 7\n".repeat(n).bytes());
    Files::from([("x.vmdk".into(), text), ("x-flat.vmdk".into(), vec![0; 4096])])
}

/// A VM of unstun, whose paths are exact, with a snapshot for each link; every line of its configuration needs a
/// lookup.
fn configured(n: usize) -> Files {
    let mut files = links(n, |_| Some("x-000000.vmdk".into()), |_| "shared-delta.vmdk".into());
    let mut vmx =
        String::from("unstun.id = \"00000000000000000000000000000001\"\nscsi0.present = \"TRUE\"\n");
    for unit in (0..64).filter(|unit| *unit != 7) {
        vmx += &format!("scsi0:{unit}.present = \"TRUE\"\nscsi0:{unit}.fileName = \"x-000001.vmdk\"\n");
    }
    vmx.extend((0..n).map(|line| format!("other{line} = \"{line}\"\n")));
    let mut vmsd = format!("snapshot.lastUID = \"{n}\"\nsnapshot.numSnapshots = \"{n}\"\n");
    for at in 0..n {
        let disk = format!(
            "snapshot{at}.disk0.fileName = \"x-{at:06}.vmdk\"\nsnapshot{at}.disk0.node = \"scsi0:0\"\n"
        );
        vmsd += &format!("snapshot{at}.uid = \"{}\"\nsnapshot{at}.numDisks = \"1\"\n{disk}", at + 1);
    }
    files.insert("x.vmx".into(), vmx.into_bytes());
    files.insert("x.vmsd".into(), vmsd.into_bytes());
    files
}

/// Plain data without descriptors, and links whose hints name other files.
fn orphans(n: usize) -> Files {
    let mut files = links(n, |at| Some(format!("gone-{at:06}.vmdk")), |at| format!("x-{at:06}-delta.vmdk"));
    files.extend((0..n).map(|at| (format!("gone-{at:06}-flat.vmdk"), vec![0; 512])));
    files
}

fn steps_of(shape: Shape, n: usize) -> u64 {
    let files = shape(n);
    steps::within(|| drop(examine(&files, None).unwrap()))
}

#[test]
fn twice_the_folder_is_twice_the_work() {
    let shapes: [(&str, Shape); 6] = [
        ("sharing one delta", sharing_one_delta),
        ("comb", comb),
        ("circle", circle),
        ("lines of one extent", lines_of_one_extent),
        ("configured", configured),
        ("orphans", orphans),
    ];
    for (name, shape) in shapes {
        let (once, twice) = (steps_of(shape, 300), steps_of(shape, 600));
        assert!(twice <= 2 * once + once / 4, "{name}: {once} steps, {twice} for twice as much");
        assert!(once < 300 * 40, "{name}: {once} steps");
    }
}

#[test]
fn a_folder_of_too_much_text_is_named_and_the_rest_is_checked() {
    let filled = || {
        let mut text = link(1, None, FLAT, "x-flat.vmdk");
        text.extend(vec![b'\n'; TEXT_LINES_MAX - 6]);
        text
    };
    let count = FOLDER_TEXT_LINES_MAX / TEXT_LINES_MAX + 1;
    let mut files: Files = (0..count).map(|n| (format!("x-{n}.vmdk"), filled())).collect();
    files.insert("x-flat.vmdk".into(), vec![0; (CAPACITY * SECTOR) as usize]);
    let report = examine(&files, None).unwrap();
    let long = report.findings.iter().find(|f| f.field == "the number of lines of the folder's texts");
    let long = long.unwrap_or_else(|| panic!("{report:?}"));
    assert!(
        long.file.ends_with(&format!("x-{}.vmdk", count - 1)) && long.found.contains("with this file"),
        "{long}"
    );
    assert_eq!(long.expected, format!("at most {FOLDER_TEXT_LINES_MAX}"));
    assert!(report.findings.iter().any(|f| f.file.ends_with("x-0.vmdk")), "the others share their extent");
}

#[test]
fn a_report_of_many_faults_keeps_the_worst() {
    let finding = |severity, n: usize| Finding {
        severity,
        file: format!("{n:06}"),
        field: "f".into(),
        found: "a".into(),
        expected: "b".into(),
        remedy: "c".into(),
    };
    let mut faults = Faults::default();
    (0..50_000).for_each(|n| faults.push(finding(Note, n)));
    faults.push(finding(Damage, 7));
    let kept = faults.into_vec();
    assert_eq!((kept[0].severity, kept.len()), (Damage, 10_001));
    assert_eq!(kept[10_000].found, "40001 more than are listed");
}
