//! Revert, discard, reset and undo: their previews, disconnecting the writers where requested, and their events.

use std::rc::Rc;

use api::error::{Error, Result};
use api::name::VmName;
use api::{Operation, VmClient};
use blk::manifest::BinnedState;
use engine::Loss;

use crate::daemon::cores::vm_handle::Guard;
use crate::daemon::requests::api_types;
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::state::Daemon;
use crate::daemon::vm::labels::SnapshotLabel;
use crate::daemon::vm::remove::expect_kept;
use crate::daemon::vm::vm_record::{Kept, VmRecord};

/// Whether the bin keeps what an operation removes.
struct Fate {
    kept: bool,
    /// Why the bin does not keep it.
    not_kept: Option<String>,
}

impl Daemon {
    pub(crate) async fn revert_preview(&self, vm: &VmName, request: api::Revert) -> Result<api::Loss> {
        let entry = self.entry(vm.as_str())?;
        let fate = self.fate(&entry, request.purge, request.keep).await?;
        let loss = entry.revert_loss(&request).await?;
        Ok(self.present_revert(&entry, &loss, &request, fate, entry.running.present(Who::Writers).await))
    }

    /// Reverts a VM. Fails with `Refused` while a client writes, unless the request disconnects it. `label` is that of the
    /// snapshot that is taken first, if the request has one.
    pub(crate) async fn snapshot_revert(
        &self,
        vm: &VmName,
        request: api::Revert,
        label: SnapshotLabel,
    ) -> Result<api::Loss> {
        let entry = self.entry_to_change(vm.as_str())?;
        let fate = self.fate(&entry, request.purge, request.keep).await?;
        let loss = entry.revert_loss(&request).await?;
        let (clients, _shut) = self.make_way(&entry, true, request.disconnect).await?;
        let wanted = request.snapshot.as_ref().map(|name| name.as_str());
        let take_first = request.take_first.as_ref().map(|name| name.as_str());
        // The labels of other takes under way stay, whose snapshots may not exist yet.
        let take = take_first.map(|_| entry.labels.begin_take(label));
        let revert = async || Ok(entry.running.revert(wanted, take_first, fate.kept).await?);
        match take_first {
            None => self.with_bin(&entry.datastore, revert).await?,
            // A repetition would find the name taken by the first attempt.
            Some(_) => revert().await?,
        };
        if let (Some(name), Some(take)) = (take_first, &take) {
            let state = entry.running.state().await;
            let named = state.snapshots.iter().filter(|snapshot| snapshot.name == name);
            if let Some(taken) = named.max_by_key(|snapshot| snapshot.created_unix_us) {
                self.label_or_warn(&entry, taken.id, &take.label).await?;
            }
        }
        Ok(self.present_revert(&entry, &loss, &request, fate, clients))
    }

    pub(crate) async fn discard_preview(&self, vm: &VmName, request: api::Discard) -> Result<api::Loss> {
        let entry = self.entry(vm.as_str())?;
        let fate = self.fate(&entry, request.purge, request.keep).await?;
        let loss = entry.running.discard_preview(request.snapshot.as_str()).await?;
        Ok(self.present_loss(
            &entry,
            Operation::Discard,
            &loss,
            fate,
            entry.running.present(Who::Writers).await,
        ))
    }

    pub(crate) async fn snapshot_discard(&self, vm: &VmName, request: api::Discard) -> Result<api::Loss> {
        let entry = self.entry_to_change(vm.as_str())?;
        let fate = self.fate(&entry, request.purge, request.keep).await?;
        // The discard of a side branch affects no client.
        let preview = entry.running.discard_preview(request.snapshot.as_str()).await?;
        let (clients, _shut) = self.make_way(&entry, preview.reverts, request.disconnect).await?;
        let discard = async || Ok(entry.running.discard(request.snapshot.as_str(), fate.kept).await?);
        let loss = self.with_bin(&entry.datastore, discard).await?;
        let loss = Loss { bytes: preview.bytes, ..loss };
        Ok(self.present_loss(&entry, Operation::Discard, &loss, fate, clients))
    }

    /// Returns what a reset would lose. Fails with `Refused` if the VM has no nonpersistent disk.
    pub(crate) async fn reset_preview(&self, vm: &VmName, request: api::Reset) -> Result<api::Loss> {
        let entry = self.entry(vm.as_str())?;
        let fate = self.fate(&entry, request.purge, request.keep).await?;
        let loss = entry.running.reset_preview().await?;
        Ok(self.present_loss(
            &entry,
            Operation::Reset,
            &loss,
            fate,
            entry.running.present(Who::Writers).await,
        ))
    }

    pub(crate) async fn vm_reset(&self, vm: &VmName, request: api::Reset) -> Result<api::Loss> {
        let entry = self.entry_to_change(vm.as_str())?;
        let fate = self.fate(&entry, request.purge, request.keep).await?;
        let preview = entry.running.reset_preview().await?;
        let (clients, _shut) = self.make_way(&entry, true, request.disconnect).await?;
        let reset = async || Ok(entry.running.reset(fate.kept).await?);
        let loss = self.with_bin(&entry.datastore, reset).await?;
        let loss = Loss { bytes: preview.bytes, ..loss };
        Ok(self.present_loss(&entry, Operation::Reset, &loss, fate, clients))
    }

