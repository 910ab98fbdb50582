//! Rates and bursts of a bucket, with times chosen by the test.

use proptest::prelude::*;

use super::*;
use crate::limits::Burst;

const S: u64 = 1_000_000_000;

fn plain(rate: u64) -> RateLimit {
    RateLimit { rate, burst: None }
}

fn buckets(limit: RateLimit) -> Buckets {
    let mut buckets = Buckets::default();
    buckets.set(Some(limit));
    buckets
}

/// Returns when each of `sizes` begins if all wait from `start_ns` on, in order.
fn begins(buckets: &mut Buckets, start_ns: u64, sizes: &[u64]) -> Vec<u64> {
    let mut now_ns = start_ns;
    let begin = |size: &u64| {
        now_ns += 1000 * buckets.wait_us(now_ns, *size);
        assert_eq!(buckets.wait_us(now_ns, *size), 0);
        buckets.take(now_ns, *size);
        now_ns
    };
    sizes.iter().map(begin).collect()
}

#[test]
fn units_begin_at_the_rate_after_a_tenth_of_a_second() {
    let times = begins(&mut buckets(plain(1000)), 5 * S, &[1; 600]);
    assert_eq!(times[99], 5 * S, "the first tenth of a second begins at once");
    assert_eq!(times[599], 5 * S + S / 2, "the others at the rate");
}

#[test]
fn a_request_larger_than_the_bucket_passes_and_pays_later() {
    let mut buckets = buckets(plain(1000));
    assert_eq!(buckets.wait_us(0, 5000), 0);
    buckets.take(0, 5000);
    assert_eq!(buckets.wait_us(0, 1), 4_901_000);
    assert_eq!(buckets.wait_us(0, 0), 0, "a request without payload does not wait for bytes");
    assert_eq!(buckets.wait_us(5 * S, 100), 0);
}

#[test]
fn a_low_rate_lets_one_unit_begin() {
    assert_eq!(begins(&mut buckets(plain(1)), 0, &[1; 3]), [0, S, 2 * S]);
}

#[test]
fn a_burst_has_its_rate_for_its_time_and_returns_after_idle_time() {
    let burst = Burst { rate: 5000, seconds: 10 };
    let mut buckets = buckets(RateLimit { rate: 2000, burst: Some(burst) });
    for round in 0..2u64 {
        let start = round * 1000 * S;
        let times = begins(&mut buckets, start, &[1; 60_000]);
        let begun = |by_ns: u64| times.iter().filter(|at| **at - start <= by_ns).count() as u64;
        assert!((45_000..=45_500).contains(&begun(9 * S)), "{} in 9 s", begun(9 * S));
        assert!((51_900..=52_600).contains(&begun(11 * S)), "{} in 11 s", begun(11 * S));
    }
}

#[test]
fn the_same_limit_keeps_its_state_and_another_starts_full() {
    let mut buckets = buckets(plain(10));
    buckets.take(0, 100);
    buckets.set(Some(plain(10)));
    assert_eq!(buckets.wait_us(0, 1), 10_000_000);
    buckets.set(Some(plain(11)));
    assert_eq!(buckets.wait_us(0, 1), 0);
    buckets.set(None);
    assert!(!buckets.is_limited());
    assert_eq!(buckets.wait_us(0, u64::MAX), 0);
}

#[test]
fn extreme_numbers_do_not_overflow() {
    let burst = Burst { rate: u64::MAX, seconds: u32::MAX };
    for limit in [plain(0), plain(1), plain(u64::MAX), RateLimit { rate: 1, burst: Some(burst) }] {
        let mut buckets = buckets(limit);
        for _ in 0..3 {
            buckets.take(u64::MAX, u64::MAX);
            buckets.wait_us(0, u64::MAX);
        }
    }
}

/// Returns whether more than the limit, its burst and one request larger than the bucket began in any window.
fn exceeds(rate: u64, times: &[u64], sizes: &[u64]) -> bool {
    let ahead = rate / 10 + 1;
    (0..times.len()).any(|from| {
        let mut sum = 0;
        (from..times.len()).any(|to| {
            sum += sizes[to];
            let earned = (u128::from(rate) * u128::from(times[to] - times[from])).div_ceil(u128::from(S));
            u128::from(sum) > earned + u128::from(ahead.max(sizes[to])) + 1
        })
    })
}

proptest! {
    #[test]
    fn no_window_has_more_than_the_limit_and_the_burst(
        rate in 1u64..100_000,
        requests in proptest::collection::vec((1u64..3000, 0u64..200_000_000), 1..80),
    ) {
        let run = |enforced: u64| {
            let mut buckets = buckets(plain(enforced));
            let mut now_ns = 0;
            let times: Vec<u64> = requests.iter().map(|(size, gap_ns)| {
                now_ns = begins(&mut buckets, now_ns + gap_ns, &[*size])[0];
                now_ns
            }).collect();
            times
        };
        let sizes: Vec<u64> = requests.iter().map(|(size, _)| *size).collect();
        prop_assert!(!exceeds(rate, &run(rate), &sizes));
    }
}

/// The check of windows finds a bucket with twice the rate.
#[test]
fn a_bucket_that_permits_too_much_is_found() {
    let sizes = [1; 1000];
    let times = begins(&mut buckets(plain(2000)), 0, &sizes);
    assert!(exceeds(1000, &times, &sizes));
    assert!(!exceeds(2000, &times, &sizes));
}
