//! A disk's files, from the base to the delta that receives writes.

use std::ops::Range;
use std::rc::Rc;

use blk::{Buf, File, Result, Slice};
use futures_util::future::join_all;

use super::delta::Delta;
use super::extent::Extent;
use super::host::{Host, Purpose};
use crate::subject::LayerSeen;

pub(super) struct Chain {
    /// A flat file: each byte of the disk is at the same offset in the file.
    pub base: Extent,
    /// Oldest first.
    pub deltas: Vec<Rc<Delta>>,
}

/// The part of an I/O that one file serves.
struct Part<'a> {
    file: &'a File,
    at: u64,
    /// Position within the I/O.
    inside: Range<usize>,
}

impl Chain {
    /// Returns the layers of disk number `disk`, base first.
    pub(super) fn seen(&self, disk: u32) -> Vec<LayerSeen> {
        let extents = std::iter::once(&self.base).chain(self.deltas.iter().map(|delta| &delta.extent));
        let seen = |(height, extent): (u32, &Extent)| LayerSeen {
            name: format!("disk{disk}/{}", extent.file.name()),
            height,
            host: extent.file.counters().into(),
        };
        (0..).zip(extents).map(seen).collect()
    }

    /// Returns the file, offset and length of the first bytes of `range`, searching the oldest `levels` deltas.
    fn locate(&self, levels: usize, range: &Range<u64>) -> (&File, u64, u64) {
        let mut len = range.end - range.start;
        for delta in self.deltas[..levels].iter().rev() {
            let found = delta.find(&(range.start..range.start + len));
            len = found.len;
            if let Some(at) = found.at {
                return (&delta.extent.file, at, len);
            }
        }
        (&self.base.file, range.start, len)
    }

    /// Returns the first part of what is left of an I/O: as much as one file holds contiguously.
    fn next_part(&self, levels: usize, range: &Range<u64>, inside: usize) -> Part<'_> {
        let from = range.start + inside as u64;
        let (file, at, mut len) = self.locate(levels, &(from..range.end));
        while from + len < range.end {
            let (next, next_at, more) = self.locate(levels, &(from + len..range.end));
            if !std::ptr::eq(next, file) || next_at != at + len {
                break;
            }
            len += more;
        }
        Part { file, at, inside: inside..inside + len as usize }
    }

    /// Fills `buf`: each byte comes from the newest of the oldest `levels` deltas that holds it, or from the base.
    /// Parts are read concurrently.
    pub(super) async fn read(
        &self,
        host: &Host,
        levels: usize,
        offset: u64,
        mut buf: Buf,
    ) -> (Buf, Result<()>) {
        let range = offset..offset + buf.len() as u64;
        let first = self.next_part(levels, &range, 0);
        if first.inside.end == buf.len() {
            return host.read(first.file, first.at, buf, Purpose::Guest).await;
        }
        let parts = self.parts(levels, &range, first);
        let reads = parts
            .iter()
            .map(|part| host.read(part.file, part.at, Buf::alloc(part.inside.len()), Purpose::Guest));
        for (part, (bytes, result)) in parts.iter().zip(join_all(reads).await) {
            if result.is_err() {
                return (buf, result);
            }
            buf[part.inside.clone()].copy_from_slice(&bytes);
        }
        (buf, Ok(()))
    }

    /// Reads the tables that a read of `range` through the oldest `levels` deltas needs, newest first.
    pub(super) async fn look_up(&self, levels: usize, mut range: Range<u64>) -> Result<()> {
        for (level, delta) in self.deltas[..levels].iter().enumerate().rev() {
            delta.look_up_read(&range).await?;
            if level > 0 {
                range = delta.trim(range);
            }
            if range.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn parts<'a>(&'a self, levels: usize, range: &Range<u64>, first: Part<'a>) -> Vec<Part<'a>> {
        let len = (range.end - range.start) as usize;
        let mut parts = vec![first];
        while let Some(end) = parts.last().map(|part| part.inside.end)
            && end < len
        {
            parts.push(self.next_part(levels, range, end));
        }
        parts
    }
}

impl Delta {
    /// Writes into grains that the delta holds; parts that are not contiguous in the file are written concurrently.
    pub(super) async fn write_held(
        &self,
        host: &Host,
        offset: u64,
        data: Slice,
        purpose: Purpose,
    ) -> Result<()> {
        let range = offset..offset + data.len() as u64;
        let (at, len) = self.held_together(&range);
        if len == range.end - range.start {
            return self.extent.write(host, at, data, purpose).await;
        }
        let mut writes = Vec::new();
        let mut inside = 0;
        while inside < data.len() {
            let (at, len) = self.held_together(&(offset + inside as u64..range.end));
            let part = data.slice(inside..inside + len as usize);
            writes.push(self.extent.write(host, at, part, purpose));
            inside += len as usize;
        }
        join_all(writes).await.into_iter().collect()
    }

    fn held_together(&self, range: &Range<u64>) -> (u64, u64) {
        let first = self.find(range);
        let at = first.at.expect("grains are reserved before they are written");
        let mut len = first.len;
        while range.start + len < range.end {
            let next = self.find(&(range.start + len..range.end));
            if next.at != Some(at + len) {
                break;
            }
            len += next.len;
        }
        (at, len)
    }
}
