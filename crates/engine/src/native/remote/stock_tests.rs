//! Blocks handed out in advance, with the messages of the VM's core sent by hand.

use std::rc::Rc;

use blk::{Buf, Env, Slice};
use sim::SimWorld;

use super::super::change::Op;
use super::super::layout::{BLOCK, checksum};
use super::super::store::{Store, StoreOptions};
use super::super::tests::{disk, open_store_with, shows};
use super::link::{Answer, Reply, Request, VmEnd, Work};
use super::stock::VmStock;
use super::*;

/// The VM's end of a connection, without a core behind it.
struct ByHand {
    end: VmEnd,
    disk: u64,
}

impl ByHand {
    async fn start(env: &Env) -> (Rc<Store>, ByHand) {
        let options = StoreOptions { reserve_blocks: 64, handed_out_blocks: 16, ..StoreOptions::default() };
        let store = open_store_with(env, options).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1000 }]).unwrap();
        let (store_end, end) = connect();
        let ticket = StoreSide::start(env, store_end).serve(disk(&store, 1)).unwrap();
        (store, ByHand { end, disk: ticket.number })
    }

    async fn request(&mut self, work: Work) -> Reply {
        assert!(self.end.requests.send_all([Request { disk: self.disk, id: 0, work }]));
        self.end.replies.receive().await.expect("the store's core serves it").remove(0).expect("a reply")
    }

    /// Writes a block by a message. Returns the blocks that come with the answer.
    async fn stock(&mut self, block: u64) -> VmStock {
        let mut data = Buf::alloc(BLOCK as usize);
        data.fill(1);
        let stock = VmStock::default();
        let reply = self.request(Work::Write { offset: block * BLOCK, data }).await;
        stock.add(reply.stock.expect("there is space"));
        stock
    }
}

fn filled(byte: u8) -> Slice {
    let mut buf = Buf::alloc(BLOCK as usize);
    buf.fill(byte);
    buf.freeze()
}

#[test]
fn a_record_for_recalled_blocks_is_refused_although_they_are_handed_out_again() {
    let ran = SimWorld::new(1, sim::Options::default()).run(|env| async move {
        let (store, mut vm) = ByHand::start(&env).await;
        let first = vm.stock(0).await.take(1).unwrap().remove(0);
        let (place, late) = (first.extent, first.written(9, checksum(&filled(2))));
        store.file.write(place.addr * BLOCK, filled(2)).await.unwrap();
        // The write has ended, and its record is on its way.
        drop(first);
        store.recall_stocks();
        let again = vm.stock(1).await;
        let mut other = again.take(1).unwrap().remove(0);
        while other.extent != place {
            other = again.take(1).expect("the same blocks are handed out").remove(0);
        }
        let refused = vm.request(Work::Publish(vec![late])).await.answer;
        store.file.write(place.addr * BLOCK, filled(3)).await.unwrap();
        let record = other.written(10, checksum(&filled(3)));
        drop(other);
        assert!(matches!(vm.request(Work::Publish(vec![record])).await.answer, Answer::Done(Ok(()))));
        let disk = disk(&store, 1);
        assert_eq!((shows(&disk, 9).await, shows(&disk, 10).await), (0, 3));
        assert!(
            matches!(refused, Answer::Done(Err(e)) if e.is_no_space()),
            "the write is repeated as a message"
        );
    });
    ran.expect("nothing cuts the power");
}

#[test]
fn what_a_core_had_is_given_back_when_it_ends() {
    let ran = SimWorld::new(2, sim::Options::default()).run(|env| async move {
        let (store, mut vm) = ByHand::start(&env).await;
        let taken = vm.stock(0).await.take(1).unwrap();
        let disks = || (store.remote_disks.borrow().len(), store.remote_stocks.borrow().len());
        assert_eq!(disks(), (1, 1));
        // A request is under way, and so is a write to the blocks.
        let write =
            Request { disk: vm.disk, id: 1, work: Work::Write { offset: BLOCK, data: Buf::zeroed(4096) } };
        assert!(vm.end.requests.send_all([write]));
        drop(vm);
        env.sleep_us(10_000).await;
        assert_eq!(disks(), (0, 0));
        assert!(!store.unpublished.borrow().is_empty(), "the write has not ended");
        drop(taken);
        env.sleep_us(1000).await;
        assert!(store.unpublished.borrow().is_empty());
        store.close().await.unwrap();
    });
    ran.expect("nothing cuts the power");
}
