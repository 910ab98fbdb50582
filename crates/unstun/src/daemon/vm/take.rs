//! Takes, with who took the snapshot.

use std::collections::BTreeMap;
use std::rc::Rc;

use api::error::{Error, Result};
use api::name::VmName;
use api::{CommitTarget, MemorySaved, Quiesce, Quiesced};
use blk::manifest::{DeltaFormat, SnapshotState};
use engine::Rename;
use tracing::warn;

use crate::daemon::defect::Defect;
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::labels::{LabelledTake, SnapshotLabel};
use crate::daemon::vm::quiesce::Quiescing;
use crate::daemon::vm::vm_record::VmRecord;

/// A snapshot that was taken, with what the request wanted beside it.
struct Taken {
    state: SnapshotState,
    quiesced: Option<Quiesced>,
    memory: Option<MemorySaved>,
}

impl Daemon {
    /// Takes a snapshot, and returns once it is sealed.
    pub(crate) async fn snapshot_take(
        self: &Rc<Self>,
        vm: &VmName,
        request: api::SnapshotTake,
        label: SnapshotLabel,
    ) -> Result<api::SnapshotTaken> {
        let entry = self.entry_to_change(vm.as_str())?;
        self.take_and_show(&entry, request, entry.labels.begin_take(label)).await
    }

    /// Gives a snapshot another name or description.
    pub(crate) async fn snapshot_rename(
        &self,
        vm: &VmName,
        request: api::SnapshotRename,
    ) -> Result<api::Snapshot> {
        let entry = self.entry_to_change(vm.as_str())?;
        let rename = Rename { name: request.name.map(|name| name.to_string()), description: request.message };
        let wanted = request.snapshot.as_str();
        let rename = async || Ok(entry.running.rename(wanted, rename.clone()).await?);
        let renamed = self.with_bin(&entry.datastore, rename).await?;
        let tree = self.snapshot_tree(vm).await?;
        let id = api_types::id(renamed.id);
        let gone = || Error::failed(format!("VM {vm}: snapshot {} is removed by now", renamed.name));
        tree.snapshots.into_iter().find(|snapshot| snapshot.id == id).ok_or_else(gone)
    }

    pub(crate) async fn take_and_show(
        self: &Rc<Self>,
        entry: &Rc<VmRecord>,
        request: api::SnapshotTake,
        take: LabelledTake<'_>,
    ) -> Result<api::SnapshotTaken> {
        let Taken { state: taken, quiesced, memory } =
            self.take_labelled(entry, request, &take.label).await?;
        // The event must be this take's own: another operation may have recorded one meanwhile.
        let own = |e: &&api::Event| {
            e.operation == api::Operation::Take && e.snapshot.as_deref() == Some(taken.name.as_str())
        };
        let stun_us = entry.events.borrow().iter().rev().find(own).map_or(0, |e| e.stun_us);
        let view = entry.running.view().await;
        // The new snapshot has no delta above it yet.
        let shown = api_types::snapshots(&view, &BTreeMap::new(), entry);
        let id = api_types::id(taken.id);
        let snapshot = shown.into_iter().find(|s| s.id == id);
        let gone = || {
            let name = &taken.name;
            Error::failed(format!(
                "VM {}: another client committed snapshot {name} at the same time",
                entry.name
            ))
        };
        Ok(api::SnapshotTaken {
            vm: api_types::vm_name(&entry.name),
            snapshot: snapshot.ok_or_else(gone)?,
            stun_us,
            quiesced,
            memory,
            space: self.space(&entry.datastore).await?,
        })
    }

    /// Takes a snapshot, with the guest's file systems frozen, or with its memory, if the request wants it.
    async fn take_labelled(
        self: &Rc<Self>,
        entry: &Rc<VmRecord>,
        request: api::SnapshotTake,
        label: &SnapshotLabel,
    ) -> Result<Taken> {
        let api::SnapshotTake { name, message, quiesce, memory, delta } = request;
        let format = match delta {
            api::DeltaFormat::Fitting => DeltaFormat::Fitting,
            api::DeltaFormat::Sesparse => DeltaFormat::SeSparse,
        };
        let new = engine::tree::new_snapshot(&self.env, name.as_str(), &message);
        let late = self.defects.has(Defect::LabelLate);
        if !late {
            self.label_or_warn(entry, new.id, label).await?;
        }
        // The takes of a VM that freeze its guest wait for one another.
        let holds = memory || quiesce != Quiesce::No;
        let _turn = if holds { Some(entry.freezing.lock().await) } else { None };
        if holds {
            entry.refuse_when_moving()?;
        }
        let quiescing = self.quiesce(entry, quiesce).await?;
        let stopped = if memory { Some(self.stop_for_memory(entry, new.id).await?) } else { None };
        let take = async || Ok(entry.running.take(new.clone(), format).await?);
        let taken = self.with_bin(&entry.datastore, take).await;
        let was_frozen = matches!(quiescing, Some(Quiescing::Frozen(_)));
        let mut quiesced = None;
        if let Some(quiescing) = quiescing {
            quiesced = Some(self.thaw(entry, quiescing).await);
        }
        let taken = taken?;
        if late {
            self.label_or_warn(entry, new.id, label).await?;
        }
        if let Some(quiesced) = &quiesced {
            self.note_quiesced(entry, &taken.name, quiesced);
            if quiesced.consistent {
                let label = SnapshotLabel { quiesced: true, ..label.clone() };
                self.label_or_warn(entry, new.id, &label).await?;
            } else if was_frozen && quiesce == Quiesce::Require {
                return Err(self.remove_incomplete(entry, &taken, &quiesced.sentence()).await);
            }
        }
        let memory = match stopped {
            None => None,
            Some(stopped) => match self.finish_memory(entry, (taken.id, &taken.name), stopped).await {
                Ok(saved) => Some(saved),
                Err(cause) => return Err(self.remove_incomplete(entry, &taken, &cause).await),
            },
        };
        Ok(Taken { state: taken, quiesced, memory })
    }

    /// Removes a snapshot whose file systems were to be frozen and were not, or whose memory could not be saved. Returns the
    /// error of its take.
    async fn remove_incomplete(&self, entry: &VmRecord, taken: &SnapshotState, sentence: &str) -> Error {
        let (vm, name) = (api_types::vm_name(&entry.name), &taken.name);
        let removed = match api_types::id(taken.id).parse() {
            Ok(id) => self.snapshot_commit_job(&vm, CommitTarget::Snapshot(id)).await.map(drop),
            Err(cause) => Err(Error::failed(cause)),
        };
        let fate = match removed {
            Ok(()) => "is being removed".to_owned(),
            Err(e) => format!("could not be removed ({e})"),
        };
        Error::refused(format!("VM {vm}: snapshot {name} {fate}: {sentence}"))
    }

    /// A policy must know its snapshots; a person can do without.
    pub(super) async fn label_or_warn(
        &self,
        entry: &VmRecord,
        id: u128,
        label: &SnapshotLabel,
    ) -> Result<()> {
        match self.label_snapshot(entry, id, label.clone()).await {
            Err(e) if label.policy.is_none() => {
                warn!("VM {}: who takes a snapshot is not recorded: {e}", entry.name);
                Ok(())
            }
            labelled => Ok(labelled?),
        }
    }
}
