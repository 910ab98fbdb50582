//! VM folders in VMware's format: creating, opening and releasing them, and the folders that they may use.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::{VmImport, WhenFull};
use blk::dir::OWN_FOLDER;
use blk::file::Lock;
use blk::manifest::{Manifest, NewDisk, VmState};
use blk::{Dir, Env, Error, Result};
use vmdk::delta::Growth;
use vmdk::home::{FolderKind, Folders, Home, NewVm};

use crate::daemon::datastore::Datastore;
use crate::daemon::requests::prepare::Source;
use crate::daemon::running::home_files::{HomeFiles, HomePlan, MadeFiles, Roots, open_folders};
use crate::daemon::running::running_vms::RunningVms;
use crate::daemon::running::vm::RunningVm;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_locks::lock_source;
use crate::daemon::vm::home_terms::Terms;
use crate::daemon::vm::paths::open_path;
use crate::daemon::vm::settings::ADOPTED_NAME;
use crate::daemon::vm::vm_record::VmRecord;

impl HomeFiles {
    /// Opens a home on the control side's own core.
    pub(crate) async fn open(daemon: &Daemon, path: &Path) -> Result<HomeFiles> {
        let plan = plan_home(daemon, path).await?;
        HomeFiles::open_planned(&daemon.env, &daemon.descriptors, plan, datastore_folders(daemon)).await
    }
}

/// Reads how a home is opened. Any core can open it then.
pub(crate) async fn plan_home(daemon: &Daemon, path: &Path) -> Result<HomePlan> {
    let own = open_path(&daemon.env, path).await?.open_dir(OWN_FOLDER, false).await?;
    let Terms { roots, ignore_content_ids, write_sesparse } = Terms::read(&own).await?;
    let (path, others) = (path.to_path_buf(), other_homes(daemon, path));
    Ok(HomePlan { path, roots, ignore_content_ids, write_sesparse, others })
}

/// Locks the home: no other daemon opens it until `daemon.holds` releases it.
pub(crate) async fn hold(daemon: &Daemon, home: &Path) -> Result<()> {
    let own = open_path(&daemon.env, home).await?.open_dir(OWN_FOLDER, false).await?;
    daemon.holds.take(home, &own).await
}

