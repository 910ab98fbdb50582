//! A VM's home on the simulated medium.

use std::rc::Rc;

use blk::{Env, Result};
use engine::Vm;
use vmdk::check::{Severity, Target};
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home, NewVm};

const FOLDER: &str = "web";
/// Folder of the VM.
pub const HOME: &str = "/web";
/// Folder from which a run imports its VM.
pub const SOURCE: &str = "/src";

fn growth(step_bytes: u64) -> Growth {
    Growth { step_bytes, chunk_bytes: (step_bytes / 4).max(4096) }
}

pub async fn create(env: &Env, path: &str, disk_bytes: &[u64]) -> Result<()> {
    let (dir, new) = (env.open_root(path)?, NewVm::new("web", disk_bytes));
    Home::create(dir, Folders::default(), growth(1 << 20), new).await.map(drop)
}

/// Opens a home without reading a file.
fn home(env: &Env, path: &str, folders: Folders, growth_bytes: u64) -> Result<Rc<Home>> {
    Ok(Rc::new(Home::new(env.open_root(path)?, folders, growth(growth_bytes))))
}

/// Opens the home of the VM. It searches the whole datastore for clones.
pub fn open(env: &Env, growth_bytes: u64, imported: bool) -> Result<Rc<Home>> {
    let folders = Folders { search: vec![env.open_root("/")?], ..source_folders(env, imported)? };
    home(env, HOME, folders, growth_bytes)
}

pub fn open_source(env: &Env, growth_bytes: u64) -> Result<Rc<Home>> {
    home(env, SOURCE, Folders::default(), growth_bytes)
}

pub fn open_clone(env: &Env, name: &str, growth_bytes: u64, imported: bool) -> Result<Rc<Home>> {
    home(env, &path(name), clone_folders(env, imported)?, growth_bytes)
}

pub async fn import(env: &Env, growth_bytes: u64) -> Result<()> {
    let (source, dir) = (open_source(env, growth_bytes)?, env.open_root(HOME)?);
    Home::import(&source, dir, source_folders(env, true)?, growth(growth_bytes), FOLDER).await.map(drop)
}

pub async fn clone(env: &Env, parent: &Home, snapshot: u128, name: &str, imported: bool) -> Result<()> {
    let dir = env.open_root(&path(name))?;
    parent.clone_to(snapshot, dir, clone_folders(env, imported)?, name).await.map(drop)
}

fn path(name: &str) -> String {
    format!("/{name}")
}

fn source_folders(env: &Env, imported: bool) -> Result<Folders> {
    let foreign = if imported { vec![env.open_root(SOURCE)?] } else { Vec::new() };
    Ok(Folders { foreign, ..Folders::default() })
}

fn clone_folders(env: &Env, imported: bool) -> Result<Folders> {
    let mut folders = source_folders(env, imported)?;
    folders.foreign.push(env.open_root(HOME)?);
    Ok(folders)
}

/// Returns whether the folder has a .vmx file. A folder without one is not a VM.
pub async fn is_vm(env: &Env, name: &str) -> Result<bool> {
    Ok(env.open_root(&path(name))?.list().await?.iter().any(|file| file.ends_with(".vmx")))
}

/// Removes the files of a VM, its .vmx first.
pub async fn remove(env: &Env, name: &str) -> Result<()> {
    let dir = env.open_root(&path(name))?;
    let mut files = dir.list().await?;
    files.sort_by_key(|file| !file.ends_with(".vmx"));
    for file in files.iter().filter(|file| !file.ends_with('/')) {
        dir.unlink_if_present(file).await?;
    }
    dir.sync().await
}

/// Checks P5: the state needs every layer in the home.
pub async fn nothing_leaked(vm: &Rc<Vm>) -> Result<(), String> {
    let links = vm.manifest().links().await.map_err(|e| format!("reading the links: {e}"))?;
    let graph = engine::redo::LayerGraph::new(links.clone());
    let needed = graph.reachable(&vm.state());
    match links.iter().find(|link| !needed.contains(&link.name)) {
        Some(link) => Err(format!("{} is left behind: nothing in the state needs it", link.name)),
        None => Ok(()),
    }
}

/// Checks the folder without the engine: hints, content IDs, sizes, tables, .vmsd and .vmx must agree.
pub async fn is_sound(env: &Env) -> Result<(), String> {
    let dir = env.open_root(HOME).map_err(|e| e.to_string())?;
    let report = vmdk::check::check(&dir, Target::Folder).await.map_err(|e| format!("check: {e}"))?;
    match report.findings.iter().find(|finding| finding.severity == Severity::Damage) {
        Some(finding) => Err(format!("check finds: {finding}")),
        None => Ok(()),
    }
}

/// Checks that only the base disks, `.unstun/` and the two texts are left after everything was committed and closed.
pub async fn check_clean(env: &Env, disks: usize) -> Result<(), String> {
    let dir = async { env.open_root("/")?.open_dir(FOLDER, false).await };
    let dir = dir.await.map_err(|e| e.to_string())?;
    let names = dir.list().await.map_err(|e| e.to_string())?;
    let mut expected = vec![".unstun/".to_string(), "web.vmsd".into(), "web.vmx".into()];
    for index in 0..disks {
        let stem = if index == 0 { "web".to_string() } else { format!("web_{index}") };
        expected.extend([format!("{stem}.vmdk"), format!("{stem}-flat.vmdk")]);
    }
    let unexpected: Vec<_> = names.iter().filter(|n| !expected.contains(n)).cloned().collect();
    match unexpected.as_slice() {
        [] => Ok(()),
        names => Err(format!("left behind in the home: {}", names.join(", "))),
    }
}
