//! Origin of a run's VM: made empty, or imported from a folder of VMware files that must stay as it is.

use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::{Env, SECTOR};
use engine::Vm;
use sim::{Rng, SimWorld, View};

use super::model::{ExpectedSnapshot, RedoRun, SnapshotStatus, Source};
use super::plan::Plan;
use crate::content::contents_of;
use crate::home;
use crate::requests::Target;

/// Makes the VM, or the folder to import, without cuts or faults.
pub(super) fn create(run: &RedoRun) -> Result<(), String> {
    run.prepare(async |env, run| match run.plan.imported {
        true => make_source(&env, &run).await,
        false => home::create(&env, home::HOME, &run.plan.disks).await.map_err(|e| e.to_string()),
    })?;
    run.model.borrow_mut().source = files_of(&run.world, home::SOURCE);
    Ok(())
}

/// Imports the VM if the plan says so, and adds the disk whose writes a reset drops.
pub(super) fn complete(run: &RedoRun) -> Result<(), String> {
    run.prepare(async |env, run| {
        let plan = &run.plan;
        if plan.imported {
            home::import(&env, plan.growth_bytes).await.map_err(|e| format!("importing: {e}"))?;
        }
        let Some(size_bytes) = plan.nonpersistent_bytes else { return Ok(()) };
        let vm = open(&env, plan).await?;
        let mode = DiskMode::IndependentNonpersistent;
        let disk = NewDisk { size_bytes, mode, folder: None, source: None };
        vm.add_disk(&disk).await.map_err(|e| format!("adding a disk: {e}"))?;
        vm.close().await.map_err(|e| format!("closing: {e}"))
    })
}

async fn open(env: &Env, plan: &Plan) -> Result<Rc<Vm>, String> {
    let manifest = home::open(env, plan.growth_bytes, plan.imported).map_err(|e| e.to_string())?;
    Vm::open(env.clone(), manifest, plan.engine).await.map_err(|e| e.to_string())
}

/// Makes a VM with a snapshot and a delta, as another product would leave it.
async fn make_source(env: &Env, run: &RedoRun) -> Result<(), String> {
    let (plan, fail) = (&run.plan, |e: blk::Error| format!("making the folder to import: {e}"));
    home::create(env, home::SOURCE, &plan.disks).await.map_err(fail)?;
    let manifest = home::open_source(env, plan.growth_bytes).map_err(fail)?;
    let mut rng = plan.rng(0, 3);
    manifest.set_grain(plan.grain(&mut rng));
    let vm = Vm::open(env.clone(), manifest, plan.engine).await.map_err(fail)?;
    scribble(&vm, run, &mut rng).await?;
    vm.take("theirs", "").await.map_err(fail)?;
    note(&vm, run, "theirs").await?;
    scribble(&vm, run, &mut rng).await?;
    note(&vm, run, "as-imported").await?;
    vm.close().await.map_err(fail)
}

/// Writes a few sectors of each disk and flushes them.
async fn scribble(vm: &Rc<Vm>, run: &RedoRun, rng: &mut Rng) -> Result<(), String> {
    for (index, disk) in vm.disks().into_iter().enumerate() {
        let (disk, _client) = vm.attach(disk.number, "other").await.map_err(|e| e.to_string())?;
        let model = run.model.borrow().models[index].clone();
        let target = |first| Target::plain(disk.clone(), model.clone(), first, 1);
        for _ in 0..12 {
            target(rng.below(disk.size_bytes() / SECTOR)).write().await?;
        }
        target(0).flush().await.map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Notes that the snapshot `name` must always show what the disks show now.
async fn note(vm: &Rc<Vm>, run: &RedoRun, name: &str) -> Result<(), String> {
    let contents = contents_of(&vm.disks()).await?;
    let mut model = run.model.borrow_mut();
    model.models.iter().zip(&contents).for_each(|(model, bytes)| model.replace(bytes));
    let now = model.ticks();
    let status = SnapshotStatus::Sealed { began: now.clone(), ended: now, contents: Some(contents) };
    model.snapshots.push(ExpectedSnapshot { name: name.into(), status });
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
pub(super) fn check_source(run: &RedoRun) -> Result<(), String> {
    let (now, source) = (files_of(&run.world, home::SOURCE), &run.model.borrow().source);
    let changed: Vec<_> = now.iter().filter(|file| !source.contains(file)).map(|(path, _)| path).collect();
    match now == *source {
        true => Ok(()),
        false => Err(format!("the imported folder has changed: {changed:?}")),
    }
}
