//! `unstun backup VM`: what has changed since the VM's last backup goes into the repository.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::listen::NbdListen;
use api::name::{SnapshotRef, VmName};
use api::output::Output;
use api::progress;
use api::units::format_bytes;
use api::{Disk, Quiesce, Snapshot, SnapshotTake, Store, Vm};
use export::nbd_client::Address;
use jiff::Timestamp;
use repo::{DiskBackup, Origin, Repository, Session};

use super::{FILE_SYSTEM, catalogue};
use crate::cli::BackupMakeArgs;
use crate::command::export::{chosen, remove_snapshot};
use crate::command::exported_snapshot::SnapshotId;
use crate::command::pieces::{self, PIECE_BYTES, Piece, Pieces, Wanted};
use crate::repository::{Place, cache, host, now_us, us};

/// Before the time in the name of a snapshot that a backup takes.
const NAME: &str = "backup-";
/// A backup whose repository was pruned meanwhile is made again, once.
const ATTEMPTS: u32 = 2;
/// Niceness of the command: it compresses and encrypts beside guests.
const PRIORITY: i32 = 10;
/// Chunks of one page of a map.
const PAGE_CHUNKS: u64 = 256;

/// Disk of the snapshot, and the disk of the backup before with the snapshot for a comparison.
#[derive(Clone)]
struct Source {
    number: u32,
    /// Size of the running disk; the snapshot's may be smaller.
    size_bytes: u64,
    address: Address,
    snapshot: SnapshotId,
    parent: Option<DiskBackup>,
    since: Option<SnapshotId>,
}

pub(super) async fn run(args: &BackupMakeArgs, client: &Client, output: Output) -> Result<()> {
    // Guests come first. Without the right to it the command works all the same.
    let _ = rustix::process::setpriority_process(None, PRIORITY);
    let Some(name) = &args.vm else { return Err(Error::invalid("which VM? expected its name")) };
    let vm = client.vm_show(name).await?;
    let disks = chosen(&vm, None)?;
    let repository = Place::resolve(&args.repo)?.open().await?;
    // What a backup that was interrupted has left counts as one of those that are replaced.
    let message = message(&repository);
    let before = client.snapshot_tree(name).await?.snapshots;
    let snapshot = match &args.snapshot {
        Some(wanted) => before
            .iter()
            .find(|one| wanted.as_str() == one.name || wanted.as_str() == one.id)
            .cloned()
            .ok_or_else(|| Error::not_found(format!("VM {name} has no snapshot {wanted}")))?,
        None => take(name, args.quiesce, &message, client).await?,
    };
    let own = args.snapshot.is_none();
    let origin = Origin {
        vm: vm.name.to_string(),
        vm_id: vm.id.clone(),
        snapshot: snapshot.name.clone(),
        snapshot_id: snapshot.id.clone(),
        host: host(),
        consistency: if snapshot.quiesced { FILE_SYSTEM } else { "crash" }.to_owned(),
        note: args.note.clone(),
    };
    let state = Sealed { vm: &vm, disks: &disks, snapshot: &snapshot, before: &before };
    let done = attempts(repository, &state, &origin, output).await;
    let keep = own && done.is_ok() && vm.store == Store::Native && !args.no_keep;
    // A snapshot that the user named is the user's, and what is newer is compared with by the next backup.
    let is_stale = |one: &&Snapshot| one.message == message && one.created < snapshot.created;
    let stale = before.iter().filter(is_stale).filter(|_| done.is_ok());
    let unwanted = stale.chain((own && !keep).then_some(&snapshot));
    for one in unwanted {
        let name: SnapshotRef = one.name.parse().map_err(Error::failed)?;
        if let Err(e) = remove_snapshot(&vm.name, &name, client).await {
            output.note(&format!("note: the snapshot {name} of a backup stays: {e}"));
        }
    }
    output.result(&done?, catalogue::describe)
}

/// The state that is backed up.
struct Sealed<'a> {
    vm: &'a Vm,
    disks: &'a [Disk],
    snapshot: &'a Snapshot,
    /// The snapshots that the VM had before.
    before: &'a [Snapshot],
}

