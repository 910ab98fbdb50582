//! A hundred greedy clients and two thousand idle ones: the daemon stays within its memory, and another client still
//! works.

use std::fs;
use std::path::Path;
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::daemon::Datastore;
use crate::nbd::{Command, Nbd};

const MIB: u64 = 1 << 20;
/// Default of `up --memory`.
const MEMORY_MIB: u64 = 1024;
const ROUND_TRIPS: u32 = 3000;
const WRITERS: u64 = 50;

/// Returns the daemon's peak resident memory, MiB.
fn most_resident_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// Returns the round trips per second of another client.
fn rate(neighbour: &mut Nbd) -> f64 {
    let began = Instant::now();
    for n in 0..ROUND_TRIPS {
        neighbour.read(u64::from(n % 1000) * 4096, 4096).unwrap();
    }
    f64::from(ROUND_TRIPS) / began.elapsed().as_secs_f64()
}

/// Connects a greedy client. Half of them announce a payload of 32 MiB and send nothing, each to a disk of its own. The
/// others request 64 MiB of zeros each, in requests of 1 MiB or of 32 MiB, and read nothing.
fn greedy(socket: &Path, n: u64) -> Nbd {
    if n < WRITERS {
        let mut client = Nbd::attach(socket, &format!("greedy{n}/disk0")).unwrap();
        client.send(Command::Write, n, 0, 32 << 20, &[]).unwrap();
        return client;
    }
    let mut client = Nbd::attach(socket, "greedy0/disk0@empty").unwrap();
    let length = if n.is_multiple_of(2) { MIB } else { 32 * MIB };
    for at in (0..64 * MIB).step_by(length as usize) {
        client.send(Command::Read, at, at, length as u32, &[]).unwrap();
    }
    client
}

#[test]
fn a_hundred_greedy_clients_leave_a_neighbour_and_the_daemon_their_shares() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    (0..WRITERS).for_each(|n| drop(datastore.json(&format!("vm create greedy{n} --disk 8G"))));
    datastore.json("vm create web --disk 64M");
    datastore.json("snapshot take greedy0 empty");
    let socket = datastore.nbd_socket();
    let mut neighbour = Nbd::attach(&socket, "web/disk0").unwrap();
    let alone = rate(&mut neighbour);
    let clients: Vec<Nbd> = (0..100).map(|n| greedy(&socket, n)).collect();
    let beside = rate(&mut neighbour);
    let resident = most_resident_mib(daemon.id());
    println!("{alone:.0} round trips/s alone, {beside:.0} beside; {resident} MiB resident at most");
    assert!(resident < MEMORY_MIB, "{resident} MiB");
    drop(clients);
    daemon.stop();
}

#[test]
fn two_thousand_connections_are_served() {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for vm in ["a", "b"] {
        datastore.json(&format!("vm create {vm} --disk 64M"));
        datastore.json(&format!("snapshot take {vm} empty"));
    }
    let socket = datastore.nbd_socket();
    let export = |n: u32| if n.is_multiple_of(2) { "a/disk0@empty" } else { "b/disk0@empty" };
    let attach = |n: u32| Nbd::attach(&socket, export(n)).unwrap();
    let mut clients: Vec<Nbd> = (0..2000).map(attach).collect();
    for client in &mut clients {
        client.read(0, 4096).unwrap();
    }
    let resident = most_resident_mib(daemon.id());
    println!("2000 connections: {resident} MiB resident at most");
    assert!(resident < MEMORY_MIB / 2, "{resident} MiB");
    drop(clients);
    daemon.stop();
}
