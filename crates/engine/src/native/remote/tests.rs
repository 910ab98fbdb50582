//! Disks on another core than their store: what needs messages, and what a change waits for.

use std::cell::Cell;
use std::rc::Rc;

use blk::fence::Fence;
use blk::volume::{Attachment, Volume, ZeroMode};
use blk::{Buf, Env, Errno, ErrorKind};
use sim::{Action, Bridge, Fault, OpKind, SimWorld};

use super::super::change::Op;
use super::super::disk::NativeDisk;
use super::super::store::{Store, StoreOptions};
use super::super::tests::{disk, fill, open_store_with, shows};
use super::*;
use crate::options::{Defect, Defects};

/// A store's core and a VM's core, connected.
pub(in super::super) struct TwoCores {
    pub vm_env: Env,
    pub store_side: Rc<StoreSide>,
    pub vm_side: Rc<VmSide>,
}

impl TwoCores {
    pub(in super::super) fn start(envs: &[Env]) -> Rc<TwoCores> {
        let (store_end, vm_end) = connect();
        let store_side = StoreSide::start(&envs[0], store_end);
        let vm_side = VmSide::start(&envs[1], vm_end, GRANT_BYTES_MAX);
        Rc::new(TwoCores { vm_env: envs[1].clone(), store_side, vm_side })
    }

    pub(in super::super) fn open(&self, disk: Rc<NativeDisk>) -> Rc<RemoteDisk> {
        self.vm_side.open(self.store_side.serve(disk).unwrap()).unwrap()
    }

    /// Opens a disk as tasks of the first core see it.
    pub(in super::super) fn bridged(&self, disk: Rc<NativeDisk>) -> Rc<Bridge> {
        Bridge::new(&self.vm_env, self.open(disk))
    }
}

pub(super) fn run_two<F: Future<Output = ()> + 'static>(
    world: &SimWorld,
    defects: Defects,
    work: impl FnOnce(Rc<Store>, Rc<TwoCores>) -> F + 'static,
) {
    let ran = world.run_cores(2, |envs| async move {
        let options = StoreOptions { reserve_blocks: 64, defects, ..StoreOptions::default() };
        let store = open_store_with(&envs[0], options).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1000 }]).unwrap();
        work(store, TwoCores::start(&envs)).await;
    });
    ran.expect("nothing cuts the power");
}

pub(super) async fn put(disk: &Rc<Bridge>, block: u64, byte: u8) {
    let mut buf = Buf::alloc(4096);
    buf.fill(byte);
    disk.clone().write(block * 4096, buf.freeze()).await.unwrap();
}

pub(super) async fn get(disk: &Rc<Bridge>, block: u64) -> u8 {
    let (buf, result) = disk.clone().read(block * 4096, Buf::alloc(4096)).await;
    result.unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]), "block {block} is mixed");
    buf[0]
}

#[test]
fn reads_and_overwrites_need_no_message() {
    let world = SimWorld::new(1, sim::Options::default());
    run_two(&world, Defects::default(), |store, cores| async move {
        let remote = cores.open(disk(&store, 1));
        let disk = Bridge::new(&cores.vm_env, remote.clone());
        for block in 0..100 {
            put(&disk, block, 1).await;
        }
        // The second flush makes durable that the first one was.
        disk.clone().flush().await.unwrap();
        disk.clone().flush().await.unwrap();
        let (asked, _) = cores.vm_side.messages();
        for block in 0..100 {
            assert_eq!(get(&disk, block).await, 1);
            put(&disk, block, 2).await;
            assert_eq!(get(&disk, block).await, 2);
        }
        assert_eq!(cores.vm_side.messages().0, asked);
        assert_eq!((remote.stats.reads.get(), remote.stats.writes.get()), (200, 200));
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        assert_eq!(get(&disk, 7).await, 2);
        assert_eq!(cores.vm_side.messages().0, asked, "a take leaves the permission to read");
        put(&disk, 7, 3).await;
        assert_eq!(cores.vm_side.messages().0, asked + 1);
        assert_eq!((get(&disk, 7).await, get(&disk, 8).await), (3, 2));
        assert_eq!(shows(&super::super::tests::disk(&store, 2), 7).await, 2);
    });
}

