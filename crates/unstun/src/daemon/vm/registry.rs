//! Registry of VMs by name, over all datastores: served, closed, or broken.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use tracing::error;

use crate::daemon::datastore::Home;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::{Broken, Kept, VmRecord};

/// VM that is not served.
pub(crate) struct Idle {
    pub name: String,
    pub home: Home,
    /// Why the VM is broken; None for a closed VM.
    pub cause: Option<String>,
}

/// Exclusive right to create, open or remove an object of this name until the claim is dropped.
pub(crate) struct Claim {
    daemon: Rc<Daemon>,
    name: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.daemon.claimed.borrow_mut().remove(&self.name);
    }
}

/// Maximum number of VMs that a message names.
const NAMED_MAX: usize = 20;

/// Returns the names of the VMs for a message, which stays a line where there are thousands.
fn name_some<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let (count, some) = (names.len(), names.take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", "));
    match count {
        0 => "there are no VMs".into(),
        1..=NAMED_MAX => format!("the VMs are {some}"),
        _ => format!("the VMs are {some} and {} others (`unstun vm list`)", count - NAMED_MAX),
    }
}

impl Daemon {
    pub(crate) fn entries(&self) -> Vec<Rc<VmRecord>> {
        self.vms.borrow().values().cloned().collect()
    }

    pub(crate) fn entry(&self, name: &str) -> blk::Result<Rc<VmRecord>> {
        if let Some(entry) = self.vms.borrow().get(name) {
            return Ok(entry.clone());
        }
        if let Some(broken) = self.broken.borrow().get(name) {
            let place = format!("VM {name}");
            if broken.cause.kind == ErrorKind::NoDescriptors {
                let cause =
                    format!("the VM is not served: {}; then run `unstun vm open {name}`", broken.cause);
                return Err(blk::Error::new(blk::ErrorKind::NoDescriptors, place, cause));
            }
            let remedy = format!("correct the cause, then run `unstun vm open {name}`");
            let cause = format!("the VM is not served: {}; {remedy}", broken.cause);
            return Err(blk::Error::damaged(place, cause));
        }
        if self.closed.borrow().contains_key(name) {
            let cause = format!("the VM is closed; `unstun vm open {name}` opens it");
            return Err(blk::Error::refused(format!("VM {name}"), cause));
        }
        let known = name_some(self.vms.borrow().keys());
        Err(blk::Error::not_found(self.place(), format!("no VM {name:?}; {known}")))
    }

    pub(crate) fn entry_to_change(&self, name: &str) -> blk::Result<Rc<VmRecord>> {
        let entry = self.entry(name)?;
        entry.refuse_when_moving()?;
        Ok(entry)
    }

    /// Claims the name of a VM, `datastore NAME`, or the path of a folder, which no VM has for a name. Two concurrent operations
    /// would each take the other's folder for their own, or open one home twice.
    pub(crate) fn claim(self: &Rc<Self>, name: &str) -> Result<Claim> {
        if !self.claimed.borrow_mut().insert(name.to_string()) {
            let what = if name.contains([' ', '/']) { name.to_string() } else { format!("VM {name}") };
            return Err(Error::refused(format!("{what} is being created, opened or closed; try again")));
        }
        Ok(Claim { daemon: self.clone(), name: name.to_string() })
    }

    pub(crate) fn is_taken(&self, name: &str) -> bool {
        self.vms.borrow().contains_key(name) || self.idle_home(name).is_some()
    }

    /// Returns the home of a VM that is closed or broken.
    pub(crate) fn idle_home(&self, name: &str) -> Option<Home> {
        let broken = self.broken.borrow().get(name).map(|broken| broken.home.clone());
        broken.or_else(|| self.closed.borrow().get(name).cloned())
    }

    pub(crate) fn idle(&self) -> Vec<Idle> {
        let one = |name: &String, home: &Home, cause| Idle { name: name.clone(), home: home.clone(), cause };
        let closed = self.closed.borrow();
        let closed = closed.iter().map(|(name, home)| one(name, home, None));
        let broken = self.broken.borrow();
        let broken = broken.iter().map(|(name, b)| one(name, &b.home, Some(b.cause.to_string())));
        closed.chain(broken).collect()
    }

    /// Moves a VM to the closed ones: it is not served any more.
    pub(crate) fn rest(&self, name: &str, home: Home) {
        self.forget(name);
        self.holds.release(&home.path);
        self.closed.borrow_mut().insert(name.to_string(), home);
    }

    pub(crate) fn fail_read_only(&self, name: &str, home: Home, cause: &Error) {
        error!("VM {name} is no longer served: {cause}");
        self.forget(name);
        self.holds.release(&home.path);
        self.broken.borrow_mut().insert(name.to_string(), Broken { home, cause: cause.clone() });
    }

    /// Serves a VM under its name, in place of an earlier record of it.
    pub(crate) fn register(&self, entry: Rc<VmRecord>) {
        entry.running.serve();
        let earlier = self.vms.borrow_mut().insert(entry.name.clone(), entry);
        if let Some(earlier) = earlier {
            earlier.running.unserve();
        }
    }

    pub(crate) fn forget(&self, name: &str) {
        if let Some(entry) = self.vms.borrow_mut().remove(name) {
            entry.running.unserve();
        }
        self.broken.borrow_mut().remove(name);
        self.closed.borrow_mut().remove(name);
        self.jobs.borrow_mut().retain(|t| t.vm.as_deref() != Some(name));
    }

    /// Returns the IDs in their stores of the native VMs that are served, by home.
    pub(crate) fn native_ids(&self) -> BTreeMap<PathBuf, u128> {
        let id = |entry: &Rc<VmRecord>| match &entry.kept {
            Kept::Native(vm) => Some((entry.home.clone(), vm.id())),
            Kept::Redo => None,
        };
        self.vms.borrow().values().filter_map(id).collect()
    }

    /// Returns whether the registry has the home, served or not.
    pub(crate) fn has_home(&self, path: &Path) -> bool {
        self.homes().iter().any(|home| home == path)
    }

    /// Returns the homes of the registry, served or not.
    pub(crate) fn homes(&self) -> BTreeSet<PathBuf> {
        let mut homes: BTreeSet<PathBuf> =
            self.vms.borrow().values().map(|entry| entry.home.clone()).collect();
        homes.extend(self.closed.borrow().values().map(|home| home.path.clone()));
        homes.extend(self.broken.borrow().values().map(|broken| broken.home.path.clone()));
        homes
    }

    /// Returns the home of the VM of this name, served or not.
    pub(crate) fn home_of(&self, name: &str) -> Option<PathBuf> {
        let served = self.vms.borrow().get(name).map(|entry| entry.home.clone());
        served.or_else(|| self.idle_home(name).map(|home| home.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_a_bounded_number_of_vms() {
        let names = |count: usize| (0..count).map(|n| format!("vm{n}")).collect::<Vec<_>>();
        assert_eq!(name_some(names(0).iter()), "there are no VMs");
        assert_eq!(name_some(names(2).iter()), "the VMs are vm0, vm1");
        let many = name_some(names(5000).iter());
        assert!(many.ends_with("vm19 and 4980 others (`unstun vm list`)"), "{many}");
    }
}
