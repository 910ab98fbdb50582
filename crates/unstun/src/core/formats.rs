//! Where the roof names the format: homes made, opened and given up.

use std::rc::Rc;

use blk::layer::Layer;
use blk::manifest::Manifest;
use blk::reactor::OpenMode;
use blk::{Dir, Result};
use vmdk::home::{Home, NewVm};
use vmdk::vmfssparse::Growth;

use crate::api::WhenFull;

/// Present in the homes that the daemon serves.
const OWN_FOLDER: &str = ".unstun";
/// What a guest's write does when the datastore is full: one word.
const WHEN_FULL_NAME: &str = "when-full";
const WORD_BYTES_MAX: u64 = 64;
/// Our files in a home's own folder; the rest belongs to the home.
const OWN_NAMES: [&str; 4] = [WHEN_FULL_NAME, "events", "intent", "reserve"];

pub async fn create_vm(datastore: &Dir, name: &str, disk_bytes: &[u64], when_full: WhenFull) -> Result<()> {
    let dir = datastore.open_dir(name, true).await?;
    datastore.sync().await?;
    let made = async {
        Home::create(dir.clone(), Growth::default(), NewVm { name, disk_bytes }).await?;
        let own = dir.open_dir(OWN_FOLDER, true).await?;
        dir.sync().await?;
        let word = match when_full {
            WhenFull::Wait => "wait\n",
            WhenFull::Error => "error\n",
        };
        own.replace_file(WHEN_FULL_NAME, word.as_bytes()).await
    };
    let result = made.await;
    if result.is_err() {
        // Nothing refers to the folder yet; what cannot be removed is named by the next attempt.
        let _ = remove_all(datastore, name).await;
    }
    result
}

pub async fn read_when_full(home: &Dir) -> Result<WhenFull> {
    let own = home.open_dir(OWN_FOLDER, false).await?;
    match own.read_file(WHEN_FULL_NAME, WORD_BYTES_MAX).await {
        Ok(word) if word.trim_ascii() == b"error" => Ok(WhenFull::Error),
        Ok(_) => Ok(WhenFull::Wait),
        Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(WhenFull::Wait),
        Err(e) => Err(e),
    }
}

pub async fn open_home(home: Dir) -> Rc<dyn Manifest> {
    Rc::new(Home::new(home, Growth::default()))
}

/// A chain by its top's descriptor, read-only, base first.
pub async fn open_chain(dir: Dir, top: &str) -> Result<Vec<Rc<dyn Layer>>> {
    let home = Home::new(dir, Growth::default());
    let manifest: &dyn Manifest = &home;
    let mut layers = Vec::new();
    for info in manifest.chain(top).await? {
        layers.push(manifest.open(&info.name, false).await?);
    }
    Ok(layers)
}

/// The VM is no longer served. Its files stay, except ours, unless `delete_disks`.
pub async fn unregister(datastore: &Dir, name: &str, delete_disks: bool) -> Result<()> {
    if delete_disks {
        return remove_all(datastore, name).await;
    }
    let home = datastore.open_dir(name, false).await?;
    remove_own(&home).await
}

async fn remove_own(home: &Dir) -> Result<()> {
    let own = home.open_dir(OWN_FOLDER, true).await?;
    for name in OWN_NAMES {
        own.unlink_if_present(name).await?;
    }
    home.remove_dir(OWN_FOLDER).await?;
    home.sync().await
}

async fn remove_all(datastore: &Dir, name: &str) -> Result<()> {
    let home = datastore.open_dir(name, false).await?;
    remove_own(&home).await?;
    for file in home.list().await? {
        if !file.ends_with('/') {
            home.unlink_if_present(&file).await?;
        }
    }
    home.sync().await?;
    datastore.remove_dir(name).await?;
    datastore.sync().await
}

/// Whether files here bypass the page cache.
pub async fn is_direct(datastore: &Dir) -> bool {
    let own = datastore.open_dir(OWN_FOLDER, false).await;
    match own {
        Ok(own) => own.open("lock", OpenMode::Read).await.is_ok_and(|f| f.limits().direct),
        Err(_) => false,
    }
}
