//! Writes of a guest: overwrites in place, first writes into the top, and writes to both layers while a commit moves a
//! region.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use blk::buf::{ZEROS_BYTES, zeros};
use blk::layer::{Placement, Run, Where};
use blk::volume::ZeroMode;
use blk::{Buf, Error, ErrorKind, File, Result, Slice};
use futures_util::future::join;

use super::chain::{Chain, FoldRoute, held};
use super::disk::{Disk, resolve_in};
use super::link::{GrainGuard, Link};
use super::map::Piece;
use crate::join::all;
use crate::options::{Defect, SpacePolicy};

/// Length of the shared buffer from which zeros are written.
const ZERO_CHUNK_BYTES: u64 = ZEROS_BYTES as u64;

impl Disk {
    /// Writes, and waits for space if the policy requires it. On an error each sector of the range has its old or its
    /// new content.
    pub async fn write_range(&self, offset: u64, data: Slice) -> Result<()> {
        let began_ns = self.env.now_ns();
        self.check_range(offset, data.len() as u64)?;
        let len = data.len();
        let result = self.retry_for_space(async || self.write_once(offset, data.clone()).await).await;
        let now_ns = self.env.now_ns();
        // A write that finds no space is not counted: the guest's server repeats or refuses it.
        if !result.as_ref().is_err_and(Error::is_no_space) {
            self.stats.write_done(len, now_ns - began_ns, result.is_ok());
        }
        self.load.request_ended(now_ns, now_ns - began_ns, 1 + self.requests_under_way());
        result
    }

    /// Repeats `once` while there is no space. Between two tries it holds neither range nor admission: the mover and a
    /// seal must be able to pass, or the space that a commit would free could never be freed.
    pub(crate) async fn retry_for_space<T>(&self, mut once: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        let mut waiting = false;
        let result = loop {
            match once().await {
                Err(e)
                    if e.is_no_space()
                        && self.options.space_policy == SpacePolicy::Wait
                        && !self.closing.get() =>
                {
                    if !std::mem::replace(&mut waiting, true) {
                        self.space_waits.update(true);
                    }
                    self.env.sleep_us(self.options.space_retry_us).await;
                }
                other => break other,
            }
        };
        if waiting {
            self.space_waits.update(false);
        }
        result
    }

    async fn write_once(&self, offset: u64, data: Slice) -> Result<()> {
        let end = offset + data.len() as u64;
        let _admitted = self.admit(offset..end).await?;
        let chain = self.chain();
        let Some(fold) = chain.steering() else {
            return self.write_normal(&chain, offset, data).await;
        };
        let region = fold.region_bytes();
        let parts = split(offset..end, region);
        let writes = parts.map(|part| {
            let data = part_of(&data, offset, &part);
            self.write_folding(&chain, fold, part.start, data)
        });
        all(writes).await
    }

    /// Overwrites in place what the top holds, and places the rest in the top.
    async fn write_normal(&self, chain: &Chain, offset: u64, data: Slice) -> Result<()> {
        let top = chain.top();
        let pieces = self.resolve(offset..offset + data.len() as u64).await?;
        if let [only] = &pieces[..]
            && top.owns(only.slot)
        {
            return overwrite(top, only, data).await;
        }
        let writes = owned_or_not(&pieces, top).into_iter().map(|(range, piece)| {
            let data = part_of(&data, offset, &range);
            async move {
                match piece {
                    Some(piece) => overwrite(top, &piece, data).await,
                    None => self.write_into(top, chain, range, data, true).await,
                }
            }
        });
        all(writes).await
    }

    /// Writes the part of a write that is in one source region while the top drains into its parent. Data that the top
    /// does not hold goes straight to the parent, so what the top holds only shrinks; that is why a commit ends under
    /// any load.
    async fn write_folding(
        &self,
        chain: &Chain,
        fold: &Rc<FoldRoute>,
        offset: u64,
        data: Slice,
    ) -> Result<()> {
        let range = offset..offset + data.len() as u64;
        if let Some(pinned) = fold.moving_at(offset) {
            return self.write_both(chain, fold, &pinned, range, data).await;
        }
        let pieces = self.resolve(range.clone()).await?;
        let writes = owned_or_not(&pieces, &fold.source).into_iter().map(|(range, piece)| {
            let data = part_of(&data, offset, &range);
            async move {
                match piece {
                    Some(piece) => overwrite(&fold.source, &piece, data).await,
                    None => self.write_into(&fold.target, chain, range, data, true).await,
                }
            }
        });
        all(writes).await
    }

