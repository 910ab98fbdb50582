//! Leases over devices with persistent reservations.

use blk::reactor::Reservation;
use sim::{Action, Fault, Host, OpKind, Options, SimWorld, View};

use super::tests::*;
use super::*;

fn reserving(host: &str, take_over: TakeOver) -> Claimant {
    Claimant { reserves: Some(true), ..claimant(host, take_over) }
}

fn world(seed: u64) -> SimWorld {
    SimWorld::new(seed, Options { reservations: true, ..Options::default() })
}

/// Returns whether the host may write the device, without a lease.
async fn may_write(host: &Host) -> bool {
    open(host).await.write(DATA_AT, block(9)).await.is_ok()
}

/// Returns what is on the device a while after a take-over from a host whose last write took 100 s.
fn after_a_write_of_a_hundred_seconds(seed: u64, reserves: bool) -> u8 {
    let world = world(seed);
    let device = world.clone();
    on_hosts_of(&world, |env, a, b| async move {
        let wanting = |host, take_over| Claimant { reserves: Some(reserves), ..claimant(host, take_over) };
        let lease = acquire(&a, wanting("a", TakeOver::FromNobody)).await.unwrap();
        assert_eq!(lease.reserves(), reserves);
        let file = guarded(&a, &lease).await;
        file.write(DATA_AT, block(1)).await.unwrap();
        device.add_fault(Fault::nth(1, Action::Delay { ns: 100 * SECOND_US * 1000 }).of(OpKind::Write));
        let late = a.env.spawn(async move { file.write(DATA_AT, block(2)).await });
        env.sleep_us(10_000).await;
        a.kill();
        drop(late);
        let taken = acquire(&b, wanting("b", TakeOver::FromAnyOwner)).await.unwrap();
        guarded(&b, &taken).await.write(DATA_AT, block(3)).await.unwrap();
        env.sleep_us(120 * SECOND_US).await;
        assert!(taken.lost().is_none());
    });
    world.read_at(LUN, DATA_AT, 1, View::Current).unwrap()[0]
}

#[test]
fn a_write_that_the_device_holds_back_for_minutes_is_refused_after_a_take_over() {
    let found = |reserves| (0..8).map(|seed| after_a_write_of_a_hundred_seconds(seed, reserves)).collect();
    let (with, without): (Vec<u8>, Vec<u8>) = (found(true), found(false));
    assert_eq!(with, [3; 8]);
    assert!(without.contains(&2), "a lease alone does not cover it: {without:?}");
}

#[test]
fn an_owner_that_was_preempted_loses_its_lease_with_its_next_write() {
    on_hosts_of(&world(5), |env, a, b| async move {
        let lease = acquire(&a, reserving("a", TakeOver::FromNobody)).await.unwrap();
        let file = guarded(&a, &lease).await;
        let other = open(&b).await;
        assert!(other.reserve(Reservation::Register { instead: 0, key: 5 }).await.unwrap());
        let key = lease.page.borrow().owner.reservation_key();
        assert!(other.reserve(Reservation::Preempt { key: 5, other: key }).await.unwrap());
        let e = file.write(DATA_AT, block(2)).await.unwrap_err();
        assert_eq!(e.kind, ErrorKind::LeaseLost);
        assert!(e.cause.contains("another host has reserved the device"), "{e}");
        env.sleep_us(5 * SECOND_US).await;
        assert!(lease.lost().is_some());
    });
}

#[test]
fn a_released_lease_gives_the_device_up_and_later_owners_reserve_it_again() {
    on_hosts_of(&world(5), |_, a, b| async move {
        let lease = acquire(&a, reserving("a", TakeOver::FromNobody)).await.unwrap();
        assert!(!may_write(&b).await);
        lease.release().await.unwrap();
        assert!(may_write(&b).await && may_write(&a).await);
        let next = acquire(&b, claimant("b", TakeOver::FromNobody)).await.unwrap();
        assert!(next.reserves() && !may_write(&a).await, "as the page has it");
        next.release().await.unwrap();
        let last = acquire(&a, Claimant { reserves: Some(false), ..claimant("a", TakeOver::FromNobody) });
        assert!(!last.await.unwrap().reserves() && may_write(&b).await);
    });
}

