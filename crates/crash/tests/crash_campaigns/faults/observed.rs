//! Everything a VM shows: its disks, its snapshots, its clones.

use std::collections::BTreeMap;
use std::rc::Rc;

use blk::{Env, SECTOR};
use crash::content::{Image, contents_of, look, read_all};
use crash::home;
use engine::Vm;

pub(super) type Content = BTreeMap<u32, Image>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ObservedState {
    /// Content of the disks by number.
    pub disks: Content,
    pub snapshots: BTreeMap<String, Content>,
    /// Entries of the bin, by the verb that put them there and its subject.
    pub bin: BTreeMap<String, Content>,
    /// Clones that are VMs.
    pub clones: BTreeMap<String, Content>,
}

impl ObservedState {
    pub(super) async fn of(vm: &Rc<Vm>) -> Result<ObservedState, String> {
        let mut observed = ObservedState { disks: running(vm).await?, ..ObservedState::default() };
        for snapshot in vm.state().snapshots {
            let numbers: Vec<u32> = snapshot.disks.iter().map(|(number, _)| *number).collect();
            let images = look(&**vm, &snapshot.name, &numbers, None).await?;
            let images = images.ok_or_else(|| format!("snapshot {} cannot be opened", snapshot.name))?;
            observed.snapshots.insert(snapshot.name, numbers.into_iter().zip(images).collect());
        }
        for binned in vm.state().bin {
            let mut content = Content::new();
            for disk in &binned.disks {
                let opened = vm.open_binned(binned.id, disk.number).await;
                let disk = opened.map_err(|e| format!("the bin, {}: {e}", binned.subject))?;
                content.insert(disk.number, read_all(&disk).await?);
            }
            observed.bin.insert(format!("{:?} {}", binned.by, binned.subject), content);
        }
        Ok(observed)
    }

    pub(super) async fn add_clones(&mut self, env: &Env, names: &[&str]) -> Result<(), String> {
        for name in names {
            if !home::is_vm(env, name).await.map_err(|e| e.to_string())? {
                continue;
            }
            let opened = async {
                let home = home::open_clone(env, name, super::GROWTH_BYTES, false)?;
                Vm::open(env.clone(), home, super::options()).await
            };
            let vm = opened.await.map_err(|e| format!("{name}: {e}"))?;
            self.clones.insert((*name).to_string(), running(&vm).await?);
        }
        Ok(())
    }

    pub(super) fn must_equal(&self, other: &ObservedState, why: &str) -> Result<(), String> {
        self.must_be_between(other, other).map_err(|e| format!("{e}, {why}"))
    }

    /// Checks that the names are as in one of the two, and that every sector is as in one of them.
    pub(super) fn must_be_between(
        &self,
        before: &ObservedState,
        after: &ObservedState,
    ) -> Result<(), String> {
        between("disks", &self.disks, &before.disks, &after.disks)?;
        between_named("snapshots", &self.snapshots, &before.snapshots, &after.snapshots)?;
        between_named("bin", &self.bin, &before.bin, &after.bin)?;
        between_named("clones", &self.clones, &before.clones, &after.clones)
    }
}

fn between_named(
    what: &str,
    observed: &BTreeMap<String, Content>,
    before: &BTreeMap<String, Content>,
    after: &BTreeMap<String, Content>,
) -> Result<(), String> {
    let names = |map: &BTreeMap<String, Content>| map.keys().cloned().collect::<Vec<_>>();
    if names(observed) != names(before) && names(observed) != names(after) {
        let (observed, before, after) = (names(observed), names(before), names(after));
        return Err(format!("{what} are {observed:?}, expected {before:?} or {after:?}"));
    }
    for (name, content) in observed {
        // A name that only one of the two has is compared with that one.
        let old = before.get(name).or(after.get(name)).expect("one of the two has it");
        let new = after.get(name).unwrap_or(old);
        between(&format!("{what}: {name}"), content, old, new)?;
    }
    Ok(())
}

fn between(what: &str, observed: &Content, before: &Content, after: &Content) -> Result<(), String> {
    let numbers = |content: &Content| content.iter().map(|(n, b)| (*n, b.len())).collect::<Vec<_>>();
    if numbers(observed) != numbers(before) && numbers(observed) != numbers(after) {
        return Err(format!("{what}: disks and sizes are {:?}", numbers(observed)));
    }
    for (number, bytes) in observed {
        let old = before.get(number).or(after.get(number)).expect("one of the two has it");
        let new = after.get(number).unwrap_or(old);
        for (sector, found) in bytes.chunks(SECTOR as usize).enumerate() {
            let at = sector * SECTOR as usize;
            let same = |other: &Image| other.get(at..at + found.len()) == Some(found);
            if !same(old) && !same(new) {
                return Err(format!(
                    "{what}: disk{number} sector {sector} is neither as before nor as after"
                ));
            }
        }
    }
    Ok(())
}

async fn running(vm: &Rc<Vm>) -> Result<Content, String> {
    let disks = vm.disks();
    let contents = contents_of(&disks).await?;
    Ok(disks.iter().map(|disk| disk.number).zip(contents).collect())
}
