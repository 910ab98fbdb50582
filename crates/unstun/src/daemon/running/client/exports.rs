//! Exports of the NBD server: `VM/diskN.gG` for a running disk in generation G of its content, `VM/diskN` for the same
//! disk while its clients need not be distinguished, and `VM/diskN@SNAPSHOT` for a sealed state.

use std::rc::Rc;

use blk::manifest::DiskState;
use blk::socket::{ClientId, Peer};
use blk::volume::{Attachment, ExportEntry, Exports};
use blk::{Error, Local, Result};
use export::nbd::{self, HandedOver, Routes};
use tracing::{debug, info, warn};

use crate::daemon::running::client::changes::{DiskChanges, hex};
use crate::daemon::running::client::export_name::{GENERATION_MARK, lasting_name};
use crate::daemon::running::running_vms::RunningVms;
use crate::daemon::running::vm::RunningVm;
use crate::log::{LineLimit, Reported};

/// Maximum number of log lines per second. If many clients connect and disconnect at once, further lines are counted
/// instead of written.
const LINES_A_SECOND: u32 = 64;

pub(crate) struct Catalogue {
    running: Rc<RunningVms>,
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
    fn new(running: Rc<RunningVms>) -> Catalogue {
        Catalogue { running, lines: Rc::new(LineLimit::new(LINES_A_SECOND)), refusals: Reported::default() }
    }

    /// Serves this core's part of the catalogue: connections whose VM is on another core go there.
    pub(crate) fn route(running: &Rc<RunningVms>) -> Rc<dyn Exports> {
        let catalogue = Rc::new(Catalogue::new(running.clone()));
        if running.core.count > 1 {
            running.front_end.set_routes(catalogue.clone());
        }
        running.exports.get_or_init(|| catalogue).clone()
    }

    /// Continues a connection that another core has handed over.
    pub(crate) fn resume(running: &Rc<RunningVms>, connection: HandedOver) {
        if let Some(exports) = running.exports.get() {
            nbd::resume(&running.env, connection, exports, &running.front_end);
        }
    }

    async fn attach_named(&self, name: &str, peer: &Peer) -> Result<Attachment> {
        let expected = || {
            let cause =
                format!("no export {name:?}: expected VM/diskN, VM/diskN.gGENERATION or VM/diskN@SNAPSHOT");
            Error::not_found("", cause)
        };
        let (vm, wanted) = parse(name).ok_or_else(expected)?;
        let Some(running) = self.running.get(vm) else {
            return self.running.control.refuse_not_running(vm).await;
        };
        running.refresh().await;
        // The client is counted as a client before it stops counting as one that is being admitted.
        let _entering = running.gate.enter(&running.name)?;
        match wanted {
            Wanted::Sealed { number, snapshot } => {
                let leaving = running.gate.leaving();
                let (volume, view) = running.machine.open_view(snapshot, number, &peer.name).await?;
                let changes = DiskChanges::of_sealed(&running, &self.running.control, number, snapshot);
                Ok(Attachment { volume, changes, token: Box::new((view, leaving)) })
            }
            Wanted::Running { number, generation } => {
                self.attach_running(&running, number, generation, peer).await
            }
        }
    }

    async fn attach_running(
        &self,
        vm: &RunningVm,
        number: u32,
        generation: Option<u64>,
        peer: &Peer,
    ) -> Result<Attachment> {
        // The refusal comes before anything is changed for the client.
        let refused = self.refuse_other_content(vm, number, generation).await;
        refused.inspect_err(|e| self.note_refused(vm, peer, e))?;
        let leaving = vm.gate.leaving();
        let (volume, attached) = vm.machine.attach(number, &peer.name).await?;
        // The attach may have waited for a revert. From here on no revert begins before the client has disconnected.
        self.refuse_other_content(vm, number, generation).await?;
        self.running.note_attached(vm);
        let connection = self.running.connect(vm, volume, attached, peer);
        connection.client().admit(&self.running.env).await;
        let guest = connection.client().guest.clone();
        let changes = DiskChanges::of_running(vm, &self.running.control, number);
        Ok(Attachment { volume: connection, changes, token: Box::new((guest, leaving)) })
    }

