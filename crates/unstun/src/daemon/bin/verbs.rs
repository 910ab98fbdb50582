//! The commands of the bin: list, restore, empty.

use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::{DatastoreName, VmName};
use api::units::total;
use blk::manifest::BinnedState;
use engine::find_binned;

use crate::daemon::bin::records::BinState;
use crate::daemon::datastore::Home;
use crate::daemon::state::Daemon;
use crate::daemon::vm::settings;
use crate::daemon::vm::vm_record::VmRecord;

type ChosenVm = (Rc<super::Datastore>, String, super::BinRecord);
type ChosenState = (Rc<VmRecord>, BinnedState);

impl Daemon {
    /// Returns the entries, the oldest first; for `None`, those of all datastores.
    pub(crate) async fn bin_list(&self, datastore: Option<DatastoreName>) -> Result<Vec<api::BinEntry>> {
        let found = self.in_bins(datastore.as_ref())?;
        let mut entries: Vec<_> =
            found.iter().map(|(datastore, entry, record)| self.bin_entry(datastore, entry, record)).collect();
        for (entry, binned) in self.binned_states(datastore.as_ref()).await {
            entries.push(self.state_entry(&entry, &binned).await);
        }
        entries.sort_by_key(|entry| entry.removed);
        Ok(entries)
    }

    /// Restores an entry. Fails with `Exists` if the name is taken.
    pub(crate) async fn bin_restore(self: &Rc<Self>, request: api::BinRestore) -> Result<api::BinRestored> {
        if let Some((entry, id)) = self.find_state(&request.entry, request.datastore.as_ref()).await {
            return self.bin_restore_state(&entry, id, request.name, request.disconnect).await;
        }
        let (datastore, entry, record) = self.find_in_bin(&request.entry, request.datastore.as_ref())?;
        let shown = self.bin_entry(&datastore, &entry, &record);
        let busy =
            || Error::refused(format!("entry {entry} of the bin is being restored or removed; try again"));
        let _busy = datastore.bin.begin(&entry).ok_or_else(busy)?;
        let to = request.name.unwrap_or_else(|| record.vm.clone());
        super::refuse_reserved(to.as_str())?;
        let _claim = self.claim(to.as_str())?;
        datastore.refuse_when_leaving()?;
        if self.is_taken(to.as_str()) || datastore.has(to.as_str()).await? {
            let cause = format!(
                "VM {to}: the name is in use again; `unstun bin restore {entry} --name NEW` restores the VM under \
                 another name"
            );
            return Err(Error::new(ErrorKind::Exists, cause));
        }
        let home = self.bring_back(&datastore, &entry, &to).await.map_err(|e| {
            let cause = Error::from(e);
            match datastore.bin.get(&entry).is_some_and(|record| record.state == BinState::Kept) {
                true => cause,
                false => Error::new(
                    cause.kind,
                    format!("{cause}; the restore continues at the daemon's next start"),
                ),
            }
        })?;
        let condition = self.serve_restored(&to, &home).await;
        Ok(api::BinRestored { entry: shown, vm: to, home: home.path, condition })
    }

    async fn bin_restore_state(
        &self,
        entry: &Rc<VmRecord>,
        id: u64,
        name: Option<VmName>,
        disconnect: bool,
    ) -> Result<api::BinRestored> {
        if name.is_some() {
            let cause =
                "this entry is a state of a VM and is restored into that VM; --name is for removed VMs";
            return Err(Error::invalid(format!("{id:016x}: {cause}")));
        }
        let entry = self.entry_to_change(&entry.name)?;
        let binned = find_binned(&entry.running.state().await, id)?.clone();
        let shown = self.state_entry(&entry, &binned).await;
        self.restore_state(&entry, id, api::Reset { disconnect, ..api::Reset::default() }).await?;
        let home = entry.home.clone();
        Ok(api::BinRestored { vm: shown.vm.clone(), entry: shown, home, condition: api::VmCondition::Open })
    }

    /// Serves a restored VM as before its removal. A VM that cannot be opened is listed with the reason, as at a start.
    async fn serve_restored(self: &Rc<Self>, name: &VmName, home: &Home) -> api::VmCondition {
        if settings::is_closed(&self.env, &home.path).await {
            self.closed.borrow_mut().insert(name.to_string(), home.clone());
            return api::VmCondition::Closed;
        }
        match self.open_vm(name.as_str(), home).await {
            Ok(entry) => {
                self.note(&entry, "restored from the bin");
                api::VmCondition::Open
            }
            Err(cause) => {
                self.fail_read_only(name.as_str(), home.clone(), &cause);
                api::VmCondition::Broken
            }
        }
    }

    pub(crate) async fn bin_empty_preview(&self, request: &api::BinEmpty) -> Result<api::BinEmptied> {
        let (vms, states) = self.chosen(request).await?;
        let mut entries: Vec<_> =
            vms.iter().map(|(datastore, entry, record)| self.bin_entry(datastore, entry, record)).collect();
        for (entry, binned) in states {
            entries.push(self.state_entry(&entry, &binned).await);
        }
        let bytes = total(entries.iter().filter_map(|entry| entry.bytes));
        Ok(api::BinEmptied { entries, bytes, left: Vec::new() })
    }

    /// Removes entries permanently. An entry that cannot be removed does not stop the removal of the others.
    pub(crate) async fn bin_empty(&self, request: &api::BinEmpty) -> Result<api::BinEmptied> {
        let mut done = api::BinEmptied { entries: Vec::new(), bytes: 0, left: Vec::new() };
        let (vms, states) = self.chosen(request).await?;
        for (datastore, entry, record) in vms {
            let shown = self.bin_entry(&datastore, &entry, &record);
            let _evicting = datastore.bin.evicting.lock().await;
            note(&mut done, shown, self.evict(&datastore, &entry).await);
        }
        for (entry, binned) in states {
            let shown = self.state_entry(&entry, &binned).await;
            let _evicting = entry.datastore.bin.evicting.lock().await;
            note(&mut done, shown, self.evict_state(&entry, &binned).await);
        }
        Ok(done)
    }

    async fn chosen(&self, request: &api::BinEmpty) -> Result<(Vec<ChosenVm>, Vec<ChosenState>)> {
        let datastore = request.datastore.as_ref();
        if request.entries.is_empty() {
            return Ok((self.in_bins(datastore)?, self.binned_states(datastore).await));
        }
        let (mut vms, mut states): (Vec<ChosenVm>, Vec<ChosenState>) = Default::default();
        for wanted in &request.entries {
            if let Some((entry, id)) = self.find_state(wanted, datastore).await {
                let binned = find_binned(&entry.running.state().await, id)?.clone();
                states.push((entry, binned));
                continue;
            }
            let one = self.find_in_bin(wanted, datastore)?;
            if !vms.iter().any(|(_, entry, _)| *entry == one.1) {
                vms.push(one);
            }
        }
        Ok((vms, states))
    }
}

fn note(done: &mut api::BinEmptied, shown: api::BinEntry, removed: blk::Result<()>) {
    match removed {
        Ok(()) => {
            done.bytes = done.bytes.saturating_add(shown.bytes.unwrap_or(0));
            done.entries.push(shown);
        }
        Err(e) => done.left.push(api::BinLeft { id: shown.id, vm: shown.vm, cause: e.to_string() }),
    }
}
