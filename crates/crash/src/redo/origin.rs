//! Origin of a run's VM: made empty, or imported from a folder of VMware files that must stay as it is.

use std::cell::RefCell;
use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::volume::Volume;
use blk::{Buf, Env, SECTOR};
use engine::Vm;
use sim::{Rng, SimWorld, View};

use super::control::read_all;
use super::model::{Known, Model, Standing};
use super::plan::Plan;
use crate::home;

/// Path and content of each file of the imported folder.
pub type Source = Vec<(String, Vec<u8>)>;

/// Makes the VM, or the folder to import, without cuts or faults.
pub fn create(world: &SimWorld, plan: &Rc<Plan>, model: &Rc<RefCell<Model>>) -> Result<(), String> {
    let (plan, shared) = (plan.clone(), model.clone());
    let made = world.run(|env| async move {
        if plan.imported {
            make_source(&env, &plan, &shared).await?;
        } else {
            home::create(&env, &plan.disks).await.map_err(|e| e.to_string())?;
        }
        Ok::<(), String>(())
    });
    made.expect("nothing is cut while the VM is made")?;
    let source = files_of(world, home::SOURCE);
    model.borrow_mut().source = source;
    Ok(())
}

/// Imports the VM if the plan says so, and adds the disk whose writes a reset drops.
pub fn complete(world: &SimWorld, plan: &Rc<Plan>) -> Result<(), String> {
    let plan = plan.clone();
    let done = world.run(|env| async move {
        if plan.imported {
            home::import(&env, plan.growth_bytes).await.map_err(|e| format!("importing: {e}"))?;
        }
        let Some(size_bytes) = plan.nonpersistent_bytes else { return Ok(()) };
        let vm = open(&env, &plan).await?;
        let mode = DiskMode::IndependentNonpersistent;
        let disk = NewDisk { size_bytes, mode, folder: None };
        vm.add_disk(&disk).await.map_err(|e| format!("adding a disk: {e}"))?;
        vm.close().await.map_err(|e| format!("closing: {e}"))
    });
    done.expect("nothing is cut while the VM is made")
}

async fn open(env: &Env, plan: &Plan) -> Result<Rc<Vm>, String> {
    let manifest = home::open(env, plan.growth_bytes, plan.imported).map_err(|e| e.to_string())?;
    Vm::open(env.clone(), manifest, plan.engine).await.map_err(|e| e.to_string())
}

/// Makes a VM with a snapshot and a delta, as another product would leave it.
async fn make_source(env: &Env, plan: &Plan, model: &Rc<RefCell<Model>>) -> Result<(), String> {
    let fail = |e: blk::Error| format!("making the folder to import: {e}");
    home::create_in(env, home::SOURCE, &plan.disks).await.map_err(fail)?;
    let manifest = home::open_source(env, plan.growth_bytes).map_err(fail)?;
    let mut rng = plan.rng(0, 3);
    manifest.set_grain(plan.grain(&mut rng));
    let vm = Vm::open(env.clone(), manifest, plan.engine).await.map_err(fail)?;
    scribble(&vm, model, &mut rng).await?;
    vm.take("theirs", "").await.map_err(fail)?;
    note(&vm, model, "theirs").await?;
    scribble(&vm, model, &mut rng).await?;
    note(&vm, model, "as-imported").await?;
    vm.close().await.map_err(fail)
}

/// Writes a few sectors of each disk and flushes them.
async fn scribble(vm: &Rc<Vm>, model: &Rc<RefCell<Model>>, rng: &mut Rng) -> Result<(), String> {
    for (index, disk) in vm.disks().into_iter().enumerate() {
        let (disk, _client) = vm.attach(disk.number, "other").await.map_err(|e| e.to_string())?;
        for _ in 0..12 {
            let first = rng.below(disk.size_bytes() / SECTOR);
            let open = model.borrow_mut().models[index].begin(first, 1);
            let data = Buf::copy_of(&model.borrow().models[index].data(&open)).freeze();
            disk.clone().write(first * SECTOR, data).await.map_err(|e| e.to_string())?;
            model.borrow_mut().models[index].end(&open);
        }
        disk.clone().flush().await.map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Notes that the snapshot `name` must always show what the disks show now.
async fn note(vm: &Rc<Vm>, model: &Rc<RefCell<Model>>, name: &str) -> Result<(), String> {
    let mut contents = Vec::new();
    for disk in vm.disks() {
        contents.push(read_all(&disk).await?);
    }
    let mut model = model.borrow_mut();
    for (model, bytes) in model.models.iter_mut().zip(&contents) {
        model.replace(bytes);
    }
    let now = model.ticks();
    let standing = Standing::Sealed { began: now.clone(), ended: now, contents: Some(contents) };
    model.snapshots.push(Known { name: name.into(), standing });
    Ok(())
}

fn files_of(world: &SimWorld, folder: &str) -> Source {
    let names = world.list(folder, View::Current).unwrap_or_default();
    let files = names.into_iter().filter(|name| !name.ends_with('/'));
    let content = |name: String| {
        let path = format!("{folder}/{name}");
        let bytes = world.read_file(&path, View::Current).unwrap_or_default();
        (path, bytes)
    };
    files.map(content).collect()
}

/// Checks that the imported folder has not changed, as the import promises.
pub fn check_source(world: &SimWorld, model: &Model) -> Result<(), String> {
    let now = files_of(world, home::SOURCE);
    match now.iter().zip(&model.source).find(|(a, b)| a != b) {
        Some(((path, _), _)) => Err(format!("{path} of the imported folder has changed")),
        None if now.len() != model.source.len() => Err("the imported folder has other files".into()),
        None => Ok(()),
    }
}
