//! Bounds of the memory that clients' requests make the engine take: tables that wait to be written, and status answers
//! about large ranges.

use std::cell::Cell;
use std::rc::Rc;

use blk::volume::{BlockStatus, STATUS_PIECES_MAX, Volume};
use blk::{Buf, Env};
use engine::{Defect, Defects, Options, Vm};
use sim::SimWorld;

use super::support::{self, Growth};

const GIB: u64 = 1 << 30;
const REGION: u64 = 2 << 20;
const GROWTH: Growth = support::growth(64 << 20);

async fn create(env: &Env, name: &str, defects: Defects) -> Rc<Vm> {
    support::create(env, name, GROWTH, &[16 * GIB]).await;
    let options = Options { unwritten_cap_bytes: 4 << 20, defects, ..support::options() };
    let vm = support::open(env, name, GROWTH, options).await;
    vm.take("before", "").await.unwrap();
    vm
}

/// Writes one block in each region of the disk, and flushes none. Notes the most that waits to be written meanwhile.
async fn scatter(disk: Rc<dyn Volume>, regions: u64, most: Rc<Cell<u64>>) {
    let data = Buf::copy_of(&[1; 4096]).freeze();
    for region in 0..regions {
        disk.clone().write(region * REGION, data.clone()).await.unwrap();
        most.set(most.get().max(engine::unwritten_bytes()));
    }
}

/// Returns the most that waits to be written while two VMs write 1000 regions each, one after the other and then
/// together.
fn most_unwritten(defects: Defects) -> u64 {
    let world = SimWorld::new(1, sim::Options::default());
    let most = world.run(move |env| async move {
        let most = Rc::new(Cell::new(0));
        let (a, b) = (create(&env, "a", defects).await, create(&env, "b", defects).await);
        for regions in [1000, 2000] {
            let (first, _client) = a.attach(0, "test").await.unwrap();
            let (second, _other) = b.attach(0, "test").await.unwrap();
            scatter(first, regions, most.clone()).await;
            scatter(second, regions, most.clone()).await;
            for vm in [&a, &b] {
                vm.take(&format!("at {regions}"), "").await.unwrap();
            }
        }
        most.get()
    });
    most.expect("the power was not cut")
}

#[test]
fn tables_that_wait_to_be_written_are_bounded() {
    let most = most_unwritten(Defects::default());
    println!("{} KiB waited at most", most >> 10);
    // The cap, a MiB for each of two layers, and one table that is being placed.
    assert!(most <= (4 << 20) + (2 << 20) + (16 << 10), "{most}");
    assert_eq!(engine::unwritten_bytes(), 0, "layers that are gone hold nothing");
}

#[test]
fn a_planted_placing_without_a_bound_is_found() {
    assert!(most_unwritten(Defects::only(Defect::UnboundedTables)) > 7 << 20);
}

/// Writes every other block of the first 256 MiB, one by one.
async fn fragment(disk: &Rc<dyn Volume>) {
    let data = Buf::copy_of(&[1; 4096]).freeze();
    for block in 0..(256 << 20) / 8192 {
        disk.clone().write(block * 8192, data.clone()).await.unwrap();
    }
}

/// Requests the status from where each answer ends, as clients do. Returns each answer's pieces and the turns it took.
async fn ask(env: &Env, disk: &Rc<dyn Volume>, len: u64) -> Vec<(Vec<BlockStatus>, u64)> {
    let mut answers = Vec::new();
    let mut at = 0;
    while at < len {
        let turns = env.turns();
        let pieces = disk.clone().status(at..len).await.unwrap();
        at += pieces.iter().map(|piece| piece.len).sum::<u64>();
        answers.push((pieces, env.turns() - turns));
    }
    assert_eq!(at, len);
    answers
}

/// Checks that answers are bounded. `step_pieces` is the most that one step may find.
fn assert_bounded(answers: &[(Vec<BlockStatus>, u64)], step_pieces: usize) {
    let pieces: usize = answers.iter().map(|(pieces, _)| pieces.len()).sum();
    assert!(pieces >= 65_536 && answers.len() > 4, "{pieces} pieces in {} answers", answers.len());
    for (pieces, turns) in answers {
        assert!(pieces.len() < STATUS_PIECES_MAX + step_pieces, "{} pieces", pieces.len());
        assert!(
            pieces.len() < step_pieces * (1 + *turns as usize),
            "{} pieces in {turns} turns",
            pieces.len()
        );
    }
    let (last, turns) = &answers[answers.len() - 1];
    assert!(
        last.last().unwrap().len >= 3 * GIB && *turns >= 100,
        "a large hole is one piece, looked up in steps"
    );
}

#[test]
fn a_block_status_answer_is_bounded_and_its_work_is_divided() {
    let world = SimWorld::new(2, sim::Options::default());
    world.run(|env| async move {
        let vm = create(&env, "a", Defects::default()).await;
        let (disk, _client) = vm.attach(0, "test").await.unwrap();
        let disk: Rc<dyn Volume> = disk;
        fragment(&disk).await;
        assert_bounded(&ask(&env, &disk, 4 * GIB).await, 16_384);
    });
}
