//! Checks of paths that run on the API's thread, because a slow file system must not hold up the core.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::error::{Error, ErrorKind, Result};
use api::location;
use api::name::{DatastoreName, VmName};
use api::{DatastoreAdd, DiskCreate, DiskFrom, ImageFormat, VmCreate, VmImport};
use tokio::sync::oneshot;

use crate::daemon::datastore::device;
use crate::daemon::vm::inuse;

/// Maximum wait for a file system to answer about a path. Together with the core's own wait for a datastore it is less
/// than ten seconds.
const ANSWER_WAIT: Duration = Duration::from_secs(4);

pub(crate) fn create(mut request: VmCreate) -> Result<VmCreate> {
    request.disks = request.disks.into_iter().map(disk).collect::<Result<_>>()?;
    Ok(request)
}

/// Checks that the disk's folder and its image exist, and replaces their paths by the canonical ones.
pub(crate) fn disk(disk: DiskCreate) -> Result<DiskCreate> {
    let dir = folder(disk.dir)?.map(PathBuf::from);
    let from = disk.from.map(image).transpose()?;
    Ok(DiskCreate { dir, from, ..disk })
}

fn image(from: DiskFrom) -> Result<DiskFrom> {
    if from.uri.contains("://") || from.format == Some(ImageFormat::Backup) {
        return Ok(from);
    }
    let path = Path::new(&from.uri);
    let path = path.canonicalize().map_err(|e| Error::at_path(&from.uri, "no such file", &e))?;
    if !path.is_file() {
        let remedy =
            "for a device or another program's disk, serve it as an NBD export: `qemu-nbd --read-only`";
        return Err(Error::invalid(format!("{}: expected a file; {remedy}", from.uri)));
    }
    Ok(DiskFrom { uri: recordable(&path)?.to_owned(), ..from })
}

pub(crate) fn folder(dir: Option<PathBuf>) -> Result<Option<String>> {
    dir.as_deref().map(existing).transpose()
}

/// Returns the datastore's name and the canonical path of its folder.
pub(crate) fn datastore(request: DatastoreAdd) -> Result<(DatastoreName, PathBuf)> {
    // A device is opened and reported by the path that its owner gave: /dev/disk/by-id is permanent, its target is not.
    let path = match device::is_device(&request.path) {
        true => PathBuf::from(recordable(&request.path)?),
        false => PathBuf::from(existing(&request.path)?),
    };
    let image = device::image_at(&path).transpose()?;
    let name = match (request.name, image) {
        (Some(name), _) => name,
        (None, Some(image)) => image.image.parse().map_err(Error::invalid)?,
        (None, None) => location::name_of(&path).map_err(|e| {
            Error::invalid(format!("{e}; choose a name: `unstun datastore add NAME={}`", path.display()))
        })?,
    };
    Ok((name, path))
}

/// What an import finds at its path.
pub(crate) enum Importable {
    Folder(Source),
    /// Canonical path of an OVA.
    Ova(String),
}

/// Finds what is to be imported. Refuses images of a folder that QEMU has open.
pub(crate) fn import(request: VmImport) -> Result<(VmImport, Importable)> {
    if is_ova(&request.path) {
        let path = request.path.canonicalize();
        let path = path.map_err(|e| Error::at_path(request.path.display(), "no such file", &e))?;
        return Ok((request, Importable::Ova(recordable(&path)?.to_owned())));
    }
    let source = Source::find(&request)?;
    let mut folders = vec![source.folder.clone()];
    folders.extend(source.roots.iter().map(PathBuf::from));
    inuse::refuse_locked(&folders)?;
    Ok((request, Importable::Folder(source)))
}

/// Returns whether a path is that of an OVA. A folder may have such a name too.
fn is_ova(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("ova")) && !path.is_dir()
}

/// Returns the path without links of a folder that a user named and that must exist. Every file records the folder by
/// this path.
fn existing(dir: &Path) -> Result<String> {
    let shown = dir.display();
    let missing = "no such folder; create it first";
    let path = dir.canonicalize().map_err(|e| Error::at_path(&shown, missing, &e))?;
    if !path.is_dir() {
        return Err(Error::invalid(format!("{shown}: expected a folder")));
    }
    Ok(recordable(&path)?.to_owned())
}

/// Refuses a path that cannot be recorded: the daemon's files contain paths, one per line.
fn recordable(path: &Path) -> Result<&str> {
    let is_full = |text: &str| text.starts_with('/') || text.starts_with(blk::rbd::PREFIX);
    let fits = |text: &&str| is_full(text) && !text.contains(char::is_control);
    let expected = "expected an absolute path in UTF-8, without control characters";
    path.to_str().filter(fits).ok_or_else(|| Error::invalid(format!("{}: {expected}", path.display())))
}

/// VM made by other software, as found on disk.
pub(crate) struct Source {
    pub name: VmName,
    pub folder: PathBuf,
    /// Other folders that its files may refer to.
    pub roots: Vec<String>,
}

impl Source {
    fn find(request: &VmImport) -> Result<Source> {
        let given = request.path.as_path();
        let is_file = given.is_file();
        let folder = match (is_file, given.parent()) {
            (true, Some(parent)) => parent,
            _ => given,
        };
        let folder = PathBuf::from(existing(folder)?);
        let configuration = if is_file { given.to_path_buf() } else { only_vmx(&folder)? };
        let stem = configuration.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = match &request.name {
            Some(name) => name.clone(),
            None => stem.parse().map_err(|e| Error::invalid(format!("{e}; choose a name with --name")))?,
        };
        let roots = request.allow_roots.iter().map(|root| existing(root)).collect::<Result<_>>()?;
        Ok(Source { name, folder, roots })
    }
}

/// Returns any configuration in the folder, for the name. A folder with two is refused when it is opened.
pub(crate) fn only_vmx(folder: &Path) -> Result<PathBuf> {
    let failed = |e: std::io::Error| Error::failed(format!("{}: {e}", folder.display()));
    let entries = folder.read_dir().map_err(failed)?.flatten().map(|entry| entry.path());
    let is_vmx = |path: &PathBuf| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("vmx"));
    let none = || Error::not_found(format!("{}: no .vmx file: this folder holds no VM", folder.display()));
    entries.filter(is_vmx).min().ok_or_else(none)
}

/// Runs a check of paths on another thread, because a file system may never answer. The calling thread answers other
/// requests meanwhile.
pub(crate) async fn beside<T: Send + 'static>(
    look: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("paths".into())
        .spawn(move || drop(sender.send(look())))
        .map_err(|e| Error::failed(format!("starting a thread: {e}")))?;
    let late = || {
        let seconds = ANSWER_WAIT.as_secs();
        let cause = format!("a folder that the request names has not answered for {seconds} s");
        Error::new(
            ErrorKind::Unavailable,
            format!("{cause}; the operation was not started; try again when the folder answers"),
        )
    };
    let found = tokio::time::timeout(ANSWER_WAIT, receiver).await.map_err(|_| late())?;
    found.map_err(|_| Error::failed("the thread that looks at paths ended early"))?
}
