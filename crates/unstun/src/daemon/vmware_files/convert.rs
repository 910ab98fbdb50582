//! `convert`: output of a chain as one sparse raw file.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;

use api::Converted;
use api::error::{Error, ErrorKind, Result};
use blk::uring::UringReactor;
use blk::volume::Volume;
use blk::{Buf, Env, Executor};
use engine::{Disk, Options};
use futures_util::StreamExt;
use futures_util::stream;

use crate::daemon::vmware_files::chain::open_chain;
use crate::sparse::runs;

/// Size of one read in bytes: large enough for a rotating disk, and small enough that eight reads are 8 MiB.
const PIECE_BYTES: u64 = 1 << 20;
/// Mode of the raw file: only its owner may read a guest's disk, even if others may read the folder.
const RAW_FILE_MODE: u32 = 0o600;
const READS_AHEAD: usize = 8;
/// Number of bytes of the disk whose holes are queried at once.
const STATUS_BYTES: u64 = 256 << 20;

/// Reads a chain without changing it and writes the disk it shows to a sparse raw file. `progress` is called with (bytes
/// done, bytes total) after each piece.
pub(crate) fn convert(chain: &Path, output: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let reactor = Rc::new(UringReactor::new()?);
    let executor = Executor::new(reactor);
    let env = executor.env();
    let (disk, layers) = executor
        .run(open(env, chain.to_path_buf()))
        .ok_or_else(|| Error::failed("the reactor stopped"))??;
    let raw = create(output, disk.size_bytes())?;
    let mut bytes_written = 0;
    let mut at = 0;
    while at < disk.size_bytes() {
        let end = disk.size_bytes().min(at + STATUS_BYTES);
        bytes_written += executor
            .run(copy_data(disk.clone(), raw.try_clone().map_err(|e| failed(output, &e))?, at, end))
            .ok_or_else(|| Error::failed("the reactor stopped"))?
            .map_err(|e| annotate(e, output))?;
        at = end;
        progress(at, disk.size_bytes());
    }
    raw.sync_all().map_err(|e| failed(output, &e))?;
    Ok(Converted {
        chain: chain.to_path_buf(),
        output: output.to_path_buf(),
        size_bytes: disk.size_bytes(),
        bytes_written,
        layers,
    })
}

fn annotate(error: Error, output: &Path) -> Error {
    Error::new(error.kind, format!("{} (the incomplete {} remains)", error.message, output.display()))
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        std::io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        _ => ErrorKind::Failed,
    };
    Error::new(kind, format!("{}: {error}", path.display()))
}

fn create(output: &Path, size_bytes: u64) -> Result<File> {
    let raw = File::options().write(true).create_new(true).mode(RAW_FILE_MODE).open(output);
    let raw = raw.map_err(|e| failed(output, &e))?;
    raw.set_len(size_bytes).map_err(|e| failed(output, &e))?;
    Ok(raw)
}

async fn open(env: Env, chain: std::path::PathBuf) -> Result<(Rc<Disk>, u64)> {
    let path = chain.canonicalize().map_err(|e| failed(&chain, &e))?;
    let (folder, name) = match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => {
            (folder.to_string_lossy().into_owned(), name.to_string_lossy().into_owned())
        }
        _ => return Err(Error::invalid(format!("{}: expected a descriptor file", chain.display()))),
    };
    let dir = env.open_root(&folder)?;
    let layers = open_chain(dir, &name).await?;
    let count = layers.len() as u64;
    Ok((Disk::new(env, name, 0, layers, true, Options::default())?, count))
}

/// Copies the data between `at` and `end` without the holes; returns the number of bytes written.
async fn copy_data(disk: Rc<Disk>, raw: File, at: u64, end: u64) -> Result<u64> {
    let mut pieces = Vec::new();
    let mut offset = at;
    for status in disk.clone().status(at..end).await? {
        let stop = offset + status.len;
        while offset < stop && !status.zero {
            let len = PIECE_BYTES.min(stop - offset);
            pieces.push((offset, len));
            offset += len;
        }
        offset = stop;
    }
    let reads = pieces.into_iter().map(|(offset, len)| {
        let disk = disk.clone();
        async move { (offset, disk.read(offset, Buf::alloc(len as usize)).await) }
    });
    let mut reads = stream::iter(reads).buffer_unordered(READS_AHEAD);
    let mut written = 0;
    while let Some((offset, (buf, result))) = reads.next().await {
        result?;
        written += write_nonzero(&raw, offset, &buf)?;
    }
    Ok(written)
}

/// Writes the data without its zeros, which stay holes.
fn write_nonzero(raw: &File, offset: u64, bytes: &[u8]) -> Result<u64> {
    let mut written = 0;
    for (run, _) in runs(bytes).into_iter().filter(|(_, has_data)| *has_data) {
        raw.write_all_at(&bytes[run.clone()], offset + run.start as u64)
            .map_err(|e| Error::failed(format!("writing the raw file at {offset}: {e}")))?;
        written += run.len() as u64;
    }
    Ok(written)
}
