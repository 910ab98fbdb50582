//! A guest runs from a backup on another host before its content has arrived there.

use std::time::Instant;

use serde_json::json;

use crate::daemon::Datastore;
use crate::image::assert_clean;
use crate::machine::Machine;
use crate::reset::{DISKS, mount, new_file_systems, unmount};
use crate::reverted::trees;
use crate::wire::Ask;

pub(crate) fn a_guest_runs_from_a_backup_on_another_host() {
    let (one, other) = (Datastore::called("one"), Datastore::called("other"));
    let daemon = one.start();
    let repository =
        format!("--repo {} --key-file {}", one.beside("backups").display(), one.beside("key").display());
    one.json(&format!("repo init {repository} --new-key"));
    new_file_systems(&one, "native");
    let mut machine = Machine::start(&one, "web", DISKS.len());
    mount(&mut machine);
    machine.ask::<()>(&Ask::Fill { generation: 1 });
    machine.ask::<()>(&Ask::Sync);
    let old = trees(&mut machine);
    // The guest runs on, and its file systems are mounted.
    let made = one.json(&format!("backup web {repository}"));
    machine.ask::<()>(&Ask::Change);
    machine.quit();
    daemon.kill();

    let daemon = other.start();
    let began = Instant::now();
    let restored = other.json(&format!("restore web {repository} --run"));
    assert_eq!((&restored["backup"], &restored["complete"]), (&made["backup"], &json!(false)), "{restored}");
    let restored_ms = began.elapsed().as_millis();
    let mut machine = Machine::start(&other, "web", DISKS.len());
    println!(
        "restored after {restored_ms} ms, its guest has booted after {} ms",
        began.elapsed().as_millis()
    );
    mount(&mut machine);
    assert!(trees(&mut machine) == old, "not the files of the backup");
    machine.ask::<()>(&Ask::Change);
    unmount(&mut machine);
    machine.quit();
    for (disk, kind) in DISKS {
        assert_clean(&other, &format!("web/{disk}"), kind);
    }
    daemon.stop();
}