/// Makes the backup, again if a prune has reclaimed meanwhile what it is made of.
async fn attempts(
    mut repository: Repository,
    state: &Sealed<'_>,
    origin: &Origin,
    output: Output,
) -> Result<api::Backup> {
    let taken_us = us(state.snapshot.created);
    let mut attempt = 1;
    loop {
        let sources = state.disks.iter().map(|disk| source(state, disk, &repository));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let done;
        (repository, done) = transfer(repository, sources, origin.clone(), taken_us).await?;
        match done {
            Err(e) if e.kind == ErrorKind::Locked && attempt < ATTEMPTS => output.note(&format!("note: {e}")),
            done => {
                let number = done?;
                return Ok(catalogue::shown(number, repository.state().backup(number)?, false));
            }
        }
        attempt += 1;
    }
}

/// Returns the description by which later backups recognise a snapshot that they replace.
fn message(repository: &Repository) -> String {
    format!("the last backup in repository {}; the next one compares with it", &repository.info().id[..8])
}

async fn take(vm: &VmName, quiesce: bool, message: &str, client: &Client) -> Result<Snapshot> {
    let name = format!("{NAME}{}", Timestamp::now().strftime("%Y%m%d-%H%M%S-%3f"));
    let quiesce = if quiesce { Quiesce::Require } else { Quiesce::No };
    let name = name.parse().map_err(Error::invalid)?;
    let take = SnapshotTake { message: message.to_owned(), quiesce, ..SnapshotTake::named(name) };
    Ok(client.snapshot_take(vm, &take).await?.snapshot)
}

/// Returns where a disk is read, and with what it is compared: the latest backup whose snapshot the VM still has, or else
/// the latest one, whose chunks are compared one by one.
fn source(state: &Sealed<'_>, disk: &Disk, repository: &Repository) -> Result<Source> {
    let Sealed { vm, snapshot, before, .. } = state;
    let named = |one: &Snapshot| SnapshotId { name: one.name.clone(), id: Some(one.id.clone()) };
    let (listen, _) = NbdListen::parse_uri(&disk.nbd_uri).map_err(Error::failed)?;
    let uri = listen.uri(&format!("{}/disk{}@{}", vm.name, disk.number, snapshot.name));
    let mut of_vm: Vec<_> =
        repository.state().backups.iter().filter(|(_, backup)| backup.origin.vm_id == vm.id).collect();
    of_vm.sort_by_key(|(number, backup)| (backup.taken_us, **number));
    let of_disk = |backup: &repo::Backup| backup.disks.iter().find(|one| one.number == disk.number).cloned();
    let known = |backup: &repo::Backup| before.iter().find(|one| one.id == backup.origin.snapshot_id);
    let compared = of_vm.iter().rev().find_map(|(_, backup)| Some((of_disk(backup)?, named(known(backup)?))));
    let (parent, since) = match compared {
        Some((parent, since)) => (Some(parent), Some(since)),
        None => (of_vm.last().and_then(|(_, backup)| of_disk(backup)), None),
    };
    Ok(Source {
        number: disk.number,
        size_bytes: disk.size_bytes,
        address: Address::parse(&uri)?,
        snapshot: named(snapshot),
        parent,
        since,
    })
}

/// Writes the backup on a thread of its own. Ctrl-C ends it; what it has stored is reclaimed by a later prune.
async fn transfer(
    mut repository: Repository,
    sources: Vec<Source>,
    origin: Origin,
    taken_us: u64,
) -> Result<(Repository, Result<u32>)> {
    let (cancelled, runtime) = (Arc::new(AtomicBool::new(false)), tokio::runtime::Handle::current());
    let seen = cancelled.clone();
    let mut writing = tokio::task::spawn_blocking(move || {
        let cache = cache(&repository);
        let done = runtime.block_on(write_all(&mut repository, cache, &sources, origin, taken_us, &seen));
        (repository, done)
    });
    let ended = tokio::select! {
        ended = &mut writing => ended,
        _ = tokio::signal::ctrl_c() => {
            cancelled.store(true, Ordering::Relaxed);
            writing.await
        }
    };
    ended.map_err(|e| Error::failed(format!("the backup ended early: {e}")))
}