#[test]
fn a_host_serves_the_device_again_after_it_was_killed() {
    let world = world(5);
    on_hosts_of(&world, |_, a, _| async move {
        acquire(&a, reserving("a", TakeOver::FromNobody)).await.unwrap();
        a.kill();
    });
    // Machines of the same numbers are the same hosts to the device.
    let again = world.run_hosts(2, |_, hosts| async move {
        let knowing = Claimant { has_ended: Rc::new(|_| true), ..claimant("a", TakeOver::FromNobody) };
        let lease = acquire(&hosts[0], knowing).await.unwrap();
        assert!(lease.reserves() && !may_write(&hosts[1]).await);
        guarded(&hosts[0], &lease).await.write(DATA_AT, block(1)).await.unwrap();
    });
    again.expect("no cut");
}

#[test]
fn a_reservation_of_somebody_else_is_left_to_it_until_the_user_takes_the_store_over() {
    on_hosts_of(&world(5), |_, a, b| async move {
        let other = open(&b).await;
        assert!(other.reserve(Reservation::Register { instead: 0, key: 5 }).await.unwrap());
        assert!(other.reserve(Reservation::Reserve { key: 5 }).await.unwrap());
        let e = acquire(&a, reserving("a", TakeOver::FromOwnHost)).await.err().unwrap();
        assert_eq!(e.kind, ErrorKind::Refused);
        assert!(e.cause.contains("cluster manager") && !may_write(&a).await, "{e}");
        let lease = acquire(&a, reserving("a", TakeOver::FromAnyOwner)).await.unwrap();
        assert!(lease.reserves() && !may_write(&b).await);
    });
}

#[test]
fn a_host_that_another_program_has_registered_stays_as_it_is() {
    on_hosts_of(&world(5), |_, a, _| async move {
        let before = acquire(&a, reserving("a", TakeOver::FromNobody)).await.unwrap();
        before.release().await.unwrap();
        assert!(open(&a).await.reserve(Reservation::Register { instead: 0, key: 5 }).await.unwrap());
        let e = acquire(&a, reserving("a", TakeOver::FromNobody)).await.err().unwrap();
        assert!(e.kind == ErrorKind::Refused && e.cause.contains("has registered this host"), "{e}");
        let off =
            acquire(&a, Claimant { reserves: Some(false), ..claimant("a", TakeOver::FromNobody) }).await;
        assert!(!off.unwrap().reserves());
        assert!(open(&a).await.reserve(Reservation::Register { instead: 5, key: 5 }).await.unwrap());
    });
}

#[test]
fn a_device_without_reservations_is_served_only_without() {
    on_hosts_of(&SimWorld::new(5, Options::default()), |_, a, _| async move {
        let e = acquire(&a, reserving("a", TakeOver::FromNobody)).await.err().unwrap();
        assert!(e.kind == ErrorKind::Unsupported && e.cause.contains("--reservations off"), "{e}");
        assert!(!acquire(&a, claimant("a", TakeOver::FromNobody)).await.unwrap().reserves());
    });
}

#[test]
fn of_two_that_take_over_together_one_gets_device_and_lease() {
    for seed in 0..20 {
        on_hosts_of(&world(seed), |_, a, b| async move {
            let both = [(&a, "a"), (&b, "b")].map(|(host, name)| {
                let (host, claims) = (host.clone(), reserving(name, TakeOver::FromAnyOwner));
                host.env.clone().spawn(async move { acquire(&host, claims).await })
            });
            let [first, second] = both;
            let owners = [first.join().await, second.join().await];
            assert!(owners.iter().filter(|owner| owner.is_ok()).count() <= 1);
            for (host, owner) in [&a, &b].into_iter().zip(&owners) {
                assert_eq!(may_write(host).await, owner.is_ok() || owners.iter().all(|owner| owner.is_err()));
            }
        });
    }
}
