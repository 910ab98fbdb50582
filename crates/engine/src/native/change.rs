//! What a record of the journal may change beside blocks: nodes, and the items of the catalogue. All operations of a
//! change become true at once; a take of twelve disks is one change.

use blk::{Error, Result};

use super::bytes::{Reader, Writer};

/// An item of the catalogue: a kind, and two numbers of the kind's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub kind: u8,
    pub major: u128,
    pub minor: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A new running node without content.
    Create {
        node: u64,
        size_blocks: u64,
    },
    /// `sealed` gets the content of `running` and its place in the lineage; `running` goes on from it.
    Take {
        running: u64,
        sealed: u64,
    },
    /// A new running node with the content of a sealed one.
    Branch {
        from: u64,
        node: u64,
    },
    /// Nobody names the node any more.
    Drop {
        node: u64,
    },
    Resize {
        node: u64,
        size_blocks: u64,
    },
    Put {
        key: Key,
        value: Vec<u8>,
    },
    Delete {
        key: Key,
    },
    /// Records from `first` to `last`, whose data a cut destroyed before it was flushed: they never happened.
    Void {
        first: u64,
        last: u64,
    },
}

const CREATE: u8 = 1;
const TAKE: u8 = 2;
const BRANCH: u8 = 3;
const DROP: u8 = 4;
const RESIZE: u8 = 5;
const PUT: u8 = 6;
const DELETE: u8 = 7;
const VOID: u8 = 8;

pub fn encode(ops: &[Op]) -> Vec<u8> {
    let mut out = Writer::default();
    for op in ops {
        match op {
            Op::Create { node, size_blocks } => out.u8(CREATE).u64(*node).u64(*size_blocks),
            Op::Take { running, sealed } => out.u8(TAKE).u64(*running).u64(*sealed),
            Op::Branch { from, node } => out.u8(BRANCH).u64(*from).u64(*node),
            Op::Drop { node } => out.u8(DROP).u64(*node),
            Op::Resize { node, size_blocks } => out.u8(RESIZE).u64(*node).u64(*size_blocks),
            Op::Put { key, value } => out.u8(PUT).key(key).bytes(value),
            Op::Delete { key } => out.u8(DELETE).key(key),
            Op::Void { first, last } => out.u8(VOID).u64(*first).u64(*last),
        };
    }
    out.done()
}

pub fn decode(bytes: &[u8], place: &str) -> Result<Vec<Op>> {
    let mut input = Reader::new(bytes, place);
    let mut ops = Vec::new();
    while !input.is_empty() {
        let kind = input.u8("operation")?;
        ops.push(match kind {
            CREATE => Op::Create { node: input.u64("node")?, size_blocks: input.u64("size")? },
            TAKE => Op::Take { running: input.u64("running node")?, sealed: input.u64("sealed node")? },
            BRANCH => Op::Branch { from: input.u64("from")?, node: input.u64("node")? },
            DROP => Op::Drop { node: input.u64("node")? },
            RESIZE => Op::Resize { node: input.u64("node")?, size_blocks: input.u64("size")? },
            PUT => Op::Put { key: input.key()?, value: input.bytes("value")?.to_vec() },
            DELETE => Op::Delete { key: input.key()? },
            VOID => Op::Void { first: input.u64("first")?, last: input.u64("last")? },
            _ => {
                let cause = format!("operation of a change: found {kind}, expected {CREATE} to {VOID}");
                return Err(Error::damaged(place, cause));
            }
        });
    }
    Ok(ops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_read_as_they_were_written() {
        let key = Key { kind: 16, major: 7, minor: 9 };
        let ops = vec![
            Op::Create { node: 1, size_blocks: 10 },
            Op::Take { running: 1, sealed: 2 },
            Op::Branch { from: 2, node: 3 },
            Op::Drop { node: 2 },
            Op::Resize { node: 1, size_blocks: 20 },
            Op::Put { key, value: b"text".to_vec() },
            Op::Delete { key },
            Op::Void { first: 4, last: 5 },
        ];
        let bytes = encode(&ops);
        assert_eq!(decode(&bytes, "here").unwrap(), ops);
        for end in 1..bytes.len() {
            // A prefix ends between two operations, or is refused.
            let _ = decode(&bytes[..end], "here").map_err(|e| assert_eq!(e.kind, blk::ErrorKind::Damaged));
        }
    }
}
