//! A guest that verifies its reads: every sector it writes names the write from which it came.
//!
//! A block may show only the write acknowledged last, or any write issued after it. The check runs after the daemon was
//! killed: the host has every acknowledged write, even if no flush covered it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Result;
use std::path::Path;
use std::sync::mpsc::Sender;

use crate::nbd::{Command, Nbd};
use crate::random::Random;

const BLOCK: u64 = 4096;
const SECTOR: usize = 512;
/// Number of writes in flight. No two are to one block, so the order of a block's writes is the order of their numbers.
const DEPTH: usize = 16;
const WRITES_PER_FLUSH: u64 = 40;
/// Number of writes between two progress messages.
const TELL_EVERY: u64 = 50;

/// Returns the seed from `UNSTUN_SEED`, else a constant. It is printed, so that a failure names it.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("UNSTUN_SEED").ok().map(|text| text.parse().expect("UNSTUN_SEED is a number"));
    let seed = seed.unwrap_or(20_261_120);
    println!("replay with UNSTUN_SEED={seed}");
    seed
}

#[derive(Clone)]
struct Block {
    /// Numbers of the writes that the block may show; 0 is the empty disk.
    allowed: Vec<u64>,
    acknowledged: u64,
}

pub(crate) struct Guest {
    random: Random,
    blocks: Vec<Block>,
    last: u64,
    /// Sum over all sessions.
    pub acknowledged: u64,
    pub flushes: u64,
    /// Number of requests answered with an error.
    pub errors: u64,
}

/// Request to which a cookie belongs.
enum Request {
    Write {
        block: usize,
        number: u64,
    },
    /// Writes that were acknowledged when the flush was sent.
    Flush(Vec<(usize, u64)>),
}

impl Guest {
    pub(crate) fn new(size_bytes: u64, seed: u64) -> Guest {
        let empty = Block { allowed: vec![0], acknowledged: 0 };
        Guest {
            random: Random(seed),
            blocks: vec![empty; (size_bytes / BLOCK) as usize],
            last: 0,
            acknowledged: 0,
            flushes: 0,
            errors: 0,
        }
    }

    /// Writes until the daemon ends. `tell` receives the number of writes acknowledged in this session.
    pub(crate) fn write_until_cut(&mut self, socket: &Path, export: &str, tell: &Sender<u64>) {
        let Ok(mut nbd) = Nbd::attach(socket, export) else { return };
        let mut open = BTreeMap::new();
        let mut busy = BTreeSet::new();
        let mut session = 0;
        while self.fill(&mut nbd, &mut open, &mut busy).is_ok() {
            let Ok((cookie, error)) = nbd.reply() else { return };
            let request = open.remove(&cookie).expect("a reply to a request");
            // An error during the daemon's shutdown guarantees nothing about the write.
            if error != 0 {
                self.errors += 1;
                continue;
            }
            if let Request::Write { block, .. } = request {
                busy.remove(&block);
                session += 1;
                if session % TELL_EVERY == 0 {
                    // The receiver may be closed once the daemon is being killed.
                    let _ = tell.send(session);
                }
            }
            self.answered(request);
        }
    }

    fn fill(
        &mut self,
        nbd: &mut Nbd,
        open: &mut BTreeMap<u64, Request>,
        busy: &mut BTreeSet<usize>,
    ) -> Result<()> {
        while open.len() < DEPTH {
            self.last += 1;
            let number = self.last;
            if number.is_multiple_of(WRITES_PER_FLUSH) {
                let dirty = |(at, block): (usize, &Block)| {
                    (block.allowed.len() > 1).then_some((at, block.acknowledged))
                };
                let covered = self.blocks.iter().enumerate().filter_map(dirty).collect();
                open.insert(number, Request::Flush(covered));
                nbd.send(Command::Flush, number, 0, 0, &[])?;
                continue;
            }
            let block = self.random.below(self.blocks.len() as u64) as usize;
            if !busy.insert(block) {
                continue;
            }
            self.blocks[block].allowed.push(number);
            open.insert(number, Request::Write { block, number });
            nbd.send(Command::Write, number, block as u64 * BLOCK, BLOCK as u32, &stamped(block, number))?;
        }
        Ok(())
    }

    fn answered(&mut self, request: Request) {
        match request {
            Request::Write { block, number } => {
                self.blocks[block].acknowledged = number;
                self.blocks[block].allowed.retain(|earlier| *earlier >= number);
                self.acknowledged += 1;
            }
            Request::Flush(covered) => {
                self.flushes += 1;
                for (block, acknowledged) in covered {
                    self.blocks[block].allowed.retain(|number| *number >= acknowledged);
                }
            }
        }
    }

    /// Reads everything. The content that is found and then flushed is the allowed content from now on.
    pub(crate) fn check(&mut self, socket: &Path, export: &str) {
        let mut nbd = Nbd::attach(socket, export).expect("the daemon serves");
        for at in 0..self.blocks.len() {
            let data = nbd.read(at as u64 * BLOCK, BLOCK as u32).expect("the daemon serves");
            let mut found = BTreeSet::new();
            for (sector, bytes) in data.chunks(SECTOR).enumerate() {
                let number = read_stamp(at, bytes)
                    .unwrap_or_else(|| panic!("block {at}, sector {sector}: foreign data"));
                let allowed = &self.blocks[at].allowed;
                assert!(
                    allowed.contains(&number),
                    "{export}: block {at}, sector {sector} shows write {number}, allowed are {allowed:?} (the first was acknowledged)"
                );
                found.insert(number);
            }
            self.blocks[at].allowed = found.into_iter().collect();
            self.blocks[at].acknowledged = *self.blocks[at].allowed.last().expect("a sector was read");
        }
        nbd.flush().expect("the daemon serves");
    }
}

/// Returns the content of a write. Every sector holds the block, the write and their mix in the rest, so that no part
/// of it can belong to another.
fn stamped(block: usize, number: u64) -> Vec<u8> {
    stamp_sector(block, number).repeat(BLOCK as usize / SECTOR)
}

fn stamp_sector(block: usize, number: u64) -> Vec<u8> {
    let mut bytes = [block as u64, number].map(u64::to_le_bytes).concat();
    let rest = (SECTOR - bytes.len()) as u64;
    bytes.extend(Random(number ^ (block as u64) << 40).bytes(rest));
    bytes
}

/// Returns the write from which a sector of `block` came, or `None` if it is no sector of the block.
fn read_stamp(block: usize, bytes: &[u8]) -> Option<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let number = u64::from_le_bytes(bytes[8..16].try_into().expect("a sector"));
    (stamp_sector(block, number) == bytes).then_some(number)
}

#[test]
fn a_stamp_names_its_write_and_nothing_else_passes() {
    let data = stamped(7, 99);
    assert_eq!(read_stamp(7, &data[SECTOR..2 * SECTOR]), Some(99));
    assert_eq!(read_stamp(8, &data[..SECTOR]), None);
    let mut torn = data[..SECTOR].to_vec();
    torn[500] ^= 1;
    assert_eq!(read_stamp(7, &torn), None);
    assert_eq!(read_stamp(7, &[0; SECTOR]), Some(0));
}
