//! An open image of a source: its content, and the files that show a change of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::ImageFormat;
use api::error::{Error, ErrorKind, Result};
use blk::dir::OWN_FOLDER;
use blk::layer::Layer;
use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Dir, Env, File, SECTOR};
use engine::{Disk, Options};
use export::nbd_client::{self, NbdVolume, Negotiated};
use vmdk::ova::{Member, Ova};
use vmdk::stream;

use crate::daemon::running::descriptors::Descriptors;
use crate::daemon::source::backup_server;
use crate::daemon::source::origin::Origin;
use crate::daemon::source::qemu_nbd;
use crate::daemon::source::raw_image::RawImage;
use crate::daemon::source::watched_files::WatchedFiles;
use crate::daemon::vmware_files::chain::open_chain;

/// Most files of an image: those of a split disk of 2 TiB. Each has two descriptors, and is looked at after reads.
const FILES_MAX: usize = 1024;

/// What the daemon allows images.
pub(super) struct Terms {
    /// Folders of the daemon's datastores.
    pub own_roots: Vec<PathBuf>,
    pub descriptors: Rc<Descriptors>,
}

/// An open image.
pub(super) struct Image {
    pub volume: Rc<dyn Volume>,
    /// The volume, if that is an NBD export.
    export: Option<Rc<NbdVolume>>,
    pub files: WatchedFiles,
    /// Identity of a backup's disk, whose content never changes.
    identity: Option<String>,
    /// Archive and member, of a disk in an OVA.
    member: Option<(Ova, Member)>,
}

