//! Clients and guests that break every rule: an error for that connection, and for no other.

use std::os::fd::AsFd;

use export::vhost_user::protocol::request::*;
use export::vhost_user::protocol::*;

use crate::client::*;
use crate::server::Server;

const MIB: u64 = 1 << 20;

fn ready(server: &Server) -> Client {
    let mut client = Client::connect(&server.socket(), 64);
    client.set_up(FEATURES, 0);
    client
}

/// Lets `spoil` break a rule on its own connection, and checks that another connection is served on.
fn ends_alone(what: &str, expected: &str, spoil: impl FnOnce(&mut Client)) {
    let server = Server::start(MIB);
    let mut client = ready(&server);
    client.start();
    spoil(&mut client);
    assert!(client.is_closed(), "{what}: the connection goes on");
    let failure = server.failure();
    assert!(failure.contains(expected), "{what}: {failure}");
    drop(client);
    let mut other = ready(&server);
    other.start();
    assert_eq!(other.execute(BLK_OUT, 0, 512).0, STATUS_OK, "{what}");
}

/// Publishes a chain that begins at descriptor 0.
fn offer(client: &mut Client) {
    client.publish(0);
    client.kick();
}

#[test]
fn rings_that_contradict_themselves_end_their_connection() {
    ends_alone("an index that jumps", "requests wait", |client| {
        client.memory.store_u16(AVAILABLE + 2, 65).unwrap();
        client.kick();
    });
    ends_alone("a head outside of the table", "descriptor 64", |client| {
        client.publish(64);
        client.kick();
    });
    ends_alone("a link outside of the table", "descriptor 64", |client| {
        client.put_descriptor(DESCRIPTORS, 0, DATA, 16, NEXT, 64);
        offer(client);
    });
    ends_alone("a loop", "more descriptors than the ring", |client| {
        client.put_descriptor(DESCRIPTORS, 0, DATA, 16, NEXT, 1);
        client.put_descriptor(DESCRIPTORS, 1, DATA, 16, NEXT, 0);
        offer(client);
    });
    ends_alone("a loop of nothing", "more descriptors than the ring", |client| {
        client.put_descriptor(DESCRIPTORS, 0, DATA, 0, NEXT, 0);
        offer(client);
    });
    for (address, len) in [
        (MEMORY_BYTES, 16),
        (MEMORY_BYTES - 8, 16),
        (u64::MAX, 1),
        (u64::MAX - 15, 16),
        (0, u32::MAX),
        (USER, 16),
    ] {
        ends_alone("an address outside of memory", "outside of the guest's memory", |client| {
            client.put_descriptor(DESCRIPTORS, 0, address, len, 0, 0);
            offer(client);
        });
    }
    ends_alone("a readable descriptor last", "behind a writable", |client| {
        client.put_descriptor(DESCRIPTORS, 0, DATA, 16, NEXT | WRITE, 1);
        client.put_descriptor(DESCRIPTORS, 1, DATA, 16, 0, 0);
        offer(client);
    });
}

#[test]
fn requests_that_cannot_be_answered_end_their_connection() {
    ends_alone(
        "no status",
        "no place for its status".replace("no place", "without a place").as_str(),
        |client| {
            client.put_descriptor(DESCRIPTORS, 0, DATA, 16, 0, 0);
            offer(client);
        },
    );
    ends_alone("a short header", "whole header", |client| {
        client.put_descriptor(DESCRIPTORS, 0, DATA, 15, NEXT, 1);
        client.put_descriptor(DESCRIPTORS, 1, DATA, 1, WRITE, 0);
        offer(client);
    });
    ends_alone("a writable header", "whole header", |client| {
        client.put_descriptor(DESCRIPTORS, 0, DATA, 32, WRITE, 0);
        offer(client);
    });
    ends_alone("an empty chain", "whole header", |client| {
        client.put_descriptor(DESCRIPTORS, 0, 0, 0, 0, 0);
        offer(client);
    });
}

#[test]
fn indirect_tables_that_break_rules_end_their_connection() {
    let table = DATA + 0x1000;
    for (what, address, len, flags) in [
        ("no entries", table, 0, INDIRECT),
        ("half an entry", table, 24, INDIRECT),
        ("too many entries", table, 16 * 1025, INDIRECT),
        ("outside of memory", MEMORY_BYTES - 8, 16, INDIRECT),
        ("with a successor", table, 16, INDIRECT | NEXT),
    ] {
        ends_alone(what, "indirect", |client| {
            client.put_descriptor(DESCRIPTORS, 0, address, len, flags, 1);
            offer(client);
        });
    }
    for (what, flags, next) in
        [("a table in a table", INDIRECT, 0), ("a link out", NEXT, 9), ("a loop", NEXT, 0)]
    {
        ends_alone(what, "indirect", |client| {
            client.put_descriptor(table, 0, DATA, 16, flags, next);
            client.put_descriptor(DESCRIPTORS, 0, table, 32, INDIRECT, 0);
            offer(client);
        });
    }
}