    /// Writes into a region that is being moved. The parent gets all of the data and the delta what it holds, so that
    /// either is valid after a crash. The parent comes first: if it has no space, nothing has changed.
    async fn write_both(
        &self,
        chain: &Chain,
        fold: &Rc<FoldRoute>,
        pinned: &[Run],
        range: Range<u64>,
        data: Slice,
    ) -> Result<()> {
        self.stats.mirrored_writes.set(self.stats.mirrored_writes.get() + 1);
        let defects = self.options.defects;
        let shadowed =
            |r: &Range<u64>| held(pinned).any(|(run, ..)| run.start < r.end && r.start < run.end());
        if !defects.has(Defect::MirrorDeltaOnly) || !shadowed(&range) {
            // The map still names the delta for what it holds: only the other sectors are visible in the parent.
            for (part, visible) in split_by_held(pinned, range.clone()) {
                let data = part_of(&data, range.start, &part);
                self.write_into(&fold.target, chain, part, data, visible).await?;
            }
        }
        if defects.has(Defect::MirrorParentOnly) {
            return Ok(());
        }
        let files = fold.source.layer.files();
        let writes = held(pinned).filter_map(|(run, file, at)| {
            let part = run.start.max(range.start)..run.end().min(range.end);
            (part.start < part.end).then(|| {
                let data = part_of(&data, range.start, &part);
                files[usize::from(file)].write(at + (part.start - run.start), data)
            })
        });
        all(writes).await?;
        fold.source.note_write();
        Ok(())
    }

    /// Writes into one layer regardless of what it holds there, with its grains locked against all other writers of the
    /// layer. `visible`: the range resolves to this layer.
    pub(crate) async fn write_into(
        &self,
        link: &Rc<Link>,
        chain: &Chain,
        range: Range<u64>,
        data: Slice,
        visible: bool,
    ) -> Result<()> {
        let grains = link.hold_grains(&range).await;
        let runs = merge_unheld(&link.layer.lookup(range.clone()).await?);
        let (there, missing): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(is_data);
        let cut = |run: &Run| part_of(&data, range.start, &(run.start..run.end()));
        let overwrites = all(held(&there).map(|(run, file, offset)| {
            let data = cut(run);
            async move {
                link.layer.files()[usize::from(file)].write(offset, data).await?;
                link.note_write();
                Ok(())
            }
        }));
        if missing.is_empty() {
            // A published grain does not move.
            drop(grains);
            return overwrites.await;
        }
        let grains = &grains;
        let placed = all(missing.iter().map(|run| {
            let (part, data) = (run.start..run.end(), cut(run));
            async move {
                let placement = self.first_write(link, chain, grains, &part, data).await?;
                self.show(link, chain, &placement, part, visible);
                Ok(())
            }
        }));
        let (overwritten, placed) = join(overwrites, placed).await;
        overwritten.and(placed)
    }

    /// Takes space in `link`, writes the data (and the rest of partial grains), then publishes. Until then readers see
    /// the previous content. The caller updates the map in the same poll.
    async fn first_write(
        &self,
        link: &Rc<Link>,
        chain: &Chain,
        grains: &GrainGuard,
        range: &Range<u64>,
        data: Slice,
    ) -> Result<Placement> {
        self.stats.first_writes.set(self.stats.first_writes.get() + 1);
        let cap_bytes = match self.options.defects.has(Defect::UnboundedTables) {
            true => u64::MAX,
            false => self.options.unwritten_cap_bytes,
        };
        // The flush that this may wait for needs no grain.
        link.admit_first_write(&self.env, cap_bytes).await;
        let position = chain.position(link).expect("the target is in the chain");
        let below = &chain.links[..=position];
        let placement = link.place(grains, range.clone()).await?;
        let own = self.write_placed(link, &placement, range, data);
        let fills = all(placement.fills.iter().map(|fill| self.fill(link, below, &placement, fill.clone())));
        let (written, filled) = join(own, fills).await;
        if let Err(e) = written.and(filled) {
            link.layer.abandon(&placement);
            return Err(e);
        }
        // One poll from here: entry, map and dirty mark change together.
        link.layer.publish(&placement);
        link.note_write();
        link.placed(&self.env, cap_bytes);
        Ok(placement)
    }

