//! A server that dies with requests under way, and connections that end.

use std::sync::atomic::Ordering::SeqCst;

use export::vhost_user::protocol::*;

use crate::client::*;
use crate::server::Server;

const MIB: u64 = 1 << 20;

#[test]
fn requests_under_way_survive_the_death_of_the_server_and_are_answered_once() {
    let mut server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    client.get_inflight();
    client.set_up(FEATURES, 0);
    client.start();
    for round in 0..5u8 {
        // Some requests are answered before the death, so that the records are not those of a new ring.
        assert_eq!(client.execute(BLK_IN, 0, 512).0, STATUS_OK);
        server.knobs.held.store(true, SeqCst);
        server.knobs.order.lock().unwrap().clear();
        for slot in [4u64, 2, 9, 1, 7] {
            client.put_data(slot, &[round * 16 + slot as u8; 4096]);
            client.prepare(slot, BLK_OUT, slot * 8, 4096);
            client.publish(3 * slot as u16);
        }
        client.kick();
        server.until("all are under way", |knobs| knobs.under_way.load(SeqCst) == 5);
        server = server.kill_and_restart();
        server.knobs.order.lock().unwrap().clear();
        server.knobs.held.store(false, SeqCst);
        client = client.reconnect(&server.socket());
        // A client without knowledge of its own passes the position of the ring of answers.
        let base = client.used_index();
        client.set_up(FEATURES, base);
        client.start();
        let mut heads: Vec<u32> = (0..5).map(|_| client.wait().0 / 3).collect();
        heads.sort_unstable();
        assert_eq!(heads, [1, 2, 4, 7, 9]);
        assert!(client.wait_within(20).is_none(), "nothing is answered twice");
        assert_eq!(*server.knobs.order.lock().unwrap(), [4, 2, 9, 1, 7].map(|slot| slot * 4096));
        let content = server.knobs.content.lock().unwrap();
        assert!([4, 2, 9, 1, 7].iter().all(|n| content[n * 4096..][..4096] == [round * 16 + *n as u8; 4096]));
    }
}

#[test]
fn requests_that_were_not_taken_yet_are_taken_by_the_next_server() {
    let server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    client.get_inflight();
    client.set_up(FEATURES, 0);
    client.start();
    assert_eq!(client.execute(BLK_IN, 0, 512).0, STATUS_OK);
    let server = server.kill_and_restart();
    client.prepare(5, BLK_IN, 0, 512);
    client.publish(15);
    client.kick();
    let mut client = client.reconnect(&server.socket());
    client.set_up(FEATURES, 1);
    client.start();
    assert_eq!(client.wait(), (15, 513));
    assert!(client.wait_within(20).is_none());
}

#[test]
fn an_answer_whose_records_were_cut_short_is_not_given_again() {
    let server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    client.get_inflight();
    client.set_up(FEATURES, 0);
    client.start();
    assert_eq!(client.execute(BLK_IN, 0, 512).0, STATUS_OK);
    let server = server.kill_and_restart();
    // The state between the answer and its records: the guest sees it, and the request still counts as under way.
    let (file, layout) = client.inflight.clone().unwrap();
    let len = u64::from_le_bytes(layout[..8].try_into().unwrap());
    let records = blk::uring::SharedMemory::map(&file, 0, len).unwrap();
    records.store_u8(16, 1).unwrap();
    records.store_u16(14, 0).unwrap();
    let mut client = client.reconnect(&server.socket());
    client.set_up(FEATURES, 1);
    client.start();
    assert!(client.wait_within(50).is_none(), "nothing is answered twice");
    assert_eq!(server.knobs.reads.load(SeqCst), 1);
    assert_eq!(client.execute(BLK_IN, 0, 512).0, STATUS_OK);
}

/// Requests of a whole piece each. The memory of a connection is too small for all of them at once.
const LARGE: u64 = 20;

fn publish_large(client: &mut Client, kind: u32) {
    for slot in 0..LARGE {
        client.prepare(slot, kind, 0, 1 << 20);
        client.publish(3 * slot as u16);
    }
}

