//! Harness for tests of the daemon's verbs in the simulated world: a datastore, a folder for disks elsewhere, and a VM
//! made by other software.

use std::path::Path;
use std::rc::Rc;

use api::{BinEmpty, BinRestore, DiskCreate, VmClone, VmCreate, VmImport, VmRemove, WhenFull};
use blk::manifest::DeltaFormat;
use blk::reactor::OpenMode;
use blk::{Buf, Env, File};
use engine::Machine;
use engine::native::{NewStore, Store};
use sim::SimWorld;
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home as VmFiles, NewVm};

use crate::daemon::bin::policy::BinPolicy;
use crate::daemon::defect::Defect;
use crate::daemon::place::Place;
use crate::daemon::requests::prepare::Source;
use crate::daemon::running::messages;
use crate::daemon::state::Daemon;
use crate::daemon::vm::journal::Journal;
use crate::memory::Memory;

pub(super) const DATASTORE: &str = "/ds";
/// Folder for disks that are outside their VM's home.
pub(super) const FAST: &str = "/fast";
/// A VM in its own folder, made by other software.
pub(super) const FOREIGN: &str = "/esx";
pub(super) const DISK_BYTES: u64 = 128 << 10;
/// Number of bytes at the start of a VM's first disk that tests write.
const WRITTEN: usize = 4096;

pub(super) type Outcome<T> = Result<T, String>;

