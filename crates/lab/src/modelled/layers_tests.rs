//! Compares the I/O on the files of each layer with counts made by hand.

use blk::Buf;

use super::tests::{outcome, phases_of};
use super::*;
use crate::run::{LayerHost, Phase, PhaseSpan};

const BLOCK: u64 = 4096;
const REGION: u64 = 2 << 20;

/// Writes 4 KiB at `offset` and makes it durable.
async fn write(subject: &dyn Subject, offset: u64) {
    let disk = subject.disks().remove(0);
    disk.clone().write(offset, Buf::zeroed(BLOCK as usize).freeze()).await.unwrap();
    disk.flush().await.unwrap();
}

/// Returns the counts by layer: (reads, writes of tables) and of data.
fn counted(subject: &dyn Subject) -> Vec<[u64; 4]> {
    let each = |host: Counters| {
        let tables = [host.table_reads, host.table_writes];
        [tables[0], tables[1], host.reads - tables[0], host.writes - tables[1]]
    };
    subject.layers().iter().map(|layer| each(layer.host)).collect()
}

/// Returns what `work` adds to the counts of the existing layers.
async fn cost(subject: &dyn Subject, work: impl Future<Output = ()>) -> Vec<[u64; 4]> {
    let before = counted(subject);
    work.await;
    let pairs = counted(subject).into_iter().zip(before);
    pairs.map(|(after, before)| std::array::from_fn(|n| after[n] - before[n])).collect()
}

#[test]
fn a_first_write_costs_its_tables_in_the_delta_and_the_next_one_nothing() {
    let world = SimWorld::new(1, world_options(Options::default()));
    let inside = world.clone();
    let ended = world.run(move |env| async move {
        let vm = Engine::Redo.make(&env, &inside, &[8 << 20]).await.unwrap();
        let vm = &*vm;
        assert_eq!(cost(vm, write(vm, 0)).await, [[0, 0, 0, 1]], "a flat base");
        vm.take("before").await.unwrap();
        let heights: Vec<u32> = vm.layers().iter().map(|layer| layer.height).collect();
        assert_eq!(heights, [0, 1]);
        // The engine writes zeros ahead before the count, not during it.
        env.sleep_us(1_000_000).await;
        assert_eq!(cost(vm, write(vm, 0)).await, [[0, 0, 0, 0], [0, 2, 0, 1]], "a table, a pointer to it");
        assert_eq!(cost(vm, write(vm, 0)).await, [[0, 0, 0, 0], [0, 0, 0, 1]], "an overwrite");
        assert_eq!(
            cost(vm, write(vm, 2 * BLOCK)).await,
            [[0, 0, 0, 0], [0, 1, 0, 1]],
            "a piece of the table"
        );
        assert_eq!(cost(vm, write(vm, REGION)).await, [[0, 0, 0, 0], [0, 2, 0, 1]], "another table");
        let read = async |offset| {
            let (_, result) = vm.disks().remove(0).read(offset, Buf::alloc(BLOCK as usize)).await;
            result.unwrap();
        };
        assert_eq!(cost(vm, read(0)).await, [[0, 0, 0, 0], [0, 0, 1, 0]]);
        assert_eq!(cost(vm, read(BLOCK)).await, [[0, 0, 1, 0], [0, 0, 0, 0]]);
        let before = vm.counters().unwrap();
        vm.commit("before").await.unwrap();
        assert_eq!(counted(vm).len(), 1, "the base alone");
        let commit = vm.counters().unwrap().since(&before);
        let commit = commit.expect("what a layer had counted stays when it goes");
        assert!(commit.table_writes >= 1 && commit.table_reads == 0, "{commit:?}");
        vm.close().await.unwrap();
    });
    assert!(ended.is_some());
}

/// Returns the sums over the samples of a span.
fn host_of(record: &Record, span: &PhaseSpan) -> Counters {
    let mut sum = Counters::default();
    let within = record.samples.iter().filter(|sample| span.holds(sample.at_us));
    within.for_each(|sample| sum += sample.host.expect("seen all the time"));
    sum
}

#[test]
fn the_layers_of_a_phase_add_up_to_what_the_host_saw() {
    let record = outcome(Engine::Redo, 1).record;
    for span in phases_of(&record, &[Phase::Baseline, Phase::Snapshot, Phase::Commit, Phase::After]) {
        let heights: Vec<u32> = span.layers.iter().map(|l| l.layer).collect();
        let expected: &[u32] = match span.phase {
            Phase::Baseline => &[0],
            _ => &[0, 1],
        };
        assert!(heights == expected || (span.phase == Phase::After && heights == [0]), "{span:?}");
        let mut sum = Counters::default();
        span.layers.iter().for_each(|LayerHost { host, .. }| sum += *host);
        let host = host_of(&record, span);
        if span.label == "run" {
            assert_eq!(sum, Counters { commit_read_bytes: 0, commit_written_bytes: 0, ..host }, "{span:?}");
        }
        // I/O of a delta after its last look is not among its layer's.
        assert!(sum.table_reads <= host.table_reads && sum.table_writes <= host.table_writes, "{span:?}");
    }
    let native = outcome(Engine::Native, 1).record;
    assert!(native.phases.iter().all(|span| span.layers.is_empty()), "one file, no chain");
    for record in [&record, &native] {
        let snapshot = phases_of(record, &[Phase::Snapshot]);
        let tables: u64 = snapshot.iter().map(|span| host_of(record, span).table_writes).sum();
        assert!(tables > 0, "{}", record.subject);
    }
}
