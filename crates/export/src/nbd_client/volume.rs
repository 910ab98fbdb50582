//! An export as a volume. Requests are widened and split to what the server takes.

use std::ops::Range;
use std::rc::Rc;

use blk::buf::{ZEROS_BYTES, zeros};
use blk::socket::Socket;
use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Error, ErrorKind, Local, Result, SECTOR, Slice};

use super::connection::Connection;
use super::extents::{self, Extent};
use super::handshake::Export;
use super::requests::Request;
use crate::nbd::proto::*;

/// Longest request without a payload: 1 GiB, a multiple of every block. The protocol's lengths have 32 bits.
const UNLOADED_BYTES_MAX: u64 = 1 << 30;

/// A volume on one NBD connection; dropping it ends the connection.
pub struct NbdVolume {
    connection: Rc<Connection>,
}

impl Drop for NbdVolume {
    fn drop(&mut self) {
        self.connection.close();
    }
}

/// Splits a range into parts of at most `most` bytes.
fn split(range: Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(most as usize).map(move |start| start..end.min(start + most))
}

impl NbdVolume {
    /// Attaches to `socket`, which has just finished its negotiation.
    pub(super) fn start(env: &Env, socket: Socket, export: Export, place: String) -> Rc<NbdVolume> {
        Rc::new(NbdVolume { connection: Connection::start(env, socket, export, place) })
    }

    /// Returns the properties of the export.
    pub fn export(&self) -> &Export {
        &self.connection.export
    }

    /// Returns the address, for messages.
    pub fn place(&self) -> &str {
        self.connection.place()
    }

    /// Returns the error that ended the connection. All requests fail with it; the owner connects again.
    pub fn broken(&self) -> Option<Error> {
        self.connection.broken()
    }

    /// Returns extents of the metadata context `context` that cover `range` from its start: at least one, possibly not up to
    /// its end. They need not begin on sectors.
    ///
    /// # Errors
    /// `NotFound` if the context was not selected.
    pub async fn block_status(&self, context: &str, range: Range<u64>) -> Result<Vec<Extent>> {
        self.check(&range)?;
        let id = self.export().context_id(context).ok_or_else(|| {
            let cause = format!("the server has no metadata context {context:?} for this export");
            Error::not_found(self.place(), cause)
        })?;
        if range.is_empty() {
            return Err(Error::invalid(self.place(), "the status of an empty range"));
        }
        let asked = self.widened(&range);
        let asked = asked.start..asked.end.min(asked.start + UNLOADED_BYTES_MAX);
        let request = Request::plain(CMD_BLOCK_STATUS, 0, asked.clone());
        let ended = self.connection.request(request).await;
        ended.result?;
        let found = ended.extents.iter().find(|(context, _)| *context == id);
        let found = found.map_or(&[][..], |(_, extents)| &extents[..]);
        let cut = extents::cut(found, asked.start, &range);
        match cut.is_empty() {
            true => Err(Error::new(
                ErrorKind::Io,
                self.place(),
                format!("the server did not answer for the metadata context {context:?}"),
            )),
            false => Ok(cut),
        }
    }

    fn check(&self, range: &Range<u64>) -> Result<()> {
        let size_bytes = self.export().size_bytes;
        match range.start <= range.end && range.end <= size_bytes {
            true => Ok(()),
            false => Err(Error::invalid(
                self.place(),
                format!("the range {range:?} is not within {size_bytes} bytes"),
            )),
        }
    }

    fn check_change(&self, range: &Range<u64>) -> Result<()> {
        self.check(range)?;
        if self.export().is_read_only() {
            return Err(Error::refused(self.place(), "the export is read only"));
        }
        match self.widened(range) == *range {
            true => Ok(()),
            false => Err(Error::invalid(
                self.place(),
                format!(
                    "the server takes writes in multiples of {} bytes, and {range:?} is none",
                    self.export().block_bytes_min
                ),
            )),
        }
    }

    /// Returns the blocks of the server that contain `range`, which is within the export, up to its end.
    fn widened(&self, range: &Range<u64>) -> Range<u64> {
        let block = u64::from(self.export().block_bytes_min);
        range.start / block * block..range.end.next_multiple_of(block).min(self.export().size_bytes)
    }

