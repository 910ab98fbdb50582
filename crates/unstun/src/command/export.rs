//! `unstun export`: a state of a VM's disks as files that other programs read.

mod file;
mod ova;
mod qcow2;
mod resume;
mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::listen::NbdListen;
use api::name::{SnapshotRef, VmName};
use api::output::Output;
use api::progress;
use api::units::format_bytes;
use api::{CommitTarget, Disk, DiskMode, ExportFormat, Exported, ExportedFile, SnapshotTake, Vm};
use jiff::Timestamp;

pub(super) use self::file::{OutputFile, refuse_existing};
use self::qcow2::Qcow2;
pub(super) use self::resume::write_raw;
use crate::cli::ExportArgs;
use crate::command::commit;
use crate::command::pieces::{self, Piece, Pieces};

/// Interval between two looks at whether the connection has ended, and their number: 30 s.
const LOOK: Duration = Duration::from_millis(250);
const LOOKS_MAX: usize = 120;

/// What the command line names: `VM`, `VM@SNAPSHOT`, `VM/diskN` or `VM/diskN@SNAPSHOT`.
struct What {
    vm: VmName,
    disk: Option<u32>,
    snapshot: Option<SnapshotRef>,
}

impl What {
    fn parse(text: &str) -> Result<What> {
        let (of, snapshot) = match text.split_once('@') {
            Some((of, snapshot)) => (of, Some(snapshot.parse().map_err(Error::invalid)?)),
            None => (text, None),
        };
        if !of.contains('/') {
            return Ok(What { vm: of.parse().map_err(Error::invalid)?, disk: None, snapshot });
        }
        let disk: api::name::DiskRef = of.parse().map_err(Error::invalid)?;
        Ok(What { vm: disk.vm, disk: Some(disk.number), snapshot })
    }
}

/// A disk that is exported, and the file that it becomes.
#[derive(Clone)]
struct Source {
    number: u32,
    uri: String,
    size_bytes: u64,
    path: PathBuf,
}

pub(super) async fn run(args: &ExportArgs, client: &Client, output: Output) -> Result<()> {
    let what = What::parse(&args.what)?;
    let args = &ExportArgs { format: Some(format_of(args)?), ..args.clone() };
    let vm = client.vm_show(&what.vm).await?;
    let disks = chosen(&vm, what.disk)?;
    let paths: Vec<_> = disks.iter().map(|disk| path_of(args, disk, disks.len())).collect();
    refuse_resume(args, &what)?;
    // A take for nothing is avoided. A file that is continued is looked at with its record.
    let is_resumed = |path: &&PathBuf| args.resume && file::record_path(&data_path(args, path)).exists();
    let new = paths.iter().filter(|path| !is_resumed(path));
    new.chain([&args.file].into_iter().filter(|_| paths.len() > 1))
        .try_for_each(|path| refuse_existing(path))?;
    let (snapshot, own) = match &what.snapshot {
        Some(snapshot) => (snapshot.clone(), false),
        None => (take(&what.vm, client).await?, true),
    };
    let sources = disks.iter().zip(paths).map(|(disk, path)| source(&what.vm, disk, &snapshot, path));
    let exported = match sources.collect::<Result<Vec<_>>>() {
        Ok(sources) => write_beside(args, &what.vm, sources).await,
        Err(e) => Err(e),
    };
    let removed = if own { remove_snapshot(&what.vm, &snapshot, client).await } else { Ok(()) };
    let files = match (exported, removed) {
        (exported, Ok(())) => exported?,
        (exported, Err(e)) => {
            let what_failed = exported.err().map_or(String::new(), |failed| format!("{failed}; "));
            let stays =
                format!("the snapshot {snapshot} of the export stays; `unstun snapshot commit` removes it");
            return Err(Error::new(e.kind, format!("{what_failed}{stays}: {e}")));
        }
    };
    let exported = Exported {
        vm: what.vm,
        snapshot: (!own).then(|| snapshot.to_string()),
        format: args.format.unwrap_or(ExportFormat::Raw),
        files,
    };
    output.result(&exported, describe)
}

