//! An open image of a source: its content, and the files that show a change of it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::ImageFormat;
use api::error::{Error, ErrorKind, Result};
use blk::dir::OWN_FOLDER;
use blk::reactor::OpenMode;
use blk::sync::TaskMutex;
use blk::volume::Volume;
use blk::{Dir, Env, File, SECTOR};
use engine::{Disk, Options};
use export::nbd_client::{self, NbdVolume, Negotiated};
use futures_util::future::try_join_all;
use sha2::{Digest, Sha256};
use vmdk::ova::Ova;
use vmdk::stream;

use crate::daemon::source::origin::Origin;
use crate::daemon::source::qemu_nbd;
use crate::daemon::source::raw_image::RawImage;
use crate::daemon::source::read_lock::ReadLock;
use crate::daemon::vmware_files::chain::open_chain;

/// Most files of an image. Each has a descriptor and a lock, and is looked at after reads.
const FILES_MAX: usize = 1024;
/// Time for which a file must not have changed before its time is recorded: file systems round times to ticks of up to
/// 10 ms, and a second change within a tick would not show.
const UNCHANGED_NS: u64 = 100_000_000;
/// Looks at a file until it must have been unchanged for `UNCHANGED_NS`.
const LOOKS_MAX: usize = 20;
/// Bytes of the hash that are recorded.
const FINGERPRINT_BYTES: usize = 16;

/// An open image.
pub(super) struct Image {
    pub volume: Rc<dyn Volume>,
    pub size_bytes: u64,
    /// The volume, or what it reads from, if that is an NBD export.
    export: Option<Rc<NbdVolume>>,
    files: Vec<Stamped>,
    _locks: Vec<ReadLock>,
    /// Number of the last look at the files that has begun, and of the last one that found no change.
    begun: Cell<u64>,
    unchanged: Cell<u64>,
    turn: TaskMutex,
}

/// A file of an image, with what shows a change of it.
struct Stamped {
    file: File,
    size_bytes: u64,
    modified_ns: u64,
}

impl Image {
    /// Opens an image, and locks its files. `own_roots` are the folders of the daemon's datastores.
    ///
    /// # Errors
    /// `Locked`: another program writes the image. `Refused`: it belongs to a VM of a datastore, or has another fingerprint
    /// than the origin records.
    pub(super) async fn open(env: &Env, origin: &Origin, own_roots: &[PathBuf]) -> Result<Image> {
        let image = match origin.format {
            ImageFormat::Raw => open_raw(env, Path::new(&origin.uri), own_roots).await?,
            ImageFormat::Vmdk => open_vmdk(env, Path::new(&origin.uri), own_roots).await?,
            ImageFormat::Ova => {
                open_ova(env, Path::new(&origin.uri), origin.part.unwrap_or(0), own_roots).await?
            }
            ImageFormat::Nbd => open_nbd(env, &origin.uri).await?,
            format @ (ImageFormat::Qcow2 | ImageFormat::Vhdx | ImageFormat::Vdi | ImageFormat::Vpc) => {
                open_by_qemu(env, Path::new(&origin.uri), format, own_roots).await?
            }
        };
        if image.size_bytes == 0 || !image.size_bytes.is_multiple_of(SECTOR) {
            let found = image.size_bytes;
            let remedy = format!("`truncate -s %{SECTOR} {}` extends a copy of it with zeros", origin.uri);
            return Err(Error::invalid(format!(
                "{}: {found} bytes, expected a multiple of {SECTOR}, at least one; {remedy}",
                origin.uri
            )));
        }
        match &origin.fingerprint {
            Some(recorded) if image.fingerprint().as_ref() != Some(recorded) => Err(changed(&origin.uri)),
            _ => Ok(image),
        }
    }

    /// Returns an image of files that were opened by absolute paths.
    async fn new(env: &Env, volume: Rc<dyn Volume>, size_bytes: u64, files: Vec<File>) -> Result<Image> {
        let paths: Vec<PathBuf> = files.iter().map(|file| PathBuf::from(file.name())).collect();
        let take = move || paths.iter().map(|path| ReadLock::take(path)).collect::<Result<Vec<_>>>();
        let locks = env.blocking(take).await?;
        let files = try_join_all(files.into_iter().map(|file| Stamped::of(env, file))).await?;
        Ok(Image {
            volume,
            size_bytes,
            export: None,
            files,
            _locks: locks,
            begun: Cell::new(0),
            unchanged: Cell::new(0),
            turn: TaskMutex::default(),
        })
    }