    fn note_refused(&self, vm: &RunningVm, peer: &Peer, error: &Error) {
        if vm.gate.guests.is_news(peer.client, None) {
            let sentence = format!("{peer} was refused: {}: {}", error.place, error.cause);
            self.running.control.note(&vm.name, &sentence);
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

    /// Refuses a client that may have cached other content of the disk under the export name that it uses.
    async fn refuse_other_content(&self, vm: &RunningVm, number: u32, wanted: Option<u64>) -> Result<()> {
        let (now, name) = (vm.machine.generation(), &vm.name);
        let remedy = format!("`unstun attach {name}` prints the current name");
        let cause = match wanted {
            Some(generation) if generation == now.present => return Ok(()),
            None if now.is_opened() => return Ok(()),
            None => format!(
                "{}, and an earlier client may still be running with the old content in its caches; when no earlier \
                 client is running, `unstun vm open {name}` serves this name again; {remedy}",
                self.running.control.replacement(name).await
            ),
            Some(generation) if generation < now.present => format!(
                "generation {generation} is no longer served: {}, and its generation is {} now; the guest must be \
                 power-cycled: {remedy}",
                self.running.control.replacement(name).await,
                now.present
            ),
            Some(generation) => format!(
                "the disk has no generation {generation}, the current one is {}; the guest must be power-cycled: \
                 {remedy}",
                now.present
            ),
        };
        Err(Error::refused(format!("{name}/disk{number}"), cause))
    }
}

/// Returns the exports of a VM.
pub(crate) fn exports_of(vm: &RunningVm) -> Vec<ExportEntry> {
    let mut exports = Vec::new();
    let state = vm.machine.state();
    for disk in &state.disks {
        let name = match state.generation.is_opened() {
            true => format!("{}/disk{}", vm.name, disk.number),
            false => lasting_name(&vm.name, disk.number, state.generation),
        };
        exports.push(ExportEntry { name, description: describe_disk(&vm.name, disk) });
    }
    for snapshot in state.snapshots.iter().filter(|s| vm.machine.is_sealed(s.id)) {
        for (number, _) in &snapshot.disks {
            let name = format!("{}/disk{number}@{}", vm.name, snapshot.name);
            exports.push(ExportEntry { name, description: describe_snapshot(&snapshot.name, snapshot.id) });
        }
    }
    exports
}

fn describe_disk(vm: &str, disk: &DiskState) -> String {
    format!("{} of {vm}, {} bytes", disk.slot, disk.size_bytes)
}

/// `unstun pull` distinguishes by the ID a snapshot from a later one of the same name.
fn describe_snapshot(name: &str, id: u128) -> String {
    format!("sealed state {name}, ID {}", hex(id))
}

impl Routes for Catalogue {
    fn other_core<'a>(&'a self, export: &'a str) -> Local<'a, Option<usize>> {
        Box::pin(async move {
            let (vm, _) = parse(export)?;
            if self.running.get(vm).is_some() {
                return None;
            }
            self.running.control.core_of(vm).await.filter(|core| *core != self.running.core.own)
        })
    }

    fn hand_over(&self, core: usize, connection: HandedOver) {
        self.running.control.hand_over(core, connection);
    }
}

impl Exports for Catalogue {
    fn list_all(&self) -> Local<'_, Vec<ExportEntry>> {
        Box::pin(async {
            match self.running.core.count {
                1 => self.list(),
                _ => self.running.control.exports().await,
            }
        })
    }

    fn list(&self) -> Vec<ExportEntry> {
        self.running.all().iter().flat_map(|vm| exports_of(vm)).collect()
    }

    fn description(&self, name: &str) -> String {
        let described = || {
            let (vm, wanted) = parse(name)?;
            let running = self.running.get(vm)?;
            match wanted {
                Wanted::Sealed { snapshot, .. } => {
                    let state = running.machine.state();
                    let is_it = |name: &str, id: u128| name == snapshot || hex(id) == snapshot;
                    let found = state.snapshots.iter().find(|found| is_it(&found.name, found.id))?;
                    Some(describe_snapshot(&found.name, found.id))
                }
                Wanted::Running { number, .. } => {
                    let state = running.machine.state();
                    let disk = state.disks.iter().find(|disk| disk.number == number)?;
                    Some(describe_disk(&running.name, disk))
                }
            }
        };
        described().unwrap_or_default()
    }

    /// Returns the VM's name: all clients of a VM, on any disk or state, share one allotment.
    fn client_group(&self, name: &str) -> String {
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
    use blk::manifest::ContentGeneration;

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
