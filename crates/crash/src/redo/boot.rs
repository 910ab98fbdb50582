//! One boot: recovers, compares everything, works until the power is cut (in the last boot, until all is done).

use std::cell::RefCell;
use std::rc::Rc;

use blk::Env;
use blk::manifest::Manifest;
use engine::{CommitWhat, Vm};
use sim::{Rng, SimWorld};
use vmdk::home::Home;

use super::binned::check_bin;
use super::clones::{check_clones, remove_clones};
use super::control::{self, Control, look, read_all, settle};
use super::guest::Guest;
use super::looker::Looker;
use super::model::{Image, Model, Standing};
use super::moves::discard_side_branches;
use super::plan::{Part, Plan};
use crate::home;
use crate::request_gate::RequestGate;
use crate::trouble::Trouble;
use crate::watch::{chains, tell};

type Shared = Rc<RefCell<Model>>;

/// Plays one boot. Returns None if the power was cut.
pub fn boot(
    world: &SimWorld,
    plan: &Rc<Plan>,
    model: &Shared,
    number: u64,
    last: bool,
) -> Option<Result<(), String>> {
    let (plan, model, space, marks) = (plan.clone(), model.clone(), world.clone(), world.clone());
    world.set_capacity(None);
    // Removes the faults that the boot before did not reach.
    world.clear_faults();
    world.run(|env| async move {
        let (vm, home) = recover(&env, &plan, &model, number).await?;
        plan.arm(&marks, number, Part::Work);
        if plan.limited_space {
            fill_up(&env, space, plan.rng(number, 2));
        }
        let trouble = plan.trouble(&marks, number);
        work(&vm, home, &plan, &model, number, &trouble, marks).await?;
        trouble.end_boot(&env).await;
        if last {
            return finish(&env, vm, &plan, &model).await;
        }
        // The cut was never reached: the boot ends like a clean stop.
        if let Err(e) = vm.close().await {
            trouble.excuse(Err(format!("closing: {e}")))?;
            trouble.end_boot(&env).await;
        }
        closed_cleanly(&model);
        Ok(())
    })
}

/// Leaves little space for a while: guests wait or fail, and commits must still succeed in the end.
fn fill_up(env: &Env, world: SimWorld, mut rng: Rng) {
    let clock = env.clone();
    env.spawn(async move {
        clock.sleep_us(rng.below(2000)).await;
        world.set_capacity(Some(world.used_bytes() + rng.below(64) * (16 << 10)));
        world.mark("datastore full");
        clock.sleep_us(5000 + rng.below(40_000)).await;
        world.set_capacity(None);
    });
}

/// Notes that a clean stop has made every completed request durable.
fn closed_cleanly(model: &Shared) {
    for model in &mut model.borrow_mut().models {
        let now = model.flush_begins();
        model.flushed(now);
    }
}

/// Opens the home after any end of the boot before, and compares disks, snapshots and files with the model.
async fn recover(env: &Env, plan: &Plan, model: &Shared, number: u64) -> Result<(Rc<Vm>, Rc<Home>), String> {
    model.borrow_mut().recovering = true;
    tell(|| "BOOT".into());
    let manifest = home::open(env, plan.growth_bytes, plan.imported).map_err(|e| format!("recovery: {e}"))?;
    manifest.set_grain(plan.grain(&mut plan.rng(number, 4)));
    // Checks the folder before a resumed commit changes it again: the home's own recovery alone must make it sound. The
    // check reads every table, so only some boots do it.
    if (plan.seed + number).is_multiple_of(3) {
        Manifest::load(&*manifest).await.map_err(|e| format!("recovery: {e}"))?;
        home::is_sound(env).await?;
    }
    let vm =
        Vm::open(env.clone(), manifest.clone(), plan.engine).await.map_err(|e| format!("recovery: {e}"))?;
    model.borrow_mut().folding = vm.jobs().iter().any(|j| !j.state().is_over());
    tell(|| format!("opened: {:?}; {:?}", chains(&vm), vm.state().folds));
    let mut contents = Vec::new();
    for disk in vm.disks() {
        contents.push(read_all(&disk).await.map_err(|e| format!("after recovery, {e}"))?);
    }
    let binned: Vec<u64> = vm.state().bin.iter().map(|binned| binned.id).collect();
    model.borrow_mut().found_in_bin(&binned)?;
    check_bin(&vm, model).await?;
    check_snapshots(&vm, model).await?;
    model.borrow_mut().recover(&contents, vm.state().generation)?;
    home::nothing_leaked(&vm).await?;
    check_clones(env, plan, model).await?;
    model.borrow_mut().recovering = false;
    Ok((vm, manifest))
}