async fn write_all(
    repository: &mut Repository,
    cache: Option<PathBuf>,
    sources: &[Source],
    origin: Origin,
    taken_us: u64,
    cancelled: &AtomicBool,
) -> Result<u32> {
    let bar = progress::bar(sources.iter().map(|source| source.size_bytes).sum())?;
    let mut session = Session::begin(repository, cache.as_deref(), now_us()).await?;
    let (mut passed, mut read) = (0, 0);
    for source in sources {
        let mut progress = |bytes: u64, was_read: u64| {
            (passed, read) = (passed + bytes, read + was_read);
            bar.set_position(passed);
            bar.set_message(format!("{} read", format_bytes(read)));
            match cancelled.load(Ordering::Relaxed) {
                true => {
                    Err(Error::new(ErrorKind::Cancelled, "the backup was ended; the repository is as before"))
                }
                false => Ok(()),
            }
        };
        write_disk(&mut session, source, &mut progress).await?;
    }
    let (number, _) = session.commit(origin, taken_us, now_us()).await?;
    bar.finish();
    Ok(number)
}

async fn write_disk(
    session: &mut Session<'_>,
    source: &Source,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let chunk_bytes = u64::from(session.chunk_bytes());
    let (pieces, parent) = read(source, chunk_bytes.min(PIECE_BYTES))?;
    let mut disk = session.disk(source.number, pieces.size_bytes, parent).await?;
    let (mut offset, mut page) = (0, Vec::new());
    while offset < pieces.size_bytes {
        let piece = pieces.next()?;
        let first = offset / chunk_bytes;
        if !piece.is_same && (piece.data.is_some() || parent.is_some()) {
            add(&mut page, first, chunk_bytes, &piece);
        }
        offset += piece.bytes;
        if offset.is_multiple_of(PAGE_CHUNKS * chunk_bytes) || offset == pieces.size_bytes {
            session.write(&mut disk, std::mem::take(&mut page)).await?;
        }
        progress(piece.bytes, piece.data.as_ref().map_or(0, |data| data.len() as u64))?;
    }
    Ok(session.finish(disk).await?)
}

/// Reads a disk: what differs from the backup before, or all of it. Returns the backup over which the chunks are written, too.
fn read(source: &Source, unit_bytes: u64) -> Result<(Pieces, Option<&DiskBackup>)> {
    let mut wanted = Wanted {
        address: source.address.clone(),
        snapshot: Some(source.snapshot.clone()),
        since: source.since.clone(),
        unit_bytes,
        from: 0,
    };
    let parent = source.parent.as_ref();
    let fits = |pieces: &Pieces| parent.is_none_or(|parent| parent.size_bytes <= pieces.size_bytes);
    match pieces::read_wanted(&wanted) {
        Ok(pieces) if fits(&pieces) => return Ok((pieces, parent)),
        // The disk was added since.
        Err(e) if e.kind == ErrorKind::NotFound && source.since.is_some() => {}
        // The snapshot is an older one, of before the disk grew.
        Ok(_) => {}
        Err(e) => return Err(e),
    }
    wanted.since = None;
    let pieces = pieces::read_wanted(&wanted)?;
    let parent = parent.filter(|_| fits(&pieces));
    Ok((pieces, parent))
}

/// Adds the chunks of a piece.
fn add(page: &mut Vec<(u64, Option<Vec<u8>>)>, first: u64, chunk_bytes: u64, piece: &Piece) {
    match &piece.data {
        Some(data) => {
            let chunks = data.chunks(chunk_bytes as usize);
            page.extend((first..).zip(chunks.map(|chunk| Some(chunk.to_vec()))));
        }
        None => {
            let count = piece.bytes.div_ceil(chunk_bytes);
            page.extend((first..first + count).map(|n| (n, None)));
        }
    }
}
