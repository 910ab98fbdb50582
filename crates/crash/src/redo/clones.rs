//! Linked clones: VMs on a snapshot's layers. Whatever happens to the parent, a clone shows the snapshot from which it
//! was made and its own writes. Whatever happens to a clone, the parent's content does not change.

use std::rc::Rc;

use blk::{Env, ErrorKind, SECTOR};
use engine::Vm;
use sim::oracle::DiskModel;

use super::control::Control;
use super::harness::Harness;
use super::model::{LinkedClone, RedoRun};
use crate::content::{Image, contents_of};
use crate::home;
use crate::requests::Target;
use crate::watch::print;

/// Start of a clone's sequence numbers, which distinguishes its writes from the parent's.
const CLONE_SEQUENCE: u64 = 1 << 40;

impl Control {
    /// Creates a clone of any sealed snapshot, or runs an existing one for a while.
    pub(super) async fn clone_something(&mut self) -> Result<(), String> {
        let clones = self.model.borrow().clones.len();
        if clones > 0 && self.rng.coin() {
            let at = self.rng.below(clones as u64) as usize;
            return self.use_clone(at).await;
        }
        let Some(name) = self.any_sealed().filter(|_| clones < self.plan.clones_max) else { return Ok(()) };
        self.look(&name).await?;
        let Some(contents) = self.sealed_contents(&name) else { return Ok(()) };
        match self.vm.hold(&name, "clone").await {
            Ok((snapshot, _held)) => self.make_clone(snapshot.id, &contents).await,
            // A commit is under way, or the snapshot has left meanwhile.
            Err(e) if matches!(e.kind, ErrorKind::Refused | ErrorKind::NotFound) => Ok(()),
            Err(e) => Err(format!("holding {name}: {e}")),
        }
    }

    async fn make_clone(&self, snapshot: u128, contents: &[Image]) -> Result<(), String> {
        let models = contents.iter().enumerate().map(|(n, bytes)| {
            let model = DiskModel::starting_at(n as u32, CLONE_SEQUENCE);
            model.replace(bytes);
            Rc::new(model)
        });
        let models = models.collect();
        self.model.borrow_mut().next_name += 1;
        let name = format!("clone{}", self.model.borrow().next_name);
        self.model.borrow_mut().clones.push(LinkedClone { name: name.clone(), made: false, models });
        self.model.borrow_mut().doing.insert("cut in a clone");
        print(|| format!("clone {name}"));
        let made = home::clone(&self.vm.env, &self.home, snapshot, &name, self.plan.imported).await;
        print(|| format!("clone {name} ends {:?}", made.as_ref()));
        let mut model = self.model.borrow_mut();
        model.doing.remove("cut in a clone");
        match made {
            Ok(()) => {
                model.clones.iter_mut().filter(|c| c.name == name).for_each(|c| c.made = true);
                self.world.mark("cloned");
            }
            Err(e) if e.is_no_space() => model.clones.retain(|c| c.name != name),
            Err(e) => return Err(format!("clone {name}: {e}")),
        }
        Ok(())
    }

    /// Opens a clone beside its running parent, writes, flushes, reads, and closes it.
    async fn use_clone(&mut self, at: usize) -> Result<(), String> {
        let name = self.model.borrow().clones[at].name.clone();
        let fail = |e: blk::Error| format!("clone {name}: {e}");
        let plan = self.plan.clone();
        let grain = plan.grain(&mut self.rng);
        let opened = open(&self.vm.env, &self.run, &name, grain).await;
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
            let model = self.model.borrow().clones[at].models[index].clone();
            for _ in 0..4 {
                let first = self.rng.below(disk.size_bytes() / SECTOR);
                let target = Target::plain(disk.clone(), model.clone(), first, 1);
                if target.write().await.map_err(|e| format!("clone {name}: {e}"))? {
                    target.flush().await.or_else(no_space_is_fine).map_err(fail)?;
                }
            }
        }
        self.world.mark("a clone worked");
        vm.close().await.or_else(no_space_is_fine).map_err(fail)
    }
}

fn no_space_is_fine(e: blk::Error) -> blk::Result<()> {
    if e.is_no_space() { Ok(()) } else { Err(e) }
}

async fn open(env: &Env, run: &RedoRun, name: &str, grain_sectors: u32) -> blk::Result<Rc<Vm>> {
    let manifest = home::open_clone(env, name, run.plan.growth_bytes, run.plan.imported)?;
    manifest.set_grain(grain_sectors);
    Vm::open(env.clone(), manifest, run.plan.engine).await
}

impl Harness {
    /// Checks after a boot that every clone that was made shows what it must, and that one whose making was cut is
    /// whole or absent.
    pub(super) async fn check_clones(&self, env: &Env) -> Result<(), String> {
        let clones = self.model.borrow().clones.iter().map(|c| (c.name.clone(), c.made)).collect::<Vec<_>>();
        for (name, made) in clones {
            self.check_clone(env, &name, made).await.map_err(|e| format!("clone {name}: {e}"))?;
        }
        Ok(())
    }

    async fn check_clone(&self, env: &Env, name: &str, made: bool) -> Result<(), String> {
        let fail = |e: blk::Error| e.to_string();
        if !home::is_vm(env, name).await.map_err(fail)? {
            if made {
                return Err("it is lost".into());
            }
            self.model.borrow_mut().clones.retain(|c| c.name != name);
            return home::remove(env, name).await.map_err(fail);
        }
        let vm = open(env, &self.run, name, 1).await.map_err(fail)?;
        let contents = contents_of(&vm.disks()).await?;
        vm.close().await.map_err(fail)?;
        let mut model = self.model.borrow_mut();
        let clone = model.clones.iter_mut().find(|c| c.name == name).expect("listed");
        clone.made = true;
        for (model, bytes) in clone.models.iter().zip(&contents) {
            model.check_cut(bytes)?;
            model.replace(bytes);
        }
        Ok(())
    }

    /// Removes the clones at the end of a run, and with them the protection of their parent.
    pub(super) async fn remove_clones(&self) -> Result<(), String> {
        let clones = std::mem::take(&mut self.model.borrow_mut().clones);
        for clone in clones {
            let removed = home::remove(&self.vm.env, &clone.name).await;
            removed.map_err(|e| format!("removing clone {}: {e}", clone.name))?;
        }
        Ok(())
    }
}
