//! A guest whose disks are vhost-user-blk devices: its file systems are written through a take, a commit, and deaths of
//! the daemon with requests under way.

use crate::daemon::Datastore;
use crate::image::assert_clean;
use crate::machine::Machine;
use crate::reset::{DISKS, churn_on, mount, new_file_systems, unmount};
use crate::wire::Ask;

/// Deaths of the daemon while the guest writes.
const KILLS: usize = 3;

pub(crate) fn a_guest_over_vhost_user_outlives_its_daemon() {
    let datastore = Datastore::new();
    let mut daemon = datastore.start();
    new_file_systems(&datastore, "native");
    let mut machine = Machine::over_vhost_user(&datastore, "web");
    mount(&mut machine);
    machine.ask::<()>(&Ask::StartChurn);
    churn_on(&mut machine);
    let clients = datastore.json("vm show web")["clients"].as_array().map_or(0, Vec::len);
    assert_eq!(clients, DISKS.len(), "one client for each disk");
    datastore.json("snapshot take web first");
    churn_on(&mut machine);
    let job = datastore.json("snapshot commit web first --yes");
    assert_eq!(job["state"], "done", "{job}");
    churn_on(&mut machine);
    for _ in 0..KILLS {
        daemon.kill();
        daemon = datastore.start();
        // The guest has seen neither an error nor a loss: it goes on with what it had under way.
        churn_on(&mut machine);
    }
    let durable = churn_on(&mut machine);
    unmount(&mut machine);
    mount(&mut machine);
    let files: u64 = machine.ask(&Ask::CheckChurn(durable));
    println!("{files} files found whole");
    unmount(&mut machine);
    machine.quit();
    for (disk, kind) in DISKS {
        assert_clean(&datastore, &format!("web/{disk}"), kind);
    }
    daemon.stop();
}