/// Checks that a reported snapshot is there and unchanged, that one whose commit was acknowledged is not there, and
/// that one whose take was cut is there whole or not at all.
async fn check_snapshots(vm: &Rc<Vm>, model: &Shared) -> Result<(), String> {
    let present: Vec<String> = vm.state().snapshots.iter().map(|s| s.name.clone()).collect();
    let known: Vec<_> = model.borrow().snapshots.clone();
    for snapshot in &known {
        let here = present.contains(&snapshot.name);
        let name = &snapshot.name;
        match &snapshot.standing {
            Standing::Sealed { .. } if !here => return Err(format!("sealed snapshot {name} is lost")),
            Standing::Sealed { .. } => look(vm, model, name).await?,
            Standing::Gone if here => return Err(format!("committed snapshot {name} came back")),
            Standing::Gone => {}
            Standing::Taking(began) if here => {
                let began = began.clone();
                adopt_interrupted(vm, model, name, &began).await?;
            }
            Standing::Committing(contents) if here => {
                let contents = contents.clone();
                return_from_commit(vm, model, name, contents).await?;
            }
            Standing::Taking(_) | Standing::Committing(_) => {
                model.borrow_mut().snapshots.retain(|k| k.name != *name);
            }
        }
    }
    match present.iter().find(|name| !known.iter().any(|k| k.name == **name)) {
        Some(stranger) => Err(format!("snapshot {stranger} was never taken")),
        None => Ok(()),
    }
}

async fn adopt_interrupted(vm: &Rc<Vm>, model: &Shared, name: &str, began: &[u64]) -> Result<(), String> {
    let contents = view_all(vm, model, name).await?;
    let mut model = model.borrow_mut();
    for (index, bytes) in contents.iter().enumerate() {
        model.models[index]
            .check_interrupted_snapshot(bytes, began[index])
            .map_err(|e| format!("{name}: {e}"))?;
    }
    let now = model.ticks();
    let standing = Standing::Sealed { began: began.to_vec(), ended: now, contents: Some(contents) };
    model.known(name).expect("listed").standing = standing;
    Ok(())
}

/// Checks a snapshot whose commit was cut before its start was durable: its content has not changed.
async fn return_from_commit(
    vm: &Rc<Vm>,
    model: &Shared,
    name: &str,
    before: Option<Vec<Image>>,
) -> Result<(), String> {
    let contents = view_all(vm, model, name).await?;
    if let Some(before) = before
        && before != contents
    {
        let change = control::difference(&before, &contents);
        return Err(format!("snapshot {name}, whose commit never began, changed: {change}"));
    }
    let mut model = model.borrow_mut();
    let now = model.ticks();
    let standing = Standing::Sealed { began: vec![0; now.len()], ended: now, contents: Some(contents) };
    model.known(name).expect("listed").standing = standing;
    Ok(())
}

async fn view_all(vm: &Rc<Vm>, model: &Shared, name: &str) -> Result<Vec<Image>, String> {
    let mut contents = Vec::new();
    let persistent = model.borrow().persistent;
    for disk in vm.disks().into_iter().take(persistent) {
        let opened = vm.open_view(name, disk.number, "oracle").await;
        let (view, _held) = opened.map_err(|e| format!("snapshot {name}: {e}"))?;
        contents.push(read_all(&view).await.map_err(|e| format!("snapshot {name}: {e}"))?);
    }
    Ok(contents)
}

