//! Linked clones: VMs of their own on a snapshot's layers. Whatever happens to the parent, a clone shows the snapshot
//! that it was made from and what was written to it. Whatever happens to a clone, the parent shows the same as before.

use std::cell::RefCell;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env, ErrorKind, SECTOR};
use engine::Vm;

use super::control::{Control, read_all};
use super::model::{Image, Model, Standing};
use super::plan::Plan;
use crate::home;
use crate::watch::tell;
use sim::oracle::DiskModel;

/// Start of a clone's sequence numbers, which distinguishes its writes from the parent's.
const CLONE_SEQUENCE: u64 = 1 << 40;

/// Expected state of a linked clone.
pub struct LinkedClone {
    pub name: String,
    /// False until `clone_to` has returned: the clone may or may not be there.
    made: bool,
    models: Vec<DiskModel>,
}

impl Control {
    /// Makes a clone of any sealed snapshot, or lets an old one work for a while.
    pub async fn clone_something(&mut self, plan: &Plan) -> Result<(), String> {
        let clones = self.model.borrow().clones.len();
        if clones > 0 && self.rng.coin() {
            let at = self.rng.below(clones as u64) as usize;
            return self.use_clone(plan, at).await;
        }
        let Some(name) = self.any_sealed().filter(|_| clones < plan.clones_max) else { return Ok(()) };
        super::control::look(&self.vm, &self.model, &name).await?;
        let standing = self.model.borrow_mut().known(&name).map(|k| k.standing.clone());
        let Some(Standing::Sealed { contents: Some(contents), .. }) = standing else { return Ok(()) };
        match self.vm.hold(&name, "clone").await {
            Ok((snapshot, _held)) => self.make_clone(plan, snapshot.id, &contents).await,
            // A commit is under way, or the snapshot has left meanwhile.
            Err(e) if matches!(e.kind, ErrorKind::Refused | ErrorKind::NotFound) => Ok(()),
            Err(e) => Err(format!("holding {name}: {e}")),
        }
    }

    async fn make_clone(&self, plan: &Plan, snapshot: u128, contents: &[Image]) -> Result<(), String> {
        let name = {
            let mut model = self.model.borrow_mut();
            model.next_name += 1;
            let name = format!("clone{}", model.next_name);
            let models = contents.iter().enumerate().map(|(n, bytes)| {
                let mut model = DiskModel::starting_at(n as u32, CLONE_SEQUENCE);
                model.replace(bytes);
                model
            });
            model.clones.push(LinkedClone { name: name.clone(), made: false, models: models.collect() });
            model.cloning = true;
            name
        };
        tell(|| format!("clone {name}"));
        let made = home::clone(&self.vm.env, &self.home, snapshot, &name, plan.imported).await;
        tell(|| format!("clone {name} ends {:?}", made.as_ref()));
        let mut model = self.model.borrow_mut();
        model.cloning = false;
        match made {
            Ok(()) => {
                model.clones.iter_mut().filter(|c| c.name == name).for_each(|c| c.made = true);
                drop(model);
                self.marks("cloned");
                Ok(())
            }
            Err(e) if e.is_no_space() => {
                model.clones.retain(|c| c.name != name);
                Ok(())
            }
            Err(e) => Err(format!("clone {name}: {e}")),
        }
    }