/// Returns the format, as the user or the file's name states it.
fn format_of(args: &ExportArgs) -> Result<ExportFormat> {
    let suffix = args.file.extension().and_then(|suffix| suffix.to_str()).map(str::to_ascii_lowercase);
    let named = match suffix.as_deref() {
        Some("raw" | "img") => Some(ExportFormat::Raw),
        Some("qcow2") => Some(ExportFormat::Qcow2),
        Some("ova") => Some(ExportFormat::Ova),
        _ => None,
    };
    args.format.or(named).ok_or_else(|| {
        let cause = format!("{}: the name does not say the format", args.file.display());
        Error::invalid(format!("{cause}; expected --format raw, qcow2, vmdk-flat, vmdk-stream or ova"))
    })
}

/// Refuses an export that cannot be continued.
fn refuse_resume(args: &ExportArgs, what: &What) -> Result<()> {
    if !args.resume {
        return Ok(());
    }
    if !matches!(args.format, Some(ExportFormat::Raw | ExportFormat::VmdkFlat)) {
        let expected = "expected --format raw or vmdk-flat";
        return Err(Error::invalid(format!(
            "--resume: only files with the disk's bytes in place can be continued; {expected}"
        )));
    }
    if what.snapshot.is_none() {
        let vm = &what.vm;
        let remedy = format!("`unstun snapshot take {vm} before-export`, then export {vm}@before-export");
        return Err(Error::invalid(format!(
            "--resume: an export without a snapshot has another content each time; {remedy}"
        )));
    }
    Ok(())
}

/// Returns the file with a disk's bytes, of which the other file of a disk is the description.
fn data_path(args: &ExportArgs, path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match args.format {
        Some(ExportFormat::VmdkFlat) => path.with_file_name(format!("{stem}-flat.vmdk")),
        _ => path.to_path_buf(),
    }
}

/// Returns the disks to export. Those that are not part of snapshots have no state that stays.
pub(super) fn chosen(vm: &Vm, number: Option<u32>) -> Result<Vec<Disk>> {
    let disks: Vec<Disk> = match number {
        Some(number) => vm.disks.iter().filter(|disk| disk.number == number).cloned().collect(),
        None => vm.disks.iter().filter(|disk| disk.mode == DiskMode::Persistent).cloned().collect(),
    };
    match disks.first() {
        None if number.is_some() => {
            Err(Error::not_found(format!("VM {} has no such disk; `unstun vm show` lists them", vm.name)))
        }
        None => Err(Error::refused(format!("VM {} has no disk that is part of snapshots", vm.name))),
        Some(disk) if disk.mode != DiskMode::Persistent => {
            let mode = disk.mode.word();
            Err(Error::refused(format!(
                "{}/disk{}: {mode}: it is no part of snapshots, so it has no state that stays",
                vm.name, disk.number
            )))
        }
        Some(_) => Ok(disks),
    }
}

/// Returns the file of a disk: the one that the command names, or one beside it with the disk's number.
fn path_of(args: &ExportArgs, disk: &Disk, count: usize) -> PathBuf {
    let single = count == 1 || args.format == Some(ExportFormat::Ova);
    let stem = args.file.file_stem().unwrap_or_default().to_string_lossy();
    let suffix =
        args.file.extension().map_or(String::new(), |suffix| format!(".{}", suffix.to_string_lossy()));
    match single {
        true => args.file.clone(),
        false => args.file.with_file_name(format!("{stem}-disk{}{suffix}", disk.number)),
    }
}

async fn take(vm: &VmName, client: &Client) -> Result<SnapshotRef> {
    let name = format!("export-{}", Timestamp::now().strftime("%Y%m%d-%H%M%S"));
    let name = name.parse().map_err(Error::invalid)?;
    let message = "made by an export, which removes it at its end".to_owned();
    let taken = client.snapshot_take(vm, &SnapshotTake { message, ..SnapshotTake::named(name) }).await?;
    taken.snapshot.name.parse().map_err(Error::failed)
}

