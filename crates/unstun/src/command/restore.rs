//! `unstun restore`: a VM whose disks are over a backup, or raw files.

use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};

use api::client::Client;
use api::error::{Error, Result};
use api::name::VmName;
use api::output::Output;
use api::progress::{self, watch};
use api::units::format_bytes;
use api::{DiskCreate, DiskFrom, ImageFormat, Restored, Store, VmCreate, WhenFull};
use futures_util::StreamExt;
use futures_util::stream;
use repo::{Backup, DiskReader, Repository};

use crate::cli::RestoreArgs;
use crate::command::backup::find;
use crate::command::commit;
use crate::command::export::{OutputFile, refuse_existing, write_raw};
use crate::command::pieces::{PIECE_BYTES, Piece};
use crate::repository::Place;

/// Pieces that are read at once.
const READS_AHEAD: usize = 8;
/// Pieces that wait for the writer: 16 MiB.
const PIECES_WAITING: usize = 16;

pub(super) async fn run(args: &RestoreArgs, client: &Client, output: Output) -> Result<()> {
    let place = Place::resolve(&args.repo)?;
    let repository = place.open().await?;
    let (number, backup) = chosen(&repository, &args.which)?;
    let name = match &args.new_name {
        Some(name) => name.clone(),
        None => backup.origin.vm.parse().map_err(Error::invalid)?,
    };
    create(&place, (number, backup), &name, true, client).await?;
    if !args.run {
        wait_for_copies(&name, client).await?;
    }
    let restored = Restored {
        backup: number,
        vm: Some(name.to_string()),
        files: Vec::new(),
        size_bytes: backup.disks.iter().map(|disk| disk.size_bytes).sum(),
        complete: !args.run,
    };
    output.result(&restored, describe)
}

/// Creates a VM whose disks are over a backup, and copies their content into the store if `copy`.
pub(super) async fn create(
    place: &Place,
    (number, backup): (u32, &Backup),
    name: &VmName,
    copy: bool,
    client: &Client,
) -> Result<()> {
    let (key_file, passphrase_file) = place.key_paths();
    let disks = backup.disks.iter().map(|disk| {
        let from = DiskFrom {
            uri: place.stated.clone(),
            format: Some(ImageFormat::Backup),
            part: Some(disk.number),
            copy,
            verify: false,
            backup: Some(number),
            key_file: key_file.clone(),
            passphrase_file: passphrase_file.clone(),
        };
        DiskCreate { from: Some(from), ..DiskCreate::new(disk.size_bytes) }
    });
    let create = VmCreate {
        name: name.clone(),
        disks: disks.collect(),
        store: Store::Native,
        when_full: WhenFull::default(),
        datastore: client.within().await?,
    };
    client.vm_create(&create).await.map(drop)
}

fn chosen<'r>(repository: &'r Repository, which: &str) -> Result<(u32, &'r Backup)> {
    let number = find(repository.state(), which)?;
    Ok((number, repository.state().backup(number)?))
}

/// Waits until all of the content is in the store.
async fn wait_for_copies(vm: &VmName, client: &Client) -> Result<()> {
    let of_vm = format!("{vm}/");
    for source in client.source_list().await? {
        if !source.disks.iter().any(|disk| disk.starts_with(&of_vm)) {
            continue;
        }
        if let Some(id) = source.job {
            let job = client.job_show(id).await?;
            commit::ended(watch(client, job).await?)?;
        }
    }
    Ok(())
}

/// Writes raw files, one for each disk.
pub(super) async fn into_files(args: &RestoreArgs, output: Output) -> Result<()> {
    let Some(folder) = &args.into else { unreachable!("run elsewhere") };
    let repository = Place::resolve(&args.repo)?.open().await?;
    let (number, backup) = chosen(&repository, &args.which)?;
    std::fs::create_dir_all(folder).map_err(|e| Error::failed(format!("{}: {e}", folder.display())))?;
    // A name that is none of a VM could lead out of the folder.
    let vm: VmName = backup.origin.vm.parse().map_err(Error::invalid)?;
    let path = |disk: u32| folder.join(format!("{vm}-disk{disk}.raw"));
    let paths: Vec<_> = backup.disks.iter().map(|disk| path(disk.number)).collect();
    paths.iter().try_for_each(|path| refuse_existing(path))?;
    let bar = progress::bar(backup.disks.iter().map(|disk| disk.size_bytes).sum())?;
    for (disk, path) in backup.disks.iter().zip(&paths) {
        let reader = DiskReader::new(&repository, disk);
        write_file(&reader, path, &mut |bytes| bar.inc(bytes)).await?;
    }
    bar.finish();
    let restored = Restored {
        backup: number,
        vm: None,
        files: paths,
        size_bytes: backup.disks.iter().map(|disk| disk.size_bytes).sum(),
        complete: true,
    };
    output.result(&restored, describe)
}

/// Writes the content of a disk. A thread of its own writes what was read; the file has its name once it is whole.
async fn write_file(reader: &DiskReader, path: &Path, passed: &mut dyn FnMut(u64)) -> Result<()> {
    let mut file = OutputFile::create(path)?;
    let (sender, arriving) = sync_channel::<Piece>(PIECES_WAITING);
    let (read, written) = futures_util::join!(
        async {
            let read = read_all(reader, &sender, passed).await;
            drop(sender);
            read
        },
        tokio::task::spawn_blocking(move || -> Result<OutputFile> {
            arriving.iter().try_for_each(|piece| write_raw(&piece, &mut file))?;
            Ok(file)
        })
    );
    // An error of the writer is why the reader could not go on.
    let file = written.map_err(|e| Error::failed(format!("the thread that writes ended early: {e}")))??;
    read?;
    file.finish()
}

/// Sends a disk in pieces, in order. Ends early when the writer has failed.
async fn read_all(reader: &DiskReader, out: &SyncSender<Piece>, passed: &mut dyn FnMut(u64)) -> Result<()> {
    let (mut at, size_bytes) = (0, reader.size_bytes());
    while at < size_bytes {
        let mut wanted = Vec::new();
        for (bytes, has_data) in reader.allocated(at..size_bytes).await? {
            let end = at + bytes;
            let step = if has_data { PIECE_BYTES } else { bytes };
            let pieces = (at..end).step_by(step as usize);
            wanted.extend(pieces.map(|from| (from, step.min(end - from), has_data)));
            at = end;
        }
        let reads = wanted.into_iter().map(|(from, bytes, has_data)| async move {
            let mut data = has_data.then(|| vec![0; bytes as usize]);
            if let Some(data) = &mut data {
                reader.read(from, data).await?;
            }
            Ok::<_, Error>(Piece { bytes, is_same: false, data })
        });
        let mut reads = stream::iter(reads).buffered(READS_AHEAD);
        while let Some(piece) = reads.next().await {
            let piece = piece?;
            passed(piece.bytes);
            if out.send(piece).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn describe(restored: &Restored) -> String {
    let size = format_bytes(restored.size_bytes);
    match &restored.vm {
        Some(vm) if restored.complete => format!("VM {vm} has all of backup {} ({size})", restored.backup),
        Some(vm) => {
            let backup = restored.backup;
            format!(
                "VM {vm} can be started; backup {backup} ({size}) is copied in the background: `unstun source list`"
            )
        }
        None => {
            let paths: Vec<_> = restored.files.iter().map(|path| path.display().to_string()).collect();
            format!("{size} in {}", paths.join(", "))
        }
    }
}
