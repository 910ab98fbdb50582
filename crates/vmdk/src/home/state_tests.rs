use blk::ErrorKind;
use blk::manifest::{Change, DiskMode};

use super::*;
use crate::steps;
use crate::text::TEXT_LINES_MAX;

const VMX: &str = concat!(
    "displayName = \"Web\"\n",
    "scsi0.present = \"TRUE\"\n",
    "scsi0:0.present = \"TRUE\"\n",
    "scsi0:0.fileName = \"/vmfs/volumes/x/web-000001.vmdk\"\n",
    "scsi0:1.present = \"TRUE\"\n",
    "scsi0:1.fileName = \"web_1.vmdk\"\n",
    "scsi0:1.mode = \"independent-persistent\"\n",
);

const VMSD: &str = concat!(
    "snapshot.lastUID = \"4\"\n",
    "snapshot.current = \"3\"\n",
    "snapshot0.uid = \"3\"\n",
    "snapshot0.filename = \"web-Snapshot3.vmsn\"\n",
    "snapshot0.displayName = \"before\"\n",
    "snapshot0.createTimeHigh = \"310596\"\n",
    "snapshot0.createTimeLow = \"938781285\"\n",
    "snapshot0.numDisks = \"2\"\n",
    "snapshot0.disk0.fileName = \"/vmfs/volumes/x/web.vmdk\"\n",
    "snapshot0.disk0.node = \"scsi0:0\"\n",
    "snapshot0.disk1.fileName = \"removed.vmdk\"\n",
    "snapshot0.disk1.node = \"scsi0:5\"\n",
    "snapshot.numSnapshots = \"1\"\n",
);

fn texts() -> Texts {
    Texts {
        vmx: Vmx::parse("web.vmx", VMX.as_bytes()).unwrap(),
        vmsd: Vmsd::parse("web.vmsd", VMSD.as_bytes()).unwrap(),
        bin: Rc::default(),
    }
}

fn local(path: &str) -> Result<Located> {
    let layer = path.rsplit('/').next().unwrap().to_owned();
    let exists = layer != "removed.vmdk";
    Ok(Located { layer, exists })
}

fn read_with(texts: &mut Texts, random: impl FnMut() -> u128) -> Result<(VmState, AssignedIds)> {
    let size_bytes = BTreeMap::from([(Slot::parse("scsi0:0").unwrap(), 4096)]);
    texts.read(
        &ReadContext { fallback_name: "stem", id: None, local: &local, size_bytes: &size_bytes },
        random,
    )
}

fn read(texts: &mut Texts) -> (VmState, AssignedIds) {
    let mut next = 0xabc;
    let random = || {
        next += 1;
        next
    };
    read_with(texts, random).unwrap()
}

fn again(texts: &Texts) -> (VmState, AssignedIds) {
    let mut texts = Texts {
        vmx: Vmx::parse("web.vmx", &texts.vmx.to_bytes()).unwrap(),
        vmsd: Vmsd::parse("web.vmsd", &texts.vmsd.to_bytes()).unwrap(),
        bin: Rc::default(),
    };
    read(&mut texts)
}

#[test]
fn a_foreign_vm_gets_identities_once() {
    let mut texts = texts();
    let (state, assigned) = read(&mut texts);
    assert_eq!(assigned, AssignedIds { in_vmx: true, in_vmsd: true });
    assert_eq!((state.name.as_str(), state.id, state.last_uid), ("Web", 0xabd, 4));
    let disks: Vec<_> =
        state.disks.iter().map(|d| (d.number, d.slot.as_str(), d.top.as_str(), d.size_bytes)).collect();
    assert_eq!(disks, [(0, "scsi0:0", "web-000001.vmdk", 4096), (1, "scsi0:1", "web_1.vmdk", 0)]);
    assert_eq!(state.disks[1].mode, DiskMode::IndependentPersistent);
    assert_eq!((state.snapshots[0].uid, state.snapshots[0].id), (3, 0xabe));
    assert_eq!(state.snapshots[0].disks, [(0, "web.vmdk".to_owned())]);
    assert_eq!(state.current, Some(0xabe));
    assert_eq!(again(&texts), (state, AssignedIds::default()));
}

#[test]
fn an_unchanged_state_changes_no_line() {
    let mut texts = texts();
    let (state, _) = read(&mut texts);
    let before = (texts.vmx.to_bytes(), texts.vmsd.to_bytes());
    let change = Change { next: state, ..Change::default() };
    texts.write(&change, &local).unwrap();
    assert_eq!((texts.vmx.to_bytes(), texts.vmsd.to_bytes()), before);
}

