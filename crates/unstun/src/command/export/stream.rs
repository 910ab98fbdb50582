//! A streamOptimized disk, compressed by several threads.

use std::thread;

use api::error::{Error, Result};
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};
use vmdk::descriptor::ContentId;
use vmdk::stream::{GRAIN_BYTES, StreamWriter, compress};

use super::file::OutputFile;
use crate::command::pieces::{PIECE_BYTES, Piece, Pieces};
use crate::hex::hex;

/// Pieces that are compressed together: 128 grains, which all cores share.
const BATCH_PIECES: usize = 8;
const GRAINS_OF_PIECE: usize = PIECE_BYTES as usize / GRAIN_BYTES;
const _: () = assert!(PIECE_BYTES.is_multiple_of(GRAIN_BYTES as u64));

/// Writes the disk behind what the file has. Returns its hash, as the manifest of an OVA has it.
pub(super) fn write(
    name: &str,
    pieces: &Pieces,
    file: &mut OutputFile,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<String> {
    let mut id = [0; 16];
    SystemRandom::new().fill(&mut id).map_err(|_| Error::failed("the system has no random numbers"))?;
    let size_bytes = pieces.size_bytes;
    let (mut out, mut hash) = (Vec::new(), Sha256::new());
    let mut writer =
        StreamWriter::begin(name, size_bytes, ContentId::from_random(u128::from_le_bytes(id)), &mut out)?;
    let mut left = size_bytes;
    while left > 0 {
        let mut batch = Vec::new();
        while left > 0 && batch.len() < BATCH_PIECES {
            let piece = pieces.next()?;
            left -= piece.bytes;
            batch.push(piece);
        }
        let done: u64 = batch.iter().map(|piece| piece.bytes).sum();
        for grain in compressed(&batch)? {
            writer.grain(grain.as_deref(), &mut out)?;
        }
        put(&mut out, &mut hash, file)?;
        progress(done)?;
    }
    writer.finish(&mut out)?;
    put(&mut out, &mut hash, file)?;
    Ok(hex(&hash.finalize()))
}

fn put(out: &mut Vec<u8>, hash: &mut Sha256, file: &mut OutputFile) -> Result<()> {
    hash.update(&*out);
    file.append(out)?;
    out.clear();
    Ok(())
}

/// Compresses the grains of some pieces, in their order.
fn compressed(batch: &[Piece]) -> Result<Vec<Option<Vec<u8>>>> {
    let mut grains: Vec<Option<&[u8]>> = Vec::with_capacity(batch.len() * GRAINS_OF_PIECE);
    for piece in batch {
        let data = piece.data.as_deref();
        for start in (0..piece.bytes as usize).step_by(GRAIN_BYTES) {
            let end = (piece.bytes as usize).min(start + GRAIN_BYTES);
            grains.push(data.map(|data| &data[start..end]));
        }
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = grains.len().div_ceil(threads);
    thread::scope(|scope| {
        let workers: Vec<_> = grains
            .chunks(share)
            .map(|some| scope.spawn(|| some.iter().map(|grain| grain.and_then(compress)).collect::<Vec<_>>()))
            .collect();
        let mut all = Vec::with_capacity(grains.len());
        for worker in workers {
            all.extend(worker.join().map_err(|_| Error::failed("a thread that compresses ended early"))?);
        }
        Ok(all)
    })
}
