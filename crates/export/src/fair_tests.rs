//! Shares of the core in virtual time: parties, their connections and their credit.

use std::cell::Cell;
use std::rc::Rc;

use blk::Env;
use sim::SimWorld;

use super::*;
use crate::limits::{IoLimits, WEIGHT_MAX};

const GREEDY_COST: u64 = REQUEST_COST + (1 << 20);
const SMALL_COST: u64 = REQUEST_COST + 4096;

/// A connection that begins work of `cost` as often as it may, until `turns` are over.
async fn work(
    env: Env,
    scheduler: Rc<FairScheduler>,
    group: Rc<ClientGroup>,
    cost: u64,
    turns: u64,
    done: Rc<Cell<u64>>,
) {
    while env.turns() < turns {
        scheduler.take(&env, &group, cost).await;
        done.set(done.get() + 1);
        // The client sends its next request when this one has been answered.
        env.next_turn().await;
    }
}

/// Returns what each connection began within `turns`. A group is a party, the cost of one piece, and a number of
/// connections.
fn begun(groups: &'static [(&'static str, u64, usize)], turns: u64) -> Vec<Vec<u64>> {
    begun_with_weights(groups, &[], turns)
}

/// Returns the same where some parties have a weight.
fn begun_with_weights(
    groups: &'static [(&'static str, u64, usize)],
    weights: &'static [(&'static str, u32)],
    turns: u64,
) -> Vec<Vec<u64>> {
    let world = SimWorld::new(1, sim::Options::default());
    let counts = world.run(move |env| async move {
        let scheduler = Rc::new(FairScheduler::default());
        let mut counts = Vec::new();
        let mut tasks = Vec::new();
        for &(name, cost, connections) in groups {
            let group = scheduler.group(name);
            let weight = weights.iter().find(|(party, _)| *party == name);
            weight.inspect(|(_, weight)| {
                group.limiter.set(IoLimits { weight: *weight, ..IoLimits::default() });
            });
            let each: Vec<Rc<Cell<u64>>> = (0..connections).map(|_| Rc::default()).collect();
            for done in &each {
                let work = work(env.clone(), scheduler.clone(), group.clone(), cost, turns, done.clone());
                tasks.push(env.spawn(work));
            }
            counts.push(each);
        }
        for task in tasks {
            task.join().await;
        }
        counts.iter().map(|each| each.iter().map(|done| done.get()).collect()).collect()
    });
    counts.expect("the power was not cut")
}

#[test]
fn a_neighbour_of_a_hundred_greedy_connections_keeps_half_of_its_rate() {
    let alone: u64 = begun(&[("neighbour", SMALL_COST, 32)], 2000)[0].iter().sum();
    let both = begun(&[("greedy", GREEDY_COST, 100), ("neighbour", SMALL_COST, 32)], 2000);
    let beside: u64 = both[1].iter().sum();
    println!("pieces of the neighbour in 2000 turns: {alone} alone, {beside} beside 100 greedy connections");
    assert!(2 * beside >= alone, "{beside} of {alone}");
    // The greedy party is not excluded either: it has its credit, and no more.
    let greedy = GREEDY_COST * both[0].iter().sum::<u64>();
    assert!((TURN_CREDIT * 1000..=TURN_CREDIT * 2002 + 100 * GREEDY_COST).contains(&greedy), "{greedy}");
}

#[test]
fn connections_of_one_group_take_turns() {
    // A second party, so that the credit limits both.
    let all = begun(&[("greedy", GREEDY_COST, 50), ("neighbour", SMALL_COST, 1)], 4000);
    let (least, most) = (all[0].iter().min().unwrap(), all[0].iter().max().unwrap());
    assert!(most - least <= 1 && *least > 10, "{:?}", all[0]);
}

#[test]
fn groups_with_equal_demand_get_equal_shares() {
    let both = begun(&[("one", GREEDY_COST, 1), ("many", GREEDY_COST, 100)], 4000);
    let (one, many): (u64, u64) = (both[0].iter().sum(), both[1].iter().sum());
    assert!(10 * one >= 9 * many, "{one} and {many}");
}

#[test]
fn shares_follow_the_weights() {
    let groups = &[("heavy", GREEDY_COST, 50), ("default", GREEDY_COST, 50), ("light", GREEDY_COST, 50)];
    let all = begun_with_weights(groups, &[("heavy", 400), ("light", 25)], 20_000);
    let [heavy, default, light] = [0, 1, 2].map(|n| all[n].iter().sum::<u64>());
    println!("pieces in 20000 turns with weights 400, 100, 25: {heavy}, {default}, {light}");
    assert!(heavy.abs_diff(4 * default) <= heavy / 20, "{heavy} and {default}");
    assert!(default.abs_diff(4 * light) <= default / 20, "{default} and {light}");
}

#[test]
fn equal_weights_have_the_shares_of_no_weights() {
    let of = |parties: u64, weight: u64| Shares::Of { parties, weights: parties * weight }.credit(weight);
    for parties in [1, 2, 10, 100] {
        let expected = (2 * TURN_CREDIT / (1 + parties)).max(TURN_CREDIT_MIN);
        assert_eq!(of(parties, u64::from(WEIGHT_DEFAULT)), expected, "{parties} parties");
    }
    // Turns stay as short with the largest weights.
    assert!(100 * of(100, u64::from(WEIGHT_MAX)) <= 100 * TURN_CREDIT_MIN);
    assert!(of(1, 1) > 0);
}

#[test]
fn a_connection_that_ends_while_it_waits_costs_nothing() {
    let world = SimWorld::new(1, sim::Options::default());
    world.run(|env| async move {
        let scheduler = Rc::new(FairScheduler::default());
        let group = scheduler.group("web");
        scheduler.take(&env, &group, 4 * TURN_CREDIT).await;
        let before = group.credit.get();
        {
            let mut gone = std::pin::pin!(scheduler.take(&env, &group, TURN_CREDIT));
            let waits = poll_fn(|cx| Poll::Ready(gone.as_mut().poll(cx).is_pending())).await;
            assert!(waits);
        }
        scheduler.take(&env, &group, 1).await;
        let turns = (group.credit.get() + 1 - before) as u64 / TURN_CREDIT;
        assert!((3..=5).contains(&turns), "the credit came back in {turns} turns");
    });
}

#[test]
fn a_single_group_is_not_limited() {
    let all = begun(&[("alone", GREEDY_COST, 8)], 4000);
    let cost = GREEDY_COST * all[0].iter().sum::<u64>();
    assert!(cost / 4000 > 3 * TURN_CREDIT, "{} a turn", cost / 4000);
}
