//! States of open VMs in the bin: what a revert, a discard, a reset or an undo has removed. The VM itself records them.
//! The states of a closed VM stay until it is open.

use std::rc::Rc;

use api::name::DatastoreName;
use blk::manifest::{BinnedBy, BinnedState};
use engine::CommitWhat;

use crate::daemon::datastore::{Datastore, asked};
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::{Kept, VmRecord};

impl Daemon {
    /// Returns the states of all open VMs of a datastore, or of all datastores, the oldest first.
    pub(super) async fn binned_states(
        &self,
        datastore: Option<&DatastoreName>,
    ) -> Vec<(Rc<VmRecord>, BinnedState)> {
        let mut found = Vec::new();
        for entry in self.entries() {
            if datastore.is_none_or(|name| entry.datastore.name == *name) {
                found.extend(
                    entry.running.state().await.bin.into_iter().map(|binned| (entry.clone(), binned)),
                );
            }
        }
        found.sort_by_key(|(_, binned)| binned.unix_us);
        found
    }

    pub(super) async fn states_of(&self, datastore: &Rc<Datastore>) -> Vec<(Rc<VmRecord>, BinnedState)> {
        let mut found = self.binned_states(None).await;
        found.retain(|(entry, _)| Rc::ptr_eq(&entry.datastore, datastore));
        found
    }

    /// Returns the state that an ID of `bin list` refers to.
    pub(super) async fn find_state(
        &self,
        wanted: &str,
        datastore: Option<&DatastoreName>,
    ) -> Option<(Rc<VmRecord>, u64)> {
        let found = self.binned_states(datastore).await.into_iter().find(|(_, binned)| id(binned) == wanted);
        found.map(|(entry, binned)| (entry, binned.id))
    }

    pub(super) async fn state_entry(&self, entry: &VmRecord, binned: &BinnedState) -> api::BinEntry {
        let operation = match binned.by {
            BinnedBy::Revert => api::Operation::Revert,
            BinnedBy::Discard => api::Operation::Discard,
            BinnedBy::Reset => api::Operation::Reset,
            BinnedBy::Restore => api::Operation::Restore,
        };
        api::BinEntry {
            id: id(binned),
            kind: api::BinKind::State,
            vm: api_types::vm_name(&entry.name),
            datastore: entry.datastore.name.clone(),
            store: entry.kept.store(),
            operation,
            subject: (!binned.subject.is_empty()).then(|| binned.subject.clone()),
            removed: api_types::time(binned.unix_us),
            kept_until: api_types::time(self.bin.kept_until_unix_us(binned.unix_us)),
            // A size that cannot be read now is unknown.
            bytes: asked(&entry.datastore, entry.running.binned_bytes(binned.id))
                .await
                .ok()
                .and_then(Result::ok),
            path: None,
        }
    }

    /// Measures the bytes that a datastore's states free, as far as they are not measured yet.
    pub(crate) async fn measure_states(&self, datastore: &Rc<Datastore>) {
        let states = self.states_of(datastore).await;
        let known = datastore.state_bytes.borrow().clone();
        let mut bytes = std::collections::BTreeMap::new();
        for (entry, binned) in states {
            let measured = match known.get(&binned.id) {
                Some(bytes) => Some(*bytes),
                None => entry.running.binned_bytes(binned.id).await.ok(),
            };
            bytes.extend(measured.map(|bytes| (binned.id, bytes)));
        }
        *datastore.state_bytes.borrow_mut() = bytes;
    }

    /// Removes a state permanently.
    pub(super) async fn evict_state(&self, entry: &VmRecord, binned: &BinnedState) -> blk::Result<()> {
        entry.running.empty_bin(vec![binned.id]).await?;
        let in_files = matches!(entry.kept, Kept::Redo);
        if in_files && binned.by == BinnedBy::Discard && entry.running.state().await.bin.is_empty() {
            // The disks run on deltas that the discard created only for the bin. Without such deltas the commit is
            // refused.
            let _ = entry.running.commit(&CommitWhat::Unowned).await;
        }
        Ok(())
    }
}

fn id(binned: &BinnedState) -> String {
    format!("{:016x}", binned.id)
}