/// Locks `folder` while a VM is imported from it: a VM that another daemon serves would change during the import. A
/// datastore's `.unstun` folder already has this daemon's lock.
async fn hold_source(daemon: &Daemon, folder: &Path) -> Result<Option<Lock>> {
    if daemon.datastores().iter().any(|datastore| datastore.root == folder) {
        return Ok(None);
    }
    match open_path(&daemon.env, folder).await?.open_dir(OWN_FOLDER, false).await {
        Ok(own) => lock_source(&own).await,
        Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Returns the folders for a home: its allowed roots, and the folders that are searched for readers of its layers.
async fn folders(daemon: &Daemon, home: &Path, roots: &Roots) -> Result<Folders> {
    open_folders(&daemon.env, roots, datastore_folders(daemon), &other_homes(daemon, home)).await
}

/// Returns the folders of the datastores. A device contains no VM files.
fn datastore_folders(daemon: &Daemon) -> Vec<Dir> {
    let datastores = daemon.datastores().into_iter();
    let in_folders = datastores.filter(|datastore| datastore.native.device().is_none());
    in_folders.map(|datastore| datastore.dir.clone()).collect()
}

/// Returns the homes beside `home` that are outside the datastores. VMs in the bin may be restored, so they are among
/// them. Entries inside a datastore are found there.
fn other_homes(daemon: &Daemon, home: &Path) -> Vec<PathBuf> {
    let mut others = Vec::new();
    for datastore in daemon.datastores().into_iter().filter(|datastore| datastore.native.device().is_none()) {
        others.extend(datastore.registry.all().values().cloned());
    }
    let binned = daemon.bin_homes().into_iter().filter(|(record, _)| record.path.is_some());
    others.extend(binned.map(|(_, other)| other));
    others.retain(|other| other != home);
    others
}

/// Creates an empty folder in the datastore, with a `.unstun` folder that says how to open the later content.
async fn new_home(
    daemon: &Daemon,
    datastore: &Rc<Datastore>,
    name: &str,
    terms: &Terms,
    when_full: WhenFull,
) -> Result<(Dir, Folders)> {
    let dir = new_home_folder(datastore, name, terms, when_full).await?;
    let folders = folders(daemon, &datastore.home(name).path, &terms.roots).await?;
    Ok((dir, folders))
}

/// Creates an empty folder for a home, without its own folders.
async fn new_home_folder(
    datastore: &Rc<Datastore>,
    name: &str,
    terms: &Terms,
    when_full: WhenFull,
) -> Result<Dir> {
    let dir = datastore.dir.open_dir(name, true).await?;
    datastore.dir.sync().await?;
    terms.write(&dir.open_dir(OWN_FOLDER, true).await?, when_full).await?;
    dir.sync().await?;
    Ok(dir)
}

/// Creates a VM with files in the datastore. Returns notices for the user, as do `import` and `clone`.
pub(crate) async fn create_vm(
    daemon: &Daemon,
    datastore: &Rc<Datastore>,
    name: &str,
    disks: Vec<NewDisk>,
    when_full: WhenFull,
) -> Result<Vec<String>> {
    let mut roots = Roots::new();
    for folder in disks.iter().filter_map(|disk| disk.folder.clone()) {
        if !roots.iter().any(|(_, known)| *known == folder) {
            roots.push((FolderKind::Own, folder));
        }
    }
    let terms = Terms { roots, ignore_content_ids: false, write_sesparse: false };
    let id = new_id(&daemon.env);
    let making = async {
        let (dir, folders) = new_home(daemon, datastore, name, &terms, when_full).await?;
        let new = NewVm { name, disks, id: Some(id) };
        MadeFiles::of(&Home::create(dir, folders, Growth::default(), new).await?).await
    };
    daemon.make_files(&datastore.home(name), name, Some(id), making).await
}

fn new_id(env: &Env) -> u128 {
    u128::from(env.random()) << 64 | u128::from(env.random())
}

/// Creates the files of a VM in a home that has been a VM. Refused if the home contains other files than the daemon's.
pub(crate) async fn create_in(daemon: &Daemon, home: &Path, name: &str, disks: Vec<NewDisk>) -> Result<()> {
    let folders = folders(daemon, home, &Roots::new()).await?;
    let dir = open_path(&daemon.env, home).await?;
    Home::create(dir, folders, Growth::default(), NewVm { name, disks, id: None }).await.map(drop)
}

/// Reads a VM whose folder stays as it is.
pub(crate) async fn read_vm(daemon: &Daemon, source: &Source) -> Result<VmState> {
    let _source_hold = hold_source(daemon, &source.folder).await?;
    let dir = open_path(&daemon.env, &source.folder).await?;
    Home::refuse_foreign_use(&dir).await?;
    let home = Home::new(dir, folders(daemon, &source.folder, &Roots::new()).await?, Growth::default());
    home.read().await
}

/// Creates a home in the datastore for a VM whose folder is only read.
pub(crate) async fn import(
    daemon: &Daemon,
    datastore: &Rc<Datastore>,
    source: &Source,
    request: &VmImport,
) -> Result<Vec<String>> {
    let folder = source.folder.to_string_lossy().into_owned();
    let roots = std::iter::once(folder).chain(source.roots.iter().cloned());
    let roots = roots.map(|path| (FolderKind::Foreign, path)).collect();
    let terms = Terms { roots, ignore_content_ids: request.ignore_content_ids, write_sesparse: false };
    let _source_hold = hold_source(daemon, &source.folder).await?;
    let mut from = Home::new(
        open_path(&daemon.env, &source.folder).await?,
        folders(daemon, &source.folder, &terms.roots).await?,
        Growth::default(),
    );
    from.ignore_content_ids = request.ignore_content_ids;
    let name = source.name.as_str();
    let making = async {
        let (dir, folders) = new_home(daemon, datastore, name, &terms, request.when_full).await?;
        MadeFiles::of(&Home::import(&from, dir, folders, Growth::default(), name).await?).await
    };
    daemon.make_files(&datastore.home(name), name, None, making).await
}

/// Refuses a folder that cannot become a home in place.
pub(crate) async fn refuse_adoption(daemon: &Daemon, source: &Source, request: &VmImport) -> Result<()> {
    let dir = open_path(&daemon.env, &source.folder).await?;
    Home::refuse_foreign_use(&dir).await?;
    // The lock comes before anything in the folder is read. It is taken permanently once the folder is known to become a
    // home.
    drop(hold_source(daemon, &source.folder).await?);
    refuse_own_folder(&dir).await?;
    let terms = adopted_terms(source, request);
    let folders = folders(daemon, &source.folder, &terms.roots).await?;
    let home = Home::new(dir, folders, Growth::default());
    home.set_write_sesparse(request.write_sesparse);
    refuse_tops(home).await
}

/// Refuses a folder that already has a `.unstun` folder. Its content decides which files are written and removed, so
/// none is accepted from an untrusted source.
async fn refuse_own_folder(dir: &Dir) -> Result<()> {
    if !dir.list().await?.iter().any(|name| name.trim_end_matches('/') == OWN_FOLDER) {
        return Ok(());
    }
    let cause = "this folder exists already, and a folder that becomes a VM's home must not contain one: its content \
                 decides which files unstun writes and removes";
    let remedy = "if a datastore serves this VM, remove the VM there first (`unstun vm remove VM` keeps the disks); \
                  otherwise inspect the folder, move it away, and import again";
    Err(Error::refused(dir.path_of(OWN_FOLDER), format!("{cause}; {remedy}")))
}

fn adopted_terms(source: &Source, request: &VmImport) -> Terms {
    let roots = source.roots.iter().map(|path| (FolderKind::Own, path.clone())).collect();
    let (ignore_content_ids, write_sesparse) = (request.ignore_content_ids, request.write_sesparse);
    Terms { roots, ignore_content_ids, write_sesparse }
}

/// Turns the VM's folder into a home, and locks it. Only the `.unstun` folder is added to it.
pub(crate) async fn adopt(daemon: &Daemon, source: &Source, request: &VmImport) -> Result<()> {
    let dir = open_path(&daemon.env, &source.folder).await?;
    let own = dir.open_dir(OWN_FOLDER, true).await?;
    daemon.holds.take(&source.folder, &own).await?;
    own.replace_file(ADOPTED_NAME, b"imported in place\n").await?;
    adopted_terms(source, request).write(&own, request.when_full).await?;
    dir.sync().await
}

/// Refuses running layers that cannot be written in place. A running layer must be of a writable format, and no other
/// VM may read it, such as a VM imported from the same folder.
async fn refuse_tops(home: Home) -> Result<()> {
    let manifest: &dyn Manifest = &home;
    let disks = home.read().await?.disks;
    for top in disks.iter().map(|disk| &disk.top) {
        let chain = manifest.chain(top).await?;
        if let Some(layer) = chain.last().filter(|layer| layer.read_only) {
            let cause = format!(
                "this is a disk's running layer, of type {}, which unstun reads but does not write",
                layer.format
            );
            let remedy = "import without --in-place: writes then go to a new delta (or add --write-sesparse for SEsparse)";
            return Err(Error::unsupported(home.dir().path_of(top), format!("{cause}; {remedy}")));
        }
    }
    // An import reads a nonpersistent disk at its reset state, and a disk that becomes persistent writes there.
    let written = disks.into_iter().flat_map(|disk| std::iter::once(disk.top).chain(disk.reset_to));
    let written: Vec<String> = written.collect();
    let Some(reader) = manifest.dependants(&written).await?.into_iter().next() else { return Ok(()) };
    let cause = format!("{} is read by {}; remove that VM first", reader.layer, reader.who);
    Err(Error::refused(home.dir().path(), cause))
}

/// Creates a linked clone of a snapshot. The snapshot cannot be removed meanwhile.
pub(crate) async fn clone(
    daemon: &Daemon,
    parent: &VmRecord,
    snapshot: &str,
    name: &str,
) -> Result<Vec<String>> {
    let (state, _hold) = parent.running.hold(snapshot, &format!("the clone {name}")).await?;
    let terms = async |files: &HomeFiles| {
        let roots = files.readable().into_iter().map(|path| (FolderKind::Foreign, path)).collect();
        Terms { roots, ignore_content_ids: files.home.ignore_content_ids, write_sesparse: false }
    };
    let terms = parent.running.with_files(terms).await;
    let making = async {
        let path = parent.datastore.home(name).path;
        new_home_folder(&parent.datastore, name, &terms, parent.when_full).await?;
        let (roots, others, name) = (terms.roots.clone(), other_homes(daemon, &path), name.to_owned());
        let clone = async move |running: Rc<RunningVms>, vm: Rc<RunningVm>| {
            let dir = open_path(&running.env, &path).await?;
            let folders = open_folders(&running.env, &roots, running.folders.all(), &others).await?;
            let files = vm.files.as_ref().expect("the VM has files");
            MadeFiles::of(&files.home.clone_to(state.id, dir, folders, &name).await?).await
        };
        parent.running.run(clone).await
    };
    daemon.make_files(&parent.datastore.home(name), name, None, making).await
}
