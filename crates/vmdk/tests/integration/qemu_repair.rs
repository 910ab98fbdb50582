//! QEMU reads a repaired chain as it read it before the damage. On real files through io_uring; needs qemu-img, which
//! scripts/setup.sh installs.

use std::fs;
use std::path::Path;

use crate::support::{self, convert, qemu_img, run, scratch};
use blk::SECTOR;
use vmdk::delta::{DeltaParams, Growth, VmfsSparse};
use vmdk::repair::{RepairOptions, apply, plan, undo};

const CAPACITY: u64 = 8192;

/// Writes a base of fives with two VMFSsparse deltas on it; each delta has one sector with its own number.
fn chain(path: &Path) {
    fs::write(path.join("web-flat.vmdk"), vec![5; (CAPACITY * SECTOR) as usize]).unwrap();
    let base = format!("RW {CAPACITY} VMFS \"web-flat.vmdk\"");
    let text = |cid: u32, parent: &str, kind: &str, extent: &str| {
        format!("# Disk DescriptorFile\nversion=1\nCID={cid:08x}\n{parent}createType=\"{kind}\"\n{extent}\n")
    };
    fs::write(path.join("web.vmdk"), text(0xa1, "parentCID=ffffffff\n", "vmfs", &base)).unwrap();
    for (number, parent) in [(1u8, "web.vmdk"), (2, "web-000001.vmdk")] {
        let extent = format!("web-00000{number}-delta.vmdk");
        let (folder, name) = (path.to_str().unwrap().to_owned(), extent.clone());
        run(async move |env| {
            let file = env.open_root(&folder).unwrap().create_new(&name).await.unwrap();
            let growth = Growth { step_bytes: 16 << 10, chunk_bytes: 16 << 10 };
            let facts = DeltaParams { name: &name, capacity_sectors: CAPACITY, writable: true, growth };
            let delta = VmfsSparse::create(env.clone(), file, facts, 1).await.unwrap();
            let mut model = vec![0; (CAPACITY * SECTOR) as usize];
            let mut rng = sim::Rng::new(u64::from(number));
            support::layers::write_randomly(&mut rng, &delta, 0, &mut model, support::layers::WRITES_MAX)
                .await;
            support::layers::seal(&delta).await;
        });
        let own = 0xa1 + u32::from(number);
        let parent = format!("parentCID={:08x}\nparentFileNameHint=\"{parent}\"\n", own - 1);
        let extent = format!("RW {CAPACITY} VMFSSPARSE \"{extent}\"");
        fs::write(path.join(format!("web-00000{number}.vmdk")), text(own, &parent, "vmfsSparse", &extent))
            .unwrap();
    }
}

fn edit(path: &Path, name: &str, from: &str, to: &str) {
    let text = fs::read_to_string(path.join(name)).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(path.join(name), text.replacen(from, to, 1)).unwrap();
}

fn repair(path: &Path, terms: &RepairOptions) {
    let terms = terms.clone();
    let folder = path.to_str().unwrap().to_owned();
    run(async move |env| {
        let dir = env.open_root(&folder).unwrap();
        let plan = plan(&dir, &terms).await.unwrap();
        assert!(!plan.before.is_sound() && plan.after.is_sound(), "{plan:?}");
        apply(&dir, &plan).await.unwrap();
    });
}

#[test]
fn qemu_reads_a_repaired_chain_as_before_the_damage() {
    type Plant = fn(&Path);
    let vouched = RepairOptions { ignore_content_ids: true, ..RepairOptions::default() };
    let named = |pairs: &[(&str, &str)]| RepairOptions {
        parents: pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
        ..RepairOptions::default()
    };
    let cases: [(Plant, RepairOptions); 7] = [
        (|path| fs::remove_file(path.join("web-000001.vmdk")).unwrap(), RepairOptions::default()),
        (
            |path| {
                let text = fs::read_to_string(path.join("web-000002.vmdk")).unwrap();
                fs::write(path.join("web-000002.vmdk"), &text[..text.len() - 20]).unwrap();
            },
            RepairOptions::default(),
        ),
        (
            |path| {
                fs::remove_file(path.join("web-000001.vmdk")).unwrap();
                fs::remove_file(path.join("web-000002.vmdk")).unwrap();
            },
            named(&[("web-000001.vmdk", "web.vmdk"), ("web-000002.vmdk", "web-000001.vmdk")]),
        ),
        (|path| fs::remove_file(path.join("web.vmdk")).unwrap(), RepairOptions::default()),
        (|path| edit(path, "web-000002.vmdk", "web-000001.vmdk", "gone.vmdk"), RepairOptions::default()),
        (|path| edit(path, "web-000002.vmdk", "web-000001.vmdk", "web.vmdk"), RepairOptions::default()),
        (|path| edit(path, "web.vmdk", "CID=000000a1", "CID=000000ff"), vouched),
    ];
    for (plant, terms) in cases {
        let (_guard, path) = scratch();
        chain(&path);
        let before = convert(&path, "web-000002.vmdk");
        plant(&path);
        let planted =
            ["web.vmdk", "web-000001.vmdk", "web-000002.vmdk"].map(|name| fs::read(path.join(name)).ok());
        repair(&path, &terms);
        qemu_img(&path, &["check", "web-000002.vmdk"]);
        assert!(convert(&path, "web-000002.vmdk") == before, "qemu-img reads something else");
        let folder = path.to_str().unwrap().to_owned();
        run(async move |env| _ = undo(&env.open_root(&folder).unwrap()).await.unwrap());
        let undone =
            ["web.vmdk", "web-000001.vmdk", "web-000002.vmdk"].map(|name| fs::read(path.join(name)).ok());
        assert!(undone == planted, "an undo brings the files back");
    }
}

