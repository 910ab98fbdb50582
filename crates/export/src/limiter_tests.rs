//! Limits in virtual time: requests of several connections, changes of limits while requests wait, and connections that
//! end.

use std::rc::Rc;

use blk::Env;
use sim::SimWorld;

use super::*;
use crate::limits::RateLimit;

const IO: IoCost = IoCost { ios: 1, bytes: 0 };

fn in_virtual_time<F: Future<Output = ()> + 'static>(test: impl FnOnce(Env) -> F + 'static) {
    let world = SimWorld::new(1, sim::Options::default());
    assert!(world.run(test).is_some(), "the power was not cut");
}

fn iops(rate: u64) -> IoLimits {
    IoLimits { ios: Some(RateLimit { rate, burst: None }), ..IoLimits::default() }
}

fn bandwidth(rate: u64) -> IoLimits {
    IoLimits { bytes: Some(RateLimit { rate, burst: None }), ..IoLimits::default() }
}

/// Begins a request, after its wait if it has one. Returns whether it began.
async fn request(env: &Env, limiter: &Rc<Limiter>, connection: u64, cost: IoCost) -> bool {
    match limiter.admit(env, connection, cost) {
        None => true,
        Some(delay) => delay.await,
    }
}

/// Sends requests one after another for a time. Returns their number.
async fn keep_sending(env: Env, limiter: Rc<Limiter>, connection: u64, cost: IoCost, for_us: u64) -> u64 {
    let end = env.now_ns() + 1000 * for_us;
    let mut begun = 0;
    while env.now_ns() < end {
        assert!(request(&env, &limiter, connection, cost).await);
        begun += 1;
        env.sleep_us(10).await;
    }
    begun
}

#[test]
fn the_connections_of_a_party_share_its_limit() {
    in_virtual_time(|env| async move {
        let limiter = Rc::new(Limiter::default());
        limiter.set(iops(1000));
        let send =
            |connection| env.spawn(keep_sending(env.clone(), limiter.clone(), connection, IO, 10_000_000));
        let tasks: Vec<_> = (0..4).map(send).collect();
        let mut begun = Vec::new();
        for task in tasks {
            begun.push(task.join().await);
        }
        let all: u64 = begun.iter().sum();
        assert!((9_900..=10_200).contains(&all), "{all} in 10 s at 1000/s");
        assert!(begun.iter().all(|own| own.abs_diff(all / 4) <= 2), "{begun:?}");
        assert_eq!(limiter.delayed(), 0);
        assert!(!limiter.served.get(), "no task is left");
    });
}

#[test]
fn both_limits_hold_and_a_request_without_payload_waits_for_one() {
    in_virtual_time(|env| async move {
        let limiter = Rc::new(Limiter::default());
        limiter.set(IoLimits { ios: iops(1000).ios, ..bandwidth(1 << 20) });
        let large = IoCost { ios: 1, bytes: 64 << 10 };
        let begun = keep_sending(env.clone(), limiter.clone(), 1, large, 10_000_000).await;
        assert!((155..=163).contains(&begun), "{begun} of 64 KiB in 10 s at 1 MiB/s");
        let before = env.now_ns();
        assert!(request(&env, &limiter, 1, IoCost::NO_PAYLOAD).await);
        assert_eq!(env.now_ns(), before, "a discard does not wait for bytes");
    });
}

#[test]
fn another_party_is_not_delayed() {
    in_virtual_time(|env| async move {
        let limiters = Limiters::default();
        let (limited, other) = (limiters.of("limited"), limiters.of("other"));
        limited.set(iops(10));
        assert!(Rc::ptr_eq(&limited, &limiters.of("limited")));
        let waits: Vec<_> = (0..100).filter_map(|_| limited.admit(&env, 1, IO)).collect();
        assert_eq!(limited.delayed(), waits.len() as u64);
        assert!((0..1000).all(|_| other.admit(&env, 2, IO).is_none()));
    });
}

#[test]
fn a_raised_limit_and_a_removed_one_apply_to_requests_that_wait() {
    in_virtual_time(|env| async move {
        let limiter = Rc::new(Limiter::default());
        limiter.set(iops(1));
        let start = env.now_ns();
        let waits: Vec<_> = (0..301).filter_map(|_| limiter.admit(&env, 1, IO)).collect();
        assert_eq!(waits.len(), 300);
        env.sleep_us(1_500_000).await;
        assert_eq!(limiter.delayed(), 299);
        limiter.set(iops(100));
        env.sleep_us(1_000_000).await;
        let left = limiter.delayed();
        assert!((188..=190).contains(&left), "{left} are left of 299 after a second at 100/s");
        limiter.set(IoLimits::default());
        for wait in waits {
            assert!(wait.await);
        }
        assert_eq!((env.now_ns() - start) / 1_000_000, 2_500, "the rest began at once");
    });
}

#[test]
fn a_lowered_limit_applies_to_requests_that_wait() {
    in_virtual_time(|env| async move {
        let limiter = Rc::new(Limiter::default());
        limiter.set(iops(1000));
        let waits: Vec<_> = (0..1100).filter_map(|_| limiter.admit(&env, 1, IO)).collect();
        env.sleep_us(500_000).await;
        let before = limiter.delayed();
        limiter.set(iops(10));
        env.sleep_us(1_000_000).await;
        let begun = before - limiter.delayed();
        assert!((10..=12).contains(&begun), "{begun} in a second at 10/s");
        drop(waits);
        assert_eq!(limiter.delayed(), 0);
    });
}

#[test]
fn the_end_of_a_connection_ends_its_waits_alone() {
    in_virtual_time(|env| async move {
        let limiter = Rc::new(Limiter::default());
        limiter.set(iops(1));
        assert!(limiter.admit(&env, 1, IO).is_none());
        let start = env.now_ns();
        let delay = |connection| limiter.admit(&env, connection, IO).unwrap();
        let (closed, finished, other) = (delay(1), delay(2), delay(3));
        limiter.drop_all(1);
        limiter.permit_all(&env, 2);
        assert!(!closed.await, "a closed connection begins nothing");
        assert!(finished.await);
        assert_eq!(env.now_ns(), start);
        assert!(other.await);
        // The request of the connection that finished was paid for.
        assert_eq!((env.now_ns() - start) / 1_000_000_000, 2);
    });
}

#[test]
fn a_wait_that_is_dropped_costs_nothing() {
    in_virtual_time(|env| async move {
        let limiter = Rc::new(Limiter::default());
        limiter.set(iops(1));
        assert!(limiter.admit(&env, 1, IO).is_none());
        let start = env.now_ns();
        let (dropped, other) = (limiter.admit(&env, 1, IO).unwrap(), limiter.admit(&env, 1, IO).unwrap());
        drop(dropped);
        assert!(other.await);
        assert_eq!((env.now_ns() - start) / 1_000_000_000, 1);
    });
}
