//! Recording of events: numbering, writing them to the VM's home, and notices about its files.

use std::rc::Rc;

use engine::{EventKind, Machine};
use tracing::{debug, error, info, warn};

use crate::daemon::datastore::Home;
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::journal;
use crate::daemon::vm::vm_record::VmRecord;

/// Maximum number of notices kept for `vm show`. The events contain all of them.
const NOTICES_MAX: usize = 100;

impl Daemon {
    /// Turns the files' notices into events, and keeps them for `vm show` until the VM is opened again. Called after
    /// every operation that may have touched the files.
    pub(crate) fn take_notices(&self, entry: &VmRecord) {
        // Another core sends the notices of its VMs.
        if let Some(files) = entry.running.own().and_then(|vm| vm.files.as_ref()) {
            self.report_notices(entry, files.take_notices());
        }
    }

    pub(crate) fn report_notices(&self, entry: &VmRecord, sentences: Vec<String>) {
        for sentence in sentences {
            info!("VM {}: {sentence}", entry.name);
            self.note(entry, &sentence);
            let mut notices = entry.notices.borrow_mut();
            if notices.len() < NOTICES_MAX {
                notices.push(sentence);
            }
        }
    }

    /// Numbers each event and writes it to file. Records the events from before the listener (a recovery) first.
    pub(in crate::daemon) async fn listen_to(self: &Rc<Self>, entry: &Rc<VmRecord>) {
        if let Some(machine) = entry.running.own_machine() {
            machine.events().iter().for_each(|event| self.record(entry, event));
            return self.listen(entry, &**machine);
        }
        if let Some(number) = entry.running.number() {
            let mut listened = self.listened.borrow_mut();
            listened.retain(|_, entry| entry.strong_count() > 0);
            listened.insert((entry.running.core(), number), Rc::downgrade(entry));
        }
        entry.running.send_events().await;
    }

    pub(in crate::daemon) fn listen(self: &Rc<Self>, entry: &Rc<VmRecord>, machine: &dyn Machine) {
        let (daemon, weak) = (Rc::downgrade(self), Rc::downgrade(entry));
        machine.listen(Box::new(move |event| {
            if let (Some(daemon), Some(entry)) = (daemon.upgrade(), weak.upgrade()) {
                daemon.record(&entry, event);
            }
        }));
    }

    pub(in crate::daemon) fn record(&self, entry: &VmRecord, event: &engine::Event) {
        let (vm, message) = (&entry.name, &event.message);
        match event.kind {
            EventKind::WritesLost => error!("VM {vm}: {message}; its guest has to be power-cycled"),
            EventKind::CommitFailed => error!("VM {vm}: the commit of {:?} failed: {message}", event.subject),
            kind => debug!("VM {vm}: {kind:?} {:?} {message}", event.subject),
        }
        self.record_event(entry, api_types::event(entry.next_event(), &entry.name, event));
        self.take_notices(entry);
        entry.running.follow_exports();
    }

    /// Copies the VM's events so far to its new home.
    pub(crate) fn copy_events(&self, entry: &VmRecord, to: &Home) {
        entry.events.borrow().iter().for_each(|event| self.journal.append(&to.path, event));
    }

    /// Records a message for people as an event of the home.
    pub(crate) fn note(&self, entry: &VmRecord, message: &str) {
        self.record_event(entry, api_types::home_event(entry, message));
    }

    /// Records what became of the copy of an image below the VM's disks.
    pub(crate) fn note_land(&self, entry: &VmRecord, message: &str) {
        let event = api::Event { operation: api::Operation::Land, ..api_types::home_event(entry, message) };
        self.record_event(entry, event);
    }

    /// Records that writes of the disk begin or cease to wait for space.
    pub(crate) fn note_space(&self, entry: &VmRecord, disk: &str, waits: bool) {
        let (operation, message) = match waits {
            true => {
                (api::Operation::SpaceExhausted, "the datastore is full: guest writes wait; reads continue")
            }
            false => (api::Operation::SpaceReturned, "guest writes no longer wait for space"),
        };
        let event = api_types::home_event(entry, message);
        self.record_event(entry, api::Event { operation, snapshot: Some(disk.to_owned()), ..event });
        if let Some(left_out) = self.space_log.admit() {
            match waits {
                true => warn!("{disk}: {message}{left_out}"),
                false => info!("{disk}: {message}{left_out}"),
            }
        }
    }

    pub(crate) fn note_stun(&self, entry: &VmRecord, message: &str, stun_us: u64) {
        self.record_event(entry, api::Event { stun_us, ..api_types::home_event(entry, message) });
    }

    pub(super) fn record_event(&self, entry: &VmRecord, event: api::Event) {
        self.journal.append(&entry.home, &event);
        self.feed.add(&event);
        if event.stun_us > 0 {
            self.stuns.count(event.operation, event.stun_us);
        }
        let mut events = entry.events.borrow_mut();
        events.push(event);
        let surplus = events.len().saturating_sub(journal::EVENTS_MAX);
        events.drain(..surplus);
    }
}
