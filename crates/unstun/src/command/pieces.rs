//! The content of an export in order, read ahead by a thread of its own: all of it, or what differs from a snapshot.

use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use api::error::{Error, Result};
use blk::uring::UringReactor;
use blk::volume::Volume;
use blk::{Buf, Executor};
use export::nbd::proto::STATE_DIRTY;
use export::nbd_client::{self, Address, NbdVolume};
use futures_util::stream::{self, StreamExt};

use crate::command::exported_snapshot::{SNAPSHOT_MARK, SnapshotId, context_of, id_in, of_disk};

/// Largest piece in bytes, and the size of all pieces but a disk's last one where everything is read.
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
    /// Whether it is the same as in the snapshot of the comparison; it was not read then.
    pub is_same: bool,
    /// None for zeros.
    pub data: Option<Vec<u8>>,
}

/// What is read of an export.
pub(super) struct Wanted {
    pub address: Address,
    /// The snapshot that the export must be.
    pub snapshot: Option<SnapshotId>,
    /// The snapshot with which the export is compared.
    pub since: Option<SnapshotId>,
    /// Pieces begin at multiples of this, a power of two up to [`PIECE_BYTES`].
    pub unit_bytes: u64,
    /// Offset of the first piece, a multiple of [`PIECE_BYTES`].
    pub from: u64,
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
    read_wanted(&Wanted {
        address: Address::parse(uri)?,
        snapshot: None,
        since: None,
        unit_bytes: PIECE_BYTES,
        from: 0,
    })
}

/// Reads the export at `uri`, which must be this snapshot, from an offset on.
pub(super) fn read_from(uri: &str, snapshot: &SnapshotId, from: u64) -> Result<Pieces> {
    let address = Address::parse(uri)?;
    read_wanted(&Wanted {
        address,
        snapshot: Some(snapshot.clone()),
        since: None,
        unit_bytes: PIECE_BYTES,
        from,
    })
}

/// Returns the name of the export at `uri`, the snapshot that it is, and its size in bytes.
pub(super) fn look(uri: &str) -> Result<(String, SnapshotId, u64)> {
    let address = Address::parse(uri)?;
    let connected = nbd_client::connect_to(&address, None)?;
    let (_, name) = address.export.split_once(SNAPSHOT_MARK).unwrap_or((&address.export, ""));
    let snapshot = SnapshotId { name: name.to_owned(), id: id_in(&connected) };
    Ok((address.export.clone(), snapshot, connected.export().size_bytes))
}

/// Reads an export, or what differs from a snapshot.
///
/// # Errors
/// `NotFound`: the server cannot compare the export with that snapshot. `Refused`: the export is another snapshot by now.
pub(super) fn read_wanted(wanted: &Wanted) -> Result<Pieces> {
    let context = wanted.since.as_ref().map(|since| context_of(&since.name));
    let connected = nbd_client::connect_to(&wanted.address, context.as_deref())?;
    let export = &wanted.address.export;
    let (disk, name) = export.split_once(SNAPSHOT_MARK).unwrap_or((export, ""));
    let found = SnapshotId { name: name.to_owned(), id: id_in(&connected) };
    if wanted.snapshot.as_ref().is_some_and(|wanted| !wanted.is(&found)) {
        return Err(Error::refused(format!("{export}: another snapshot has this name by now")));
    }
    if let (Some(context), Some(since)) = (&context, &wanted.since) {
        let missing =
            |cause: &str| Error::not_found(format!("{export}: no comparison with {}: {cause}", since.name));
        if !connected.export().has_context(context) {
            return Err(missing("the server does not know it"));
        }
        if !since.is(&of_disk(&wanted.address, disk, &since.name)?) {
            return Err(missing("another snapshot has this name by now"));
        }
    }
    let (unit_bytes, from) = (wanted.unit_bytes, wanted.from);
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
            let reading = Reading { volume, context, unit_bytes, from, size_bytes };
            reading.read_all(&out).await
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

struct Reading {
    volume: Rc<NbdVolume>,
    context: Option<String>,
    unit_bytes: u64,
    from: u64,
    size_bytes: u64,
}

/// State of a unit, or of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Same,
    Zeros,
    Data,
}

impl Reading {
    /// Sends all pieces. Ends early when the receiver was dropped.
    async fn read_all(&self, out: &SyncSender<Result<Piece>>) -> blk::Result<()> {
        let mut at = self.from;
        while at < self.size_bytes {
            let end = self.size_bytes.min(at + STATUS_BYTES);
            let pieces = self.survey(at, end).await?.into_iter().map(|(offset, bytes, state)| {
                let volume = self.volume.clone();
                async move {
                    let is_same = state == State::Same;
                    if state != State::Data {
                        return Ok(Piece { bytes, is_same, data: None });
                    }
                    let (buf, result) = volume.read(offset, Buf::alloc(bytes as usize)).await;
                    result.map(|()| Piece { bytes, is_same, data: Some(buf.to_vec()) })
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

    /// Returns the pieces between `at` and `end`, with their offsets and states.
    async fn survey(&self, at: u64, end: u64) -> blk::Result<Vec<(u64, u64, State)>> {
        let mut units = vec![State::Zeros; (end - at).div_ceil(self.unit_bytes) as usize];
        let mut set = |from: u64, to: u64, state: State| {
            let (first, last) = ((from - at) / self.unit_bytes, (to - at).div_ceil(self.unit_bytes));
            units[first as usize..last as usize].fill(state);
        };
        let mut offset = at;
        while offset < end {
            for status in self.volume.clone().status(offset..end).await? {
                let stop = offset + status.len;
                if !status.zero {
                    set(offset, stop, State::Data);
                }
                offset = stop;
            }
        }
        if let Some(context) = &self.context {
            let mut changed = vec![false; units.len()];
            let mut offset = at;
            while offset < end {
                for extent in self.volume.block_status(context, offset..end).await? {
                    let stop = offset + extent.len;
                    if extent.flags & STATE_DIRTY != 0 {
                        let (first, last) =
                            ((offset - at) / self.unit_bytes, (stop - at).div_ceil(self.unit_bytes));
                        changed[first as usize..last as usize].fill(true);
                    }
                    offset = stop;
                }
            }
            units
                .iter_mut()
                .zip(changed)
                .filter(|(_, changed)| !changed)
                .for_each(|(unit, _)| *unit = State::Same);
        }
        Ok(self.join(at, end, &units))
    }

    /// Joins units of one state, up to the largest piece.
    fn join(&self, at: u64, end: u64, units: &[State]) -> Vec<(u64, u64, State)> {
        let mut pieces: Vec<(u64, u64, State)> = Vec::new();
        for (n, state) in units.iter().enumerate() {
            let offset = at + n as u64 * self.unit_bytes;
            let bytes = self.unit_bytes.min(end - offset);
            match pieces.last_mut() {
                Some((begin, length, same))
                    if same == state && *begin / PIECE_BYTES == offset / PIECE_BYTES =>
                {
                    *length += bytes;
                }
                _ => pieces.push((offset, bytes, *state)),
            }
        }
        pieces
    }
}
