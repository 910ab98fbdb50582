//! VMs in folders of the simulated datastore, and what they read.

use std::rc::Rc;

use blk::Env;
use engine::{Options, Vm};
pub(crate) use vmdk::delta::Growth;
use vmdk::home::{Folders, Home, NewVm};

/// Returns the growth of deltas in steps of so many bytes.
pub(crate) const fn growth(step_bytes: u64) -> Growth {
    Growth { step_bytes, chunk_bytes: step_bytes / 4 }
}

/// Returns options for small VMs.
pub(crate) fn options() -> Options {
    Options { reserve_bytes: 1 << 20, ..Options::default() }
}

/// Makes the files of a VM with empty disks.
pub(crate) async fn create(env: &Env, name: &str, growth: Growth, disks: &[u64]) {
    let root = env.open_root("/").unwrap();
    let dir = root.open_dir(name, true).await.unwrap();
    root.sync().await.unwrap();
    Home::create(dir, Folders::default(), growth, NewVm::new(name, disks)).await.unwrap();
}

/// Returns folders of a home that searches the whole datastore for clones, as in the daemon.
pub(crate) fn searching(env: &Env) -> Folders {
    Folders { search: vec![env.open_root("/").unwrap()], ..Folders::default() }
}

/// Opens a VM that has no files elsewhere.
pub(crate) async fn open(env: &Env, name: &str, growth: Growth, options: Options) -> Rc<Vm> {
    open_with(env, name, growth, options, Folders::default()).await.0
}

pub(crate) async fn open_with(
    env: &Env,
    name: &str,
    growth: Growth,
    options: Options,
    folders: Folders,
) -> (Rc<Vm>, Rc<Home>) {
    let home = Rc::new(Home::new(env.open_root(&format!("/{name}")).unwrap(), folders, growth));
    (Vm::open(env.clone(), home.clone(), options).await.unwrap(), home)
}