    /// Returns what an undo would lose. Fails with `Refused` if the bin has no state of the VM.
    pub(crate) async fn undo_preview(&self, vm: &VmName, request: api::Reset) -> Result<api::Loss> {
        let entry = self.entry(vm.as_str())?;
        let fate = self.fate(&entry, request.purge, request.keep).await?;
        let loss = entry.running.restore_preview(entry.latest_binned().await?.id).await?;
        Ok(self.present_loss(
            &entry,
            Operation::Restore,
            &loss,
            fate,
            entry.running.present(Who::Writers).await,
        ))
    }

    pub(crate) async fn snapshot_undo(&self, vm: &VmName, request: api::Reset) -> Result<api::Loss> {
        let entry = self.entry_to_change(vm.as_str())?;
        let latest = entry.latest_binned().await?;
        self.restore_state(&entry, latest.id, request).await
    }

    /// Restores a state from the bin as the VM's current state.
    pub(crate) async fn restore_state(
        &self,
        entry: &Rc<VmRecord>,
        id: u64,
        request: api::Reset,
    ) -> Result<api::Loss> {
        let fate = self.fate(entry, request.purge, request.keep).await?;
        let preview = entry.running.restore_preview(id).await?;
        let (clients, _shut) = self.make_way(entry, preview.reverts, request.disconnect).await?;
        let loss = entry.running.restore(id, fate.kept).await?;
        let loss = Loss { bytes: preview.bytes, ..loss };
        Ok(self.present_loss(entry, Operation::Restore, &loss, fate, clients))
    }

    async fn fate(&self, entry: &VmRecord, purge: bool, keep: bool) -> Result<Fate> {
        let not_kept = self.not_kept(&entry.datastore, purge).await?;
        let kept = expect_kept(&entry.name, keep, not_kept.as_deref())?;
        Ok(Fate { kept, not_kept })
    }

    fn present_revert(
        &self,
        entry: &VmRecord,
        loss: &Loss,
        request: &api::Revert,
        fate: Fate,
        clients: Vec<VmClient>,
    ) -> api::Loss {
        let taken = request.take_first.as_ref().map(ToString::to_string);
        // A snapshot of the present state is kept like any other.
        let fate = if taken.is_some() { Fate { kept: false, not_kept: None } } else { fate };
        let shown = self.present_loss(entry, Operation::Revert, loss, fate, clients);
        let shown = api::Loss { taken, ..shown };
        api::Loss { warning: shown.sentence(), ..shown }
    }

    fn present_loss(
        &self,
        entry: &VmRecord,
        operation: Operation,
        loss: &Loss,
        fate: Fate,
        clients: Vec<VmClient>,
    ) -> api::Loss {
        let layers = match entry.kept {
            Kept::Redo => loss.layers.iter().map(|layer| entry.home.join(layer)).collect(),
            // No file is removed: the store frees the space internally.
            Kept::Native(_) => Vec::new(),
        };
        let until = api_types::time(self.bin.kept_until_unix_us(self.env.unix_us()));
        // The restore of a side branch discards nothing.
        let throws = loss.reverts || operation == Operation::Discard;
        let mut shown = api::Loss {
            vm: api_types::vm_name(&entry.name),
            operation,
            target: loss.target.clone().filter(|_| operation != Operation::Restore),
            taken: None,
            snapshots: loss.snapshots.clone(),
            layers,
            bytes_lost: loss.bytes,
            reverts: loss.reverts,
            clients,
            kept_until: (fate.kept && throws).then_some(until),
            not_kept: fate.not_kept.filter(|_| throws),
            warning: String::new(),
        };
        shown.warning = shown.sentence();
        shown
    }

    /// Disconnects the writers and closes the gate if `disconnect` is set. Otherwise connected clients stay, and the
    /// engine refuses the operation and names them. An operation that does not replace the running state (`reverts`)
    /// affects no client.
    pub(crate) async fn make_way(
        &self,
        entry: &Rc<VmRecord>,
        reverts: bool,
        disconnect: bool,
    ) -> Result<(Vec<VmClient>, Option<Guard>)> {
        if !reverts {
            return Ok((Vec::new(), None));
        }
        if !disconnect {
            entry.running.await_ended(Who::Writers).await;
            return Ok((Vec::new(), None));
        }
        let (clients, shut) = entry.running.disconnect(Who::Writers).await?;
        Ok((clients, Some(shut)))
    }
}

impl VmRecord {
    async fn revert_loss(&self, request: &api::Revert) -> Result<Loss> {
        let wanted = request.snapshot.as_ref().map(|name| name.as_str());
        Ok(self.running.revert_preview(wanted, request.take_first.is_some()).await?)
    }

    async fn latest_binned(&self) -> Result<BinnedState> {
        self.running.state().await.bin.pop().ok_or_else(|| {
            let cause =
                "the bin has no state of this VM: nothing was thrown away, or the bin no longer keeps it";
            Error::refused(format!("VM {}: {cause}", self.name))
        })
    }
}
