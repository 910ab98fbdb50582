//! Guests whose file systems are frozen for a take, and those that a crash has left frozen.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use api::error::{Error, Result};
use api::name::VmName;
use api::{Operation, Quiesce, Quiesced, VmGuest};
use futures_util::future::{join_all, select};
use tokio::sync::oneshot;
use tracing::warn;

use crate::daemon::datastore::asked;
use crate::daemon::requests::api_types;
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::state::Daemon;
use crate::daemon::vm::labels::Labels;
use crate::daemon::vm::vm_record::VmRecord;
use crate::guest::{self, Freeze, Frozen, Held, HeldGuest, NotHeld, Record};

/// File systems that a take has asked to be frozen.
pub(super) enum Quiescing {
    Frozen(Frozen),
    /// The take goes on without, for this reason.
    Not(String),
}

/// Time for a guest's answer that its file systems are thawed, for which the end of the daemon waits.
const THAW_MS_MAX: u64 = 5000;
/// Why nothing is frozen where no guest runs. A take that requires frozen file systems does not fail for it.
const NO_GUEST: &str = "no client is connected; the disks are as the guest left them";

impl Daemon {
    fn freeze_of(&self, entry: &VmRecord) -> Result<Freeze> {
        let guest = entry.labels.get().guest();
        let missing = || {
            Error::refused(format!(
                "VM {0}: unstun cannot reach its guest; name its agent: `unstun vm set {0} --guest-agent unix:/PATH`",
                entry.name
            ))
        };
        let record = Record {
            vm: api_types::vm_name(&entry.name),
            held: Held::Frozen(guest.access.clone().ok_or_else(missing)?),
        };
        Ok(Freeze {
            guest: self.held_guest(record),
            frozen_max: Duration::from_millis(guest.frozen_ms_max),
            busy: entry.guest_busy.clone(),
        })
    }

    pub(super) fn held_guest(&self, record: Record) -> HeldGuest {
        let (datastore, guests_dir) = (self.main.root.clone(), self.guests_dir.clone());
        HeldGuest { record, datastore, guests_dir }
    }

    /// Freezes the guest's file systems for a take, as far as the take wants it.
    pub(super) async fn quiesce(
        self: &Rc<Self>,
        entry: &Rc<VmRecord>,
        wanted: Quiesce,
    ) -> Result<Option<Quiescing>> {
        if wanted == Quiesce::No {
            return Ok(None);
        }
        if entry.running.present(Who::Writers).await.is_empty() {
            return Ok(Some(Quiescing::Not(NO_GUEST.to_owned())));
        }
        let frozen = match self.freeze_of(entry) {
            Ok(freeze) => guest::freeze(freeze).await,
            Err(error) if wanted == Quiesce::Require => return Err(error),
            Err(error) => return Ok(Some(Quiescing::Not(error.to_string()))),
        };
        match frozen {
            Ok(frozen) => Ok(Some(Quiescing::Frozen(frozen))),
            Err(NotHeld { cause, later }) => {
                self.note_later(entry, later);
                match wanted {
                    Quiesce::Require => {
                        Err(Error::refused(format!("VM {}: no snapshot was taken: {cause}", entry.name)))
                    }
                    _ => Ok(Some(Quiescing::Not(cause))),
                }
            }
        }
    }

    /// Thaws the guest's file systems after the take, and returns what became of it.
    pub(super) async fn thaw(self: &Rc<Self>, entry: &Rc<VmRecord>, quiescing: Quiescing) -> Quiesced {
        let frozen = match quiescing {
            Quiescing::Frozen(frozen) => frozen,
            Quiescing::Not(cause) => {
                let cause = Some(cause);
                return Quiesced { consistent: false, file_systems: None, freeze_us: 0, frozen_us: 0, cause };
            }
        };
        let (file_systems, freeze_us) = (frozen.file_systems, frozen.freeze_us);
        let thawed = frozen.thaw().await;
        self.frozen_guests.count(thawed.frozen_us);
        self.note_later(entry, thawed.later);
        let consistent = thawed.held.is_ok();
        Quiesced {
            consistent,
            file_systems,
            freeze_us,
            frozen_us: thawed.frozen_us,
            cause: thawed.held.err(),
        }
    }

    pub(super) fn note_quiesced(&self, entry: &VmRecord, snapshot: &str, quiesced: &Quiesced) {
        let sentence = quiesced.sentence();
        if !quiesced.consistent {
            warn!("VM {}: snapshot {snapshot}: {sentence}", entry.name);
        }
        let (snapshot, frozen_us) = (Some(snapshot.to_owned()), quiesced.frozen_us);
        let event = api_types::home_event(entry, &sentence);
        self.record_event(entry, api::Event { operation: Operation::Quiesce, snapshot, frozen_us, ..event });
    }