impl Image {
    /// Opens an image, and locks its files.
    ///
    /// # Errors
    /// `Locked`: another program writes the image. `Refused`: it belongs to a VM of a datastore, or has another fingerprint
    /// than the origin records.
    pub(super) async fn open(env: &Env, origin: &Origin, terms: &Terms) -> Result<Image> {
        let image = match origin.format {
            ImageFormat::Nbd => open_export(env, &origin.uri).await?,
            ImageFormat::Backup => {
                let wanted = origin.clone();
                let (connected, identity) = env.blocking(move || backup_server::serve(&wanted)).await?;
                Image { identity: Some(identity), ..over_export(env, connected, WatchedFiles::default())? }
            }
            _ => open_files(env, origin, terms).await?,
        };
        // What was read to open it is what the files have.
        image.files.verify().await?;
        let found = image.size_bytes();
        if found == 0 || !found.is_multiple_of(SECTOR) {
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

    /// Returns an image without files.
    #[cfg(test)]
    pub(super) fn of(volume: Rc<dyn Volume>) -> Image {
        Image { volume, export: None, files: WatchedFiles::default(), identity: None, member: None }
    }

    /// Returns what shows that the image is the one that was recorded; None if nothing does.
    pub(super) fn fingerprint(&self) -> Option<String> {
        self.identity.clone().or_else(|| self.files.fingerprint())
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.volume.info().size_bytes
    }

    /// Returns the bytes to read for a comparison of the hash; None if the image is in no OVA, or has no hash in one.
    pub(super) fn hashed_bytes(&self) -> Option<u64> {
        let (ova, member) = self.member.as_ref()?;
        ova.has_hash_of(&member.name).then(|| member.bytes())
    }

    /// Compares the hash of the disk's file in its OVA. `progress` is called as by [`Ova::verify`].
    ///
    /// # Errors
    /// `Damaged`: the file has another hash, or was changed meanwhile, which the files' next look shows.
    pub(super) async fn verify_hash(
        &self,
        progress: impl AsyncFnMut(u64) -> blk::Result<()>,
    ) -> blk::Result<()> {
        match &self.member {
            Some((ova, member)) => ova.verify(&member.name, progress).await,
            None => Ok(()),
        }
    }

    /// Returns why the image will never answer again; None while it may.
    pub(super) fn gone(&self) -> Option<blk::Error> {
        self.export.as_ref().and_then(|export| export.broken())
    }
}

/// Returns the error of an image that is not the recorded one.
fn changed(uri: &str) -> Error {
    let cause = "the files of this image have other sizes or times than when the disk was made over it, so its content may \
                 be another";
    let remedy = "restore them with their times (`cp --preserve=timestamps`); what was not copied yet cannot be read without \
                  them";
    Error::new(ErrorKind::Refused, format!("{uri}: {cause}; {remedy}"))
}

/// Opens an image in files. They are locked and noted first, and read for the image then.
async fn open_files(env: &Env, origin: &Origin, terms: &Terms) -> Result<Image> {
    let path = Path::new(&origin.uri);
    let (dir, name) = open_folder(env, path, &terms.own_roots).await?;
    let file = dir.open(&name, OpenMode::Read).await?;
    let found = match origin.format {
        ImageFormat::Vmdk => files_of_chain(&dir, &name, &file).await?,
        _ => vec![file.clone()],
    };
    terms.descriptors.admit_image(&origin.uri, found.len())?;
    let files = WatchedFiles::over(env, found).await?;
    let mut member = None;
    let volume: Rc<dyn Volume> = match origin.format {
        ImageFormat::Raw => Rc::new(RawImage { size_bytes: file.size().await?, file }),
        ImageFormat::Vmdk => open_vmdk(env, &dir, &name, &file, &files).await?,
        ImageFormat::Ova => {
            let (volume, of_archive) = open_ova(&file, origin.part.unwrap_or(0)).await?;
            member = Some(of_archive);
            volume
        }
        format => {
            let path = path.to_path_buf();
            let connected = env.blocking(move || qemu_nbd::serve(&path, format)).await?;
            return over_export(env, connected, files);
        }
    };
    Ok(Image { volume, export: None, files, identity: None, member })
}

/// Opens the folder of an image, and returns it with the file's name. Refuses the folder of a VM: its daemon writes there.
pub(super) async fn open_folder(env: &Env, path: &Path, own_roots: &[PathBuf]) -> Result<(Dir, String)> {
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

/// Opens the links of a chain that ends in `name`; the inner error is that of a disk that is no link of one, as a compressed
/// one.
async fn links(dir: &Dir, name: &str) -> Result<std::result::Result<Vec<Rc<dyn Layer>>, blk::Error>> {
    match open_chain(dir.clone(), name).await {
        Err(e) if e.kind == blk::ErrorKind::Unsupported => Ok(Err(e)),
        opened => opened.map(Ok).map_err(|e| {
            let e = Error::from(e);
            Error::new(e.kind, format!("{e} (read as a VMware disk)"))
        }),
    }
}

/// Returns the files of a chain, each once: of each link its extents, and then its descriptor.
async fn files_of_chain(dir: &Dir, name: &str, file: &File) -> Result<Vec<File>> {
    let Ok(links) = links(dir, name).await? else { return Ok(vec![file.clone()]) };
    let (mut files, mut names) = (Vec::new(), BTreeSet::new());
    for link in &links {
        let descriptor = dir.open(link.name(), OpenMode::Read).await?;
        for file in link.files().iter().chain([&descriptor]) {
            if names.insert(file.name().to_owned()) {
                files.push(file.clone());
            }
        }
    }
    if files.len() > FILES_MAX {
        let cause = format!("the disk has {} files, expected at most {FILES_MAX}", files.len());
        let remedy = "`unstun convert` makes one raw file of them";
        return Err(Error::refused(format!("{}: {cause}; {remedy}", file.name())));
    }
    Ok(files)
}

/// Opens a chain, or a streamOptimized disk.
async fn open_vmdk(
    env: &Env,
    dir: &Dir,
    name: &str,
    file: &File,
    files: &WatchedFiles,
) -> Result<Rc<dyn Volume>> {
    let links = match links(dir, name).await? {
        Ok(links) => links,
        Err(refusal) => {
            return match stream::open(file.clone(), 0..file.size().await?).await {
                Err(e) if e.kind == blk::ErrorKind::Unsupported => Err(refusal.into()),
                opened => Ok(opened?),
            };
        }
    };
    let other = links.iter().flat_map(|link| link.files()).find(|file| !files.has(file));
    if let Some(other) = other {
        let cause = "this file was replaced while the image was opened; try again";
        return Err(Error::new(ErrorKind::Locked, format!("{}: {cause}", other.name())));
    }
    Ok(Disk::new(env.clone(), file.name().to_owned(), 0, links, true, Options::default())?)
}

/// Opens a disk of an OVA. Disks without a file, which are empty, have no number.
async fn open_ova(file: &File, part: u32) -> Result<(Rc<dyn Volume>, (Ova, Member))> {
    let ova = Ova::open(file.clone()).await?;
    let disks: Vec<_> = ova.disks.iter().filter_map(|disk| Some((disk, disk.file.clone()?))).collect();
    let Some((disk, member)) = disks.get(part as usize).cloned() else {
        let cause = format!("{}: no disk {part}: the OVA has {} with content", file.name(), disks.len());
        return Err(Error::not_found(format!("{cause}, numbered from 0")));
    };
    Ok((ova.open_disk(disk).await?, (ova, member)))
}

async fn open_export(env: &Env, uri: &str) -> Result<Image> {
    let wanted = uri.to_owned();
    let connected = env.blocking(move || nbd_client::connect(&wanted)).await?;
    over_export(env, connected, WatchedFiles::default())
}

fn over_export(env: &Env, connected: Negotiated, files: WatchedFiles) -> Result<Image> {
    let export = connected.serve(env)?;
    Ok(Image { volume: export.clone(), export: Some(export), files, identity: None, member: None })
}
