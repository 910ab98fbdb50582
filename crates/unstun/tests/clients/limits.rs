//! Limits of a VM, seen by its clients. Times are lower bounds: a limited VM takes at least the time that its limit
//! requires, on any machine.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::nbd::{Command, Nbd};

const KIB4: [u8; 4096] = [7; 4096];

fn attach(datastore: &Datastore, export: &str) -> Nbd {
    Nbd::attach(&datastore.nbd_socket(), export).unwrap()
}

/// Returns how long `count` reads take that are sent at once: so few that the sockets hold them and their answers.
fn reads(nbd: &mut Nbd, count: u64) -> Duration {
    let began = Instant::now();
    (0..count).for_each(|n| nbd.send(Command::Read, n, 4096 * (n % 64), 4096, &[]).unwrap());
    (0..count).for_each(|_| drop(nbd.read_reply(4096).unwrap()));
    began.elapsed()
}

fn limits(datastore: &Datastore, vm: &str) -> Value {
    datastore.json(&format!("vm show {vm}"))["limits"].clone()
}

fn delayed(datastore: &Datastore, vm: &str) -> u64 {
    datastore.json(&format!("vm show {vm}"))["delayed_requests"].as_u64().unwrap()
}

#[test]
fn a_limited_vm_takes_its_time_over_all_its_exports() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M --disk 64M");
    datastore.json("snapshot take web a");
    datastore.json("vm set web --iops 100");
    let exports = ["web/disk0", "web/disk1", "web/disk0@a"];
    let began = Instant::now();
    thread::scope(|scope| {
        for export in exports {
            let mut nbd = attach(&datastore, export);
            scope.spawn(move || reads(&mut nbd, 50));
        }
    });
    // 150 requests at 100/s, of which a tenth of a second's may begin at once.
    assert!(began.elapsed() >= Duration::from_millis(1400), "{:?}", began.elapsed());

    datastore.json("vm set web --iops none --bandwidth 1M");
    let mut nbd = attach(&datastore, "web/disk0");
    let began = Instant::now();
    for n in 0..16 {
        assert_eq!(nbd.write(n << 16, &[7; 64 << 10]).unwrap(), 0);
    }
    // The last one of 1 MiB at 1 MiB/s begins when the others are paid for, but for a tenth of a second.
    assert!(began.elapsed() >= Duration::from_millis(830), "{:?}", began.elapsed());
    // A request that is larger than the bucket is served, and delays the next one.
    let began = Instant::now();
    assert_eq!(nbd.write(0, &[8; 2 << 20]).unwrap(), 0);
    assert_eq!(nbd.read(0, 4096).unwrap(), [8; 4096]);
    assert!(began.elapsed() >= Duration::from_millis(1900), "{:?}", began.elapsed());
    daemon.stop();
}

#[test]
fn a_flush_and_another_vm_pass_requests_that_wait() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    datastore.json("vm create other --disk 64M");
    datastore.json("vm set web --iops 10");
    let (mut web, mut other) = (attach(&datastore, "web/disk0"), attach(&datastore, "other/disk0"));
    let writes = 200;
    (0..writes).for_each(|n| web.send(Command::Write, n, 4096 * n, 4096, &KIB4).unwrap());
    web.send(Command::Flush, writes, 0, 0, &[]).unwrap();
    (0..10).for_each(|_| _ = reads(&mut other, 100));
    // The flush is answered while most writes wait: an order, not a time.
    let before_flush = (0..).take_while(|_| web.reply().unwrap().0 != writes).count();
    assert!(before_flush < 100, "{before_flush} writes were answered before the flush");
    let waiting = delayed(&datastore, "web");
    assert!(waiting > 0 && delayed(&datastore, "other") == 0, "{waiting} wait");
    let said = String::from_utf8(datastore.run("vm show web").stdout).unwrap();
    assert!(said.contains("DELAYED") && said.contains("reached its limit (10 IOPS)"), "{said}");

    // Removal lets all requests begin that wait.
    let shown = datastore.json("vm set web --iops none");
    assert_eq!(shown["delayed_requests"], 0, "{shown}");
    for _ in before_flush..writes as usize {
        assert_eq!(web.reply().unwrap().1, 0);
    }
    daemon.stop();
}

/// The payload of writes that wait stays in the client, but for a few MiB.
#[test]
fn requests_that_wait_hold_little_memory() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    datastore.json("vm create other --disk 64M");
    datastore.json("vm set web --bandwidth 64K");
    let (web, mut other) = (attach(&datastore, "web/disk0"), attach(&datastore, "other/disk0"));
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut web = web;
            (0..32).for_each(|n| web.send(Command::Write, n, n << 20, 1 << 20, &vec![7; 1 << 20]).unwrap());
            (0..32).for_each(|_| assert_eq!(web.reply().unwrap().1, 0));
        });
        while delayed(&datastore, "web") < 5 {}
        (0..10).for_each(|_| _ = reads(&mut other, 100));
        let waiting = delayed(&datastore, "web");
        assert!(waiting <= 8, "{waiting} of 1 MiB each");
        datastore.json("vm set web --bandwidth none");
        writer.join().unwrap();
    });
    daemon.stop();
}