#[test]
fn a_grown_disk_is_served_to_its_end_and_a_dropped_one_not_at_all() {
    let world = SimWorld::new(2, sim::Options::default());
    run_two(&world, Defects::default(), |store, cores| async move {
        let disk = cores.bridged(disk(&store, 1));
        put(&disk, 999, 1).await;
        let (_, result) = disk.clone().read(1000 * 4096, Buf::alloc(4096)).await;
        assert_eq!(result.unwrap_err().kind, ErrorKind::Invalid);
        store.change(&[Op::Resize { node: 1, size_blocks: 2000 }]).unwrap();
        assert_eq!(disk.info().size_bytes, 2000 * 4096);
        put(&disk, 1000, 2).await;
        assert_eq!((get(&disk, 999).await, get(&disk, 1000).await, get(&disk, 1999).await), (1, 2, 0));
        store.change(&[Op::Drop { node: 1 }]).unwrap();
        let (_, result) = disk.clone().read(999 * 4096, Buf::alloc(4096)).await;
        assert_eq!(result.unwrap_err().kind, ErrorKind::Refused);
    });
}

/// Takes a snapshot while a write in place is under way. Returns whether the write had ended when the take had.
fn take_during_a_write(defects: Defects) -> bool {
    let world = SimWorld::new(3, sim::Options::default());
    let ended = Rc::new(Cell::new(false));
    let (out, slow) = (ended.clone(), world.clone());
    run_two(&world, defects, |store, cores| async move {
        let disk = cores.bridged(disk(&store, 1));
        put(&disk, 5, 1).await;
        store.checkpoint().await.unwrap();
        get(&disk, 5).await;
        slow.add_fault(Fault::nth(1, Action::Delay { ns: 50_000_000 }).of(OpKind::Write));
        let (asked, writing) = (cores.vm_side.messages().0, Rc::new(Cell::new(true)));
        let (writer, under_way) = (disk.clone(), writing.clone());
        store.env.spawn(async move {
            put(&writer, 5, 2).await;
            under_way.set(false);
        });
        store.env.sleep_us(1000).await;
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        store.drain_writes().await;
        // The end of the write has a way of some polls to this core.
        store.env.sleep_us(1000).await;
        out.set(!writing.get());
        assert_eq!(cores.vm_side.messages().0, asked, "the write began in place");
        store.env.sleep_us(100_000).await;
    });
    ended.get()
}

#[test]
fn a_take_waits_for_writes_of_another_core() {
    assert!(take_during_a_write(Defects::default()));
    assert!(!take_during_a_write(Defects::only(Defect::ForgetRemoteIo)), "the defect is found");
}

#[test]
fn freed_blocks_wait_for_reads_of_another_core() {
    for (defects, waits) in [(Defects::default(), true), (Defects::only(Defect::ForgetRemoteIo), false)] {
        let world = SimWorld::new(4, sim::Options::default());
        let slow = world.clone();
        run_two(&world, defects, move |store, cores| async move {
            let disk = cores.bridged(disk(&store, 1));
            put(&disk, 5, 1).await;
            get(&disk, 5).await;
            slow.add_fault(Fault::nth(1, Action::Delay { ns: 50_000_000 }).of(OpKind::Read));
            let reader = disk.clone();
            let read = store.env.spawn(async move { get(&reader, 5).await });
            store.env.sleep_us(1000).await;
            disk.clone().discard(5 * 4096..6 * 4096).await.unwrap();
            assert_eq!(store.reads.in_flight() > 0, waits);
            assert_eq!((read.join().await, get(&disk, 5).await), (1, 0));
            store.env.sleep_us(1000).await;
            assert_eq!(store.reads.in_flight(), 0);
        });
    }
}

