//! What the control side does for the messages of a core.

use std::rc::{Rc, Weak};

use api::Operation;
use blk::volume::ExportEntry;
use engine::DiffRequest;

use crate::daemon::running::client::exports::{Catalogue, exports_of};
use crate::daemon::running::messages::{Compared, Inbox, Message};
use crate::daemon::running::running_vms::RunningVms;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::VmRecord;

impl Daemon {
    /// Carries out the messages of a core until the daemon ends. No message delays the next one.
    pub(super) async fn serve_core(daemon: Weak<Daemon>, mut inbox: Inbox) {
        while let Some(message) = inbox.recv().await {
            let Some(daemon) = daemon.upgrade() else { return };
            daemon.carry_out(message);
        }
    }

    /// Carries out one message. A VM that was closed or removed meanwhile has no events, and its clients are gone. A
    /// caller that has stopped waiting needs no answer.
    fn carry_out(self: &Rc<Self>, message: Message) {
        match message {
            Message::Event { core, vm, event } => {
                self.with_listened(core, vm, |entry| self.record(entry, &event));
            }
            Message::Notices { core, vm, notices } => {
                self.with_listened(core, vm, |entry| self.report_notices(entry, notices));
            }
            Message::Answer(deliver) => deliver(),
            Message::Exports { answer } => {
                let daemon = self.clone();
                self.env.spawn_detached(Box::pin(async move {
                    let _ = answer.send(daemon.exports().await);
                }));
            }
            Message::CoreOf { vm, answer } => {
                let _ = answer.send(self.entry(&vm).ok().map(|entry| entry.running.core()));
            }
            Message::Connection { core, connection } => {
                if let Some(core) = self.cores.get(core) {
                    core.tell(move |running| Catalogue::resume(running, connection));
                }
            }
            Message::Note { vm, sentence } => self.with_entry(&vm, |entry| self.note(entry, &sentence)),
            Message::Attached { vm } => self.with_entry(&vm, |entry| self.take_notices(entry)),
            Message::Space { vm, disk, waits } => {
                self.with_entry(&vm, |entry| self.note_space(entry, &disk, waits));
            }
            Message::SpaceWanted { vm, freed } => self.with_entry(&vm, |entry| {
                let (daemon, datastore) = (self.clone(), entry.datastore.clone());
                self.env.spawn_detached(Box::pin(async move {
                    let _ = freed.send(daemon.make_room(&datastore).await);
                }));
            }),
            Message::Replacement { vm, event } => self.with_entry(&vm, |entry| {
                let _ = event.send(entry.replacement());
            }),
            Message::Differences { vm, between, answer } => {
                let entry = self.entry(&vm);
                self.env.spawn_detached(Box::pin(async move {
                    let Compared { disk, from, to, range } = between;
                    let between = DiffRequest {
                        disk,
                        from: &from,
                        to: to.as_deref(),
                        start: range.start,
                        end: range.end,
                    };
                    let _ = answer.send(match entry {
                        Ok(entry) => entry.running.differences(between).await,
                        Err(e) => Err(e),
                    });
                }));
            }
            Message::NotRunning { vm, reason } => {
                if let Err(e) = self.entry(&vm) {
                    let _ = reason.send(e);
                }
            }
        }
    }

    /// Returns the exports of all cores, by the names of their VMs.
    async fn exports(&self) -> Vec<ExportEntry> {
        let mut all: Vec<(String, Vec<ExportEntry>)> = Vec::new();
        for core in self.cores.all() {
            let list = async |running: Rc<RunningVms>| {
                running.refresh_all().await;
                let vms = running.all();
                vms.iter().map(|vm| (vm.name.clone(), exports_of(vm))).collect::<Vec<_>>()
            };
            all.extend(core.run(list).await);
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.into_iter().flat_map(|(_, exports)| exports).collect()
    }

    fn with_listened(&self, core: usize, vm: u64, then: impl FnOnce(&Rc<VmRecord>)) {
        let entry = self.listened.borrow().get(&(core, vm)).and_then(Weak::upgrade);
        if let Some(entry) = entry {
            then(&entry);
        }
    }

    fn with_entry(&self, vm: &str, then: impl FnOnce(&Rc<VmRecord>)) {
        if let Ok(entry) = self.entry(vm) {
            then(&entry);
        }
    }
}

impl VmRecord {
    /// Returns what last replaced the content, as far as the events record it.
    fn replacement(&self) -> String {
        let events = self.events.borrow();
        let replaces = |operation| {
            matches!(
                operation,
                Operation::Revert | Operation::Discard | Operation::Reset | Operation::WritesLost
            )
        };
        let Some(event) = events.iter().rev().find(|event| replaces(event.operation)) else {
            return "the disk's content was replaced".to_owned();
        };
        if event.operation == Operation::WritesLost {
            return format!("{} ({:.0})", engine::WRITES_LOST, event.time);
        }
        let to = event.snapshot.as_ref().map(|snapshot| format!(" to {snapshot}")).unwrap_or_default();
        format!("the disk's content was replaced by a {}{to} ({:.0})", event.operation.as_str(), event.time)
    }
}