    /// Updates the map after a placement was published. In the top all of it is visible. Below the top a higher layer
    /// may hold other parts of the grain: there the map is built again from the tables.
    fn show(&self, link: &Link, chain: &Chain, placement: &Placement, written: Range<u64>, visible: bool) {
        let is_top = std::ptr::eq(link, &**chain.top()) || self.options.defects.has(Defect::ShowWholeGrain);
        let shown = if is_top { 0..u64::MAX } else { written };
        for (run, file, at) in held(&placement.runs).filter(|_| visible) {
            let (start, end) = (run.start.max(shown.start), run.end().min(shown.end));
            if start < end {
                let offset = at + (start - run.start);
                self.map.update(Piece { start, len: end - start, slot: link.slot + file, offset });
            }
        }
        if !is_top {
            placement.fills.iter().for_each(|fill| self.map.invalidate(fill.clone()));
        }
    }

    async fn write_placed(
        &self,
        link: &Rc<Link>,
        placement: &Placement,
        range: &Range<u64>,
        data: Slice,
    ) -> Result<()> {
        let files = link.layer.files();
        let writes = held(&placement.runs).filter_map(|(run, file, at)| {
            let part = run.start.max(range.start)..run.end().min(range.end);
            (part.start < part.end).then(|| {
                let data = part_of(&data, range.start, &part);
                files[usize::from(file)].write(at + (part.start - run.start), data)
            })
        });
        all(writes).await
    }

    /// Fills the part of a new grain that the write does not cover with what the chain shows there. The range lock
    /// covers whole grains, so no overlapping write changes the layers below meanwhile.
    async fn fill(
        &self,
        link: &Rc<Link>,
        below: &[Rc<Link>],
        placement: &Placement,
        range: Range<u64>,
    ) -> Result<()> {
        let mut old = Buf::zeroed((range.end - range.start) as usize);
        for piece in resolve_in(below, range.clone()).await? {
            if piece.slot == super::map::ZERO_SLOT {
                continue;
            }
            let (part, result) = self.file(&piece).read(piece.offset, Buf::alloc(piece.len as usize)).await;
            result?;
            let at = (piece.start - range.start) as usize;
            old[at..at + part.len()].copy_from_slice(&part);
        }
        self.write_placed(link, placement, &range, old.freeze()).await
    }

    /// Zeroes a range: without writing where the format can, otherwise by writing zeros.
    pub async fn zero_range(&self, range: Range<u64>, mode: ZeroMode) -> Result<()> {
        self.check_range(range.start, range.end - range.start)?;
        if mode.fast_only {
            return self.zero_fast(range, mode).await;
        }
        let zero = async |file: &File, run: &Run, offset| file.zero(offset, run.len, !mode.no_hole).await;
        if self.can_punch() && self.retry_for_space(async || self.punch(range.clone(), zero).await).await? {
            return Ok(());
        }
        let zeros = zeros();
        for part in split(range, ZERO_CHUNK_BYTES) {
            self.write_range(part.start, zeros.slice(0..(part.end - part.start) as usize)).await?;
        }
        Ok(())
    }

    /// Zeroes a range by giving its space back, and not by writing. Zeros are written only where one file of the disk
    /// could do so and the next one cannot.
    ///
    /// # Errors
    /// `Unsupported` where that is impossible; nothing has changed then.
    async fn zero_fast(&self, range: Range<u64>, mode: ZeroMode) -> Result<()> {
        // `give_back` never writes, and shows what the file can do; after it `zero` has nothing to write.
        let has_begun = Cell::new(false);
        let zero = async |file: &File, run: &Run, offset| {
            match file.give_back(offset, run.len).await {
                // Another file of the disk has given space back: the whole range has to read as zeros, here by writing.
                Err(e) if e.kind == ErrorKind::Unsupported && has_begun.get() => {}
                given => given?,
            }
            has_begun.set(true);
            file.zero(offset, run.len, true).await
        };
        let can = self.can_punch() && !mode.no_hole;
        if can && self.retry_for_space(async || self.punch(range.clone(), zero).await).await? {
            return Ok(());
        }
        let cause =
            "zeroing this range means writing zeros: it must stay allocated, or the disk runs on a delta";
        Err(Error::new(ErrorKind::Unsupported, &self.name, cause))
    }