#[test]
fn a_failed_write_of_another_core_ends_the_store() {
    let world = SimWorld::new(5, sim::Options::default());
    let failing = world.clone();
    run_two(&world, Defects::default(), |store, cores| async move {
        let disk = cores.bridged(disk(&store, 1));
        put(&disk, 5, 1).await;
        store.checkpoint().await.unwrap();
        put(&disk, 5, 2).await;
        failing.add_fault(Fault::nth(1, Action::Fail(Errno::EIO)).of(OpKind::Write));
        let mut buf = Buf::alloc(4096);
        buf.fill(3);
        let failed = disk.clone().write(5 * 4096, buf.freeze()).await.unwrap_err();
        assert_eq!(failed.kind, ErrorKind::Io);
        assert!(disk.clone().flush().await.is_err(), "no flush vouches for a write that failed");
        assert!(store.broken().is_some());
        let refused = disk.clone().write(5 * 4096, Buf::zeroed(4096).freeze()).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Refused);
    });
}

#[test]
fn writes_that_find_no_space_here_are_left_to_the_store() {
    let world = SimWorld::new(6, sim::Options::default());
    let full = world.clone();
    run_two(&world, Defects::default(), |store, cores| async move {
        let disk = cores.bridged(disk(&store, 1));
        put(&disk, 5, 1).await;
        store.checkpoint().await.unwrap();
        put(&disk, 5, 2).await;
        full.add_fault(Fault::nth(1, Action::Fail(Errno::ENOSPC)).of(OpKind::Write));
        put(&disk, 5, 3).await;
        assert_eq!(get(&disk, 5).await, 3);
        assert!(store.broken().is_none());
    });
}

#[test]
fn after_its_close_a_store_lets_no_core_reach_the_file() {
    let world = SimWorld::new(7, sim::Options::default());
    run_two(&world, Defects::default(), |store, cores| async move {
        let disk = cores.bridged(disk(&store, 1));
        put(&disk, 5, 1).await;
        store.checkpoint().await.unwrap();
        put(&disk, 5, 2).await;
        store.close().await.unwrap();
        let (asked, _) = cores.vm_side.messages();
        drop(disk.clone().write(5 * 4096, Buf::zeroed(4096).freeze()).await);
        assert_eq!(cores.vm_side.messages().0, asked + 1, "nothing is overwritten here");
    });
}

/// Makes the disk's blocks 0 to 63 data that a snapshot shares, and gives the other core blocks in advance.
async fn shared_with_stock(store: &Rc<Store>, disk: &Rc<Bridge>) {
    for block in 0..64 {
        put(disk, block, 1).await;
    }
    store.checkpoint().await.unwrap();
    store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
    put(disk, 0, 2).await;
}

#[test]
fn redirects_go_to_blocks_handed_out_in_advance() {
    let world = SimWorld::new(8, sim::Options::default());
    run_two(&world, Defects::default(), |store, cores| async move {
        let disk = cores.bridged(disk(&store, 1));
        shared_with_stock(&store, &disk).await;
        let placed = store.unpublished.borrow().clone();
        for block in 1..40 {
            put(&disk, block, 3).await;
        }
        let mut found = super::super::view::Scratch::default();
        store.find(&store.node(1).unwrap(), 1..40, &mut found).await.unwrap();
        let is_handed_out =
            |addr: u64| placed.iter().any(|extent| (extent.addr..extent.end()).contains(&addr));
        assert!(found.found.iter().all(|run| is_handed_out(run.addr)), "{placed:?}");
        for block in 0..64 {
            let expected = [2, 3, 1][usize::from(block > 0) + usize::from(block > 39)];
            assert_eq!(get(&disk, block).await, expected, "{block}");
            assert_eq!(shows(&super::super::tests::disk(&store, 2), block).await, 1);
        }
        drop(disk);
        store.env.sleep_us(1000).await;
        assert!(store.unpublished.borrow().is_empty(), "what is left goes back");
        store.close().await.unwrap();
    });
    run_after(&world, 39, 3);
}

