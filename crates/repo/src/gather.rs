//! Reads many chunks in few requests: those that follow one another in a pack are one range.

use blk::{Error, Result};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::chunk::ChunkRef;
use crate::key::Keys;
use crate::objects::Objects;
use crate::parallel::in_parallel;

/// Largest range of one request, in bytes.
const RANGE_BYTES_MAX: u64 = 4 << 20;
/// Unused bytes between two chunks that are read rather than asked for apart, in bytes.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// Requests at once.
const REQUESTS: usize = 8;

/// Returns the contents of `refs`, in their order.
pub(crate) async fn read(objects: &dyn Objects, keys: &Keys, refs: &[ChunkRef]) -> Result<Vec<Vec<u8>>> {
    let ranges = ranges(refs).into_iter().map(|members| async move {
        let first = refs[members[0]];
        let begin = first.range().start;
        let end = members.iter().map(|n| refs[*n].range().end).max().expect("not empty");
        let name = crate::names::pack(first.pack);
        let body = objects.get_range(&name, begin..end).await?;
        if body.len() as u64 != end - begin {
            let found = format!("{} bytes at {begin}, expected {}", body.len(), end - begin);
            return Err(Error::damaged(name, found));
        }
        let open = |n: &usize| {
            let (from, to) = (refs[*n].range().start - begin, refs[*n].range().end - begin);
            Ok((*n, refs[*n].open(keys, &body[from as usize..to as usize])?))
        };
        in_parallel(&members, open).into_iter().collect::<Result<Vec<_>>>()
    });
    let mut contents = vec![Vec::new(); refs.len()];
    let mut read = stream::iter(ranges).buffer_unordered(REQUESTS);
    while let Some(members) = read.try_next().await? {
        members.into_iter().for_each(|(n, content)| contents[n] = content);
    }
    Ok(contents)
}

/// Returns the chunks of each request, by their indexes in `refs`.
fn ranges(refs: &[ChunkRef]) -> Vec<Vec<usize>> {
    let mut order: Vec<_> = (0..refs.len()).collect();
    order.sort_by_key(|n| (refs[*n].pack, refs[*n].offset));
    let mut ranges: Vec<Vec<usize>> = Vec::new();
    for n in order {
        let joins = ranges.last().is_some_and(|members| {
            let (first, last) = (refs[members[0]], refs[*members.last().expect("not empty")]);
            let next = refs[n].range();
            first.pack == refs[n].pack
                && next.start <= last.range().end + GAP_BYTES_MAX
                && next.end - first.range().start <= RANGE_BYTES_MAX
        });
        match ranges.last_mut() {
            Some(members) if joins => members.push(n),
            _ => ranges.push(vec![n]),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::PackName;

    #[test]
    fn chunks_side_by_side_are_one_request() {
        let chunk = |epoch, offset: u64, sealed_bytes| ChunkRef {
            id: [0; 32],
            pack: PackName { epoch, number: 0 },
            offset: offset as u32,
            sealed_bytes,
            bytes: 0,
        };
        let refs = [
            chunk(1, 100, 50),
            chunk(2, 0, 10),
            chunk(1, 0, 100),
            chunk(1, 150 + GAP_BYTES_MAX, 10),
            chunk(1, 1 << 20, 10),
            chunk(1, 0, 100),
        ];
        assert_eq!(ranges(&refs), [vec![2, 5, 0, 3], vec![4], vec![1]]);
        let far: Vec<_> = (0..5).map(|n| chunk(1, n << 20, 1 << 20)).collect();
        assert_eq!(ranges(&far), [vec![0, 1, 2, 3], vec![4]]);
    }
}
