//! The content of an export in order, read ahead by a thread of its own.

use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use api::error::{Error, Result};
use blk::uring::UringReactor;
use blk::volume::Volume;
use blk::{Buf, Executor};
use export::nbd_client;
use futures_util::stream::{self, StreamExt};

/// Bytes of a piece; the last one of a disk may be shorter.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// Pieces that are being read at once.
const READS_AHEAD: usize = 8;
/// Pieces that wait for the writer: with those being read, 24 MiB.
const PIECES_WAITING: usize = 16;
/// Bytes whose holes are asked for at once.
const STATUS_BYTES: u64 = 256 << 20;

/// A part of a disk.
pub(super) struct Piece {
    pub bytes: u64,
    /// None for zeros.
    pub data: Option<Vec<u8>>,
}

/// The pieces of a disk, in their order. Dropping it ends the connection to the export.
pub(super) struct Pieces {
    pub size_bytes: u64,
    arriving: Option<Receiver<Result<Piece>>>,
    reader: Option<JoinHandle<()>>,
}

impl Pieces {
    pub(super) fn next(&self) -> Result<Piece> {
        let piece = self.arriving.as_ref().and_then(|arriving| arriving.recv().ok());
        piece.ok_or_else(|| Error::failed("the thread that reads the disk ended early"))?
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        // The thread that reads ends when it cannot send a piece any more.
        self.arriving = None;
        // A panic of the reader was reported as a piece that did not come.
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

/// Reads the export at `uri` from begin to end.
pub(super) fn read(uri: &str) -> Result<Pieces> {
    let connected = nbd_client::connect(uri)?;
    let size_bytes = connected.export().size_bytes;
    let (sender, arriving) = sync_channel(PIECES_WAITING);
    let started = thread::Builder::new().name("read".into()).spawn(move || {
        let failed = |e: blk::Error| drop(sender.send(Err(e.into())));
        let reactor = match UringReactor::new() {
            Ok(reactor) => Rc::new(reactor),
            Err(e) => return failed(e),
        };
        let executor = Executor::new(reactor);
        let (env, out) = (executor.env(), sender.clone());
        let ended = executor.run(async move {
            let volume = connected.serve(&env)?;
            read_all(volume, size_bytes, &out).await
        });
        match ended {
            Some(Ok(())) => {}
            Some(Err(e)) => failed(e),
            None => drop(sender.send(Err(Error::failed("the reactor stopped")))),
        }
    });
    let reader = started.map_err(|e| Error::failed(format!("starting a thread: {e}")))?;
    Ok(Pieces { size_bytes, arriving: Some(arriving), reader: Some(reader) })
}

/// Sends all pieces. Ends early when the receiver was dropped.
async fn read_all(
    volume: Rc<dyn Volume>,
    size_bytes: u64,
    out: &SyncSender<Result<Piece>>,
) -> blk::Result<()> {
    let mut at = 0;
    while at < size_bytes {
        let end = size_bytes.min(at + STATUS_BYTES);
        let pieces = zeros(&volume, at, end).await?.into_iter().map(|(offset, bytes, is_zero)| {
            let volume = volume.clone();
            async move {
                if is_zero {
                    return Ok(Piece { bytes, data: None });
                }
                let (buf, result) = volume.read(offset, Buf::alloc(bytes as usize)).await;
                result.map(|()| Piece { bytes, data: Some(buf.to_vec()) })
            }
        });
        let mut pieces = stream::iter(pieces).buffered(READS_AHEAD);
        while let Some(piece) = pieces.next().await {
            if out.send(Ok(piece?)).is_err() {
                return Ok(());
            }
        }
        at = end;
    }
    Ok(())
}

/// Returns the pieces between `at` and `end`, with their offsets, and whether all of each is zeros.
async fn zeros(volume: &Rc<dyn Volume>, at: u64, end: u64) -> blk::Result<Vec<(u64, u64, bool)>> {
    let count = (end - at).div_ceil(PIECE_BYTES);
    let mut pieces: Vec<_> = (0..count)
        .map(|n| (at + n * PIECE_BYTES, PIECE_BYTES.min(end - at - n * PIECE_BYTES), true))
        .collect();
    let mut offset = at;
    while offset < end {
        for status in volume.clone().status(offset..end).await? {
            let stop = offset + status.len;
            if !status.zero {
                let (first, last) = ((offset - at) / PIECE_BYTES, (stop - at).div_ceil(PIECE_BYTES));
                pieces[first as usize..last as usize].iter_mut().for_each(|piece| piece.2 = false);
            }
            offset = stop;
        }
    }
    Ok(pieces)
}