    /// Returns an image without files.
    #[cfg(test)]
    pub(super) fn of(volume: Rc<dyn Volume>) -> Image {
        let (size_bytes, turn) = (volume.info().size_bytes, TaskMutex::default());
        let (begun, unchanged) = (Cell::new(0), Cell::new(0));
        Image {
            volume,
            size_bytes,
            export: None,
            files: Vec::new(),
            _locks: Vec::new(),
            begun,
            unchanged,
            turn,
        }
    }

    /// Returns the identity of the files: names, sizes and times. None where there are none.
    pub(super) fn fingerprint(&self) -> Option<String> {
        if self.files.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        for Stamped { file, size_bytes, modified_ns } in &self.files {
            let name = Path::new(file.name()).file_name().unwrap_or_default().to_string_lossy();
            hash.update(format!("{name} {size_bytes} {modified_ns}\n"));
        }
        let mut text = String::new();
        for byte in &hash.finalize()[..FINGERPRINT_BYTES] {
            let _ = write!(text, "{byte:02x}");
        }
        Some(text)
    }

    /// Returns why the image will never answer again; None while it may.
    pub(super) fn gone(&self) -> Option<blk::Error> {
        self.export.as_ref().and_then(|export| export.broken())
    }

    /// Returns the path of a file that was removed or replaced: the image is read as long as it stays open.
    pub(super) async fn replaced(&self, env: &Env) -> Option<String> {
        let of = |stamped: &Stamped| (PathBuf::from(stamped.file.name()), stamped.file.limits().inode);
        let files: Vec<_> = self.files.iter().map(of).collect();
        env.blocking(move || replaced(&files)).await
    }

    /// Fails if a file has changed since the image was opened: what a read that has ended returned may be the new content.
    /// Calls that arrive during a look share the next one.
    pub(super) async fn verify(&self) -> blk::Result<()> {
        let needed = self.begun.get() + 1;
        let _turn = self.turn.lock().await;
        if self.unchanged.get() >= needed {
            return Ok(());
        }
        let number = self.begun.get() + 1;
        self.begun.set(number);
        try_join_all(self.files.iter().map(Stamped::verify)).await?;
        self.unchanged.set(number);
        Ok(())
    }
}

/// Returns the first of the files whose path leads to another file by now, or to none.
fn replaced(files: &[(PathBuf, u64)]) -> Option<String> {
    let is_there = |path: &PathBuf, inode: u64| path.metadata().is_ok_and(|found| found.ino() == inode);
    let gone = files.iter().find(|(path, inode)| !is_there(path, *inode));
    gone.map(|(path, _)| path.display().to_string())
}

/// Returns the error of an image that is not the recorded one.
fn changed(uri: &str) -> Error {
    let cause = "the files of this image have other sizes or times than when the disk was made over it, so its content may \
                 be another";
    let remedy = "restore them with their times (`cp --preserve=timestamps`); what was not copied yet cannot be read without \
                  them";
    Error::new(ErrorKind::Refused, format!("{uri}: {cause}; {remedy}"))
}

impl Stamped {
    /// Returns the file with its size and time, once it has been unchanged for a while.
    async fn of(env: &Env, file: File) -> Result<Stamped> {
        for _ in 0..LOOKS_MAX {
            let (size_bytes, modified_ns) = (file.size().await?, file.modified_ns().await?);
            let now_ns = u64::try_from(env.unix_us()).unwrap_or(0).saturating_mul(1000);
            // A time in the future is another clock's.
            if now_ns.saturating_sub(modified_ns) >= UNCHANGED_NS || modified_ns > now_ns {
                return Ok(Stamped { file, size_bytes, modified_ns });
            }
            env.sleep_us(UNCHANGED_NS / 1000).await;
        }
        let cause = "a program is writing this file; stop it, or make the disk from a copy of the file";
        Err(Error::new(ErrorKind::Locked, format!("{}: {cause}", file.name())))
    }

    async fn verify(&self) -> blk::Result<()> {
        let (found, expected) = (self.file.modified_ns().await?, self.modified_ns);
        if found == expected {
            return Ok(());
        }
        let cause = "this file was changed while it is below a disk, so its content may be another; restore it with its time, \
                     or restore the disk from a backup";
        Err(blk::Error::damaged(self.file.name(), cause))
    }
}

/// Opens the folder of an image, and returns it with the file's name. Refuses the folder of a VM: its daemon writes there.
async fn open_folder(env: &Env, path: &Path, own_roots: &[PathBuf]) -> Result<(Dir, String)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::invalid(format!("{}: expected the absolute path of a file", path.display())));
    };
    let dir = env.open_path(&folder.to_string_lossy()).await?;
    let has_own = dir.list().await?.iter().any(|name| name.trim_end_matches('/') == OWN_FOLDER);
    if has_own && !own_roots.iter().any(|root| root == folder) {
        let cause = "this folder has a `.unstun` folder, so a datastore may serve a VM with these files";
        let remedy = "use an export of the VM's snapshot (`unstun vm show VM` has the addresses), or `unstun vm clone`";
        return Err(Error::refused(format!("{}: {cause}; {remedy}", path.display())));
    }
    Ok((dir, name.to_string_lossy().into_owned()))
}

