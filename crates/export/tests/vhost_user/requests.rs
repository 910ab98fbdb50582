//! Requests of a well-behaved driver.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;

use export::vhost_user::protocol::request::*;
use export::vhost_user::protocol::*;

use crate::client::*;
use crate::server::Server;

const MIB: u64 = 1 << 20;

fn started(server: &Server, features: u64) -> Client {
    let mut client = Client::connect(&server.socket(), 64);
    client.set_up(features, 0);
    client.start();
    client
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn what_is_written_is_read_with_and_without_event_idx() {
    for features in [FEATURES, FEATURES & !F_EVENT_IDX] {
        let server = Server::start(MIB);
        let mut client = started(&server, features);
        for n in 0..200u64 {
            let data = pattern(n as u8, 4096);
            client.put_data(0, &data);
            assert_eq!(client.execute(BLK_OUT, n % 64 * 8, 4096), (STATUS_OK, 1));
            client.put_data(0, &[0; 4096]);
            assert_eq!(client.execute(BLK_IN, n % 64 * 8, 4096), (STATUS_OK, 4097));
            assert!(client.get_data(0, 4096) == data, "round {n}");
        }
        assert_eq!(client.execute(BLK_FLUSH, 0, 0), (STATUS_OK, 1));
        assert_eq!(server.knobs.flushes.load(SeqCst), 1);
        assert_eq!(client.stop(), client.next);
    }
}

#[test]
fn a_guest_without_flush_finds_every_write_durable() {
    let server = Server::start(MIB);
    let mut client = started(&server, FEATURES & !F_FLUSH);
    for n in 1..=3 {
        assert_eq!(client.execute(BLK_OUT, 0, 512).0, STATUS_OK);
        assert_eq!(server.knobs.flushes.load(SeqCst), n);
    }
    assert_eq!(client.execute(BLK_IN, 0, 512).0, STATUS_OK);
    assert_eq!(server.knobs.flushes.load(SeqCst), 3, "a read needs none");
}

#[test]
fn many_requests_of_many_slots_are_answered_once_each() {
    let server = Server::start(4 * MIB);
    let mut client = started(&server, FEATURES);
    for _ in 0..50 {
        let before = client.next;
        for slot in 0..20 {
            client.put_data(slot, &pattern(slot as u8, 16 << 10));
            client.prepare(slot, BLK_OUT, slot * 32, 16 << 10);
            client.publish(3 * slot as u16);
        }
        client.kick_if_wanted(before);
        let mut heads: Vec<u32> = (0..20).map(|_| client.wait().0).collect();
        heads.sort_unstable();
        assert!(heads.iter().enumerate().all(|(n, head)| *head == 3 * n as u32), "{heads:?}");
        assert!(client.wait_within(5).is_none(), "no answer is left");
    }
    let content = server.knobs.content.lock().unwrap();
    assert!((0..20).all(|n| content[n * (16 << 10)..][..16 << 10] == pattern(n as u8, 16 << 10)));
}

#[test]
fn indirect_and_scattered_requests_are_one_transfer() {
    let server = Server::start(MIB);
    let mut client = started(&server, FEATURES);
    let (table, data) = (DATA + 0x8_0000, pattern(9, 3 * 512));
    // The header in two parts, the data in three, none of them at its natural place.
    client.prepare(1, BLK_OUT, 8, 512);
    for part in 0..3u64 {
        let at = DATA + 0x1_0000 * part + 3;
        client.memory.write(at, &data[512 * part as usize..][..512]).unwrap();
        client.put_descriptor(table, 2 + part, at, 512, NEXT, 3 + part as u16);
    }
    client.put_descriptor(table, 0, Client::header(1), 5, NEXT, 1);
    client.put_descriptor(table, 1, Client::header(1) + 5, 11, NEXT, 2);
    client.put_descriptor(table, 5, Client::status_at(1), 1, WRITE, 0);
    client.put_descriptor(DESCRIPTORS, 7, table, 6 * 16, INDIRECT, 0);
    client.publish(7);
    client.kick();
    assert_eq!(client.wait(), (7, 1));
    assert_eq!(client.status(1), STATUS_OK);
    assert!(server.knobs.content.lock().unwrap()[8 * 512..][..3 * 512] == data);
}

#[test]
fn a_request_of_megabytes_is_carried_out_in_pieces() {
    let server = Server::start(16 * MIB);
    let mut client = started(&server, FEATURES);
    let data = pattern(3, 5 << 20);
    client.memory.write(DATA, &data).unwrap();
    assert_eq!(client.execute(BLK_OUT, 0, 5 << 20), (STATUS_OK, 1));
    assert_eq!(server.knobs.writes.load(SeqCst), 5);
    client.memory.write(DATA, &vec![0; 5 << 20]).unwrap();
    assert_eq!(client.execute(BLK_IN, 0, 5 << 20), (STATUS_OK, (5 << 20) + 1));
    let mut back = vec![0; 5 << 20];
    client.memory.read(DATA, &mut back).unwrap();
    assert!(back == data);
}

#[test]
fn discards_and_zeroes_clear_their_ranges_and_keep_to_their_limits() {
    let server = Server::start(MIB);
    let mut client = started(&server, FEATURES);
    let range = |sector: u64, sectors: u32, flags: u32| {
        let mut bytes = sector.to_le_bytes().to_vec();
        bytes.extend(sectors.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes
    };
    server.knobs.content.lock().unwrap().fill(7);
    client.put_data(0, &[range(0, 8, 0), range(16, 8, 0)].concat());
    assert_eq!(client.execute(BLK_DISCARD, 0, 32).0, STATUS_OK);
    client.put_data(0, &range(32, 8, RANGE_UNMAP));
    assert_eq!(client.execute(BLK_WRITE_ZEROES, 0, 16).0, STATUS_OK);
    {
        let content = server.knobs.content.lock().unwrap();
        let is_clear = |sector: usize| content[sector * 512..][..8 * 512].iter().all(|byte| *byte == 0);
        assert!(is_clear(0) && is_clear(16) && is_clear(32));
        assert!(!is_clear(8) && !is_clear(24) && !is_clear(40));
    }
    let end = MIB / 512;
    for (kind, bytes, status) in [
        (BLK_DISCARD, range(0, 8, RANGE_UNMAP), STATUS_UNSUPPORTED),
        (BLK_WRITE_ZEROES, range(0, 8, 2), STATUS_UNSUPPORTED),
        (BLK_WRITE_ZEROES, range(end - 1, 2, 0), STATUS_IOERR),
        (BLK_WRITE_ZEROES, range(u64::MAX, 1, 0), STATUS_IOERR),
        (BLK_WRITE_ZEROES, range(0, 0, 0), STATUS_IOERR),
        (BLK_DISCARD, range(0, u32::MAX, 0), STATUS_IOERR),
        (BLK_DISCARD, vec![0; 15], STATUS_IOERR),
        (BLK_DISCARD, vec![0; 16 * 17], STATUS_IOERR),
    ] {
        client.put_data(0, &bytes);
        assert_eq!(client.execute(kind, 0, bytes.len() as u32).0, status, "{kind} {bytes:?}");
    }
}

#[test]
fn the_configuration_and_the_serial_number_are_the_disks() {
    let server = Server::start(MIB);
    let mut client = started(&server, FEATURES);
    let space = client.config(0, 60);
    assert_eq!(u64::from_le_bytes(space[..8].try_into().unwrap()), MIB / 512);
    assert_eq!(client.config(0x100, 60), space);
    assert_eq!(client.ask(GET_QUEUE_NUM, &[]), u64::from(QUEUES_MAX));
    assert_eq!(client.execute(BLK_GET_ID, 0, 20), (STATUS_OK, 21));
    assert_eq!(&client.get_data(0, 20)[..9], b"serial-0\0");
    assert_eq!(client.acked(SET_CONFIG, &[0; 13], &[]), 1, "no field may be changed");
}

#[test]
fn a_failed_request_is_answered_and_the_next_one_succeeds() {
    let server = Server::start(MIB);
    let mut client = started(&server, FEATURES);
    server.knobs.full.store(true, SeqCst);
    assert_eq!(client.execute(BLK_OUT, 0, 512), (STATUS_IOERR, 1));
    server.knobs.full.store(false, SeqCst);
    assert_eq!(client.execute(BLK_OUT, 0, 512), (STATUS_OK, 1));
    for (kind, sector, len) in [
        (BLK_OUT, MIB / 512, 512),
        (BLK_OUT, 0, 100),
        (BLK_IN, u64::MAX, 512),
        (BLK_OUT, 0, 0),
        (BLK_IN, 0, 0),
    ] {
        assert_eq!(client.execute(kind, sector, len).0, STATUS_IOERR, "{kind} {sector} {len}");
    }
    assert_eq!(client.execute(99, 0, 0).0, STATUS_UNSUPPORTED);
}

#[test]
fn a_read_only_disk_says_so_and_refuses_changes() {
    let server = Server::start(MIB);
    server.knobs.read_only.store(true, SeqCst);
    let mut client = Client::connect(&server.socket(), 64);
    assert_ne!(client.ask(GET_FEATURES, &[]) & F_RO, 0);
    client.set_up(FEATURES | F_RO, 0);
    client.start();
    assert_eq!(client.execute(BLK_OUT, 0, 512).0, STATUS_IOERR);
    assert_eq!(client.execute(BLK_IN, 0, 512).0, STATUS_OK);
    assert_eq!(client.execute(BLK_FLUSH, 0, 0).0, STATUS_OK);
    assert_eq!(server.knobs.writes.load(SeqCst), 0);
}

#[test]
fn a_kick_before_the_ring_is_enabled_is_not_lost() {
    let server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    client.set_up(FEATURES, 0);
    client.prepare(0, BLK_IN, 0, 512);
    client.publish(0);
    let kick = client.kick.clone();
    client.send(SET_VRING_KICK, 0, &0u64.to_le_bytes(), &[kick.as_fd()]);
    client.kick();
    assert_eq!(client.config(0, 8).len(), 8);
    assert!(client.wait_within(50).is_none(), "a disabled ring is not touched");
    assert_eq!(client.acked(SET_VRING_ENABLE, &pair(0, 1), &[]), 0);
    assert_eq!(client.wait(), (0, 513));
}

#[test]
fn a_stop_waits_for_the_requests_under_way() {
    let server = Server::start(MIB);
    let mut client = started(&server, FEATURES);
    server.knobs.held.store(true, SeqCst);
    client.prepare(0, BLK_OUT, 0, 512);
    client.publish(0);
    client.kick();
    server.until("the write is under way", |knobs| knobs.under_way.load(SeqCst) == 1);
    client.send(GET_VRING_BASE, 0, &pair(0, 0), &[]);
    let knobs = server.knobs.clone();
    let release = std::thread::spawn(move || {
        // The stop is received meanwhile; the order does not matter for what is expected.
        std::thread::yield_now();
        knobs.held.store(false, SeqCst);
    });
    let (base, _) = client.reply(GET_VRING_BASE);
    release.join().unwrap();
    assert_eq!(base[4..], 1u32.to_le_bytes());
    assert_eq!(client.answer(), Some((0, 1)), "answered before the stop was");
    // The ring starts again where it ended.
    client.send(SET_VRING_BASE, 0, &pair(0, 1), &[]);
    client.start();
    assert_eq!(client.execute(BLK_IN, 0, 512), (STATUS_OK, 513));
}

#[test]
fn memory_is_replaced_while_requests_are_under_way() {
    let server = Server::start(MIB);
    let mut client = started(&server, FEATURES);
    server.knobs.content.lock().unwrap().fill(5);
    server.knobs.held.store(true, SeqCst);
    client.prepare(0, BLK_IN, 0, 4096);
    client.publish(0);
    client.kick();
    server.until("the read is under way", |knobs| knobs.under_way.load(SeqCst) == 1);
    let (table, file) = (client.memory_table(), client.file.clone());
    assert_eq!(client.acked(SET_MEM_TABLE, &table, &[file.as_fd()]), 0);
    server.knobs.held.store(false, SeqCst);
    assert_eq!(client.wait(), (0, 4097));
    assert!(client.get_data(0, 4096).iter().all(|byte| *byte == 5));
    assert_eq!(client.execute(BLK_OUT, 0, 512).0, STATUS_OK);
}

#[test]
fn the_limits_of_a_vm_delay_requests() {
    let server = Server::start(MIB);
    server.knobs.iops.store(20, SeqCst);
    server.until("the limit is set", |knobs| knobs.iops.load(SeqCst) == 20);
    let mut client = started(&server, FEATURES);
    // A tenth of a second may run ahead: 2 requests. The limit applies from the server's next look on.
    assert_eq!(client.execute(BLK_IN, 0, 512).0, STATUS_OK);
    assert!(client.wait_within(20).is_none());
    let mut fast = 0;
    for _ in 0..6 {
        client.prepare(0, BLK_IN, 0, 512);
        client.publish(0);
        client.kick();
        fast += u32::from(client.wait_within(25).is_some());
        while client.seen != client.next {
            client.wait();
        }
    }
    assert!(fast <= 4, "{fast} of 6 requests were not delayed");
}

#[test]
fn a_client_learns_that_the_disk_has_grown() {
    let server = Server::start(MIB);
    let mut client = started(&server, FEATURES);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(client.acked(SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]), 0);
    drop(theirs);
    server.knobs.grown.store(MIB, SeqCst);
    server.knobs.look.store(true, SeqCst);
    let mut message = [0; HEADER_BYTES];
    ours.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    std::io::Read::read_exact(&mut &ours, &mut message).unwrap();
    assert_eq!(message[..4], BACKEND_CONFIG_CHANGE.to_le_bytes());
    assert_eq!(client.config(0, 8), (2 * MIB / 512).to_le_bytes());
}

#[test]
fn dirty_pages_are_logged() {
    let server = Server::start(MIB);
    let mut client = started(&server, FEATURES);
    let (log, file) = blk::uring::SharedMemory::create("log", 4096).unwrap();
    let layout: Vec<u8> = [4096u64, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
    client.send(SET_LOG_BASE, 0, &layout, &[file.as_fd()]);
    client.reply(SET_LOG_BASE);
    client.send(SET_FEATURES, 0, &(FEATURES | F_LOG_ALL).to_le_bytes(), &[]);
    let mut logged = addresses(USER + DESCRIPTORS, USER + USED, USER + AVAILABLE);
    logged[4] = 1;
    logged[32..].copy_from_slice(&USED.to_le_bytes());
    assert_eq!(client.acked(SET_VRING_ADDR, &logged, &[]), 0);
    assert_eq!(client.execute(BLK_IN, 0, 8192).0, STATUS_OK);
    let is_dirty = |address: u64| {
        let (page, mut byte) = (address / 4096, [0]);
        log.read(page / 8, &mut byte).unwrap();
        byte[0] >> (page % 8) & 1 == 1
    };
    assert!(is_dirty(Client::data(0)) && is_dirty(Client::data(0) + 4096) && is_dirty(Client::status_at(0)));
    assert!(is_dirty(USED));
    assert!(!is_dirty(Client::data(0) + 8192) && !is_dirty(DESCRIPTORS) && !is_dirty(AVAILABLE));
}