pub(super) async fn remove_snapshot(vm: &VmName, snapshot: &SnapshotRef, client: &Client) -> Result<()> {
    // The daemon answers the last requests of a connection that has ended before the snapshot is free.
    for _ in 0..LOOKS_MAX {
        let clients = client.vm_show(vm).await?.clients;
        if !clients.iter().any(|one| one.snapshot.as_deref() == Some(snapshot.as_str())) {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    let job = client.snapshot_commit(vm, &CommitTarget::Snapshot(snapshot.clone())).await?;
    commit::ended(progress::watch(client, job).await?).map(drop)
}

fn source(vm: &VmName, disk: &Disk, snapshot: &SnapshotRef, path: PathBuf) -> Result<Source> {
    let export = format!("{vm}/disk{}@{snapshot}", disk.number);
    let (listen, _) = NbdListen::parse_uri(&disk.nbd_uri).map_err(Error::failed)?;
    Ok(Source { number: disk.number, uri: listen.uri(&export), size_bytes: disk.size_bytes, path })
}

/// Writes the files on a thread of its own. Ctrl-C ends it, and the incomplete files are removed.
async fn write_beside(args: &ExportArgs, vm: &VmName, sources: Vec<Source>) -> Result<Vec<ExportedFile>> {
    let (args, vm, cancelled) = (args.clone(), vm.to_string(), Arc::new(AtomicBool::new(false)));
    let seen = cancelled.clone();
    let mut writing = tokio::task::spawn_blocking(move || write_all(&args, &vm, &sources, &seen));
    tokio::select! {
        written = &mut writing => return written.map_err(|e| Error::failed(format!("the export ended early: {e}")))?,
        _ = tokio::signal::ctrl_c() => cancelled.store(true, Ordering::Relaxed),
    }
    writing.await.map_err(|e| Error::failed(format!("the export ended early: {e}")))?
}

fn write_all(
    args: &ExportArgs,
    vm: &str,
    sources: &[Source],
    cancelled: &AtomicBool,
) -> Result<Vec<ExportedFile>> {
    let total: u64 = sources.iter().map(|source| source.size_bytes).sum();
    let bar = progress::bar(total)?;
    let mut done = 0;
    let mut progress = |bytes: u64| {
        done += bytes;
        bar.set_position(done);
        bar.set_message(format!("{} of {}", format_bytes(done), format_bytes(total)));
        match cancelled.load(Ordering::Relaxed) {
            true => Err(ended(args.resume)),
            false => Ok(()),
        }
    };
    let files = match args.format {
        Some(ExportFormat::Ova) => write_ova(args, vm, sources, &mut progress)?,
        _ if args.resume => resume_all(args, sources, &mut progress)?,
        _ => sources.iter().map(|source| write_disk(args, source, &mut progress)).collect::<Result<_>>()?,
    };
    bar.finish();
    Ok(files)
}

fn ended(resumable: bool) -> Error {
    let files = if resumable { "the same command continues it" } else { "its incomplete files were removed" };
    Error::new(ErrorKind::Cancelled, format!("the export was ended; {files}"))
}

/// Writes what is missing of all disks. The records go when all disks are whole.
fn resume_all(
    args: &ExportArgs,
    sources: &[Source],
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<ExportedFile>> {
    let mut files = Vec::new();
    for source in sources {
        let file = resume_disk(args, source, progress).map_err(|e| match e.kind {
            ErrorKind::Cancelled | ErrorKind::Refused | ErrorKind::Locked | ErrorKind::Exists => e,
            kind => {
                Error::new(kind, format!("{e}; what was written stays, and the same command continues it"))
            }
        });
        files.push(file?);
    }
    sources.iter().try_for_each(|source| resume::forget(&data_path(args, &source.path)))?;
    Ok(files)
}

fn resume_disk(
    args: &ExportArgs,
    source: &Source,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<ExportedFile> {
    let (path, data) = (source.path.clone(), data_path(args, &source.path));
    let written = resume::write(&data, &source.uri, progress)?;
    if data != path && !describes(&path, &data) {
        let mut descriptor = OutputFile::create(&path)?;
        descriptor.append(&flat_text(&path, &data, written.size_bytes)?)?;
        descriptor.finish()?;
    }
    let (size_bytes, resumed_bytes) = (written.size_bytes, Some(written.resumed_bytes));
    let disk = Some(source.number);
    Ok(ExportedFile { path, disk, size_bytes, file_bytes: size_bytes, sha256: None, resumed_bytes })
}

fn write_disk(
    args: &ExportArgs,
    source: &Source,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<ExportedFile> {
    let pieces = pieces::read(&source.uri)?;
    let size_bytes = pieces.size_bytes;
    let mut file = OutputFile::create(&source.path)?;
    let mut sha256 = None;
    match args.format.unwrap_or(ExportFormat::Raw) {
        ExportFormat::Raw => {
            for_each(&pieces, progress, |piece| write_raw(piece, &mut file))?;
        }
        ExportFormat::Qcow2 => {
            let mut image = Qcow2::begin(size_bytes, &mut file)?;
            for_each(&pieces, progress, |piece| image.piece(piece, &mut file))?;
            image.finish(&mut file)?;
        }
        ExportFormat::VmdkFlat => return write_flat(args, source, &pieces, file, progress),
        ExportFormat::VmdkStream => {
            let name = source.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            sha256 = Some(stream::write(&name, &pieces, &mut file, progress)?);
        }
        ExportFormat::Ova => unreachable!("written as a whole"),
    }
    let (path, file_bytes) = (file.path().to_path_buf(), file.end());
    file.finish()?;
    Ok(ExportedFile { path, disk: Some(source.number), size_bytes, file_bytes, sha256, resumed_bytes: None })
}

fn for_each(
    pieces: &Pieces,
    progress: &mut dyn FnMut(u64) -> Result<()>,
    mut write: impl FnMut(&Piece) -> Result<()>,
) -> Result<()> {
    let mut left = pieces.size_bytes;
    while left > 0 {
        let piece = pieces.next()?;
        write(&piece)?;
        left -= piece.bytes;
        progress(piece.bytes)?;
    }
    Ok(())
}

/// Writes the data beside the descriptor: `NAME-flat.vmdk`. The descriptor is last.
fn write_flat(
    args: &ExportArgs,
    source: &Source,
    pieces: &Pieces,
    mut descriptor: OutputFile,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<ExportedFile> {
    let flat = data_path(args, &source.path);
    let mut file = OutputFile::create(&flat)?;
    for_each(pieces, progress, |piece| write_raw(piece, &mut file))?;
    descriptor.append(&flat_text(&source.path, &flat, pieces.size_bytes)?)?;
    let file_bytes = file.end();
    file.finish()?;
    let path = descriptor.path().to_path_buf();
    descriptor.finish()?;
    Ok(ExportedFile {
        path,
        disk: Some(source.number),
        size_bytes: pieces.size_bytes,
        file_bytes,
        sha256: None,
        resumed_bytes: None,
    })
}

/// Returns whether an earlier run has written the descriptor of a flat disk.
fn describes(path: &Path, flat: &Path) -> bool {
    let name = flat.file_name().unwrap_or_default().to_string_lossy();
    std::fs::read_to_string(path).is_ok_and(|text| text.contains(&format!(" FLAT \"{name}\" ")))
}

/// Returns the descriptor of a flat disk.
fn flat_text(path: &Path, flat: &Path, size_bytes: u64) -> Result<Vec<u8>> {
    let name = flat.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(vmdk::descriptor::flat_text(&path.to_string_lossy(), &name, size_bytes)?)
}

fn write_ova(
    args: &ExportArgs,
    vm: &str,
    sources: &[Source],
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<ExportedFile>> {
    let member = |source: &Source| ova::Member {
        uri: source.uri.clone(),
        file: format!("{vm}-disk{}.vmdk", source.number),
        capacity_bytes: source.size_bytes,
    };
    let members: Vec<_> = sources.iter().map(member).collect();
    let mut file = OutputFile::create(&args.file)?;
    ova::write(vm, (args.cpus, args.memory), &members, &mut file, progress)?;
    let (path, file_bytes) = (args.file.clone(), file.end());
    file.finish()?;
    let size_bytes = sources.iter().map(|source| source.size_bytes).sum();
    Ok(vec![ExportedFile { path, disk: None, size_bytes, file_bytes, sha256: None, resumed_bytes: None }])
}

fn describe(exported: &Exported) -> String {
    let line = |file: &ExportedFile| {
        let (path, bytes) = (file.path.display(), format_bytes(file.file_bytes));
        let hash = file.sha256.as_ref().map_or(String::new(), |hash| format!(", SHA-256 {hash}"));
        let resumed = file.resumed_bytes.filter(|bytes| *bytes > 0).map(format_bytes);
        let resumed = resumed
            .map_or(String::new(), |bytes| format!(", of which {bytes} were there and had their hashes"));
        format!("{path}: {} in {bytes}{hash}{resumed}", format_bytes(file.size_bytes))
    };
    exported.files.iter().map(line).collect::<Vec<_>>().join("\n")
}
