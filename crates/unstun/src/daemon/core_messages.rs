//! What the control side does for the messages of a core.

use std::rc::{Rc, Weak};

use api::Operation;

use crate::daemon::running::messages::{Inbox, Message};
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
            Message::NotRunning { vm, reason } => {
                if let Err(e) = self.entry(&vm) {
                    let _ = reason.send(e);
                }
            }
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
