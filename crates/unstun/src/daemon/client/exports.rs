//! Exports of the NBD server: `VM/diskN.gG` for a running disk in generation G of its content, `VM/diskN` for the same
//! disk while its clients need not be distinguished, and `VM/diskN@SNAPSHOT` for a sealed state.

use std::rc::Rc;

use api::Operation;
use blk::manifest::{ContentGeneration, DiskState};
use blk::socket::{ClientId, Peer};
use blk::volume::{Attachment, ExportEntry, Exports};
use blk::{Error, Local, Result};
use tracing::{debug, info, warn};

use crate::daemon::client::switchable_volume::Guest;
use crate::daemon::client::writers::{ClientVolume, DiskClient};
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::VmRecord;
use crate::log::{LineLimit, Reported};

/// Separator between a disk's number and its generation. It has no meaning in a URI, a shell, XML or QEMU's options.
const GENERATION_MARK: &str = ".g";

/// Returns the export name that always refers to the same content.
pub(crate) fn lasting_name(vm: &str, number: u32, generation: ContentGeneration) -> String {
    format!("{vm}/disk{number}{GENERATION_MARK}{}", generation.present)
}

/// Maximum number of log lines per second. If many clients connect and disconnect at once, further lines are counted
/// instead of written.
const LINES_A_SECOND: u32 = 64;

pub(crate) struct Catalogue {
    daemon: Rc<Daemon>,
    lines: Rc<LineLimit>,
    /// Refusals that were logged: QEMU tries again every few seconds.
    refusals: Reported<(ClientId, String)>,
}

/// Token of a client of an export. Its drop logs that the client has left.
struct Opened {
    client: String,
    name: String,
    lines: Rc<LineLimit>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(left_out) = self.lines.admit() {
            info!("{} leaves {}{left_out}", self.client, self.name);
        }
    }
}

/// Export that a client requests.
enum Wanted<'a> {
    Running { number: u32, generation: Option<u64> },
    Sealed { number: u32, snapshot: &'a str },
}

/// Splits an export's `name` into the VM's name and the requested export.
fn parse(name: &str) -> Option<(&str, Wanted<'_>)> {
    let (path, snapshot) = match name.split_once('@') {
        Some((path, snapshot)) => (path, Some(snapshot)),
        None => (name, None),
    };
    let (vm, disk) = path.split_once("/disk")?;
    let (number, generation) = match disk.split_once(GENERATION_MARK) {
        Some((number, generation)) => (number, Some(plain_number(generation)?)),
        None => (disk, None),
    };
    let number = u32::try_from(plain_number(number)?).ok()?;
    match (snapshot, generation) {
        (Some(_), Some(_)) => None,
        (Some(snapshot), None) => Some((vm, Wanted::Sealed { number, snapshot })),
        (None, generation) => Some((vm, Wanted::Running { number, generation })),
    }
}

