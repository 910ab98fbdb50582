//! `unstun backup serve`: a disk of a backup as a read-only NBD export. The daemon starts it for disks over backups.

use std::future::pending;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;

use api::client::runtime;
use api::error::{Error, Result};
use blk::socket::{Listener, Peer};
use blk::uring::UringReactor;
use blk::volume::{Attachment, BlockStatus, ExportEntry, Exports, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Executor, Local, Slice};
use export::nbd::{FrontEnd, serve};
use futures_util::future::select;
use repo::DiskReader;

use super::catalogue::find;
use crate::cli::RepoArgs;
use crate::repository::Place;

/// Begin of the line that says that clients can connect; the identity of the content follows.
pub(crate) const READY: &str = "ready ";

pub(super) fn run(which: &str, args: &RepoArgs, disk: u32, socket: &Path, once: bool) -> Result<()> {
    let repository = runtime()?.block_on(Place::resolve(args)?.open())?;
    let number = find(repository.state(), which)?;
    let backup = repository.state().backup(number)?;
    let found = backup.disks.iter().find(|one| one.number == disk).ok_or_else(|| {
        let numbers: Vec<_> = backup.disks.iter().map(|one| one.number.to_string()).collect();
        Error::not_found(format!("backup {number}: no disk {disk}: it has {}", numbers.join(", ")))
    })?;
    let description = format!("disk{disk} of backup {number} of {}", backup.origin.vm);
    let ready = format!("{READY}{}", repository.identity(number, found));
    let reader = DiskReader::new(&repository, found);
    serve_reader(reader, description, ready, socket, once)
}

fn serve_reader(
    reader: DiskReader,
    description: String,
    ready: String,
    socket: &Path,
    once: bool,
) -> Result<()> {
    let reactor = Rc::new(UringReactor::new()?);
    let path = socket.to_string_lossy().into_owned();
    let handle = reactor.listen_unix(&path)?;
    let executor = Executor::new(reactor);
    let env = executor.env();
    let front_end = FrontEnd::new();
    let exports =
        Rc::new(OneExport { volume: Rc::new(BackupVolume { env: env.clone(), reader }), description });
    if once {
        env.spawn_detached(Box::pin(end_with_last_client(env.clone(), front_end.clone())));
    }
    // A caller waits for this line.
    let said = writeln!(std::io::stdout(), "{ready}").and_then(|()| std::io::stdout().flush());
    said.map_err(|e| Error::failed(format!("standard output: {e}")))?;
    let listener = Listener::new(env.clone(), handle, format!("unix:{path}"));
    executor.run(async move { serve(env, listener, exports, front_end, None).await });
    Ok(())
}

/// The only export.
struct OneExport {
    volume: Rc<BackupVolume>,
    description: String,
}

/// Time in which the only client has to connect.
const FIRST_CLIENT_US: u64 = 60_000_000;

/// Stops the server once its client has left, or if none has come.
async fn end_with_last_client(env: Env, front_end: Rc<FrontEnd>) {
    let late = async {
        env.sleep_us(FIRST_CLIENT_US).await;
        if !front_end.sessions().is_empty() {
            pending::<()>().await;
        }
    };
    select(pin!(front_end.used_and_left()), pin!(late)).await;
    front_end.stop();
}

impl Exports for OneExport {
    fn list(&self) -> Vec<ExportEntry> {
        vec![ExportEntry { name: String::new(), description: self.description.clone() }]
    }

    fn attach<'a>(&'a self, name: &'a str, _client: &'a Peer) -> Local<'a, blk::Result<Attachment>> {
        let found = match name.is_empty() {
            true => Ok(Attachment { volume: self.volume.clone(), changes: None, token: Box::new(()) }),
            false => Err(blk::Error::not_found(name, "the only export has an empty name")),
        };
        Box::pin(std::future::ready(found))
    }
}

struct BackupVolume {
    env: Env,
    reader: DiskReader,
}

fn read_only() -> blk::Error {
    blk::Error::refused("", "a backup cannot be written")
}

impl Volume for BackupVolume {
    fn info(&self) -> VolumeInfo {
        let preferred_bytes = u32::try_from(self.reader.chunk_bytes()).unwrap_or(1 << 20);
        VolumeInfo {
            size_bytes: self.reader.size_bytes(),
            read_only: true,
            preferred_bytes,
            fast_zero: false,
        }
    }

    fn read(self: Rc<Self>, offset: u64, mut buf: Buf) -> Local<'static, (Buf, blk::Result<()>)> {
        Box::pin(async move {
            if let Some(ahead) = self.reader.read_ahead(offset) {
                self.env.spawn_detached(Box::pin(ahead));
            }
            let result = self.reader.read(offset, &mut buf).await;
            (buf, result)
        })
    }

    fn write(self: Rc<Self>, _offset: u64, _data: Slice) -> Local<'static, blk::Result<()>> {
        Box::pin(async { Err(read_only()) })
    }

    fn flush(self: Rc<Self>) -> Local<'static, blk::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(self: Rc<Self>, _range: Range<u64>, _mode: ZeroMode) -> Local<'static, blk::Result<()>> {
        Box::pin(async { Err(read_only()) })
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, blk::Result<Vec<BlockStatus>>> {
        Box::pin(async move {
            let pieces = self.reader.allocated(range).await?;
            let status = |(len, has_data): (u64, bool)| BlockStatus { len, hole: !has_data, zero: !has_data };
            Ok(pieces.into_iter().map(status).collect())
        })
    }
}