#[test]
fn a_take_and_a_commit_are_written_and_foreign_lines_stay() {
    let mut texts = texts();
    let (mut state, _) = read(&mut texts);
    state.snapshots.push(SnapshotState {
        id: 77,
        uid: 5,
        parent: state.current,
        name: "now \"quoted\"".into(),
        description: "why\nnot".into(),
        created_unix_us: -1,
        disks: vec![(0, "web-000001.vmdk".into())],
    });
    state.current = Some(77);
    state.last_uid = 5;
    state.last_job = 9;
    state.disks[0].top = "web-000002.vmdk".into();
    state.folds.push(FoldState { disk: 0, layer: "web-000001.vmdk".into(), job: 9, held: true });
    texts.write(&Change { next: state.clone(), ..Change::default() }, &local).unwrap();
    let vmsd = String::from_utf8(texts.vmsd.to_bytes()).unwrap();
    for kept in [
        "snapshot0.filename = \"web-Snapshot3.vmsn\"",
        "fileName = \"/vmfs/volumes/x/web.vmdk\"",
        "fileName = \"removed.vmdk\"",
        "snapshot.needConsolidate = \"TRUE\"",
        "snapshot1.parent = \"3\"",
    ] {
        assert!(vmsd.contains(kept), "{kept} is not in {vmsd}");
    }
    assert_eq!(again(&texts).0, state);

    state.folds.clear();
    texts.write(&Change { next: state.clone(), ..Change::default() }, &local).unwrap();
    let vmsd = String::from_utf8(texts.vmsd.to_bytes()).unwrap();
    assert!(vmsd.contains("snapshot.needConsolidate = \"FALSE\"") && !vmsd.contains("unstun.fold"), "{vmsd}");
    assert_eq!(again(&texts).0, state);
}

#[test]
fn numbers_of_disks_are_never_used_again() {
    let mut texts = texts();
    read(&mut texts);
    texts.vmx.values_mut().remove("scsi0:1.fileName");
    texts.vmx.values_mut().remove("unstun.number.scsi0:1");
    for (key, value) in [("scsi0:2.present", "TRUE"), ("scsi0:2.fileName", "new.vmdk")] {
        texts.vmx.values_mut().set(key, value);
    }
    let (state, _) = read(&mut texts);
    let numbers: Vec<_> = state.disks.iter().map(|disk| (disk.slot.as_str(), disk.number)).collect();
    assert_eq!(numbers, [("scsi0:0", 0), ("scsi0:2", 2)]);
}

#[test]
fn bad_values_are_named() {
    let mut bad = texts();
    bad.vmx.values_mut().set(VM_ID, "12");
    let error = read_with(&mut bad, || 1).unwrap_err();
    assert_eq!(error.to_string(), "web.vmx: unstun.id is \"12\", expected 32 hexadecimal digits");
    let mut bad = texts();
    bad.vmsd.values_mut().set("unstun.fold0.layer", "x.vmdk");
    let error = read_with(&mut bad, || 1).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Damaged);
    let mut texts = texts();
    let (mut state, _) = read(&mut texts);
    state.disks[0].slot = "scsi9:3".into();
    let change = Change { next: state, ..Change::default() };
    assert!(texts.write(&change, &local).unwrap_err().to_string().contains("scsi9:3"));
}

#[test]
fn the_list_of_disks_follows_the_state() {
    let mut texts = texts();
    let (mut state, _) = read(&mut texts);
    let removed = state.disks.pop().unwrap();
    state.disks.push(DiskState {
        number: 2,
        slot: "scsi1:0".into(),
        mode: DiskMode::IndependentNonpersistent,
        size_bytes: 0,
        top: "redo.vmdk".into(),
        reset_to: Some("/fast/new.vmdk".into()),
    });
    texts.write(&Change { next: state.clone(), ..Change::default() }, &local).unwrap();
    let vmx = String::from_utf8(texts.vmx.to_bytes()).unwrap();
    assert!(!vmx.contains(&removed.slot), "{vmx}");
    for line in
        ["scsi1:0.fileName = \"/fast/new.vmdk\"", "scsi1:0.redo = \"redo.vmdk\"", "unstun.diskCount = \"3\""]
    {
        assert!(vmx.contains(line), "{line} is not in {vmx}");
    }
    state.disks[1].reset_to = Some("new.vmdk".into());
    assert_eq!(again(&texts).0, state);
    // Another disk in the same slot: nothing of the old one remains.
    state.disks[1] = DiskState {
        number: 3,
        top: "other.vmdk".into(),
        mode: DiskMode::Persistent,
        reset_to: None,
        ..state.disks[1].clone()
    };
    texts.write(&Change { next: state.clone(), ..Change::default() }, &local).unwrap();
    assert!(!String::from_utf8(texts.vmx.to_bytes()).unwrap().contains("redo"));
    assert_eq!(again(&texts).0, state);
}

