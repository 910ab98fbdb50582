//! The bin: a VM that is removed with its disks is kept for a while, and can be restored.
//!
//! This module decides what is kept, for how long, and what is removed permanently when space is needed. `bin/steps.rs`
//! has the steps into and out of the bin, each of which a start finishes. `bin/records.rs` has the records, and
//! `bin/verbs.rs` the commands.

mod entry;
pub(super) mod policy;
pub(super) mod records;
mod states;
mod steps;
#[cfg(test)]
mod tests;
mod verbs;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use blk::manifest::BinnedState;
use engine::job::JobState;
use tracing::{info, warn};

use crate::daemon::bin::records::{BinRecord, BinState};
use crate::daemon::datastore::{Datastore, Home, asked};
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::identity::VmId;
use crate::daemon::vm::vm_record::VmRecord;

use api::error::{Error, Result};
use api::units::{format_bytes, total};

/// Time in microseconds between two checks for entries that have expired or whose space is needed.
const TICK_US: u64 = 5_000_000;
/// Interval in microseconds and maximum number of polls while a store releases a VM's space in the background.
const RELEASE_POLL_US: u64 = 20_000;
const RELEASE_POLLS_MAX: u32 = 500;

/// VmRecord that may be removed from a bin permanently.
enum Victim {
    Vm(String, BinRecord),
    State(Rc<VmRecord>, BinnedState),
}

impl Victim {
    fn unix_us(&self) -> i64 {
        match self {
            Victim::Vm(_, record) => record.removed_unix_us,
            Victim::State(_, binned) => binned.unix_us,
        }
    }

    fn is_half_removed(&self) -> bool {
        matches!(self, Victim::Vm(_, record) if record.state == BinState::Removing)
    }

    fn is_native(&self) -> bool {
        let store = match self {
            Victim::Vm(_, record) => record.store,
            Victim::State(entry, _) => entry.kept.store(),
        };
        store == api::Store::Native
    }

    fn name(&self) -> String {
        match self {
            Victim::Vm(_, record) => format!("VM {}", record.vm),
            Victim::State(entry, binned) => format!("a state of VM {} ({:016x})", entry.name, binned.id),
        }
    }

    fn id(&self) -> String {
        match self {
            Victim::Vm(entry, _) => entry.clone(),
            Victim::State(_, binned) => format!("{:016x}", binned.id),
        }
    }
}

/// Refuses a VM name that has the form of a folder in the bin.
pub(super) fn refuse_reserved(name: &str) -> Result<()> {
    match name.ends_with(records::FOLDER_SUFFIX) {
        true => Err(Error::refused(format!("VM {name}: names that end so are those of folders in the bin"))),
        false => Ok(()),
    }
}

impl Datastore {
    /// Returns the folder of an entry's VM.
    pub(super) fn bin_home(self: &Rc<Self>, entry: &str, record: &BinRecord) -> Home {
        match &record.path {
            Some(path) => self.at(path),
            None => self.home(&record.folder(entry)),
        }
    }
}

impl Daemon {
    /// Returns how many bytes the removal of a datastore's kept entries frees, as far as known. States that
    /// `measure_states` has not measured are not counted.
    pub(super) fn bin_bytes(&self, datastore: &Datastore) -> u64 {
        let kept = datastore.bin.all().into_iter().filter(|(_, record)| record.state == BinState::Kept);
        let vms = kept.filter_map(|(_, record)| record.bytes);
        total(vms.chain(datastore.state_bytes.borrow().values().copied()))
    }

    /// Returns why the bin would not keep a VM that is removed now; None if it keeps the VM.
    pub(super) async fn not_kept(&self, datastore: &Datastore, purge: bool) -> Result<Option<String>> {
        if purge {
            return Ok(Some("--purge was given".to_owned()));
        }
        if self.bin.hours == 0 {
            return Ok(Some("the bin is switched off (--bin-hours 0)".to_owned()));
        }
        match datastore.space().await? {
            space if self.bin.leaves(space) => Ok(None),
            space => Ok(Some(format!(
                "{} of {} are free in datastore {}, and the bin keeps VMs while more than {} % are",
                format_bytes(space.free_bytes),
                format_bytes(space.total_bytes),
                datastore.name,
                self.bin.free_percent
            ))),
        }
    }

    pub(super) fn bin_entry(
        &self,
        datastore: &Rc<Datastore>,
        entry: &str,
        record: &BinRecord,
    ) -> api::BinEntry {
        api::BinEntry {
            id: entry.to_owned(),
            kind: api::BinKind::Vm,
            vm: record.vm.clone(),
            datastore: datastore.name.clone(),
            store: record.store,
            operation: api::Operation::Remove,
            subject: None,
            removed: api_types::time(record.removed_unix_us),
            kept_until: api_types::time(self.bin.kept_until_unix_us(record.removed_unix_us)),
            bytes: record.bytes,
            path: Some(datastore.bin_home(entry, record).path),
        }
    }