    /// Records, when it is known, what became of file systems that may be frozen.
    pub(super) fn note_later(
        self: &Rc<Self>,
        entry: &Rc<VmRecord>,
        later: Option<oneshot::Receiver<String>>,
    ) {
        if let Some(later) = later {
            self.follow_thaw(api_types::vm_name(&entry.name), Some(entry), later);
        }
    }

    /// Does the same for a guest whose VM may not exist any more.
    fn follow_thaw(
        self: &Rc<Self>,
        vm: VmName,
        entry: Option<&Rc<VmRecord>>,
        later: oneshot::Receiver<String>,
    ) {
        self.frozen_guests.begin(&vm);
        let (daemon, entry) = (Rc::downgrade(self), entry.map(Rc::downgrade));
        self.env.spawn_detached(Box::pin(async move {
            let said = later.await;
            let (Ok(sentence), Some(daemon)) = (said, daemon.upgrade()) else { return };
            daemon.frozen_guests.end(&vm, &sentence);
            if let Some(entry) = entry.and_then(|entry| entry.upgrade()) {
                daemon.note(&entry, &sentence);
            }
        }));
    }

    /// Returns the guests that may be held still, with what is known of each. `unstun thaw` may have released some.
    pub(crate) async fn unthawed_guests(&self) -> BTreeMap<VmName, String> {
        if self.frozen_guests.is_empty() {
            return BTreeMap::new();
        }
        let root = self.main.root.clone();
        // A guest may be frozen because this datastore hangs.
        match asked(&self.main, self.env.blocking(move || guest::all_records(&root))).await {
            Ok(records) => {
                let recorded: Vec<_> = records.into_iter().map(|record| record.vm).collect();
                self.frozen_guests.keep(&recorded)
            }
            Err(_) => self.frozen_guests.all(),
        }
    }

    /// Waits until no guest is frozen for a take under way, and at most as long as guests may be frozen: the take may wait for
    /// space.
    pub(crate) async fn await_thaws(&self) {
        let takes = self.entries().into_iter().map(|entry| async move {
            let us = (entry.labels.get().guest().frozen_ms_max + THAW_MS_MAX) * 1000;
            select(pin!(entry.freezing.lock()), pin!(self.env.sleep_us(us))).await;
        });
        join_all(takes).await;
    }

    /// Thaws the guests that an earlier daemon has left frozen, while the VMs are served.
    pub(crate) async fn thaw_left(self: Rc<Self>) {
        let root = self.main.root.clone();
        for record in self.env.blocking(move || guest::all_records(&root)).await {
            let vm = record.vm.clone();
            warn!("VM {vm}: an earlier daemon ended while it held the guest for a snapshot");
            let entry = self.entry(vm.as_str()).ok();
            let busy = entry.as_ref().map(|entry| entry.guest_busy.clone()).unwrap_or_default();
            let left = self.held_guest(record);
            let (tell, told) = oneshot::channel();
            let work = move || tell.send(guest::thaw_left(&left, &busy));
            if let Err(e) = std::thread::Builder::new().name("thaw".to_owned()).spawn(work) {
                warn!("VM {vm}: a thread to thaw the guest: {e}");
            } else {
                self.follow_thaw(vm, entry.as_ref(), told);
            }
        }
    }

    /// Removes the record of a guest whose VM is removed or gets another name: no client has its disks, so no guest is held.
    pub(super) async fn forget_guest(&self, vm: &VmName) {
        let (root, name) = (self.main.root.clone(), vm.clone());
        // A datastore that hangs is not waited for.
        let _ = asked(&self.main, self.env.blocking(move || guest::forget(&root, &name))).await;
    }

    /// Sets how the guest of a VM is reached, and for how long its file systems may be frozen.
    pub(crate) async fn vm_set_guest(self: &Rc<Self>, vm: &VmName, guest: VmGuest) -> Result<api::Vm> {
        let entry = self.entry_to_change(vm.as_str())?;
        let set = async |labels: &mut Labels| labels.set_guest(&guest);
        self.change_labels(&entry, set).await?;
        let how =
            guest.access.as_ref().map_or("not reached".to_owned(), |access| format!("reached by {access}"));
        let monitor =
            guest.qmp.as_ref().map_or(String::new(), |qmp| format!(", its QEMU's monitor by {qmp}"));
        self.note(&entry, &format!("its guest is {how}{monitor} from now on"));
        self.show(&entry).await
    }
}
