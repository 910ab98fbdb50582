//! Answers about differences and space are the same before a checkpoint as after it, and cause none.

use std::collections::BTreeSet;
use std::rc::Rc;

use blk::Env;
use blk::volume::Volume;
use sim::{Rng, SimWorld};

use super::backing::SECTOR;
use super::change::Op;
use super::layout::BLOCK;
use super::store::Store;
use super::tests::{disk, fill, open_store, run, write_sectors};

const DISK_BLOCKS: u64 = 100_000;
const SECTORS: u64 = BLOCK / SECTOR;

/// All that can be asked of all nodes: blocks that differ between two, blocks that one alone has, and shared bytes.
async fn answers(store: &Store, nodes: &[u64]) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for from in [None].into_iter().chain(nodes.iter().copied().map(Some)) {
        for to in nodes {
            let (mut start, mut hash) = (0, 0);
            while start < DISK_BLOCKS * BLOCK {
                let (ranges, end) = store.differences(from, *to, start, 3).await.unwrap();
                for block in ranges.into_iter().flat_map(|range| range.start / BLOCK..range.end / BLOCK) {
                    hash = hash * 31 % 1_000_000_007 + block + 1;
                }
                start = end;
            }
            found.push((format!("differences of {to} from {from:?}"), hash));
        }
    }
    for node in nodes {
        let own = BTreeSet::from([*node]);
        found.push((format!("data of {node} alone"), store.held_data(&[*node]).await.unwrap()));
        found.push((format!("shared by {node}"), store.shared_with_others(*node, &own).await.unwrap()));
        found.push((format!("read from {node}"), store.bytes_read_by_others(&own).await.unwrap()));
    }
    found.push(("data of all".into(), store.held_data(nodes).await.unwrap()));
    found
}

/// Writes and discards at random, short and long, near and far.
async fn change_at_random(store: &Rc<Store>, node: u64, rng: &mut Rng) {
    let disk = disk(store, node);
    for _ in 0..rng.below(30) {
        let block = [0, 250, 31_740, 70_000][rng.below(4) as usize] + rng.below(300);
        match rng.below(8) {
            0 => disk.clone().discard(block * BLOCK..(block + 1 + rng.below(400)) * BLOCK).await.unwrap(),
            1 => fill(&disk, block, 1 + rng.below(300) as usize, 1 + rng.below(250) as u8).await,
            2 | 3 => {
                let first = block * SECTORS + rng.below(SECTORS);
                write_sectors(&disk, first, 1 + rng.below(20), 1 + rng.below(250) as u8).await;
            }
            _ => fill(&disk, block, 1 + rng.below(4) as usize, 1 + rng.below(250) as u8).await,
        }
    }
}

/// Makes a tree of states, of which a part is merged. Returns the nodes.
async fn states_at_random(store: &Rc<Store>, rng: &mut Rng) -> Vec<u64> {
    store.change(&[Op::Create { node: 1, size_blocks: DISK_BLOCKS }]).unwrap();
    let (mut nodes, mut running) = (vec![1], vec![1]);
    let merged = rng.below(8);
    for step in 0..8 {
        let on = running[rng.below(running.len() as u64) as usize];
        change_at_random(store, on, rng).await;
        let (sealed, branch) = (10 + step, 20 + step);
        let what = rng.below(3);
        if what > 0 {
            store.change(&[Op::Take { running: on, sealed }]).unwrap();
            nodes.push(sealed);
        }
        if what > 1 {
            store.change(&[Op::Branch { from: sealed, node: branch }]).unwrap();
            nodes.push(branch);
            running.push(branch);
        }
        if step == merged {
            store.checkpoint().await.unwrap();
        }
        // What no replay doubts may be the backing block of later writes.
        store.flush().await.unwrap();
        store.flush().await.unwrap();
    }
    nodes
}

async fn compare(store: Rc<Store>, nodes: Vec<u64>, what: String) {
    let checkpoints = store.checkpoints.get();
    let before = answers(&store, &nodes).await;
    assert_eq!(store.checkpoints.get(), checkpoints, "{what}: a question caused a checkpoint");
    store.checkpoint().await.unwrap();
    for (before, after) in before.into_iter().zip(answers(&store, &nodes).await) {
        assert_eq!(before, after, "{what}: before and after a checkpoint");
    }
    store.close().await.unwrap();
}

fn in_world(test: impl AsyncFnOnce(Env) + 'static) {
    run(&SimWorld::new(1, sim::Options::default()), |env| async move { test(env).await });
}

#[test]
fn answers_are_the_same_before_and_after_a_checkpoint() {
    for seed in 0..40 {
        in_world(async move |env| {
            let store = open_store(&env).await.unwrap();
            let nodes = states_at_random(&store, &mut Rng::new(seed)).await;
            compare(store, nodes, format!("seed {seed}")).await;
        });
    }
}

#[test]
fn many_runs_and_long_ones_are_compared_in_steps() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: DISK_BLOCKS }]).unwrap();
        let base = disk(&store, 1);
        fill(&base, 300, 3000, 1).await;
        store.checkpoint().await.unwrap();
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        for n in 0..700 {
            fill(&base, n * 3, 1, 2).await;
        }
        base.clone().discard(2500 * BLOCK..DISK_BLOCKS * BLOCK).await.unwrap();
        store.change(&[Op::Take { running: 1, sealed: 3 }]).unwrap();
        fill(&base, 90_000, 5, 3).await;
        compare(store, vec![1, 2, 3], "three states".into()).await;
    });
}