    /// Returns the folders of all entries, whatever their state. Nothing else may use these folders.
    pub(super) fn bin_homes(&self) -> Vec<(BinRecord, PathBuf)> {
        let mut homes = Vec::new();
        for datastore in self.datastores() {
            for (entry, record) in datastore.bin.all() {
                let path = datastore.bin_home(&entry, &record).path;
                homes.push((record, path));
            }
        }
        homes
    }

    /// Returns whether the folder belongs to a VM that the bin keeps.
    pub(super) fn is_in_bin(&self, path: &Path) -> bool {
        let is = |(record, home): &(BinRecord, PathBuf)| record.state == BinState::Kept && home == path;
        self.bin_homes().iter().any(is)
    }

    /// Returns the folder in the bin of a VM with files.
    pub(super) async fn bin_home_of(&self, id: u128) -> blk::Result<Option<PathBuf>> {
        for (record, path) in self.bin_homes() {
            let is = record.store == api::Store::Redo && record.id == Some(id);
            if is && self.has_id(&path, VmId::Files(id)).await? {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Evicts from the bins, and sets the space that is kept ready, until the daemon ends.
    pub(super) async fn keep_bins(self: Rc<Self>) {
        while !self.bin_ends.get() {
            // The clock may have been set since the last look.
            self.age_now_us();
            for datastore in
                self.datastores().into_iter().filter(|datastore| !datastore.bin.is_checked.replace(true))
            {
                let daemon = self.clone();
                // A datastore that hangs does not delay the others.
                self.env.spawn_detached(Box::pin(async move {
                    daemon.clean_bin(&datastore).await;
                    daemon.sweep_memory(&datastore).await;
                    datastore.keep_ready().await;
                    datastore.bin.is_checked.set(false);
                }));
            }
            self.env.sleep_us(TICK_US).await;
        }
    }

    /// Ends evictions: afterwards none begins, and none is under way except where a datastore hangs.
    pub(super) async fn end_bins(&self) {
        self.bin_ends.set(true);
        for datastore in self.datastores() {
            // A datastore that hangs is not waited for.
            let _ = asked(&datastore, datastore.bin.evicting.lock()).await;
        }
    }

    #[cfg(test)]
    pub(super) async fn clean_bins(&self) {
        for datastore in self.datastores() {
            self.clean_bin(&datastore).await;
        }
    }

    /// Removes permanently what has expired, and what occupies space that must stay free.
    async fn clean_bin(&self, datastore: &Rc<Datastore>) {
        self.evict_expired(datastore).await;
        self.evict_for_share(datastore).await;
        let waits = |state| state == JobState::WaitingForSpace;
        let entries = self.entries().into_iter().filter(|entry| Rc::ptr_eq(&entry.datastore, datastore));
        if entries.flat_map(|entry| entry.running.jobs()).any(|job| waits(job.state())) {
            self.make_room(datastore).await;
        }
    }

    async fn evict_expired(&self, datastore: &Rc<Datastore>) {
        let _evicting = datastore.bin.evicting.lock().await;
        for victim in self.evictable(datastore).await {
            let until = self.bin.kept_until_unix_us(victim.unix_us());
            if until <= self.age_now_us() || victim.is_half_removed() {
                self.evict_or_report(datastore, &victim, "its time in the bin is over").await;
            }
        }
    }

    /// Evicts the oldest entries until more than the share is free.
    async fn evict_for_share(&self, datastore: &Rc<Datastore>) {
        let _evicting = datastore.bin.evicting.lock().await;
        for victim in self.evictable(datastore).await {
            match datastore.space().await {
                Ok(space) if !self.bin.leaves(space) => {}
                // If the free space cannot be determined, nothing is removed.
                _ => return,
            }
            self.evict_or_report(datastore, &victim, "the datastore needs its space").await;
        }
    }

    /// Removes the oldest entry of a datastore's bin permanently if its space may help an operation that found none.
    /// Returns false if there is nothing to remove or enough space is free.
    pub(super) async fn make_room(&self, datastore: &Rc<Datastore>) -> bool {
        let before = datastore.bin.evicted.get();
        if self.evictable(datastore).await.is_empty() {
            return false;
        }
        let _evicting = datastore.bin.evicting.lock().await;
        if datastore.bin.evicted.get() != before {
            return true;
        }
        if datastore.space().await.is_ok_and(|space| !self.bin.is_short(space)) {
            return false;
        }
        for victim in self.evictable(datastore).await {
            if self.evict_or_report(datastore, &victim, "the datastore needs its space").await {
                datastore.dir.wait_for_freed().await;
                return true;
            }
        }
        false
    }

    /// Runs `work`. If it finds no space, removes entries of the bin and runs it again. `work` must be repeatable.
    pub(super) async fn with_bin<T>(
        &self,
        datastore: &Rc<Datastore>,
        work: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        loop {
            match work().await {
                Err(e) if e.kind == api::error::ErrorKind::NoSpace && self.make_room(datastore).await => {}
                other => return other,
            }
        }
    }

    /// Returns the entries that are kept or half removed, the oldest first.
    async fn evictable(&self, datastore: &Rc<Datastore>) -> Vec<Victim> {
        let states = self.states_of(datastore).await;
        if self.bin_ends.get() || datastore.refuse_when_leaving().is_err() {
            return Vec::new();
        }
        let mut all = datastore.bin.all();
        all.retain(|(entry, record)| record.may_go() && !datastore.bin.is_busy(entry));
        let vms = all.into_iter().map(|(entry, record)| Victim::Vm(entry, record));
        let states = states.into_iter().map(|(entry, binned)| Victim::State(entry, binned));
        let mut victims: Vec<Victim> = vms.chain(states).collect();
        victims.sort_by_key(Victim::unix_us);
        victims
    }

    async fn evict_or_report(&self, datastore: &Rc<Datastore>, victim: &Victim, why: &str) -> bool {
        let evicted = match victim {
            Victim::Vm(entry, _) => self.evict(datastore, entry).await,
            Victim::State(entry, binned) => {
                let evicted = self.evict_state(entry, binned).await;
                if evicted.is_ok() {
                    datastore.bin.evicted.update(|n| n + 1);
                }
                evicted
            }
        };
        match evicted {
            Ok(()) => {
                info!("{}: permanently removed from the bin: {why}", victim.name());
                self.await_release(datastore, victim.is_native()).await;
                true
            }
            Err(e) => {
                if datastore.bin.is_news(&victim.id()) {
                    warn!("{} stays in the bin of datastore {}: {e}", victim.name(), datastore.name);
                }
                false
            }
        }
    }

    /// Waits until a store has released the space that it can.
    async fn await_release(&self, datastore: &Datastore, is_native: bool) {
        let Some(store) = datastore.native.opened().filter(|_| is_native) else { return };
        for _ in 0..RELEASE_POLLS_MAX {
            let used = store.store_usage();
            if self.bin_ends.get()
                || store.broken().is_some()
                || (!store.has_to_reclaim() && used.waiting == 0)
            {
                return;
            }
            self.env.sleep_us(RELEASE_POLL_US).await;
        }
    }

    /// Finds an entry by its id, or by the name of a VM that has one.
    pub(super) fn find_in_bin(
        &self,
        wanted: &str,
        datastore: Option<&api::name::DatastoreName>,
    ) -> Result<(Rc<Datastore>, String, BinRecord)> {
        let mut found = self.in_bins(datastore)?;
        if let Some(at) = found.iter().position(|(_, entry, _)| entry == wanted) {
            return Ok(found.swap_remove(at));
        }
        found.retain(|(_, _, record)| record.vm.as_str() == wanted);
        match found.len() {
            0 => Err(Error::not_found(format!("{wanted:?} is not in the bin; see `unstun bin list`"))),
            1 => Ok(found.swap_remove(0)),
            count => {
                let ids: Vec<_> = found.iter().map(|(_, entry, _)| entry.as_str()).collect();
                let ids = ids.join(", ");
                Err(Error::invalid(format!(
                    "{count} VMs in the bin were called {wanted}: name one by its id ({ids}; see `unstun bin list`)"
                )))
            }
        }
    }

    /// Returns what is kept in a datastore, or in all of them, the oldest first.
    pub(super) fn in_bins(
        &self,
        datastore: Option<&api::name::DatastoreName>,
    ) -> Result<Vec<(Rc<Datastore>, String, BinRecord)>> {
        let datastores = match datastore {
            Some(name) => vec![self.datastore(Some(name))?],
            None => self.datastores(),
        };
        let mut found = Vec::new();
        for datastore in datastores {
            let kept = datastore.bin.all().into_iter().filter(|(_, record)| record.state == BinState::Kept);
            found.extend(kept.map(|(entry, record)| (datastore.clone(), entry, record)));
        }
        found.sort_by_key(|(_, _, record)| record.removed_unix_us);
        Ok(found)
    }
}