/// Checks a block of the running disk in a store that is opened again.
fn run_after(world: &SimWorld, block: u64, byte: u8) {
    let ran = world.run(|env| async move {
        let options = StoreOptions { reserve_blocks: 64, ..StoreOptions::default() };
        let store = open_store_with(&env, options).await.unwrap();
        assert_eq!(shows(&disk(&store, 1), block).await, byte);
        store.close().await.unwrap();
    });
    ran.expect("nothing cuts the power");
}

#[test]
fn recalled_blocks_are_free_after_the_writes_to_them_and_the_write_is_repeated() {
    for (defects, waits) in [(Defects::default(), true), (Defects::only(Defect::ForgetRemoteIo), false)] {
        let world = SimWorld::new(9, sim::Options::default());
        let slow = world.clone();
        run_two(&world, defects, move |store, cores| async move {
            let disk = cores.bridged(disk(&store, 1));
            shared_with_stock(&store, &disk).await;
            slow.add_fault(Fault::nth(1, Action::Delay { ns: 50_000_000 }).of(OpKind::Write));
            let writer = disk.clone();
            let written = store.env.spawn(async move { put(&writer, 9, 4).await });
            store.env.sleep_us(1000).await;
            store.recall_stocks();
            assert_eq!(!store.unpublished.borrow().is_empty(), waits);
            written.join().await;
            assert_eq!(get(&disk, 9).await, 4);
            assert_eq!(shows(&super::super::tests::disk(&store, 2), 9).await, 1);
        });
    }
}

#[test]
fn a_relayed_volume_answers_as_the_disk_does_and_leaves_with_its_client() {
    let world = SimWorld::new(9, sim::Options::default());
    run_two(&world, Defects::default(), |store, cores| async move {
        let left = Rc::new(Cell::new(false));
        struct Token(Rc<Cell<bool>>);
        impl Drop for Token {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let token = Box::new(Token(left.clone()));
        let attachment = Attachment { volume: disk(&store, 1), changes: None, token };
        let ticket = cores.store_side.relay(attachment);
        let relayed = cores.vm_side.open_relayed(ticket, "web/disk0");
        let client = Bridge::new(&cores.vm_env, relayed.clone());
        assert_eq!(client.info(), disk(&store, 1).info());
        put(&client, 3, 7).await;
        client.clone().flush().await.unwrap();
        assert_eq!((get(&client, 3).await, shows(&disk(&store, 1), 3).await), (7, 7));
        client.clone().write_zeroes(3 * 4096..4 * 4096, ZeroMode::default()).await.unwrap();
        assert_eq!(get(&client, 3).await, 0);
        put(&client, 4, 1).await;
        client.clone().discard(4 * 4096..5 * 4096).await.unwrap();
        let status = client.clone().status(0..8 * 4096).await.unwrap();
        assert!(status.iter().all(|piece| piece.zero), "{status:?}");
        let (_, result) = client.clone().read(1000 * 4096, Buf::alloc(4096)).await;
        assert_eq!(result.unwrap_err().kind, ErrorKind::Invalid);
        relayed.abandon();
        drop((client, relayed));
        store.env.sleep_us(1000).await;
        assert!(left.get(), "the attachment ended with its client");
    });
}

#[test]
fn a_disk_that_one_core_closes_is_still_served_on_another() {
    let ran = SimWorld::new(10, sim::Options::default()).run_cores(3, |envs| async move {
        let store = open_store_with(&envs[0], StoreOptions::default()).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1000 }]).unwrap();
        let native = disk(&store, 1);
        let [first, second] = [1, 2].map(|at: usize| TwoCores::start(&[envs[0].clone(), envs[at].clone()]));
        let (closed, served) = (first.open(native.clone()), second.bridged(native.clone()));
        put(&served, 5, 1).await;
        drop(closed);
        store.env.sleep_us(1000).await;
        assert_eq!(get(&served, 5).await, 1, "and the answer brings a grant");
        native.discard(5 * 4096..6 * 4096).await.unwrap();
        assert_eq!(get(&served, 5).await, 0, "the grant is withdrawn");
    });
    ran.expect("nothing cuts the power");
}

