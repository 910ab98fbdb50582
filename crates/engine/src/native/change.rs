//! Changes that a record of the journal makes beside blocks: nodes, and items of the catalogue. All operations of a
//! change take effect at once; a take of twelve disks is one change.

use blk::{Error, Result};

use super::bytes::{Reader, Writer};
pub use super::key::Key;

/// One operation of a change. Nodes are given by their numbers, sizes in blocks, records by their LSNs.
// What a field is follows from its name and this.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Creates a running node without content.
    Create { node: u64, size_blocks: u64 },
    /// Creates `sealed` with the content of `running` and its place in the lineage; `running` continues as its child.
    Take { running: u64, sealed: u64 },
    /// Creates a running node with the content of a sealed one.
    Branch { from: u64, node: u64 },
    /// Drops a node that nothing refers to.
    Drop { node: u64 },
    /// Gives a running node another size.
    Resize { node: u64, size_blocks: u64 },
    /// Sets an item of the catalogue.
    Put { key: Key, value: Vec<u8> },
    /// Removes an item of the catalogue.
    Delete { key: Key },
    /// Creates a running node whose first `blocks` blocks are those of a source; the rest are holes.
    CreateOver { node: u64, size_blocks: u64, device: u8, blocks: u64 },
    /// Declares records from `first` to `last` aborted: a cut destroyed their data before it was flushed.
    Abort { first: u64, last: u64 },
}

const CREATE: u8 = 1;
const TAKE: u8 = 2;
const BRANCH: u8 = 3;
const DROP: u8 = 4;
const RESIZE: u8 = 5;
const PUT: u8 = 6;
const DELETE: u8 = 7;
const ABORT: u8 = 8;
const CREATE_OVER: u8 = 9;

pub(crate) fn encode(ops: &[Op]) -> Vec<u8> {
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
            Op::Abort { first, last } => out.u8(ABORT).u64(*first).u64(*last),
            Op::CreateOver { node, size_blocks, device, blocks } => {
                out.u8(CREATE_OVER).u64(*node).u64(*size_blocks).u8(*device).u64(*blocks)
            }
        };
    }
    out.done()
}

/// Decodes the operations of one change. An unknown or incomplete one is `Damaged`; `place` is that of the error.
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
            ABORT => Op::Abort { first: input.u64("first")?, last: input.u64("last")? },
            CREATE_OVER => Op::CreateOver {
                node: input.u64("node")?,
                size_blocks: input.u64("size")?,
                device: input.u8("device")?,
                blocks: input.u64("blocks of a source")?,
            },
            _ => {
                let cause =
                    format!("operation of a change: found {kind}, expected {CREATE} to {CREATE_OVER}");
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
            Op::Abort { first: 4, last: 5 },
            Op::CreateOver { node: 4, size_blocks: 9, device: 254, blocks: 8 },
        ];
        let bytes = encode(&ops);
        assert_eq!(decode(&bytes, "here").unwrap(), ops);
        for end in 1..bytes.len() {
            // A prefix ends between two operations, or is refused.
            let _ = decode(&bytes[..end], "here").map_err(|e| assert_eq!(e.kind, blk::ErrorKind::Damaged));
        }
    }
}
