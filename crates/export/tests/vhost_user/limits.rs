//! Limits of a connection: mappings, lists of descriptors, kicks and messages.

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use export::vhost_user::protocol::request::*;
use export::vhost_user::protocol::*;

use crate::client::*;
use crate::server::Server;

const MIB: u64 = 1 << 20;
/// Regions of one table of QEMU.
const TABLE: usize = 8;

fn started(server: &Server, entries: u16) -> Client {
    let mut client = Client::connect(&server.socket(), entries);
    client.set_up(FEATURES, 0);
    client.start();
    client
}

/// The same memory as in the client's own table, in eight regions.
fn table_of_eight() -> Vec<u8> {
    let len = MEMORY_BYTES / TABLE as u64;
    let mut payload: Vec<u8> = [TABLE as u32, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
    for at in (0..MEMORY_BYTES).step_by(len as usize) {
        payload.extend([at, len, USER + at, at].iter().flat_map(|n| n.to_le_bytes()));
    }
    payload
}

#[test]
fn tables_that_requests_under_way_keep_are_bounded() {
    let server = Server::start(MIB);
    let mut client = started(&server, 128);
    server.knobs.held.store(true, SeqCst);
    let (table, file) = (table_of_eight(), client.file.clone());
    let mut tables = 0;
    loop {
        client.prepare(tables, BLK_IN, 0, 512);
        client.publish(3 * tables as u16);
        client.kick();
        server.until("the read is under way", |knobs| knobs.under_way.load(SeqCst) == tables + 1);
        let status = client.acked(SET_MEM_TABLE, &table, &[file.as_fd(); TABLE]);
        if status != 0 {
            break;
        }
        tables += 1;
    }
    assert!(client.is_closed());
    // The connection has ended when its requests have.
    server.knobs.held.store(false, SeqCst);
    assert!(server.failure().contains("earlier tables"), "{}", server.failure());
    // One region of the first table, and as many whole tables as fit beside it.
    assert_eq!(tables, (MAPPINGS_MAX as u64 - 1) / TABLE as u64);
    // Without requests that keep them there is no limit.
    drop(client);
    let mut client = started(&server, 128);
    for _ in 0..2 * tables {
        assert_eq!(client.acked(SET_MEM_TABLE, &table, &[file.as_fd(); TABLE]), 0);
    }
}

/// Fills slot 0 with a request whose payload of `parts` sectors is in as many descriptors of an indirect table.
fn scatter(client: &Client, kind: u32, parts: u64) {
    client.prepare(0, kind, 0, 512);
    let (table, flag) = (DATA + 8 * MIB, if kind == BLK_IN { WRITE } else { 0 });
    client.put_descriptor(table, 0, Client::header(0), 16, NEXT, 1);
    for part in 1..=parts {
        // From the last sector of the payload's memory to the first one.
        let at = DATA + (parts - part) * 512;
        client.put_descriptor(table, part, at, 512, NEXT | flag, part as u16 + 1);
    }
    client.put_descriptor(table, parts + 1, Client::status_at(0), 1, WRITE, 0);
    client.put_descriptor(DESCRIPTORS, 0, table, 16 * (parts as u32 + 2), INDIRECT, 0);
}

#[test]
fn requests_with_short_and_long_lists_transfer_every_part() {
    let server = Server::start(MIB);
    let mut client = started(&server, 64);
    let most = CHAIN_DESCRIPTORS_MAX as u64 - 2;
    let short = CHAIN_DESCRIPTORS_SHORT as u64 - 2;
    for parts in [1, 5, short, short + 1, most] {
        let data: Vec<u8> = (0..parts * 512).map(|n| (n / 512 * 7 + n % 251 + parts) as u8).collect();
        client.memory.write(DATA, &data).unwrap();
        for kind in [BLK_OUT, BLK_IN] {
            scatter(&client, kind, parts);
            client.publish(0);
            client.kick();
            client.wait();
            assert_eq!(client.status(0), STATUS_OK, "{parts} parts");
            if kind == BLK_OUT {
                client.memory.write(DATA, &vec![0; data.len()]).unwrap();
            }
        }
        let mut back = vec![0; data.len()];
        client.memory.read(DATA, &mut back).unwrap();
        assert!(back == data, "{parts} parts");
        let content = server.knobs.content.lock().unwrap();
        assert!(content[..512] == data[data.len() - 512..], "the first sector is the last one in memory");
    }
    scatter(&client, BLK_IN, most + 1);
    client.publish(0);
    client.kick();
    assert!(client.is_closed() && server.failure().contains("indirect table"), "{}", server.failure());
}

#[test]
fn a_long_list_takes_its_turn_with_other_requests() {
    let server = Server::start(MIB);
    let mut client = started(&server, 64);
    let parts = CHAIN_DESCRIPTORS_MAX as u64 - 2;
    for _ in 0..20 {
        scatter(&client, BLK_IN, parts);
        client.publish(0);
        for slot in 1..20 {
            client.prepare(slot, BLK_IN, 0, 65536);
            client.publish(3 * slot as u16);
        }
        client.kick();
        let mut heads: Vec<u32> = (0..20).map(|_| client.wait().0 / 3).collect();
        heads.sort_unstable();
        assert!(heads.into_iter().eq(0..20));
    }
}

/// Kicks of a guest in a loop, if nothing ends it earlier.
const KICKS_MAX: usize = 10_000_000;

#[test]
fn a_guest_that_kicks_in_a_loop_holds_up_neither_messages_nor_requests() {
    let server = Server::start(MIB);
    let mut client = started(&server, 64);
    let (kick, done) = (client.kick.clone(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in (0..KICKS_MAX).take_while(|_| !done.load(SeqCst)) {
                rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
            }
        });
        for _ in 0..100 {
            client.offered();
            assert_eq!(client.execute(BLK_OUT, 0, 512).0, STATUS_OK);
        }
        done.store(true, SeqCst);
    });
}

#[test]
fn what_was_passed_in_vain_is_closed() {
    let server = Server::start(MIB);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut client = started(&server, 64);
    client.send(SET_VRING_KICK, 0, &0u64.to_le_bytes(), &[writer.as_fd()]);
    drop(writer);
    assert!(client.is_closed());
    let mut reader = reader;
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the other end of the pipe");
}

#[test]
fn a_channel_that_may_linger_is_refused() {
    let server = Server::start(MIB);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut client = Client::connect(&server.socket(), 64);
    assert_ne!(client.acked(SET_BACKEND_REQ_FD, &[], &[tcp.as_fd()]), 0);
    assert!(client.is_closed());
}
