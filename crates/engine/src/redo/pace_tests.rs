use super::*;
use crate::redo::load::{CALM_REQUESTS, GuestLoad};

/// Returns the load of `requests` I/Os that a device completes at `iops` with this many under way.
fn at_rate(requests: u64, iops: u64, under_way: u64) -> Load {
    let latency_ns = under_way * 1_000_000_000 / iops;
    Load { requests, latency_ns: requests * latency_ns, under_way: requests * under_way }
}

fn guest(before: Load) -> Guest {
    Guest { before, at_begin: Load::default() }
}

fn bears_one(before: Load, window: Load) -> bool {
    bears(&[guest(before)], &[window])
}

#[test]
fn the_mover_leaves_a_guest_four_fifths_of_its_rate() {
    for (iops, under_way) in [(64, 1), (700, 8), (80_000, 32)] {
        let before = at_rate(1000, iops, under_way);
        assert!(bears_one(before, at_rate(256, iops * 82 / 100, under_way)));
        assert!(!bears_one(before, at_rate(256, iops * 78 / 100, under_way)));
    }
}

/// A guest with a rate of its own has more requests under way the longer it waits: its rate shows nothing until it is
/// too late.
#[test]
fn twice_the_latency_at_the_same_rate_is_too_much() {
    let before = at_rate(1000, 100, 2);
    assert!(bears_one(before, at_rate(256, 100, 3)));
    assert!(!bears_one(before, at_rate(256, 100, 5)));
}

#[test]
fn fewer_requests_under_way_at_the_same_latency_are_acceptable() {
    let before = at_rate(1000, 1000, 8);
    assert!(bears_one(before, Load { under_way: 256 * 5, ..at_rate(256, 1000, 8) }));
}

/// A ring hands over a batch at a time: the last request of each batch finds an idle guest, the first a full queue.
fn in_batches(load: &GuestLoad, batches: u64, latency_ns: u64) {
    for number in 0..batches {
        for left in (1..=32).rev() {
            load.request_ended(number * latency_ns, latency_ns, left);
        }
    }
}

#[test]
fn completions_in_batches_are_judged_by_their_means() {
    let load = GuestLoad::default();
    in_batches(&load, 100, 400_000);
    let before = load.baseline();
    assert_eq!((before.requests, before.latency_ns), (3200, 3200 * 400_000), "{before:?}");
    load.disturb(true);
    for (latency_ns, borne) in [(480_000, true), (520_000, false)] {
        let began = load.total();
        in_batches(&load, 8, latency_ns);
        assert_eq!(bears_one(before, load.total().since(began)), borne, "{latency_ns} ns");
    }
    assert_eq!(load.baseline(), before, "what ends while a commit moves data is not in the baseline");
}

#[test]
fn recent_load_outweighs_older_load() {
    let load = GuestLoad::default();
    for second in 0..100 {
        let latency_ns = if second < 50 { 9_000_000 } else { 1_000_000 };
        (0..1000).for_each(|n| load.request_ended(second * 1_000_000_000 + n, latency_ns, 1));
    }
    let baseline = load.baseline();
    assert!(baseline.latency_ns / baseline.requests < 1_010_000, "{baseline:?}");
    assert!(baseline.requests >= CALM_REQUESTS / 2, "{baseline:?}");
}

#[test]
fn a_guest_without_baseline_is_measured_while_the_mover_pauses() {
    let window = at_rate(256, 500, 4);
    let mut unknown = guest(Load::default());
    assert!(unknown.is_strange(window));
    unknown.learn(window, false);
    assert!(unknown.is_strange(window), "with pieces under way it shows what they leave it");
    unknown.learn(window, true);
    assert!(!unknown.is_strange(window) && unknown.before == window);
}

/// This guest had 32 requests under way before: a latency that it bore then is far too high for one I/O at a time.
#[test]
fn a_guest_with_a_much_smaller_queue_depth_has_no_baseline() {
    let mut shallow = guest(at_rate(1000, 600, 32));
    let window = at_rate(256, 120, 1);
    assert!(shallow.is_strange(window));
    shallow.learn(window, true);
    assert!(!shallow.is_strange(window));
}

/// Otherwise a guest that changed from large I/Os to small ones could be slowed down to its earlier rate.
#[test]
fn a_higher_rate_replaces_the_baseline() {
    let mut faster = guest(at_rate(1000, 100, 4));
    (0..100).for_each(|_| faster.learn(at_rate(256, 1000, 4), false));
    assert!(!bears(&[faster], &[at_rate(256, 700, 4)]));
}

#[test]
fn disks_are_judged_together_by_their_own_baselines() {
    let befores = [at_rate(1000, 100, 4), at_rate(1000, 10_000, 8)].map(guest);
    let idle = Load::default();
    assert!(bears(&befores, &[at_rate(256, 90, 4), idle]));
    assert!(!bears(&befores, &[at_rate(256, 60, 4), at_rate(256, 10_000, 8)]));
    assert!(!bears(&befores, &[idle, at_rate(256, 6_000, 8)]));
}

#[test]
fn a_window_is_long_enough_to_separate_load_from_noise() {
    assert!(!is_enough(255, JUDGED_NS) && is_enough(256, JUDGED_NS));
    assert!(!is_enough(10_000, JUDGED_NS - 1), "a fast device's moment");
    assert!(!is_enough(31, 100 * JUDGED_NS_MAX) && is_enough(32, JUDGED_NS_MAX));
}