/// Parses a number that consists of digits only, so that no other name refers to the same disk.
fn plain_number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl Catalogue {
    pub(crate) fn new(daemon: Rc<Daemon>) -> Catalogue {
        Catalogue { daemon, lines: Rc::new(LineLimit::new(LINES_A_SECOND)), refusals: Reported::default() }
    }

    async fn attach_named(&self, name: &str, peer: &Peer) -> Result<Attachment> {
        let expected = || {
            let cause =
                format!("no export {name:?}: expected VM/diskN, VM/diskN.gGENERATION or VM/diskN@SNAPSHOT");
            Error::not_found("", cause)
        };
        let (vm, wanted) = parse(name).ok_or_else(expected)?;
        let entry = self.daemon.entry(vm)?;
        // The client is counted as a client before it stops counting as one that is being admitted.
        let _entering = entry.gate.enter(&entry.name)?;
        match wanted {
            Wanted::Sealed { number, snapshot } => {
                let leaving = entry.gate.leaving();
                let (volume, view) = entry.vm.open_view(snapshot, number, &peer.name).await?;
                Ok(Attachment { volume, token: Box::new((view, leaving)) })
            }
            Wanted::Running { number, generation } => {
                self.attach_running(&entry, number, generation, peer).await
            }
        }
    }

    async fn attach_running(
        &self,
        entry: &Rc<VmRecord>,
        number: u32,
        generation: Option<u64>,
        peer: &Peer,
    ) -> Result<Attachment> {
        // The refusal comes before anything is changed for the client.
        entry.refuse_other_content(number, generation).inspect_err(|e| self.note_refused(entry, peer, e))?;
        let leaving = entry.gate.leaving();
        let (volume, attached) = entry.vm.attach(number, &peer.name).await?;
        // The attach may have waited for a revert. From here on no revert begins before the client has disconnected.
        entry.refuse_other_content(number, generation)?;
        self.daemon.take_notices(entry);
        let guests = &entry.gate.guests;
        let guest = guests.enter(attached, peer);
        let client = Rc::new(DiskClient {
            disk: format!("{}/disk{number}", entry.name),
            gate: entry.gate.clone(),
            guest: guest.clone(),
            tell: self.teller(&entry.name),
            tell_space: self.space_teller(&entry.name, number),
            make_room: self.room_maker(&entry.name),
        });
        let token: (Rc<Guest>, _) = (guest, leaving);
        client.admit(&self.daemon.env).await;
        let volume = ClientVolume::new(self.daemon.env.clone(), guests.switch(number, volume), client);
        Ok(Attachment { volume, token: Box::new(token) })
    }

    fn note_refused(&self, entry: &VmRecord, peer: &Peer, error: &Error) {
        if entry.gate.guests.is_news(peer.client, None) {
            self.daemon.note(entry, &format!("{peer} was refused: {}: {}", error.place, error.cause));
        }
    }

    fn log_opened(&self, name: &str, client: &Peer, attachment: Attachment) -> Attachment {
        if let Some(left_out) = self.lines.admit() {
            info!("{client} opens {name}{left_out}");
        }
        let opened = Opened { client: client.name.clone(), name: name.to_owned(), lines: self.lines.clone() };
        Attachment { token: Box::new((attachment.token, opened)), ..attachment }
    }

    fn log_refused(&self, name: &str, client: &Peer, error: &Error) {
        let refused = format!("{name}: {error}");
        if !self.refusals.is_news((client.client, refused.clone())) {
            debug!("{client} is refused {refused}, as before");
        } else if let Some(left_out) = self.lines.admit() {
            warn!("{client} is refused {refused}{left_out}");
        }
    }

    fn room_maker(&self, vm: &str) -> Rc<dyn Fn() -> Local<'static, bool>> {
        let (daemon, vm) = (Rc::downgrade(&self.daemon), vm.to_owned());
        Rc::new(move || {
            let found =
                daemon.upgrade().and_then(|daemon| daemon.entry(&vm).ok().map(|entry| (daemon, entry)));
            Box::pin(async move {
                let Some((daemon, entry)) = found else { return false };
                // The task completes even if the client disconnects meanwhile.
                let env = daemon.env.clone();
                env.spawn(async move { daemon.make_room(&entry.datastore).await }).join().await
            })
        })
    }

    fn space_teller(&self, vm: &str, number: u32) -> Rc<dyn Fn(bool)> {
        let (daemon, vm, disk) = (Rc::downgrade(&self.daemon), vm.to_owned(), format!("{vm}/disk{number}"));
        Rc::new(move |waits| {
            let Some(daemon) = daemon.upgrade() else { return };
            if let Ok(entry) = daemon.entry(&vm) {
                daemon.note_space(&entry, &disk, waits);
            }
        })
    }

    /// Returns the callback that reports a sentence about the VM. It looks up the VM by name, since a move replaces its
    /// record.
    fn teller(&self, vm: &str) -> Box<dyn Fn(&str)> {
        let (daemon, vm) = (Rc::downgrade(&self.daemon), vm.to_owned());
        Box::new(move |sentence| {
            warn!("VM {vm}: {sentence}");
            let Some(daemon) = daemon.upgrade() else { return };
            if let Ok(entry) = daemon.entry(&vm) {
                daemon.note(&entry, sentence);
            }
        })
    }
}