#[test]
fn the_device_writes_no_status_into_a_refused_chain() {
    // The planted defect of this checker: a chain that is right is answered there.
    let server = Server::start(MIB);
    let mut client = ready(&server);
    client.start();
    assert_eq!(client.execute(BLK_IN, 0, 512).0, STATUS_OK);
    client.prepare(1, BLK_IN, 0, 512);
    client.put_descriptor(DESCRIPTORS, 4, MEMORY_BYTES, 512, NEXT | WRITE, 5);
    client.publish(3);
    client.kick();
    assert!(client.is_closed());
    assert_eq!((client.status(1), client.used_index()), (0xff, 1));
}

#[test]
fn malformed_messages_end_their_connection() {
    let message = |request: u32, flags: u32, len: u32| {
        [request, flags, len].iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>()
    };
    for (what, bytes) in [
        ("version 0", message(GET_FEATURES, 0, 0)),
        ("version 2", message(GET_FEATURES, 2, 0)),
        ("a reply", message(GET_FEATURES, VERSION | FLAG_REPLY, 0)),
        ("a length of 4 GiB", message(SET_FEATURES, VERSION, u32::MAX)),
        ("a length over the limit", message(SET_FEATURES, VERSION, 4097)),
        ("an unknown message", message(9999, VERSION, 0)),
        ("message 0", message(0, VERSION, 0)),
        ("a payload too short", [message(SET_FEATURES, VERSION, 4), vec![0; 4]].concat()),
        ("a file that does not come", [message(SET_MEM_TABLE, VERSION, 40), vec![1; 40]].concat()),
        ("queue 2^32 - 1", [message(SET_VRING_ENABLE, VERSION, 8), pair(u32::MAX, 1)].concat()),
        ("a ring of 3 entries", [message(SET_VRING_NUM, VERSION, 8), pair(0, 3)].concat()),
        ("a ring of no entries", [message(SET_VRING_NUM, VERSION, 8), pair(0, 0)].concat()),
        ("a ring of 65536 entries", [message(SET_VRING_NUM, VERSION, 8), pair(0, 65536)].concat()),
        ("records of no queues", [message(GET_INFLIGHT_FD, VERSION, 20), vec![0; 20]].concat()),
    ] {
        let server = Server::start(MIB);
        let mut client = Client::connect(&server.socket(), 64);
        client.write_raw(&bytes);
        assert!(client.is_closed(), "{what}");
        assert!(!server.failure().is_empty());
    }
}

#[test]
fn a_truncated_message_ends_with_its_stream() {
    let server = Server::start(MIB);
    for len in 1..19 {
        let mut client = Client::connect(&server.socket(), 64);
        let message = [[SET_FEATURES, VERSION, 8].map(u32::to_le_bytes).concat(), vec![0; 8]].concat();
        client.write_raw(&message[..len]);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(client.is_closed(), "{len} bytes");
    }
    assert!(server.failure().contains("ends inside a message"));
}

#[test]
fn features_that_were_not_offered_end_the_connection() {
    ends_alone("packed rings", "not offered", |client| {
        client.send(SET_FEATURES, 0, &(FEATURES | 1 << 34).to_le_bytes(), &[]);
    });
}

#[test]
fn rings_outside_of_memory_are_refused() {
    for (descriptors, used, available) in [
        (0, USER + USED, USER + AVAILABLE),
        (USER + MEMORY_BYTES - 16, USER + USED, USER + AVAILABLE),
        (USER, u64::MAX, USER + AVAILABLE),
        (USER, USER + USED, USER - 2),
        (USER + 8, USER + USED, USER + AVAILABLE),
        (USER, USER + USED + 1, USER + AVAILABLE),
        (USER, USER + USED, USER + AVAILABLE + 1),
    ] {
        let server = Server::start(MIB);
        let mut client = ready(&server);
        client.send(SET_VRING_ADDR, 0, &addresses(descriptors, used, available), &[]);
        let kick = client.kick.clone();
        client.send(SET_VRING_KICK, 0, &0u64.to_le_bytes(), &[kick.as_fd()]);
        assert_ne!(client.acked(SET_VRING_ENABLE, &pair(0, 1), &[]), 0);
        assert!(client.is_closed());
        assert!(server.failure().contains("inside one region"), "{}", server.failure());
    }
}