#[test]
fn a_stop_answers_the_requests_of_an_earlier_process_first() {
    let server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    client.get_inflight();
    publish_large(&mut client, BLK_IN);
    // The records of an earlier process that had taken all of them.
    let (file, layout) = client.inflight.clone().unwrap();
    let len = u64::from_le_bytes(layout[..8].try_into().unwrap());
    let records = blk::uring::SharedMemory::map(&file, 0, len).unwrap();
    records.store_u16(8, 1).unwrap();
    records.store_u16(10, 64).unwrap();
    for slot in 0..LARGE {
        let record = 16 + 16 * 3 * slot;
        records.store_u8(record, 1).unwrap();
        records.store_u64(record + 8, slot).unwrap();
    }
    server.knobs.held.store(true, SeqCst);
    client.set_up(FEATURES, 0);
    client.start();
    server.until("some of them are under way", |knobs| knobs.under_way.load(SeqCst) > 0);
    client.send(request::GET_VRING_BASE, 0, &pair(0, 0), &[]);
    server.knobs.held.store(false, SeqCst);
    let (base, _) = client.reply(request::GET_VRING_BASE);
    assert_eq!(base[4..], (LARGE as u32).to_le_bytes());
    let mut heads: Vec<u32> = std::iter::from_fn(|| client.answer()).map(|(head, _)| head / 3).collect();
    heads.sort_unstable();
    assert_eq!(heads, (0..LARGE as u32).collect::<Vec<_>>());
}

#[test]
fn a_stop_ends_in_time_while_writes_wait_for_space() {
    let server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    client.set_up(FEATURES, 0);
    client.start();
    // The limit delays the later writes: they begin during the stop, and wait for space from then on.
    server.knobs.iops.store(1, SeqCst);
    server.until("the limit is set", |knobs| knobs.iops_set.load(SeqCst) == 1);
    server.knobs.waits.store(true, SeqCst);
    for slot in 0..8 {
        client.prepare(slot, BLK_OUT, 0, 512);
        client.publish(3 * slot as u16);
    }
    client.kick();
    server.until("a write waits for space", |knobs| knobs.writes.load(SeqCst) > 0);
    let base = client.stop();
    assert_eq!(client.used_index(), base, "all that was taken is answered");
    while let Some((head, _)) = client.answer() {
        assert_eq!(client.status(u64::from(head) / 3), STATUS_IOERR);
    }
    server.knobs.waits.store(false, SeqCst);
    server.knobs.iops.store(0, SeqCst);
    client.send(request::SET_VRING_BASE, 0, &pair(0, base.into()), &[]);
    client.start();
    for _ in base..8 {
        client.wait();
    }
    assert_eq!(client.execute(BLK_OUT, 0, 512).0, STATUS_OK, "and the ring goes on");
}

#[test]
fn a_connection_that_ends_leaves_guest_memory_alone_and_its_successor_waits() {
    let server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    client.get_inflight();
    client.set_up(FEATURES, 0);
    client.start();
    server.knobs.held.store(true, SeqCst);
    client.prepare(0, BLK_IN, 0, 4096);
    client.put_data(0, &[9; 4096]);
    client.publish(0);
    client.kick();
    server.until("the read is under way", |knobs| knobs.under_way.load(SeqCst) == 1);
    let mut client = client.reconnect(&server.socket());
    server.knobs.content.lock().unwrap().fill(1);
    let knobs = server.knobs.clone();
    let release = std::thread::spawn(move || {
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        knobs.held.store(false, SeqCst);
    });
    client.set_up(FEATURES, 0);
    release.join().unwrap();
    assert_eq!(client.used_index(), 0, "the old connection answers nothing");
    assert_eq!(client.get_data(0, 4096), [9; 4096]);
    client.start();
    assert_eq!(client.wait(), (0, 4097));
    assert_eq!(client.get_data(0, 4096), [1; 4096]);
    assert_eq!(server.knobs.attached.load(SeqCst), 1);
}

#[test]
fn a_server_that_stops_answers_what_is_under_way() {
    let server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    client.set_up(FEATURES, 0);
    client.start();
    server.knobs.held.store(true, SeqCst);
    client.prepare(0, BLK_OUT, 0, 512);
    client.publish(0);
    client.kick();
    server.until("the write is under way", |knobs| knobs.under_way.load(SeqCst) == 1);
    drop(server);
    assert_eq!(client.answer(), Some((0, 1)));
    assert!(client.is_closed());
}