impl VmRecord {
    /// Refuses a client that may have cached other content of the disk under the export name that it uses.
    fn refuse_other_content(&self, number: u32, wanted: Option<u64>) -> Result<()> {
        let now = self.vm.generation();
        let name = &self.name;
        let remedy = format!("`unstun attach {name}` prints the present name");
        let cause = match wanted {
            Some(generation) if generation == now.present => return Ok(()),
            None if now.is_opened() => return Ok(()),
            None => format!(
                "{}, and a client of before may still run, with the old content in its caches; when it is certain that \
                 none does, `unstun vm open {name}` serves this name again; {remedy}",
                self.replacement()
            ),
            Some(generation) if generation < now.present => format!(
                "generation {generation} is gone: {}, and is in generation {} now; the guest must be power-cycled: \
                 {remedy}",
                self.replacement(),
                now.present
            ),
            Some(generation) => format!(
                "there is no generation {generation} of it, the present one is {}; the guest must be power-cycled: \
                 {remedy}",
                now.present
            ),
        };
        Err(Error::refused(format!("{name}/disk{number}"), cause))
    }

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

fn describe_disk(vm: &str, disk: &DiskState) -> String {
    format!("{} of {vm}, {} bytes", disk.slot, disk.size_bytes)
}

fn describe_snapshot(name: &str) -> String {
    format!("sealed state {name}")
}

impl Exports for Catalogue {
    fn list(&self) -> Vec<ExportEntry> {
        let mut exports = Vec::new();
        for entry in self.daemon.entries() {
            let state = entry.vm.state();
            for disk in &state.disks {
                let name = match state.generation.is_opened() {
                    true => format!("{}/disk{}", entry.name, disk.number),
                    false => lasting_name(&entry.name, disk.number, state.generation),
                };
                exports.push(ExportEntry { name, description: describe_disk(&entry.name, disk) });
            }
            for snapshot in state.snapshots.iter().filter(|s| entry.vm.is_sealed(s.id)) {
                for (number, _) in &snapshot.disks {
                    let name = format!("{}/disk{number}@{}", entry.name, snapshot.name);
                    exports.push(ExportEntry { name, description: describe_snapshot(&snapshot.name) });
                }
            }
        }
        exports
    }

    fn description(&self, name: &str) -> String {
        let described = || {
            let (vm, wanted) = parse(name)?;
            let entry = self.daemon.entry(vm).ok()?;
            match wanted {
                Wanted::Sealed { snapshot, .. } => Some(describe_snapshot(snapshot)),
                Wanted::Running { number, .. } => {
                    let state = entry.vm.state();
                    let disk = state.disks.iter().find(|disk| disk.number == number)?;
                    Some(describe_disk(&entry.name, disk))
                }
            }
        };
        described().unwrap_or_default()
    }

    /// Returns the VM's name: all clients of a VM, on any disk or state, share one allotment.
    fn party(&self, name: &str) -> String {
        name.split_once('/').map_or(name, |(vm, _)| vm).to_string()
    }

    fn attach<'a>(&'a self, name: &'a str, client: &'a Peer) -> Local<'a, Result<Attachment>> {
        Box::pin(async move {
            let attached = self.attach_named(name, client).await;
            let attached = attached.inspect_err(|error| self.log_refused(name, client, error));
            attached.map(|attachment| self.log_opened(name, client, attachment))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str) -> Option<(String, u32, Option<u64>, Option<String>)> {
        let (vm, wanted) = parse(name)?;
        Some(match wanted {
            Wanted::Running { number, generation } => (vm.into(), number, generation, None),
            Wanted::Sealed { number, snapshot } => (vm.into(), number, None, Some(snapshot.into())),
        })
    }

    #[test]
    fn names_of_exports() {
        assert_eq!(read("web/disk0"), Some(("web".into(), 0, None, None)));
        assert_eq!(read("a.g1/disk12"), Some(("a.g1".into(), 12, None, None)));
        let generation = ContentGeneration { present: 77, opened: 1 };
        assert_eq!(read(&lasting_name("web", 1, generation)), Some(("web".into(), 1, Some(77), None)));
        assert_eq!(read("web/disk0@a.g5"), Some(("web".into(), 0, None, Some("a.g5".into()))));
        for bad in [
            "",
            "web",
            "web/disk",
            "web/diskx",
            "web/disk0.g",
            "web/disk0.g-1",
            "web/disk+0",
            "web/disk0.g5@a",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
