//! A daemon with few descriptors refuses by name what is not served yet; objects that are open continue.

use crate::daemon::Datastore;
use crate::tools::run_script;

/// Limit of the process. 264 are for what is served, of which each of the tests' VMs takes nearly 60.
const DESCRIPTORS: u64 = 1024;
const SNAPSHOTS: u32 = 50;
const VMS: u32 = 6;

fn refused(datastore: &Datastore, line: &str) {
    let (code, said) = datastore.fails(line);
    assert_eq!(code, 3, "{line}: {said}");
    for part in ["descriptors", "1024", "vm close", "LimitNOFILE"] {
        assert!(said.contains(part), "{line}: {said}");
    }
}

fn condition(datastore: &Datastore, vm: &str) -> String {
    let listed = datastore.json("vm list");
    let row = listed.as_array().unwrap().iter().find(|row| row["name"] == vm).unwrap().clone();
    row["condition"].as_str().unwrap().to_owned()
}

/// Creates closed VMs with deep chains. The first has data in its base, and each has data in its top.
fn make(datastore: &Datastore) {
    let daemon = datastore.start();
    for n in 0..VMS {
        datastore.json(&format!("vm create v{n} --disk 16M --store redo"));
        (0..SNAPSHOTS).for_each(|s| drop(datastore.json(&format!("snapshot take v{n} s{s}"))));
        run_script(&datastore.uri(&format!("v{n}/disk0")), &[format!("write -P {} 0 1M", n + 1)]);
        datastore.json(&format!("vm close v{n}"));
    }
    daemon.stop();
}

/// The two parts share the VMs, whose 300 snapshots take longer than both.
#[test]
fn what_does_not_fit_is_refused_and_the_rest_is_served() {
    let datastore = Datastore::new();
    make(&datastore);
    too_many_openings_are_refused_and_open_vms_continue(&datastore);
    a_start_serves_what_fits(&datastore);
}

fn too_many_openings_are_refused_and_open_vms_continue(datastore: &Datastore) {
    let daemon = datastore.start_with_descriptors(DESCRIPTORS);
    let is_open = |n: &u32| datastore.run(&format!("vm open v{n}")).status.success();
    let open: Vec<u32> = (0..VMS).take_while(is_open).collect();
    let next = open.len() as u32;
    assert!((2..VMS).contains(&next), "{open:?} are open");
    refused(datastore, &format!("vm open v{next}"));
    assert_eq!(condition(datastore, &format!("v{next}")), "closed", "nothing is known to be wrong with it");

    datastore.json("snapshot take v0 later");
    datastore.json("snapshot commit v0 s0 --yes");
    datastore.json("snapshot discard v1 s49 --yes");
    run_script(&datastore.uri("v0/disk0"), &["read -P 1 0 1M".to_owned()]);

    datastore.json("vm close v1");
    datastore.json(&format!("vm open v{next}"));
    run_script(&datastore.uri(&format!("v{next}/disk0")), &[format!("read -P {} 0 1M", next + 1)]);
    daemon.stop();
}

/// A start lists the VMs that do not fit, with the reason.
fn a_start_serves_what_fits(datastore: &Datastore) {
    let daemon = datastore.start();
    (0..VMS).for_each(|n| drop(datastore.json(&format!("vm open v{n}"))));
    daemon.stop();
    let daemon = datastore.start_with_descriptors(DESCRIPTORS);
    let left = format!("v{}", VMS - 1);
    assert_eq!(condition(datastore, &left), "broken");
    refused(datastore, &format!("snapshot take {left} x"));
    datastore.json("snapshot take v0 afterwards");
    datastore.json("vm close v0");
    datastore.json(&format!("vm open {left}"));
    run_script(&datastore.uri(&format!("{left}/disk0")), &[format!("read -P {VMS} 0 1M")]);
    daemon.stop();
}
