//! A revert restores a guest's old files exactly.

use crate::daemon::Datastore;
use crate::image::{assert_clean, copy_out};
use crate::machine::Machine;
use crate::programs::tool;
use crate::reset::{DISKS, mount, new_file_systems, unmount};
use crate::wire::Ask;

pub(crate) fn trees(machine: &mut Machine<'_>) -> Vec<String> {
    DISKS.iter().map(|(disk, _)| machine.ask(&Ask::Tree { disk: disk.to_string() })).collect()
}

/// Reverts the VM `web`. The daemon notices QEMU's end asynchronously, so the function retries until it has.
pub(crate) fn revert(datastore: &Datastore, snapshot: &str) {
    let reverted = loop {
        let output = datastore.run(&format!("snapshot revert web {snapshot} --yes"));
        if output.status.code() != Some(3) {
            break output;
        }
    };
    assert!(reverted.status.success(), "{}", String::from_utf8_lossy(&reverted.stderr));
    // QEMU has ended.
    datastore.json("vm open web");
}

pub(crate) fn revert_brings_back_exactly_the_old_files() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    new_file_systems(&datastore, "redo");
    let mut machine = Machine::start(&datastore, "web", DISKS.len());
    mount(&mut machine);
    machine.ask::<()>(&Ask::Fill { generation: 1 });
    machine.ask::<()>(&Ask::Sync);
    let old = trees(&mut machine);
    datastore.json("snapshot take web before");
    let sealed: Vec<_> = DISKS
        .iter()
        .map(|(disk, _)| copy_out(&datastore, &format!("web/{disk}@before"), &format!("{disk}.before")))
        .collect();
    machine.ask::<()>(&Ask::Change);
    let changed = trees(&mut machine);
    for (old, changed) in old.iter().zip(&changed) {
        assert_ne!(old, changed, "nothing was changed, so nothing would be shown");
    }

    let (code, said) = datastore.fails("snapshot revert web before --yes");
    assert_eq!(code, 3, "a mounted disk would change under its guest: {said}");
    for (disk, _) in DISKS {
        assert!(
            said.contains("(qemu-system-x86)") && said.contains(disk),
            "does not name its client: {said}"
        );
    }
    assert!(trees(&mut machine) == changed, "a refusal changed files");
    machine.quit();
    revert(&datastore, "before");
    for ((disk, _), sealed) in DISKS.iter().zip(&sealed) {
        let now = datastore.uri(&format!("web/{disk}"));
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", sealed.to_str().unwrap(), &now]);
    }

    let mut machine = Machine::start(&datastore, "web", DISKS.len());
    mount(&mut machine);
    for (old, now) in old.iter().zip(trees(&mut machine)) {
        assert_eq!(old, &now, "not the old files");
    }
    // The disks can also be written, from the old state on.
    machine.ask::<()>(&Ask::Change);
    unmount(&mut machine);
    machine.quit();
    for (disk, kind) in DISKS {
        assert_clean(&datastore, &format!("web/{disk}"), kind);
    }
    daemon.stop();
}