    async fn read_one(&self, range: Range<u64>, buf: Buf) -> (Buf, Result<()>) {
        let request = Request { into: Some(buf), ..Request::plain(CMD_READ, 0, range) };
        let ended = self.connection.request(request).await;
        (ended.into.expect("a read gives its buffer back"), ended.result)
    }

    async fn read_range(&self, range: Range<u64>, mut buf: Buf) -> (Buf, Result<()>) {
        if let Err(error) = self.check(&range) {
            return (buf, Err(error));
        }
        let most = u64::from(self.export().payload_bytes_max);
        let asked = self.widened(&range);
        if range.is_empty() {
            return (buf, Ok(()));
        }
        if asked == range && range.end - range.start <= most {
            return self.read_one(range, buf).await;
        }
        for part in split(asked, most) {
            let (bytes, result) =
                self.read_one(part.clone(), Buf::alloc((part.end - part.start) as usize)).await;
            if let Err(error) = result {
                return (buf, Err(error));
            }
            let (start, end) = (part.start.max(range.start), part.end.min(range.end));
            let into = (start - range.start) as usize..(end - range.start) as usize;
            buf[into].copy_from_slice(&bytes[(start - part.start) as usize..(end - part.start) as usize]);
        }
        (buf, Ok(()))
    }

    async fn write_range(&self, range: Range<u64>, data: Slice) -> Result<()> {
        self.check_change(&range)?;
        for part in split(range.clone(), u64::from(self.export().payload_bytes_max)) {
            let slice = data.slice((part.start - range.start) as usize..(part.end - range.start) as usize);
            let request = Request { payload: Some(slice), ..Request::plain(CMD_WRITE, 0, part) };
            self.connection.request(request).await.result?;
        }
        Ok(())
    }

    /// Sends a command without a payload for each part of the range.
    async fn command(&self, kind: u16, flags: u16, range: Range<u64>) -> Result<()> {
        self.check_change(&range)?;
        for part in split(range, UNLOADED_BYTES_MAX) {
            self.connection.request(Request::plain(kind, flags, part)).await.result?;
        }
        Ok(())
    }

    async fn zero(&self, range: Range<u64>, mode: ZeroMode) -> Result<()> {
        let offers = |flag| self.export().flags & flag != 0;
        if mode.fast_only && !offers(TRANSMIT_FAST_ZERO) {
            return Err(Error::unsupported(self.place(), "the server offers no fast zeros"));
        }
        if offers(TRANSMIT_WRITE_ZEROES) {
            let no_hole = if mode.no_hole { CMD_FLAG_NO_HOLE } else { 0 };
            let fast = if mode.fast_only { CMD_FLAG_FAST_ZERO } else { 0 };
            return self.command(CMD_WRITE_ZEROES, no_hole | fast, range).await;
        }
        for part in split(range, ZEROS_BYTES as u64) {
            let len = (part.end - part.start) as usize;
            self.write_range(part, zeros().slice(0..len)).await?;
        }
        Ok(())
    }
}

/// Its size is that of the whole sectors.
impl Volume for NbdVolume {
    fn info(&self) -> VolumeInfo {
        let export = self.export();
        VolumeInfo {
            size_bytes: export.size_bytes / SECTOR * SECTOR,
            read_only: export.is_read_only(),
            preferred_bytes: export.block_bytes_preferred,
            fast_zero: export.flags & TRANSMIT_FAST_ZERO != 0,
        }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        Box::pin(async move { self.read_range(range, buf).await })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        let range = offset..offset.saturating_add(data.len() as u64);
        Box::pin(async move { self.write_range(range, data).await })
    }

    /// A server that does not offer flushes holds no data back.
    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            match self.export().flags & TRANSMIT_FLUSH {
                0 => self.broken().map_or(Ok(()), Err),
                _ => self.connection.request(Request::plain(CMD_FLUSH, 0, 0..0)).await.result,
            }
        })
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            match self.export().flags & (TRANSMIT_TRIM | TRANSMIT_READ_ONLY) {
                0 => Ok(()),
                _ => self.command(CMD_TRIM, 0, range).await,
            }
        })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move { self.zero(range, mode).await })
    }

    /// All of the range counts as data if the server has no `base:allocation`.
    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move {
            if !self.export().has_context(BASE_ALLOCATION) {
                return Ok(vec![BlockStatus { len: range.end - range.start, hole: false, zero: false }]);
            }
            self.block_status(BASE_ALLOCATION, range).await.map(|extents| extents::pieces(&extents))
        })
    }
}
