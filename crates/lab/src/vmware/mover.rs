//! Copies a delta into the layer below it: pieces in order of address, as many at a time as the rules allow.

use std::ops::Range;

use blk::{Error, Result};
use futures_util::future::join_all;

use super::chain::Chain;
use super::delta::Delta;
use super::disk::Disk;
use super::rules::Serial;
use super::vm::Vm;

impl Vm {
    /// Copies all of a delta that is no longer written. Returns the number of bytes copied.
    pub(super) async fn copy_frozen(&self, disk: &Disk, level: usize) -> Result<u64> {
        let chain = disk.chain();
        let source = &chain.deltas[level];
        let (mut at, mut bytes) = (0, 0);
        loop {
            let pieces = self.next_pieces(source, at, disk.size_bytes);
            let Some(last) = pieces.last() else { break };
            self.check_stopping()?;
            self.copy_pieces(disk, &chain, level, at, &pieces).await?;
            at = last.end;
            bytes += pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>();
        }
        self.flush_below(&chain, level).await?;
        Ok(bytes)
    }

    /// Returns the next pieces from `at` on that begin before `end`, cut off at `end`. Their number is at most what may
    /// be under way at a time.
    fn next_pieces(&self, source: &Delta, mut at: u64, end: u64) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        while pieces.len() < self.spec.rules.pieces_at_once as usize {
            let next = source.next_held(at, self.spec.rules.piece_bytes);
            let Some(piece) = next.filter(|piece| piece.start < end) else { break };
            at = piece.end;
            pieces.push(piece.start..piece.end.min(end));
        }
        pieces
    }

    /// Copies the pieces concurrently and resolves when all are copied. `before` is that of `copy_piece` for the first
    /// piece.
    async fn copy_pieces(
        &self,
        disk: &Disk,
        chain: &Chain,
        level: usize,
        before: u64,
        pieces: &[Range<u64>],
    ) -> Result<()> {
        let befores = [before].into_iter().chain(pieces.iter().map(|piece| piece.end));
        let copies = befores
            .zip(pieces)
            .map(|(before, piece)| self.copy_piece(disk, chain, level, before, piece.clone()));
        join_all(copies).await.into_iter().collect()
    }

    /// Copies one piece. `before` is where the previous piece ended; the piece's table is read unless that piece was
    /// under the same table.
    async fn copy_piece(
        &self,
        disk: &Disk,
        chain: &Chain,
        level: usize,
        before: u64,
        piece: Range<u64>,
    ) -> Result<()> {
        let source = &chain.deltas[level];
        let guard = match self.spec.rules.serial {
            Serial::Delta => Some(source.lock.lock().await),
            _ => None,
        };
        let region = source.layout.format.region_bytes();
        let new_table = before == 0 || (before - 1) / region != piece.start / region;
        if new_table {
            source.read_table(piece.start).await?;
        }
        let len = piece.end - piece.start;
        let data = source.read_held(piece.clone()).await?;
        disk.write_below(chain, level, piece.start, data.freeze()).await?;
        self.state.borrow_mut().progress.done_bytes += len;
        drop(guard);
        Ok(())
    }

    /// Copies the topmost delta while it is written. Behind the cursor both sides stay the same.
    pub(super) async fn copy_mirroring(&self, disk: &Disk) -> Result<()> {
        let chain = disk.chain();
        let level = chain.deltas.len() - 1;
        let source = &chain.deltas[level];
        let mut at = 0;
        disk.mirrored_to.set(Some(at));
        while at < disk.size_bytes {
            self.check_stopping()?;
            let pieces = self.next_pieces(source, at, disk.size_bytes);
            let end = pieces.last().map_or(disk.size_bytes, |piece| piece.end);
            // The lock begins at the cursor. A guest write to a gap before the first piece therefore waits, or the
            // second `next_pieces` finds it.
            let own = disk.writes.lock(at..end).await;
            let pieces = self.next_pieces(source, at, end);
            self.copy_pieces(disk, &chain, level, at, &pieces).await?;
            at = pieces.last().map_or(end, |piece| piece.end);
            disk.mirrored_to.set(Some(at));
            drop(own);
        }
        self.flush_below(&chain, level).await
    }

    /// Flushes the layer that has received the delta `level`. Its data must be durable before the delta is removed.
    pub(super) async fn flush_below(&self, chain: &Chain, level: usize) -> Result<()> {
        match level.checked_sub(1) {
            Some(below) => chain.deltas[below].flush().await,
            None => self.host.flush(&chain.base.file).await,
        }
    }

    pub(super) fn check_stopping(&self) -> Result<()> {
        if self.stopping.get() { Err(Error::cancelled("the commit")) } else { Ok(()) }
    }
}