    /// Gives the range's space back. In a delta a discard does nothing: a cleared entry would show the parent's data
    /// again.
    pub async fn discard_range(&self, range: Range<u64>) -> Result<()> {
        self.check_range(range.start, range.end - range.start)?;
        if !self.can_punch() {
            return Ok(());
        }
        let give_back = async |file: &File, run: &Run, offset| file.give_back(offset, run.len).await;
        match self.punch(range, give_back).await {
            Err(e) if e.kind == ErrorKind::Unsupported => Ok(()),
            punched => punched.map(drop),
        }
    }

    /// Returns whether a range can be zeroed or given back without writing: the disk has no snapshot, and its file
    /// allows it.
    pub fn can_punch(&self) -> bool {
        let chain = self.chain();
        chain.links.len() == 1 && chain.top().layer.shape().punches
    }

    /// Calls `each` for what the top has of `range`, with an offset in its file. Returns false when the chain has grown
    /// since `can_punch`: a frozen parent must not be changed.
    async fn punch(
        &self,
        range: Range<u64>,
        each: impl AsyncFn(&File, &Run, u64) -> Result<()>,
    ) -> Result<bool> {
        let _admitted = self.admit(range.clone()).await?;
        let chain = self.chain();
        if chain.links.len() > 1 {
            return Ok(false);
        }
        let top = chain.top();
        for run in top.layer.lookup(range.clone()).await? {
            let Where::Data { file, offset } = run.place else { continue };
            each(&top.layer.files()[usize::from(file)], &run, offset).await?;
        }
        top.note_write();
        Ok(true)
    }
}

async fn overwrite(link: &Rc<Link>, piece: &Piece, data: Slice) -> Result<()> {
    link.file(piece.slot).write(piece.offset, data).await?;
    link.note_write();
    Ok(())
}

/// Returns the part of `data` (which begins at `base`) for `range`.
fn part_of(data: &Slice, base: u64, range: &Range<u64>) -> Slice {
    data.slice((range.start - base) as usize..(range.end - base) as usize)
}

/// Cuts `range` at multiples of `unit`.
fn split(range: Range<u64>, unit: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = range.end.min((start / unit + 1) * unit);
        (start < range.end).then_some(start..at)
    })
}

/// Splits the pieces into those that `link` holds and the joined ranges between them that it does not.
fn owned_or_not(pieces: &[Piece], link: &Link) -> Vec<(Range<u64>, Option<Piece>)> {
    let mut parts: Vec<(Range<u64>, Option<Piece>)> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let range = piece.start..piece.start + piece.len;
        match parts.last_mut() {
            _ if link.owns(piece.slot) => parts.push((range, Some(*piece))),
            Some((last, None)) => last.end = range.end,
            _ => parts.push((range, None)),
        }
    }
    parts
}

fn is_data(run: &Run) -> bool {
    matches!(run.place, Where::Data { .. })
}

/// Joins neighbouring runs that the layer does not hold: they are placed together.
fn merge_unheld(runs: &[Run]) -> Vec<Run> {
    let mut merged: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match merged.last_mut() {
            Some(last) if !is_data(run) && !is_data(last) => last.len += run.len,
            _ => merged.push(*run),
        }
    }
    merged
}

/// Splits `range` into parts that the pinned runs hold (not visible below) and parts that they do not hold (visible).
fn split_by_held(pinned: &[Run], range: Range<u64>) -> Vec<(Range<u64>, bool)> {
    let mut parts = Vec::new();
    let mut at = range.start;
    for (run, ..) in held(pinned).filter(|(r, ..)| r.start < range.end && range.start < r.end()) {
        if run.start > at {
            parts.push((at..run.start, true));
        }
        parts.push((run.start.max(range.start)..run.end().min(range.end), false));
        at = run.end();
    }
    if at < range.end {
        parts.push((at..range.end, true));
    }
    parts
}
