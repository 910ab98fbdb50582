//! Block status in several contexts at once: allocation, and what differs from other states.

use export::nbd::proto::*;

use crate::raw::Raw;
use crate::support::{CHANGED, COMPARED, MIB, Server};

/// Selects contexts. Returns the ID and the name of each that is.
fn select(raw: &mut Raw, export: &str, queries: &[&str]) -> Vec<(u32, String)> {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let mut payload = string(export);
    payload.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| payload.extend(string(query)));
    raw.option(OPT_SET_META_CONTEXT, &payload);
    let mut selected = Vec::new();
    loop {
        let (kind, payload) = raw.option_reply();
        if kind != REP_META_CONTEXT {
            assert_eq!(kind, REP_ACK);
            return selected;
        }
        let id = u32::from_be_bytes(payload[..4].try_into().unwrap());
        selected.push((id, String::from_utf8(payload[4..].to_vec()).unwrap()));
    }
}

/// Attaches with some contexts.
fn attach(server: &Server, queries: &[&str]) -> (Raw, Vec<(u32, String)>) {
    let mut raw = Raw::connect(server);
    raw.give(&u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    raw.option(OPT_STRUCTURED_REPLY, &[]);
    assert_eq!(raw.option_reply().0, REP_ACK);
    let selected = select(&mut raw, "disk", queries);
    assert_eq!(raw.go("disk").0, REP_ACK);
    (raw, selected)
}

/// Returns the ID and the (length, flags) pairs of each chunk of the next answer.
fn status(raw: &mut Raw) -> Vec<(u32, Vec<(u32, u32)>)> {
    let mut chunks = Vec::new();
    loop {
        let chunk = raw.chunk();
        assert_eq!((chunk.kind, chunk.cookie), (CHUNK_BLOCK_STATUS, 7));
        let words: Vec<u32> =
            chunk.payload.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
        let pairs = words[1..].as_chunks::<2>().0.iter().map(|[len, flags]| (*len, *flags)).collect();
        chunks.push((words[0], pairs));
        if chunk.done {
            return chunks;
        }
    }
}

#[test]
fn each_context_has_a_chunk_of_one_answer() {
    let server = Server::start(MIB);
    let queries =
        ["qemu:dirty-bitmap:part", "base:allocation", "qemu:dirty-bitmap:none", "qemu:dirty-bitmap:x"];
    let (mut raw, selected) = attach(&server, &queries);
    let names: Vec<(u32, &str)> = selected.iter().map(|(id, name)| (*id, name.as_str())).collect();
    assert_eq!(names, [(1, "base:allocation"), (2, "qemu:dirty-bitmap:part"), (3, "qemu:dirty-bitmap:none")]);
    raw.request(CMD_BLOCK_STATUS, 0, 7, 0, MIB as u32);
    let chunks = status(&mut raw);
    let (changed, compared) = (CHANGED as u32, COMPARED as u32);
    assert_eq!(chunks.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(chunks[1].1, [(changed, STATE_DIRTY), (compared - changed, 0)], "as far as it was compared");
    assert_eq!(chunks[2].1, [(compared, 0)]);
    raw.request(CMD_BLOCK_STATUS, CMD_FLAG_REQ_ONE, 7, CHANGED - 512, 4096);
    assert_eq!(status(&mut raw)[1].1, [(512, STATE_DIRTY)]);
}

#[test]
fn a_bitmap_can_be_selected_alone_and_a_lost_state_is_an_error() {
    let server = Server::start(MIB);
    let (mut raw, _) = attach(&server, &["qemu:dirty-bitmap:lost"]);
    raw.request(CMD_BLOCK_STATUS, 0, 7, 0, 4096);
    let chunk = raw.chunk();
    assert!(chunk.done && chunk.kind == CHUNK_ERROR, "{}", chunk.kind);
    assert!(String::from_utf8_lossy(&chunk.payload).contains("no such state"));
    // Nothing was selected: the status has no meaning.
    let (mut raw, selected) = attach(&server, &["qemu:dirty-bitmap:x"]);
    assert_eq!(selected, []);
    raw.request(CMD_BLOCK_STATUS, 0, 7, 0, 4096);
    assert_eq!(raw.chunk().kind, CHUNK_ERROR);
}