/// Runs guests and user at the same time, to their end.
async fn work(
    vm: &Rc<Vm>,
    home: Rc<Home>,
    plan: &Rc<Plan>,
    model: &Shared,
    boot: u64,
    trouble: &Trouble,
    world: SimWorld,
) -> Result<(), String> {
    let env = vm.env.clone();
    let gate: Rc<RequestGate> = Rc::default();
    let mut tasks = Vec::new();
    for (index, disk) in vm.disks().iter().enumerate() {
        for n in 0..plan.guests_per_disk {
            let rng = plan.rng(boot, 100 * (index as u64 + 1) + n);
            let (vm, disk, gate) = (vm.clone(), disk.clone(), gate.clone());
            let guest = Guest { vm, disk, gate, index, model: model.clone(), rng, trouble: trouble.clone() };
            let plan = plan.clone();
            tasks.push(env.spawn(async move { guest.run(&plan).await }));
        }
    }
    let (rng, excuses, trouble) = (plan.rng(boot, 1), trouble.clone(), trouble.clone());
    let user = Control { vm: vm.clone(), model: model.clone(), rng, gate, home, world, trouble };
    let looker = Looker { vm: vm.clone(), rng: plan.rng(boot, 5) };
    let (plan, looks) = (plan.clone(), plan.control_steps);
    tasks.push(env.spawn(async move { user.run(&plan).await }));
    tasks.push(env.spawn(async move { excuses.excuse(looker.run(looks).await) }));
    let mut result = Ok(());
    for task in tasks {
        result = result.and(task.join().await);
    }
    result
}

/// Ends the last boot, after the faults: everything completes, every commit ends, and the home is clean and exact.
async fn finish(env: &Env, vm: Rc<Vm>, plan: &Plan, model: &Shared) -> Result<(), String> {
    settle(&vm).await?;
    check_live(&vm, model).await?;
    for snapshot in vm.state().snapshots {
        look(&vm, model, &snapshot.name).await?;
    }
    remove_clones(env, model).await?;
    discard_side_branches(&vm).await?;
    let binned: Vec<u64> = vm.state().bin.iter().map(|binned| binned.id).collect();
    vm.empty_bin(&binned).await.map_err(|e| format!("emptying the bin: {e}"))?;
    tell(|| format!("empties the bin: {binned:x?}; {:?}", vm.state().folds));
    home::nothing_leaked(&vm).await?;
    commit_the_rest(&vm, plan).await?;
    check_live(&vm, model).await?;
    if plan.nonpersistent_bytes.is_some() {
        let number = vm.disks()[plan.disks.len()].number;
        vm.remove_disk(number, true).await.map_err(|e| format!("removing disk{number}: {e}"))?;
    }
    vm.close().await.map_err(|e| format!("closing: {e}"))?;
    drop(vm);
    if !plan.imported {
        home::check_clean(env, plan.disks.len()).await?;
    }
    let manifest =
        home::open(env, plan.growth_bytes, plan.imported).map_err(|e| format!("reopening: {e}"))?;
    let vm = Vm::open(env.clone(), manifest, plan.engine).await.map_err(|e| format!("reopening: {e}"))?;
    check_live(&vm, model).await
}

/// Commits what is left. Only an imported VM keeps layers afterwards: those on top of the foreign folder stay.
async fn commit_the_rest(vm: &Rc<Vm>, plan: &Plan) -> Result<(), String> {
    let disks = vm.disks();
    let deep = disks[..plan.disks.len()].iter().any(|d| d.chain().links.len() > 1);
    tell(|| format!("at the end: {:?}, {:?}", chains(vm), vm.state().snapshots));
    if !deep && vm.state().snapshots.is_empty() {
        return Ok(());
    }
    let job = match vm.commit(&CommitWhat::All).await {
        Ok(job) => job,
        Err(e) if plan.imported && e.kind == blk::ErrorKind::Refused => return Ok(()),
        Err(e) => return Err(format!("the last commit: {e}")),
    };
    tell(|| format!("the last commit: {:?}", vm.state().folds));
    job.wait().await;
    settle(vm).await?;
    let (done, total) = (job.bytes_done.get(), job.bytes_total.get());
    if done > total {
        return Err(format!("the last commit moved {done} bytes, more than the {total} held at its start"));
    }
    Ok(())
}

async fn check_live(vm: &Rc<Vm>, model: &Shared) -> Result<(), String> {
    for (index, disk) in vm.disks().into_iter().enumerate() {
        let began = model.borrow_mut().models[index].now();
        let bytes = read_all(&disk).await?;
        model.borrow().models[index].check_read(0, &bytes, began)?;
        for link in &disk.chain().links {
            let findings = link.layer.check().await.map_err(|e| format!("check: {e}"))?;
            if !findings.is_empty() {
                return Err(format!("{}: {}", link.layer.name(), findings.join("; ")));
            }
        }
    }
    Ok(())
}
