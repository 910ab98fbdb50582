//! One planted fault in each row, and the exact findings that must result.

mod chains;
mod extents;
mod home;
mod scale;
mod snapshots;
mod texts;
mod vm;

use std::collections::BTreeMap;

use blk::SECTOR;
use blk::layer::Layer;
use proptest::prelude::*;
use sim::{Options, SimWorld, View};

use super::finding::REPORT_FINDINGS_MAX;
use super::*;
use crate::delta::{DeltaParams, Growth, VmfsSparse};
use crate::sesparse::testing::Image;
use crate::testing::{flush, root, write};

use Severity::{Damage, Note, Warning};

/// 3 MiB.
pub(crate) const CAPACITY: u64 = 6144;

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Severity, file, field, found, and parts of expected and remedy.
type Row = (Severity, &'static str, &'static str, &'static str, &'static str, &'static str);

/// A planted fault, and all findings that must result.
type Case = (&'static str, fn(&mut Files), &'static [Row]);

/// A link to which nothing refers.
const fn unreferred(link: &'static str) -> Row {
    (Warning, link, "the link", "not referred to by the .vmx or the .vmsd", "leads to it", "keep it")
}

/// A file of data without its descriptor; `line` is the last line of the descriptor in the remedy.
const fn nameless(extent: &'static str, descriptor: &'static str, line: &'static str) -> Row {
    (Damage, extent, "its descriptor", "missing", descriptor, line)
}

/// A disk whose running link was not made on the layer of the current snapshot, "two"; `field` names the disk.
const fn beside_current(field: &'static str, found: &'static str, expected: &'static str) -> Row {
    (Warning, "web.vmsd", field, found, expected, "do not commit or revert")
}

/// An extent that another descriptor names too.
const fn shared(link: &'static str, extent: &'static str, expected: &'static str) -> Row {
    (Damage, link, "the extent line", extent, expected, "move the other away")
}

/// A small VMFSsparse delta, closed.
fn delta() -> Vec<u8> {
    let world = SimWorld::new(1, Options::default());
    world.run(async |env| {
        let file = root(&env).create_new("d").await.unwrap();
        root(&env).sync().await.unwrap();
        let growth = Growth { step_bytes: 16 << 10, chunk_bytes: 16 << 10 };
        let facts = DeltaParams { name: "d", capacity_sectors: CAPACITY, writable: true, growth };
        let delta = VmfsSparse::create(env.clone(), file, facts, 1).await.unwrap();
        write(&delta, 0, &[5; 4096]).await.unwrap();
        write(&delta, 4096 * SECTOR, &[6; 512]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
    });
    world.read_file("d", View::Durable).unwrap()
}

fn sesparse() -> Vec<u8> {
    Image::new(CAPACITY, 4096).data(0, 1).data(5, 2).bytes()
}

/// Returns a descriptor; `parent` is its name and CID.
fn link(cid: u32, parent: Option<(&str, u32)>, kind: (&str, &str), extent: &str) -> Vec<u8> {
    let (hint, parent_cid) = match parent {
        Some((hint, cid)) => (format!("parentFileNameHint=\"{hint}\"\n"), cid),
        None => (String::new(), u32::MAX),
    };
    let (create_type, keyword) = kind;
    format!(
        "# Disk DescriptorFile\nversion=1\nCID={cid:08x}\nparentCID={parent_cid:08x}\ncreateType=\"{create_type}\"\n{hint}\
         RW {CAPACITY} {keyword} \"{extent}\"\n"
    )
    .into_bytes()
}

const COWD: (&str, &str) = ("vmfsSparse", "VMFSSPARSE");
const SESPARSE: (&str, &str) = ("seSparse", "SESPARSE");
const FLAT: (&str, &str) = ("vmfs", "VMFS");

/// Returns a folder with two disks and two snapshots: one disk on VMFSsparse deltas, one on SEsparse deltas.
pub(crate) fn sound() -> Files {
    let mut files = Files::new();
    let mut put = |name: &str, bytes: Vec<u8>| _ = files.insert(name.into(), bytes);
    for (disk, kind, ending, bytes) in
        [("web", COWD, "delta", delta()), ("db", SESPARSE, "sesparse", sesparse())]
    {
        let name = |number: u32| format!("{disk}-{number:06}.vmdk");
        put(&format!("{disk}.vmdk"), link(1, None, FLAT, &format!("{disk}-flat.vmdk")));
        put(&format!("{disk}-flat.vmdk"), vec![7; (CAPACITY * SECTOR) as usize]);
        for number in 1..=2 {
            let below = if number == 1 { format!("{disk}.vmdk") } else { name(number - 1) };
            let extent = format!("{disk}-{number:06}-{ending}.vmdk");
            put(&name(number), link(number + 1, Some((&below, number)), kind, &extent));
            put(&extent, bytes.clone());
        }
    }
    let vmx = "scsi0.present = \"TRUE\"\n\
               scsi0:0.present = \"TRUE\"\nscsi0:0.fileName = \"web-000002.vmdk\"\n\
               scsi0:1.present = \"TRUE\"\nscsi0:1.fileName = \"db-000002.vmdk\"\n";
    let vmsd = "snapshot.lastUID = \"2\"\nsnapshot.current = \"2\"\nsnapshot.numSnapshots = \"2\"\n\
                snapshot0.uid = \"1\"\nsnapshot0.displayName = \"one\"\nsnapshot0.filename = \"web-Snapshot1.vmsn\"\n\
                snapshot0.numDisks = \"2\"\n\
                snapshot0.disk0.fileName = \"web.vmdk\"\nsnapshot0.disk0.node = \"scsi0:0\"\n\
                snapshot0.disk1.fileName = \"db.vmdk\"\nsnapshot0.disk1.node = \"scsi0:1\"\n\
                snapshot1.uid = \"2\"\nsnapshot1.parent = \"1\"\nsnapshot1.displayName = \"two\"\n\
                snapshot1.filename = \"web-Snapshot2.vmsn\"\nsnapshot1.numDisks = \"2\"\n\
                snapshot1.disk0.fileName = \"web-000001.vmdk\"\nsnapshot1.disk0.node = \"scsi0:0\"\n\
                snapshot1.disk1.fileName = \"db-000001.vmdk\"\nsnapshot1.disk1.node = \"scsi0:1\"\n";
    put("web.vmx", vmx.into());
    put("web.vmsd", vmsd.into());
    put("web-Snapshot1.vmsn", vec![1]);
    put("web-Snapshot2.vmsn", vec![1]);
    files
}

pub(crate) fn world_of(files: &Files) -> SimWorld {
    let world = SimWorld::new(1, Options::default());
    world.run(async |env| _ = env.open_root("/web").unwrap());
    for (name, bytes) in files {
        world.write_file(&format!("web/{name}"), bytes);
    }
    world
}

fn examine(files: &Files, what: Option<&str>) -> Result<Report> {
    let world = world_of(files);
    let what = what.map(str::to_owned);
    let report = world.run(async move |env| {
        let dir = env.open_root("/web").unwrap();
        check(&dir, what.as_deref().map_or(Target::Folder, Target::File)).await
    });
    for (name, bytes) in files {
        let now = world.read_file(&format!("web/{name}"), View::Current);
        assert!(now.as_ref() == Some(bytes), "a check writes nothing: {name}");
    }
    assert_eq!(world.list("web", View::Current).unwrap().len(), files.len());
    report.expect("nothing waits for ever")
}

/// Replaces text in a file. Both must exist.
pub(crate) fn edit(files: &mut Files, name: &str, from: &str, to: &str) {
    let text = String::from_utf8(files[name].clone()).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    files.insert(name.into(), text.replacen(from, to, 1).into_bytes());
}

pub(crate) fn patch(files: &mut Files, name: &str, at: usize, bytes: &[u8]) {
    files.get_mut(name).unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
}

fn cut(files: &mut Files, name: &str, len: usize) {
    files.get_mut(name).unwrap().truncate(len);
}

fn expect(planted: &str, files: &Files, rows: &[Row]) {
    let report = examine(files, None).unwrap();
    let text: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let text = text.join("\n");
    for (severity, file, field, found, expected, remedy) in rows {
        let path = format!("/web/{file}");
        // An empty name means the folder.
        let path = path.trim_end_matches('/');
        let row = report.findings.iter().find(|finding| {
            finding.severity == *severity
                && finding.file.ends_with(path)
                && finding.field == *field
                && finding.found == *found
                && finding.expected.contains(expected)
                && finding.remedy.contains(remedy)
        });
        assert!(
            row.is_some(),
            "{planted}: no {severity} {file}, {field} {found}, {expected}, {remedy} in\n{text}"
        );
    }
    assert_eq!(report.findings.len(), rows.len(), "{planted}: more is found than was planted:\n{text}");
}

#[test]
fn a_sound_folder_has_no_findings() {
    let report = examine(&sound(), None).unwrap();
    assert_eq!(report, Report::default());
    assert!(report.is_sound());
}

/// Plants each fault in a folder of its own.
fn expect_each(cases: &[Case]) {
    for (planted, plant, rows) in cases {
        let mut files = sound();
        plant(&mut files);
        expect(planted, &files, rows);
    }
}

/// Damage to a file: cut, removed, or with eight other bytes.
#[derive(Debug, Clone)]
enum Harm {
    Gone,
    Cut(prop::sample::Index),
    Bytes(prop::sample::Index, u64),
}

fn harm() -> impl Strategy<Value = Harm> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        Just(Harm::Gone),
        at().prop_map(Harm::Cut),
        (at(), any::<u64>()).prop_map(|(at, word)| Harm::Bytes(at, word)),
        (at(), 0u64..64).prop_map(|(at, word)| Harm::Bytes(at, word)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_folder_is_reported(harms in proptest::collection::vec((any::<prop::sample::Index>(), harm()), 1..5)) {
        let mut files = sound();
        for (which, harm) in harms {
            let name = files.keys().nth(which.index(files.len())).unwrap().clone();
            let bytes = files.get_mut(&name).unwrap();
            match harm {
                Harm::Gone => _ = files.remove(&name),
                Harm::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
                Harm::Bytes(at, word) => {
                    // Most of the metadata is in the first pages.
                    let at = at.index(bytes.len().clamp(1, 50 << 10));
                    bytes.iter_mut().skip(at).zip(word.to_le_bytes()).for_each(|(byte, new)| *byte = new);
                }
            }
        }
        let report = examine(&files, None).unwrap();
        prop_assert!(report.findings.iter().all(|finding| !finding.to_string().contains('\n')), "one line each");
    }
}