#[test]
fn memory_that_may_shrink_or_is_no_memory_is_refused() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(MEMORY_BYTES).unwrap();
    let memfd = |flags| {
        let memfd = rustix::fs::memfd_create("open", flags).unwrap();
        rustix::fs::ftruncate(&memfd, MEMORY_BYTES).unwrap();
        memfd
    };
    // cloud-hypervisor's memory.
    let never_sealed = memfd(rustix::fs::MemfdFlags::CLOEXEC);
    for (what, file, expected) in [
        ("a file", file.as_fd(), "use a memfd"),
        ("a memfd that cannot be sealed", never_sealed.as_fd(), "serve this client over NBD"),
    ] {
        let server = Server::start(MIB);
        let mut client = Client::connect(&server.socket(), 64);
        let table = client.memory_table();
        assert_ne!(client.acked(SET_MEM_TABLE, &table, &[file]), 0, "{what}");
        assert!(client.is_closed());
        assert!(server.failure().contains(expected), "{what}: {}", server.failure());
    }
    let server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    let table = client.memory_table();
    let unsealed = memfd(rustix::fs::MemfdFlags::ALLOW_SEALING);
    assert_eq!(client.acked(SET_MEM_TABLE, &table, &[unsealed.as_fd()]), 0);
    assert!(rustix::fs::ftruncate(&unsealed, 0).is_err(), "the server has sealed it");
}

#[test]
fn regions_at_the_limits_of_numbers_are_refused() {
    let region = |fields: [u64; 4]| {
        let mut payload = 0u64.to_le_bytes().to_vec();
        payload.extend(fields.iter().flat_map(|n| n.to_le_bytes()));
        payload
    };
    for fields in [
        [u64::MAX, 4096, USER, 0],
        [0, u64::MAX, USER, 0],
        [0, 4096, u64::MAX, 0],
        [0, 4096, USER, u64::MAX],
        [0, 0, USER, 0],
        [0, MEMORY_BYTES + 1, USER, 0],
        [0, MEMORY_BYTES, USER, 4096],
        [0, 4096, USER, MEMORY_BYTES],
    ] {
        let server = Server::start(MIB);
        let client = Client::connect(&server.socket(), 64);
        let file = client.file.clone();
        client.send(ADD_MEM_REG, 0, &region(fields), &[file.as_fd()]);
        let mut client = client;
        assert!(client.is_closed(), "{fields:?}");
    }
    let server = Server::start(MIB);
    let mut client = Client::connect(&server.socket(), 64);
    client.send(SET_PROTOCOL_FEATURES, 0, &PROTOCOL_REPLY_ACK.to_le_bytes(), &[]);
    let file = client.file.clone();
    assert_eq!(client.acked(ADD_MEM_REG, &region([0, 4096, USER, 0]), &[file.as_fd()]), 0);
    assert_eq!(client.acked(ADD_MEM_REG, &region([8192, 4096, USER + 8192, 8192]), &[file.as_fd()]), 0);
    assert_eq!(client.acked(REM_MEM_REG, &region([8192, 4096, USER + 8192, 8192]), &[]), 0);
    assert_ne!(client.acked(ADD_MEM_REG, &region([4095, 4096, USER + 8192, 0]), &[file.as_fd()]), 0);
    assert!(client.is_closed(), "two regions overlap");
}

#[test]
fn events_that_are_none_are_refused_and_a_full_one_blocks_nobody() {
    ends_alone("a file as a kick", "eventfd", |client| {
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        client.send(SET_VRING_KICK, 0, &1u64.to_le_bytes(), &[zeros.as_fd()]);
    });
    // The client's own counter is full and blocks: nothing of the server waits for it.
    let server = Server::start(MIB);
    let mut client = ready(&server);
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    client.send(SET_VRING_CALL, 0, &0u64.to_le_bytes(), &[full.as_fd()]);
    client.start();
    client.prepare(0, BLK_IN, 0, 512);
    client.publish(0);
    client.kick();
    server.until("the guest sees the answer", |_| client.used_index() == 1);
    assert_eq!(client.answer(), Some((0, 513)));
    assert_eq!(client.config(0, 8).len(), 8);
    let call = client.call.clone();
    client.send(SET_VRING_CALL, 0, &0u64.to_le_bytes(), &[call.as_fd()]);
    assert_eq!(client.execute(BLK_OUT, 0, 512).0, STATUS_OK);
}

#[test]
fn too_many_files_with_a_message_end_the_connection() {
    ends_alone("two files for one event", "descriptors", |client| {
        let kick = client.kick.clone();
        client.send(SET_VRING_KICK, 0, &0u64.to_le_bytes(), &[kick.as_fd(), kick.as_fd()]);
    });
    ends_alone("a file that nothing needs", "descriptors", |client| {
        let kick = client.kick.clone();
        client.send(GET_FEATURES, 0, &[], &[kick.as_fd()]);
    });
}