    /// Opens a clone beside its running parent, writes, flushes, reads, and closes it.
    async fn use_clone(&mut self, plan: &Plan, at: usize) -> Result<(), String> {
        let name = self.model.borrow().clones[at].name.clone();
        let fail = |e: blk::Error| format!("clone {name}: {e}");
        let grain = plan.grain(&mut self.rng);
        let opened = open(&self.vm.env, plan, &name, grain).await;
        let vm = match opened {
            Ok(vm) => vm,
            Err(e) if e.is_no_space() => return Ok(()),
            Err(e) => return Err(fail(e)),
        };
        for (index, disk) in vm.disks().into_iter().enumerate() {
            let (disk, _client) = match vm.attach(disk.number, "guest").await {
                Ok(attached) => attached,
                Err(e) if e.is_no_space() => continue,
                Err(e) => return Err(fail(e)),
            };
            for _ in 0..4 {
                let first = self.rng.below(disk.size_bytes() / SECTOR);
                self.write_clone(at, index, &disk, first).await?;
            }
        }
        self.marks("a clone worked");
        match vm.close().await {
            Err(e) if !e.is_no_space() => Err(fail(e)),
            _ => Ok(()),
        }
    }

    async fn write_clone(
        &self,
        at: usize,
        index: usize,
        disk: &Rc<engine::Disk>,
        first: u64,
    ) -> Result<(), String> {
        let (open, data) = {
            let model = &mut self.model.borrow_mut().clones[at].models[index];
            let open = model.begin(first, 1);
            let data = Buf::copy_of(&model.data(&open)).freeze();
            (open, data)
        };
        let began = match disk.clone().write(first * SECTOR, data).await {
            Ok(()) => {
                let model = &mut self.model.borrow_mut().clones[at].models[index];
                model.end(&open);
                model.flush_begins()
            }
            Err(e) if e.is_no_space() => return Ok(()),
            Err(e) => return Err(format!("write to a clone: {e}")),
        };
        match disk.clone().flush().await {
            Ok(()) => self.model.borrow_mut().clones[at].models[index].flushed(began),
            Err(e) if e.is_no_space() => {}
            Err(e) => return Err(format!("flush of a clone: {e}")),
        }
        Ok(())
    }
}

async fn open(env: &Env, plan: &Plan, name: &str, grain_sectors: u32) -> blk::Result<Rc<Vm>> {
    let manifest = home::open_clone(env, name, plan.growth_bytes, plan.imported).await?;
    manifest.set_grain(grain_sectors);
    Vm::open(env.clone(), manifest, plan.engine).await
}

/// Checks after a boot that every clone that was made shows what it must, and that one whose making was cut is whole or
/// absent.
pub async fn check_clones(env: &Env, plan: &Plan, model: &Rc<RefCell<Model>>) -> Result<(), String> {
    let names: Vec<(String, bool)> = model.borrow().clones.iter().map(|c| (c.name.clone(), c.made)).collect();
    for (name, made) in names {
        if !home::is_vm(env, &name).await.map_err(|e| format!("clone {name}: {e}"))? {
            if made {
                return Err(format!("clone {name} is lost"));
            }
            model.borrow_mut().clones.retain(|c| c.name != name);
            home::remove(env, &name).await.map_err(|e| format!("clone {name}: {e}"))?;
            continue;
        }
        let vm = open(env, plan, &name, 1).await.map_err(|e| format!("clone {name}: {e}"))?;
        let mut contents = Vec::new();
        for disk in vm.disks() {
            contents.push(read_all(&disk).await.map_err(|e| format!("clone {name}: {e}"))?);
        }
        vm.close().await.map_err(|e| format!("closing clone {name}: {e}"))?;
        let mut model = model.borrow_mut();
        let clone = model.clones.iter_mut().find(|c| c.name == name).expect("listed");
        clone.made = true;
        for (model, bytes) in clone.models.iter_mut().zip(&contents) {
            model.check_cut(bytes).map_err(|e| format!("clone {name}: {e}"))?;
            model.replace(bytes);
        }
    }
    Ok(())
}

/// Removes the clones at the end of a run, and with them the protection of their parent.
pub async fn remove_clones(env: &Env, model: &Rc<RefCell<Model>>) -> Result<(), String> {
    let clones = std::mem::take(&mut model.borrow_mut().clones);
    for clone in clones {
        home::remove(env, &clone.name).await.map_err(|e| format!("removing clone {}: {e}", clone.name))?;
    }
    Ok(())
}