#[test]
fn a_client_that_ends_leaves_no_request_behind() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    datastore.json("snapshot take web a");
    datastore.json("vm set web --iops 10");
    for line in ["vm show web", "snapshot revert web a --yes --disconnect"] {
        let export = datastore.json("attach web")["disks"][0]["export"].as_str().unwrap().to_owned();
        let mut nbd = attach(&datastore, &export);
        (0..250).for_each(|n| nbd.send(Command::Write, n, 4096 * n, 4096, &KIB4).unwrap());
        assert_eq!(nbd.reply().unwrap().1, 0);
        datastore.json(line);
        drop(nbd);
        // The close waits for the requests of a client that has ended, and is refused while there are any.
        while datastore.run("vm close web").status.code() == Some(3) {}
        datastore.json("vm open web");
    }
    daemon.stop();
}

#[test]
fn the_end_of_the_daemon_answers_the_requests_that_wait() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    datastore.json("vm set web --iops 10");
    let mut nbd = attach(&datastore, "web/disk0");
    (0..250).for_each(|n| nbd.send(Command::Write, n, 4096 * n, 4096, &KIB4).unwrap());
    let waiting = delayed(&datastore, "web");
    daemon.stop();
    let answered = std::iter::from_fn(|| nbd.reply().ok()).filter(|(_, error)| *error == 0).count() as u64;
    assert!(answered >= waiting, "{answered} answers, and {waiting} requests waited");
}

#[test]
fn limits_survive_restarts_moves_and_closing_and_a_clone_has_none() {
    let datastore = Datastore::new();
    std::fs::create_dir(datastore.beside("fast")).unwrap();
    let daemon = datastore.start();
    datastore.json(&format!("datastore add fast={}", datastore.beside("fast").display()));
    datastore.json("vm create web --disk 16M");
    datastore.json("vm set web --iops 100 --iops-burst 200 --burst-seconds 3");
    datastore.json("vm set web --bandwidth 100M --weight 500");
    let set = json!({
        "iops": 100, "iops_burst": 200, "bandwidth_bytes_s": 100 << 20, "bandwidth_burst_bytes_s": null,
        "burst_s": 3, "weight": 500,
    });
    assert_eq!(limits(&datastore, "web"), set);
    // A newer version has written a limit that this one does not have.
    let file = |at: &str| datastore.beside(at).join("web/.unstun/limits");
    let text = std::fs::read_to_string(file("ds")).unwrap();
    std::fs::write(file("ds"), format!("{text}latency-us 400\n")).unwrap();
    daemon.kill();

    let daemon = datastore.start();
    assert_eq!(limits(&datastore, "web"), set);
    let notices = datastore.json("vm show web")["notices"].to_string();
    assert!(notices.contains("latency-us"), "{notices}");
    datastore.json("snapshot take web a");
    datastore.json("vm clone web@a test1");
    assert_eq!(limits(&datastore, "test1")["iops"], Value::Null);
    datastore.json("vm remove test1 --delete-disks --purge --yes");
    let mut nbd = attach(&datastore, "web/disk0");
    for step in ["--store redo", "--to fast", "--store native"] {
        datastore.json(&format!("vm move web {step}"));
        assert_eq!(limits(&datastore, "web"), set, "{step}");
    }
    datastore.json("vm set web --iops-burst none");
    // The client has stayed connected, and the limits are those of before the moves.
    assert!(reads(&mut nbd, 60) >= Duration::from_millis(450));
    drop(nbd);
    while datastore.run("vm close web").status.code() == Some(3) {}
    datastore.json("vm open web");
    datastore.json("vm remove web --delete-disks --yes");
    datastore.json("bin restore web");
    assert_eq!(limits(&datastore, "web")["iops"], 100);
    let text = std::fs::read_to_string(file("fast")).unwrap();
    assert!(text.contains("latency-us 400") && !text.contains("iops-burst"), "{text}");

    daemon.stop();
    for (text, words) in
        [("iops many\n", "iops: found"), (&"x".repeat(8192), "8192 bytes, expected at most 4096")]
    {
        std::fs::write(file("fast"), text).unwrap();
        let daemon = datastore.start();
        let shown = datastore.json("vm show web");
        assert!(shown["notices"].to_string().contains(words), "{shown}");
        assert_eq!(shown["limits"]["iops"], Value::Null);
        datastore.json("vm set web --iops 100");
        daemon.stop();
        assert_eq!(std::fs::read_to_string(file("fast")).unwrap(), "iops 100\n");
    }
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    for (line, words) in [
        ("vm set web --iops 0", "expected 10 to 100000000, or none"),
        ("vm set web --bandwidth 1", "expected 64 KiB to 1 TiB, or none"),
        ("vm set web --bandwidth 99999999999999999999", "64 bits"),
        ("vm set web --iops-burst 5000", "iops_burst: found 5000 without iops"),
        ("vm set web --iops 2000 --iops-burst 1000", "expected more than iops (2000)"),
        ("vm set web --iops 2000 --burst-seconds 5", "--burst-seconds without a burst"),
    ] {
        let (code, said) = datastore.fails(line);
        assert!(code == 2 && said.contains(words), "{line}: {code}: {said}");
    }
    assert_eq!(limits(&datastore, "web")["iops"], Value::Null);
    daemon.stop();
}