/// Returns the bytes of the disk that a plan reports as lost.
fn lost(path: &Path, terms: &RepairOptions) -> Vec<std::ops::Range<usize>> {
    let (folder, terms) = (path.to_str().unwrap().to_owned(), terms.clone());
    run(async move |env| {
        let dir = env.open_root(&folder).unwrap();
        let plan = plan(&dir, &terms).await.unwrap();
        let lines = plan.mends.iter().flat_map(|mend| &mend.lines);
        let numbers =
            |line: &str| -> Vec<usize> { line.split(' ').filter_map(|word| word.parse().ok()).collect() };
        lines.map(|line| numbers(line)[0]..numbers(line)[1]).collect()
    })
}

#[test]
fn qemu_reads_a_repaired_delta_as_the_repair_reported() {
    let terms = RepairOptions { cut_deltas: true, ..RepairOptions::default() };
    let (_guard, path) = scratch();
    chain(&path);
    let delta = path.join("web-000002-delta.vmdk");
    let whole = fs::read(&delta).unwrap();
    let (before, below) = (convert(&path, "web-000002.vmdk"), convert(&path, "web-000001.vmdk"));
    let mut cuts = 0;
    for bytes in [whole.len() / 2, whole.len() / 3 + 100, whole.len() / 5, whole.len() * 3 / 4] {
        fs::write(&delta, &whole[..bytes]).unwrap();
        let lost = lost(&path, &terms);
        if lost.is_empty() {
            continue;
        }
        cuts += 1;
        repair(&path, &terms);
        qemu_img(&path, &["check", "web-000002.vmdk"]);
        let mut expected = before.clone();
        lost.into_iter().for_each(|range| expected[range.clone()].copy_from_slice(&below[range]));
        assert!(
            convert(&path, "web-000002.vmdk") == expected,
            "cut at {bytes}: qemu-img reads something else"
        );
        let folder = path.to_str().unwrap().to_owned();
        run(async move |env| _ = undo(&env.open_root(&folder).unwrap()).await.unwrap());
        assert!(fs::read(&delta).unwrap() == whole[..bytes], "cut at {bytes}: an undo brings the file back");
    }
    assert!(cuts > 1, "{cuts} of the lengths lose something");
}

#[test]
fn an_orphan_and_stale_locks_are_moved_aside_and_restored() {
    let (_guard, path) = scratch();
    chain(&path);
    fs::write(
        path.join("web.vmx"),
        "scsi0.present = \"TRUE\"\nscsi0:0.present = \"TRUE\"\n\
        scsi0:0.fileName = \"web-000001.vmdk\"\n",
    )
    .unwrap();
    fs::write(path.join("web.vmsd"), "snapshot.numSnapshots = \"0\"\n").unwrap();
    fs::create_dir(path.join("web.vmdk.lck")).unwrap();
    fs::write(path.join("web.vmdk.lck/M1.lck"), "a process").unwrap();
    // The VM runs on web-000001 now; its child is removed first.
    fs::remove_file(path.join("web-000002.vmdk")).unwrap();
    fs::remove_file(path.join("web-000002-delta.vmdk")).unwrap();
    let text = fs::read_to_string(path.join("web-000001.vmdk")).unwrap();
    fs::write(path.join("old.vmdk"), text.replace("web-000001-delta", "old-delta")).unwrap();
    fs::copy(path.join("web-000001-delta.vmdk"), path.join("old-delta.vmdk")).unwrap();
    let names = || -> Vec<String> {
        let entries =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> =
            entries.filter(|name| name != "unstun-repair" && name != "out.raw").collect();
        names.sort();
        names
    };
    let (all, before) = (names(), convert(&path, "web-000001.vmdk"));
    let terms = RepairOptions { move_orphans: true, stale_locks: true, ..RepairOptions::default() };
    let folder = path.to_str().unwrap().to_owned();
    run(async move |env| {
        let dir = env.open_root(&folder).unwrap();
        apply(&dir, &plan(&dir, &terms).await.unwrap()).await.unwrap();
    });
    let gone = ["old-delta.vmdk", "old.vmdk", "web.vmdk.lck"];
    let left: Vec<String> = all.iter().filter(|name| !gone.contains(&name.as_str())).cloned().collect();
    assert_eq!(names(), left);
    assert!(convert(&path, "web-000001.vmdk") == before);
    let folder = path.to_str().unwrap().to_owned();
    run(async move |env| _ = undo(&env.open_root(&folder).unwrap()).await.unwrap());
    assert_eq!(names(), all);
    assert_eq!(fs::read_to_string(path.join("web.vmdk.lck/M1.lck")).unwrap(), "a process");
}