#[test]
fn a_snapshot_keeps_disks_that_were_removed_from_the_vm() {
    let mut texts = texts();
    let (mut state, _) = read(&mut texts);
    state.disks.remove(0);
    state.disks.push(DiskState {
        number: 7,
        slot: "scsi0:0".into(),
        top: "new.vmdk".into(),
        ..state.disks[0].clone()
    });
    texts.write(&Change { next: state.clone(), ..Change::default() }, &local).unwrap();
    let (read, _) = again(&texts);
    assert_eq!(read.snapshots[0].disks, [(0, "web.vmdk".to_owned())]);
    assert_eq!(read.disks[0].number, 7);
    // Until its layer leaves the snapshot.
    state.snapshots[0].disks.clear();
    texts.write(&Change { next: state, ..Change::default() }, &local).unwrap();
    assert!(again(&texts).0.snapshots[0].disks.is_empty());
    assert!(String::from_utf8(texts.vmsd.to_bytes()).unwrap().contains("removed.vmdk"));
}

#[test]
fn a_restored_configuration_keeps_the_vms_identity() {
    let mut texts = texts();
    let (state, _) = read(&mut texts);
    let kept = "displayName = \"Old\"\nmemSize = \"77\"\nunstun.id = \"00000000000000000000000000000001\"\nunstun.diskCount = \"9\"\n";
    texts.restore(Vmx::parse("kept.vmx", kept.as_bytes()).unwrap()).unwrap();
    texts.write(&Change { next: state.clone(), ..Change::default() }, &local).unwrap();
    let vmx = String::from_utf8(texts.vmx.to_bytes()).unwrap();
    assert!(vmx.contains("memSize = \"77\"") && vmx.contains("unstun.diskCount = \"9\""), "{vmx}");
    let (read, _) = again(&texts);
    assert_eq!((read.id, &read.name, &read.disks), (state.id, &state.name, &state.disks));
}

/// As many disks as a VM has places, each named twice, in as many lines as a file may have.
fn crowded() -> Vmx {
    let buses = [("scsi", 4, 64), ("sata", 4, 30), ("nvme", 4, 64), ("ide", 2, 2)];
    let mut text = String::new();
    for (bus, controllers, units) in buses {
        for controller in 0..controllers {
            text += &format!("{bus}{controller}.present = \"TRUE\"\n");
            for unit in (0..units).filter(|unit| bus != "scsi" || *unit != 7) {
                let slot = format!("{bus}{controller}:{unit}");
                text += &format!("{slot}.present = \"TRUE\"\n");
                text += &format!("{slot}.fileName = \"{controller}-{unit}.vmdk\"\n").repeat(2);
            }
        }
    }
    let rest = TEXT_LINES_MAX - text.lines().count();
    text.extend((0..rest).map(|n| format!("key{n} = \"x\"\n")));
    Vmx::parse("web.vmx", text.as_bytes()).unwrap()
}

#[test]
fn many_disks_in_many_lines_take_steps_in_proportion_to_the_lines() {
    const PASSES_MAX: u64 = 16;
    let mut texts = Texts { vmx: crowded(), vmsd: Vmsd::create("web.vmsd"), bin: Rc::default() };
    let mut state = None;
    let reading = steps::within(|| state = Some(read(&mut texts).0));
    let mut next = state.unwrap();
    assert_eq!(next.disks.len(), 632);
    next.disks.iter_mut().for_each(|disk| disk.top = format!("new-{}.vmdk", disk.number));
    let writing = steps::within(|| {
        let next = next.clone();
        texts.write(&Change { next, ..Change::default() }, &local).unwrap();
    });
    // Every other disk goes, and what stays gets another number.
    next.disks = next.disks.into_iter().step_by(2).collect();
    next.disks.iter_mut().for_each(|disk| disk.number += 1000);
    let replacing = steps::within(|| {
        let next = next.clone();
        texts.write(&Change { next, ..Change::default() }, &local).unwrap();
    });
    assert_eq!(texts.vmx.disks().unwrap().len(), 316);
    for steps in [reading, writing, replacing] {
        assert!(steps <= PASSES_MAX * TEXT_LINES_MAX as u64, "{reading}, {writing}, {replacing} steps");
    }
}
