//! Drives the decoders over arbitrary bytes. Fuzz targets and property tests share it.

use blk::uring::SharedMemory;

use super::address_space::AddressSpace;
use super::blk_request::{Disk, decode};
use super::message::{self, Region, Request, RingAddresses};
use super::protocol::{CHAIN_DESCRIPTORS_MAX, HEADER_BYTES};
use super::ring::{Ring, RingRules};

/// Guest memory of a replay, in bytes.
pub const MEMORY_BYTES: usize = 64 << 10;
/// Entries of the ring of a replay: its table is at the start of the memory, its rings are behind it.
const ENTRIES: u16 = 16;
const AVAILABLE: u64 = 256;
const USED: u64 = 512;

/// Decodes a stream of messages up to the first error. The first byte says how many descriptors arrive with each.
pub fn messages(stream: &[u8]) -> Vec<Result<Request, String>> {
    let Some((descriptors, mut rest)) = stream.split_first() else { return Vec::new() };
    let mut decoded = Vec::new();
    while let Some((head, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let request = message::header(head).and_then(|header| {
            let payload = after.get(..header.payload).ok_or("the stream ends inside a message")?;
            rest = &after[header.payload..];
            message::request(&header, payload, usize::from(*descriptors))
        });
        let is_error = request.is_err();
        decoded.push(request);
        if is_error {
            break;
        }
    }
    decoded
}

thread_local! {
    /// Memory that the replays of a thread share: to map it takes longer than a replay.
    static MEMORY: Option<(SharedMemory, AddressSpace)> = mapped();
}

fn mapped() -> Option<(SharedMemory, AddressSpace)> {
    let (memory, file) = SharedMemory::create("replay", MEMORY_BYTES as u64).ok()?;
    let region = Region { guest: 0, len: MEMORY_BYTES as u64, user: 0, offset: 0 };
    Some((memory, AddressSpace::default().with(&region, &file).ok()?))
}

/// Takes all requests from a ring whose guest memory begins with `bytes`, answers them, and returns what was decoded.
/// Returns nothing if the system has no memory.
pub fn ring(bytes: &[u8]) -> Vec<Result<String, String>> {
    let addresses = RingAddresses { logged: false, descriptors: 0, used: USED, available: AVAILABLE, log: 0 };
    let rules = RingRules { event_idx: true, indirect: true };
    let mut content = bytes[..bytes.len().min(MEMORY_BYTES)].to_vec();
    content.resize(MEMORY_BYTES, 0);
    MEMORY.with(|mapped| {
        let Some((memory, space)) = mapped else { return Vec::new() };
        memory.write(0, &content).expect("of the same length");
        match Ring::new(space, &addresses, ENTRIES, rules, 0) {
            Ok(ring) => serve(ring, space),
            Err(fault) => vec![Err(fault)],
        }
    })
}

fn serve(mut ring: Ring, space: &AddressSpace) -> Vec<Result<String, String>> {
    let disk = Disk { size_bytes: 1 << 20, read_only: false };
    let mut decoded = Vec::new();
    // The answers may overwrite the ring of requests, which then never ends.
    for _ in 0..4 * ring.entries() {
        let head = match ring.next_head() {
            Ok(Some(head)) => head,
            Ok(None) => break,
            Err(fault) => {
                decoded.push(Err(fault));
                break;
            }
        };
        ring.take();
        let chain = ring.chain(space, head, CHAIN_DESCRIPTORS_MAX);
        let chain = chain.and_then(|chain| chain.ok_or_else(|| "a longer chain".to_owned()));
        let request = chain.and_then(|chain| decode(space, chain, disk));
        decoded.push(request.map(|(_, command)| format!("{command:?}")));
        ring.answer(space, head, 1, |_, show| show());
        ring.wants_interrupt();
        if let Err(fault) = ring.enable_kicks(space) {
            decoded.push(Err(fault));
        }
    }
    decoded
}
