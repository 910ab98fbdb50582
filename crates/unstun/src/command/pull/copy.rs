//! The copy: what has to be read, and the requests under way.

use std::ops::Range;
use std::rc::Rc;

use api::error::{Error, Result};
use api::progress;
use api::units::format_bytes;
use blk::uring::UringReactor;
use blk::volume::Volume;
use blk::{Buf, Executor};
use export::nbd::proto::STATE_DIRTY;
use export::nbd_client::NbdVolume;
use futures_util::StreamExt;
use futures_util::stream;

use super::source::Source;
use super::target::Target;

/// Size of one read in bytes: large enough for a rotating disk.
const PIECE_BYTES: u64 = 1 << 20;
/// Reads under way at once; 16 MiB of memory.
const READS_AHEAD: usize = 16;
/// Bytes of the disk whose state is queried before they are read.
const SURVEY_BYTES: u64 = 256 << 20;
/// Alignment of what is read for a difference: a smaller piece saves nothing.
const ALIGNED_BYTES: u64 = 4096;

#[derive(Debug, Default)]
pub(super) struct Copied {
    pub bytes_read: u64,
    pub bytes_written: u64,
}

struct Copy {
    volume: Rc<NbdVolume>,
    target: Target,
    /// The metadata context of the comparison, and the size of the base in bytes.
    since: Option<(String, u64)>,
    copied: Copied,
}

/// Copies everything, or the differences from a base of `base_bytes`, and makes the target durable.
pub(super) fn copy(source: Source, target: Target, base_bytes: Option<u64>) -> Result<Copied> {
    let executor = Executor::new(Rc::new(UringReactor::new()?));
    let env = executor.env();
    let bar = progress::bar(source.size_bytes())?;
    let shown = bar.clone();
    let work = async move {
        let (volume, context) = source.serve(&env)?;
        let mut copy = Copy { volume, target, since: context.zip(base_bytes), copied: Copied::default() };
        let (mut at, size_bytes) = (0, copy.size_bytes());
        while at < size_bytes {
            at = copy.step(at).await?;
            shown.set_position(at);
            let (done, all) = (format_bytes(at), format_bytes(size_bytes));
            shown.set_message(format!("{done} of {all}, {} read", format_bytes(copy.copied.bytes_read)));
        }
        copy.target.sync()?;
        Ok(copy.copied)
    };
    let copied = executor.run(work).ok_or_else(|| Error::failed("the reactor stopped"))?;
    match &copied {
        Ok(_) => bar.finish(),
        Err(_) => bar.abandon(),
    }
    copied
}

impl Copy {
    fn size_bytes(&self) -> u64 {
        self.volume.export().size_bytes
    }

    /// Copies what has to be copied from `at` on, and returns the end of what it looked at.
    async fn step(&mut self, at: u64) -> Result<u64> {
        let window = at..self.size_bytes().min(at + SURVEY_BYTES);
        let (parts, end) = match &self.since {
            Some((context, base_bytes)) if at < *base_bytes => {
                self.dirty(context, at..window.end.min(*base_bytes)).await?
            }
            _ => (vec![window.clone()], window.end),
        };
        for part in parts {
            self.copy_part(part).await?;
        }
        Ok(end)
    }

    /// Returns the ranges that differ from the base, and the end of what was compared.
    async fn dirty(&self, context: &str, range: Range<u64>) -> Result<(Vec<Range<u64>>, u64)> {
        let mut at = range.start;
        let mut parts = Vec::new();
        for extent in self.volume.block_status(context, range).await? {
            let part = at..at + extent.len;
            at = part.end;
            if extent.flags & STATE_DIRTY != 0 {
                let end = part.end.next_multiple_of(ALIGNED_BYTES).min(self.size_bytes());
                parts.push(part.start / ALIGNED_BYTES * ALIGNED_BYTES..end);
            }
        }
        Ok((parts, at))
    }

    async fn copy_part(&mut self, part: Range<u64>) -> Result<()> {
        let mut at = part.start;
        while at < part.end {
            let mut data = Vec::new();
            for piece in self.volume.clone().status(at..part.end).await? {
                let range = at..part.end.min(at + piece.len);
                at = range.end;
                match piece.zero {
                    true => self.target.zero(range)?,
                    false => data.push(range),
                }
            }
            self.copy_data(data).await?;
        }
        Ok(())
    }

    async fn copy_data(&mut self, ranges: Vec<Range<u64>>) -> Result<()> {
        let volume = self.volume.clone();
        let pieces = ranges.into_iter().flat_map(|range| {
            let end = range.end;
            range.step_by(PIECE_BYTES as usize).map(move |start| start..end.min(start + PIECE_BYTES))
        });
        let reads = pieces.map(|piece| {
            let volume = volume.clone();
            let buf = Buf::alloc((piece.end - piece.start) as usize);
            async move { (piece.start, volume.read(piece.start, buf).await) }
        });
        let mut reads = stream::iter(reads).buffer_unordered(READS_AHEAD);
        while let Some((offset, (buf, result))) = reads.next().await {
            result?;
            self.copied.bytes_read += buf.len() as u64;
            self.copied.bytes_written += self.target.write(offset, &buf)?;
        }
        Ok(())
    }
}