#[test]
fn cores_do_not_write_parts_of_one_device_block() {
    for seed in 1..6 {
        let world = SimWorld::new(seed, sim::Options { logical_block: 16384, ..sim::Options::default() });
        run_two(&world, Defects::default(), move |store, cores| async move {
            store.change(&[Op::Create { node: 2, size_blocks: 1000 }]).unwrap();
            let (here, there) = (disk(&store, 2), cores.bridged(disk(&store, 1)));
            for block in 0..32 {
                put(&there, block, 1).await;
                fill(&here, block, 1, 1).await;
            }
            store.checkpoint().await.unwrap();
            for byte in 2..6 {
                let (guest, env) = (there.clone(), store.env.clone());
                let other = env.spawn(async move {
                    for block in 0..32 {
                        put(&guest, block, byte).await;
                    }
                });
                for block in 0..32 {
                    fill(&here, block, 1, byte).await;
                }
                other.join().await;
                for block in 0..32 {
                    let both = (get(&there, block).await, shows(&here, block).await);
                    assert_eq!(both, (byte, byte), "seed {seed}, block {block}");
                }
            }
        });
    }
}

#[test]
fn a_disk_gets_grants_although_another_has_as_many_as_the_core_keeps() {
    let world = SimWorld::new(11, sim::Options::default());
    run_two(&world, Defects::default(), |store, cores| async move {
        store.change(&[Op::Create { node: 2, size_blocks: 1000 }]).unwrap();
        let [first, second] = [1, 2].map(|node| cores.bridged(disk(&store, node)));
        let windows = |count: u64| (0..count).map(|window| window * WINDOW_BLOCKS);
        for block in windows(8) {
            get(&first, block).await;
        }
        let most = cores.vm_side.grant_bytes.get();
        cores.vm_side.grant_bytes_max.set(most);
        for block in windows(20) {
            get(&first, block).await;
        }
        assert_eq!(cores.vm_side.grant_bytes.get(), most);
        for block in windows(4) {
            get(&second, block).await;
        }
        let (asked, _) = cores.vm_side.messages();
        for block in windows(4) {
            get(&second, block).await;
        }
        assert_eq!((cores.vm_side.messages().0, cores.vm_side.grant_bytes.get()), (asked, most));
        get(&first, 0).await;
        assert_eq!(cores.vm_side.messages().0, asked + 1, "a grant that was given up is granted again");
        get(&first, 0).await;
        assert_eq!(cores.vm_side.messages().0, asked + 1);
    });
}

#[test]
fn a_fence_that_is_closed_holds_back_the_answers_of_another_core() {
    let world = SimWorld::new(12, sim::Options::default());
    run_two(&world, Defects::default(), |store, cores| async move {
        let (env, fence) = (store.env.clone(), Fence::waiting(&store.env));
        store.file.set_fence(fence.clone());
        fence.open_until(env.boot_ns() + 1_000_000_000);
        let disk = cores.bridged(disk(&store, 1));
        put(&disk, 5, 1).await;
        store.checkpoint().await.unwrap();
        put(&disk, 5, 1).await;
        assert_eq!((get(&disk, 5).await, get(&disk, 6).await), (1, 0));
        env.sleep_us(2_000_000).await;
        let ended = Rc::new(Cell::new(0));
        let request = async |disk: Rc<Bridge>, ended: Rc<Cell<u32>>, at: u64| {
            match at {
                7 => put(&disk, 5, 2).await,
                hole_or_data => drop(get(&disk, hole_or_data).await),
            }
            ended.update(|n| n + 1);
        };
        for at in 5..8 {
            drop(env.spawn(request(disk.clone(), ended.clone(), at)));
        }
        env.sleep_us(100_000).await;
        assert_eq!(ended.get(), 0, "another host may have the lease");
        fence.open_until(env.boot_ns() + 1_000_000_000);
        env.sleep_us(100_000).await;
        assert_eq!((ended.get(), get(&disk, 5).await), (3, 2));
    });
}
