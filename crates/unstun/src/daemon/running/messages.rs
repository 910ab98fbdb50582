//! Messages from a core to the control side of the daemon. They carry names and plain values, so that the two sides may
//! run on different threads.

use std::ops::Range;

use blk::volume::ExportEntry;
use blk::{Error, Result};
use engine::{Differences, Event};
use export::nbd::HandedOver;
use tokio::sync::{mpsc, oneshot};

/// Message about a VM, which is given by its name: a move replaces its record.
pub(crate) enum Message {
    /// An event of a VM of another core than the control side's. The VM is given by its number on that core.
    Event { core: usize, vm: u64, event: Event },
    /// Notices from the files of such a VM.
    Notices { core: usize, vm: u64, notices: Vec<String> },
    /// Delivers the answer of an operation. It comes after all messages that the operation has sent.
    Answer(Box<dyn FnOnce() + Send>),
    /// A client requests the list of all exports.
    Exports { answer: oneshot::Sender<Vec<ExportEntry>> },
    /// A client requests a VM that this core does not run. The answer is the number of the core that runs it.
    CoreOf { vm: String, answer: oneshot::Sender<Option<usize>> },
    /// A connection whose export another core serves.
    Connection { core: usize, connection: HandedOver },
    /// A sentence for the VM's events.
    Note { vm: String, sentence: String },
    /// A client was attached: the VM's files may have notices.
    Attached { vm: String },
    /// Changes of the disk begin (true) or cease (false) to wait for space.
    Space { vm: String, disk: String, waits: bool },
    /// A change found no space. The answer says whether entries of the bin were removed for it.
    SpaceWanted { vm: String, freed: oneshot::Sender<bool> },
    /// A client requests other content than the present one. The answer says what replaced the content.
    Replacement { vm: String, event: oneshot::Sender<String> },
    /// A client asks what differs between two states of a disk.
    Differences { vm: String, between: Compared, answer: oneshot::Sender<Result<Differences>> },
    /// A client requests a VM that does not run. The answer says why it does not.
    NotRunning { vm: String, reason: oneshot::Sender<Error> },
}

/// Two states of a disk by their IDs, and the range in which they are compared, as for `DiffRequest`.
pub(crate) struct Compared {
    pub disk: u32,
    pub from: String,
    /// None for the running state.
    pub to: Option<String>,
    pub range: Range<u64>,
}

/// The core's end of the channel to the control side.
///
/// The channel has no limit of its own: each connection has at most one request for space under way per admitted
/// change, and repeated refusals and waits are reported once.
#[derive(Clone)]
pub(crate) struct ControlSide(mpsc::UnboundedSender<Message>);

pub(crate) type Inbox = mpsc::UnboundedReceiver<Message>;

pub(crate) fn channel() -> (ControlSide, Inbox) {
    let (messages, inbox) = mpsc::unbounded_channel();
    (ControlSide(messages), inbox)
}

impl ControlSide {
    pub(crate) fn note(&self, vm: &str, sentence: &str) {
        self.send(Message::Note { vm: vm.to_owned(), sentence: sentence.to_owned() });
    }

    pub(crate) fn attached(&self, vm: &str) {
        self.send(Message::Attached { vm: vm.to_owned() });
    }

    pub(crate) fn space(&self, vm: &str, disk: &str, waits: bool) {
        self.send(Message::Space { vm: vm.to_owned(), disk: disk.to_owned(), waits });
    }

    pub(crate) fn event(&self, core: usize, vm: u64, event: Event) {
        self.send(Message::Event { core, vm, event });
    }

    pub(crate) fn notices(&self, core: usize, vm: u64, notices: Vec<String>) {
        if !notices.is_empty() {
            self.send(Message::Notices { core, vm, notices });
        }
    }

    pub(crate) fn answer(&self, deliver: impl FnOnce() + Send + 'static) {
        self.send(Message::Answer(Box::new(deliver)));
    }

    /// Returns the exports of all cores.
    pub(crate) async fn exports(&self) -> Vec<ExportEntry> {
        let (answer, exports) = oneshot::channel();
        self.send(Message::Exports { answer });
        exports.await.unwrap_or_default()
    }

    /// Returns the core that runs a VM, if any does.
    pub(crate) async fn core_of(&self, vm: &str) -> Option<usize> {
        let (answer, core) = oneshot::channel();
        self.send(Message::CoreOf { vm: vm.to_owned(), answer });
        core.await.unwrap_or_default()
    }

    pub(crate) fn hand_over(&self, core: usize, connection: HandedOver) {
        self.send(Message::Connection { core, connection });
    }

    /// Removes entries of the bin permanently. Returns false if no removal would help. The removal goes on if the caller
    /// stops waiting.
    pub(crate) async fn make_room(&self, vm: &str) -> bool {
        let (freed, answer) = oneshot::channel();
        self.send(Message::SpaceWanted { vm: vm.to_owned(), freed });
        answer.await.unwrap_or(false)
    }

    /// Returns what last replaced the content of a VM's disks, as a part of a sentence.
    pub(crate) async fn replacement(&self, vm: &str) -> String {
        let (event, answer) = oneshot::channel();
        self.send(Message::Replacement { vm: vm.to_owned(), event });
        answer.await.unwrap_or_default()
    }

    /// Compares two states of a VM's disk.
    ///
    /// # Errors
    /// `NotFound` if the VM or a state does not exist any more; `Refused` while they cannot be compared.
    pub(crate) async fn differences(&self, vm: &str, between: Compared) -> Result<Differences> {
        let (answer, found) = oneshot::channel();
        self.send(Message::Differences { vm: vm.to_owned(), between, answer });
        let ends = |_| Error::cancelled(format!("VM {vm}"));
        found.await.unwrap_or_else(|e| Err(ends(e)))
    }

    /// Fails with the reason why a VM does not run.
    pub(crate) async fn refuse_not_running<T>(&self, vm: &str) -> Result<T> {
        let (reason, answer) = oneshot::channel();
        self.send(Message::NotRunning { vm: vm.to_owned(), reason });
        let changing = |_| Error::refused(format!("VM {vm}"), "the VM is being opened or closed; try again");
        Err(answer.await.unwrap_or_else(changing))
    }

    /// Sends a message. At the daemon's end no control side receives it, and none is needed.
    fn send(&self, message: Message) {
        let _ = self.0.send(message);
    }
}