pub(super) fn text(what: &str) -> impl Fn(api::error::Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

fn low(what: &str) -> impl Fn(blk::Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

pub(super) fn world(seed: u64) -> SimWorld {
    let world = SimWorld::new(seed, sim::Options { roots_must_exist: true, ..sim::Options::default() });
    let made = world.run(|env| async move { make_folders(&env).await });
    made.expect("nothing is cut").expect("folders can be made");
    // Leftovers of crashes: a store that was being created, and a folder that was being removed.
    world.write_file("/ds/store.unstun.unstun-tmp", b"half");
    world.write_file("/ds/gone.unstun-tmp/.unstun/when-full", b"wait\n");
    world
}

async fn make_folders(env: &Env) -> Outcome<()> {
    let root = env.open_root("/").map_err(low("the root"))?;
    for name in [DATASTORE, FAST, FOREIGN] {
        root.open_dir(&name[1..], true).await.map_err(low(name))?;
    }
    root.sync().await.map_err(low("the root"))?;
    let datastore = env.open_root(DATASTORE).map_err(low(DATASTORE))?;
    // The store is smaller than a datastore makes it: no test needs 64 MiB of journal.
    let store = datastore.create_new("store.unstun").await.map_err(low("the store"))?;
    let small = NewStore { journal_pages: 1024, group_blocks: 512, ..NewStore::DEFAULT };
    Store::format(env, &store, small).await.map_err(low("the store"))?;
    datastore.sync().await.map_err(low(DATASTORE))?;
    let foreign = env.open_root(FOREIGN).map_err(low(FOREIGN))?;
    let new = NewVm::new("esx", &[DISK_BYTES]);
    VmFiles::create(foreign, Folders::default(), Growth::default(), new).await.map_err(low(FOREIGN))?;
    Ok(())
}

/// Starts a daemon on the datastore, with everything in it open.
pub(super) async fn boot(env: Env, defect: Option<Defect>) -> Outcome<Rc<Daemon>> {
    boot_with(env, defect, BinPolicy::default()).await
}

/// Does the same as `boot` with another bin policy.
pub(super) async fn boot_with(env: Env, defect: Option<Defect>, bin: BinPolicy) -> Outcome<Rc<Daemon>> {
    let place = Place {
        name: "ds".parse().expect("a name"),
        root: DATASTORE.into(),
        map_cache_bytes: 1 << 20,
        memory: Memory::new(1 << 30).expect("within its limits"),
        bin,
        guests_dir: std::path::PathBuf::new(),
        nbd: Vec::new(),
        nbd_tls: None,
        cores: 1,
        activity: export::Activity::new(1),
    };
    let daemon = Daemon::new(env, &place, Journal::nowhere(), messages::channel().0, Vec::new())
        .await
        .map_err(text("the datastore"))?;
    daemon.defects.plant(defect);
    daemon.open_all().await.map_err(text("opening"))?;
    Ok(daemon)
}

/// Runs `work` in a daemon that then shuts down cleanly. Returns None if the power was cut.
pub(super) fn served<F>(
    world: &SimWorld,
    defect: Option<Defect>,
    work: impl FnOnce(Rc<Daemon>) -> F + 'static,
) -> Option<Outcome<()>>
where
    F: Future<Output = Outcome<()>>,
{
    world.run(|env| async move {
        let daemon = boot(env, defect).await?;
        work(daemon.clone()).await?;
        daemon.shut_down().await.map_err(text("ending"))
    })
}

pub(super) async fn create(
    daemon: &Rc<Daemon>,
    name: &str,
    store: api::Store,
    dirs: &[Option<&str>],
) -> Outcome<()> {
    let disk = |dir: Option<&str>| DiskCreate { dir: dir.map(Into::into), ..DiskCreate::new(DISK_BYTES) };
    let request = VmCreate {
        name: name.parse().expect("a name"),
        disks: dirs.iter().copied().map(disk).collect(),
        store,
        when_full: WhenFull::Wait,
        datastore: None,
    };
    daemon.vm_create(request).await.map(drop).map_err(text("vm create"))
}

pub(super) async fn clone(daemon: &Rc<Daemon>, parent: &str, name: &str) -> Outcome<()> {
    let request = VmClone { snapshot: "s".parse().expect("a name"), name: name.parse().expect("a name") };
    let parent = parent.parse().expect("a name");
    daemon.vm_clone(&parent, request).await.map(drop).map_err(text("vm clone"))
}

pub(super) async fn import(daemon: &Rc<Daemon>, in_place: bool) -> Outcome<()> {
    let request = VmImport {
        path: FOREIGN.into(),
        name: None,
        in_place,
        allow_roots: Vec::new(),
        ignore_content_ids: false,
        write_sesparse: false,
        store: Some(api::Store::Redo),
        copy: true,
        verify: true,
        when_full: WhenFull::Wait,
        datastore: None,
    };
    let source = Source { name: "esx".parse().expect("a name"), folder: FOREIGN.into(), roots: Vec::new() };
    daemon.vm_import(request, source).await.map(drop).map_err(text("vm import"))
}

pub(super) async fn remove(daemon: &Rc<Daemon>, name: &str, delete_disks: bool) -> Outcome<()> {
    let name = name.parse().expect("a name");
    daemon
        .vm_remove(&name, VmRemove { delete_disks, purge: true, keep: false })
        .await
        .map(drop)
        .map_err(text("vm remove"))
}

/// Removes a VM with its disks, into the bin.
pub(super) async fn bin(daemon: &Rc<Daemon>, name: &str) -> Outcome<()> {
    let name = name.parse().expect("a name");
    let request = VmRemove { delete_disks: true, purge: false, keep: true };
    let removed = daemon.vm_remove(&name, request).await.map_err(text("vm remove"))?;
    removed.bin.map(drop).ok_or_else(|| "the bin did not keep it".to_owned())
}

pub(super) async fn restore(daemon: &Rc<Daemon>, name: &str) -> Outcome<()> {
    let request = BinRestore { entry: name.to_owned(), name: None, datastore: None, disconnect: false };
    daemon.bin_restore(request).await.map(drop).map_err(text("bin restore"))
}

/// Empties the bin.
pub(super) async fn evict(daemon: &Rc<Daemon>) -> Outcome<()> {
    let done = daemon.bin_empty(&BinEmpty::default()).await.map_err(text("bin empty"))?;
    done.left.first().map_or(Ok(()), |left| Err(left.cause.clone()))
}

/// Returns the engine's VM, which runs on the only core.
pub(super) fn machine(daemon: &Rc<Daemon>, name: &str) -> blk::Result<Rc<dyn Machine>> {
    Ok(daemon.entry(name)?.running.own().expect("the only core").machine.clone())
}

/// Fills the start of the VM's first disk with `byte`, durably.
pub(super) async fn write(daemon: &Rc<Daemon>, name: &str, byte: u8) -> Outcome<()> {
    let machine = machine(daemon, name).map_err(low("writing"))?;
    let (volume, _client) = machine.attach(0, "test").await.map_err(low("writing"))?;
    let data = Buf::copy_of(&[byte; WRITTEN]).freeze();
    volume.clone().write(0, data).await.map_err(low("writing"))?;
    volume.flush().await.map_err(low("flushing"))
}

pub(super) async fn read(daemon: &Rc<Daemon>, name: &str) -> Outcome<u8> {
    let machine = machine(daemon, name).map_err(low("reading"))?;
    let (volume, _client) = machine.attach(0, "test").await.map_err(low("reading"))?;
    let (buf, read) = volume.read(0, Buf::alloc(WRITTEN)).await;
    read.map_err(low("reading"))?;
    match buf.iter().all(|byte| *byte == buf[0]) {
        true => Ok(buf[0]),
        false => Err(format!("{name}: the start of its disk is torn")),
    }
}

pub(super) async fn take(daemon: &Rc<Daemon>, name: &str) -> Outcome<()> {
    let entry = daemon.entry(name).map_err(low("a take"))?;
    entry
        .running
        .take(engine::tree::new_snapshot(&daemon.env, "s", ""), DeltaFormat::Fitting)
        .await
        .map(drop)
        .map_err(low("a take"))
}

/// Copies a folder of plain files and folders, like `cp -r`.
pub(super) async fn copy(env: &Env, from: &Path, to: &Path) -> Outcome<()> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let above = env.open_root(&to.parent().expect("a folder").to_string_lossy()).map_err(low("copying"))?;
    let target = above.open_dir(&name(to), true).await.map_err(low("copying"))?;
    let source = env.open_root(&from.to_string_lossy()).map_err(low("copying"))?;
    for entry in source.list().await.map_err(low("copying"))? {
        if let Some(folder) = entry.strip_suffix('/') {
            Box::pin(copy(env, &from.join(folder), &to.join(folder))).await?;
            continue;
        }
        let file = source.open(&entry, OpenMode::Read).await.map_err(low("copying"))?;
        let copied = target.create_new(&entry).await.map_err(low("copying"))?;
        copy_file(&file, &copied).await.map_err(low("copying"))?;
    }
    target.sync().await.map_err(low("copying"))?;
    above.sync().await.map_err(low("copying"))
}

/// Copies only the data ranges, because disks are sparse.
async fn copy_file(from: &File, to: &File) -> blk::Result<()> {
    const PIECE: u64 = 1 << 20;
    let size = from.size().await?;
    if !size.is_multiple_of(512) {
        let text = from.read_all(PIECE).await?;
        let mut buf = Buf::zeroed(text.len().next_multiple_of(512));
        buf[..text.len()].copy_from_slice(&text);
        to.write(0, buf.freeze()).await?;
    }
    to.set_len(size).await?;
    for extent in from.extents(0, size - size % 512).await? {
        for at in (extent.offset..extent.offset + extent.len).step_by(PIECE as usize) {
            let len = PIECE.min(extent.offset + extent.len - at);
            let (buf, read) = from.read(at, Buf::alloc(len as usize)).await;
            read?;
            to.write(at, buf.freeze()).await?;
        }
    }
    to.flush().await
}

/// Renames a folder in the datastore by hand, like `mv`.
pub(super) async fn rename(env: &Env, from: &str, to: &str) -> Outcome<()> {
    let datastore = env.open_root(DATASTORE).map_err(low("renaming"))?;
    datastore.rename(from, to).await.map_err(low("renaming"))?;
    datastore.sync().await.map_err(low("renaming"))
}
