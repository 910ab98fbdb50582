//! A native store by itself on modelled storage, for measurements of disks without a VM.

use std::rc::Rc;

use blk::{Dir, Env, File, Result};
use engine::SpacePolicy;
use engine::native::change::Op;
use engine::native::layout::BLOCK;
use engine::native::space::Growth;
use engine::native::{DiskOptions, NativeDisk, NewStore, Store, StoreOptions};

/// Creates an empty store in a new file of a folder.
pub async fn new_store(dir: &Dir, name: &str) -> Result<File> {
    let file = dir.create_new(name).await?;
    Store::format(dir.env(), &file, NewStore::default()).await?;
    dir.sync().await?;
    Ok(file)
}

/// Creates a store with the options of the daemon, and an empty disk of `bytes` in it, a multiple of 4 KiB.
pub async fn store_with_disk(env: &Env, bytes: u64) -> Result<(Rc<Store>, Rc<NativeDisk>)> {
    let file = new_store(&env.open_root("/")?, "store").await?;
    let store = Store::open(env.clone(), file, StoreOptions::default(), Growth::default(), true).await?;
    let node = store.new_node_id();
    store.change(&[Op::Create { node, size_blocks: bytes / BLOCK }])?;
    let terms = DiskOptions { policy: SpacePolicy::Error, space_retry_us: 500 };
    let disk = NativeDisk::new(&store, store.node(node)?, "disk".into(), 0, terms);
    Ok((store, disk))
}
