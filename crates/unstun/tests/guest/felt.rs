//! Effects on a guest of a take, of a snapshot's existence and of a commit.

use std::collections::BTreeMap;

use crate::daemon::Datastore;
use crate::echo::Prober;
use crate::image::{assert_clean, make_file_system};
use crate::machine::Machine;
use crate::wire::{Ask, Gap};

const RAW_DISKS: usize = 10;
const FILE_SYSTEMS: [(&str, &str); 2] = [("disk10", "ext4"), ("disk11", "xfs")];
const FILE_SYSTEM_BYTES: u64 = 512 << 20;
/// Number of takes and commits; each is beside a window of the same length without either.
const ROUNDS: usize = 5;
/// Length of a window, in echoes, which are a second apart.
const WINDOW: usize = 3;

/// Gaps are printed, not asserted: the machine that runs tests is busy, and emulation stands still with it. The windows
/// without a take, of the same length and in the same rounds, show which part of a gap the daemon causes.
pub(crate) fn twelve_disks_feel_no_take_and_no_commit() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let sizes = [&["64M"; RAW_DISKS][..], &["512M"; FILE_SYSTEMS.len()]].concat().join(",");
    datastore.json(&format!("vm create web --store redo --disk {sizes}"));
    for (disk, kind) in FILE_SYSTEMS {
        make_file_system(&datastore, &format!("web/{disk}"), kind, FILE_SYSTEM_BYTES);
    }
    let mut machine = Machine::start(&datastore, "web", RAW_DISKS + FILE_SYSTEMS.len());
    for (disk, kind) in FILE_SYSTEMS {
        machine.ask::<()>(&Ask::Mount { disk: disk.into(), kind: kind.into() });
    }
    machine.ask::<()>(&Ask::StartWriters);
    let prober = machine.prober();
    prober.wait(WINDOW);

    let (mut without, mut taking, mut committing) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(window(&mut machine, &prober, || ()));
        taking.push(window(&mut machine, &prober, || {
            datastore.json("snapshot take web before");
        }));
        committing.push(window(&mut machine, &prober, || {
            let job = datastore.json("snapshot commit web before --yes");
            assert_eq!(job["state"], "done", "{job}");
        }));
    }
    let blocks: u64 = machine.ask(&Ask::StopWriters);
    println!("{blocks} blocks read back as they were written last");
    let echoes = prober.stop();
    println!("{} echoes, {} lost, the slowest {} ms", echoes.sent, echoes.lost, echoes.slowest.as_millis());
    tell("while taking", taking);
    tell("while committing", committing);
    tell("without", without);
    tell_stuns(&datastore);

    for (disk, _) in FILE_SYSTEMS {
        machine.ask::<()>(&Ask::Unmount { disk: disk.into() });
    }
    machine.quit();
    for (disk, kind) in FILE_SYSTEMS {
        assert_clean(&datastore, &format!("web/{disk}"), kind);
    }
    daemon.stop();
    assert_eq!(echoes.lost, 0, "an echo was never answered");
}

/// Returns the longest gap of any disk while `work` is done and the window lasts.
fn window(machine: &mut Machine<'_>, prober: &Prober, work: impl FnOnce()) -> Gap {
    machine.ask::<Vec<Gap>>(&Ask::Gaps);
    work();
    prober.wait(WINDOW);
    let gaps: Vec<Gap> = machine.ask(&Ask::Gaps);
    let stuck: Vec<&Gap> = gaps.iter().filter(|gap| gap.writes == 0).collect();
    assert!(stuck.is_empty(), "disks that did not write once: {stuck:?}");
    gaps.into_iter().max_by_key(|gap| gap.longest_us).expect("twelve disks")
}

fn tell(when: &str, mut gaps: Vec<Gap>) {
    gaps.sort_by_key(|gap| gap.longest_us);
    let ms = |gap: &Gap| gap.longest_us as f64 / 1000.0;
    let (middle, longest) = (&gaps[gaps.len() / 2], gaps.last().expect("a round"));
    println!(
        "gap {when}: {:.0} ms, the median of {ROUNDS} windows' longest; at most {:.0} ms ({})",
        ms(middle),
        ms(longest),
        longest.disk
    );
}

/// Prints the stuns as the engine counted them: the longest of each kind.
fn tell_stuns(datastore: &Datastore) {
    let events = datastore.json("events web");
    let mut longest_us = BTreeMap::new();
    for event in events.as_array().unwrap() {
        let stun_us = event["stun_us"].as_u64().unwrap();
        let kind = event["operation"].as_str().unwrap().to_owned();
        longest_us.entry(kind).and_modify(|us: &mut u64| *us = stun_us.max(*us)).or_insert(stun_us);
    }
    for (kind, us) in longest_us {
        println!("{kind} held back new I/O for at most {us} us");
    }
}