async fn open_raw(env: &Env, path: &Path, own_roots: &[PathBuf]) -> Result<Image> {
    let (dir, name) = open_folder(env, path, own_roots).await?;
    let file = dir.open(&name, OpenMode::Read).await?;
    let size_bytes = file.size().await?;
    let volume = Rc::new(RawImage { file: file.clone(), size_bytes });
    Image::new(env, volume, size_bytes, vec![file]).await
}

async fn open_vmdk(env: &Env, path: &Path, own_roots: &[PathBuf]) -> Result<Image> {
    let (dir, name) = open_folder(env, path, own_roots).await?;
    let layers = match open_chain(dir.clone(), &name).await {
        // A compressed disk is no link of a chain.
        Err(e) if e.kind == blk::ErrorKind::Unsupported => return open_stream(env, &dir, &name, e).await,
        opened => opened.map_err(|e| {
            let e = Error::from(e);
            Error::new(e.kind, format!("{e} (read as a VMware disk)"))
        })?,
    };
    let (mut files, mut names) = (Vec::new(), BTreeSet::new());
    for layer in &layers {
        // The descriptor, which the layer has no file for.
        let descriptor = dir.open(layer.name(), OpenMode::Read).await?;
        for file in layer.files().iter().chain([&descriptor]) {
            if names.insert(file.name().to_owned()) {
                files.push(file.clone());
            }
        }
    }
    if files.len() > FILES_MAX {
        let remedy = "`unstun convert` makes one raw file of them";
        let cause = format!("the disk has {} files, expected at most {FILES_MAX}", files.len());
        return Err(Error::refused(format!("{}: {cause}; {remedy}", path.display())));
    }
    let disk =
        Disk::new(env.clone(), path.to_string_lossy().into_owned(), 0, layers, true, Options::default())?;
    let size_bytes = disk.size_bytes();
    Image::new(env, disk, size_bytes, files).await
}

/// Opens a streamOptimized disk. `refusal` is the error for a file that is none.
async fn open_stream(env: &Env, dir: &Dir, name: &str, refusal: blk::Error) -> Result<Image> {
    let file = dir.open(name, OpenMode::Read).await?;
    let stream = match stream::open(file.clone(), 0..file.size().await?).await {
        Err(e) if e.kind == blk::ErrorKind::Unsupported => return Err(refusal.into()),
        opened => opened?,
    };
    let size_bytes = stream.size_bytes();
    Image::new(env, stream, size_bytes, vec![file]).await
}

/// Opens a disk of an OVA. Disks without a file, which are empty, have no number.
async fn open_ova(env: &Env, path: &Path, part: u32, own_roots: &[PathBuf]) -> Result<Image> {
    let (dir, name) = open_folder(env, path, own_roots).await?;
    let file = dir.open(&name, OpenMode::Read).await?;
    let ova = Ova::open(file.clone()).await?;
    let disks: Vec<_> = ova.disks.iter().filter(|disk| disk.file.is_some()).collect();
    let Some(disk) = disks.get(part as usize) else {
        let cause = format!("{}: no disk {part}: the OVA has {} with content", path.display(), disks.len());
        return Err(Error::not_found(format!("{cause}, numbered from 0")));
    };
    let stream = ova.open_disk(disk).await?;
    let size_bytes = stream.size_bytes();
    Image::new(env, stream, size_bytes, vec![file]).await
}

async fn open_nbd(env: &Env, uri: &str) -> Result<Image> {
    let wanted = uri.to_owned();
    let connected = env.blocking(move || nbd_client::connect(&wanted)).await?;
    over_export(env, connected, Vec::new()).await
}

/// Opens an image through `qemu-nbd`. The file is watched as others are.
async fn open_by_qemu(env: &Env, path: &Path, format: ImageFormat, own_roots: &[PathBuf]) -> Result<Image> {
    let (dir, name) = open_folder(env, path, own_roots).await?;
    let file = dir.open(&name, OpenMode::Read).await?;
    let path = path.to_path_buf();
    let connected = env.blocking(move || qemu_nbd::serve(&path, format)).await?;
    over_export(env, connected, vec![file]).await
}

async fn over_export(env: &Env, connected: Negotiated, files: Vec<File>) -> Result<Image> {
    let export = connected.serve(env)?;
    let size_bytes = export.info().size_bytes;
    let image = Image::new(env, export.clone(), size_bytes, files).await?;
    Ok(Image { export: Some(export), ..image })
}
