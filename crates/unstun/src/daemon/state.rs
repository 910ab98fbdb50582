//! State of the daemon's control side: datastores, the records of their VMs, and jobs under one numbering. What runs is
//! in `running`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use api::error::Result;
use api::listen::NbdListen;
use api::name::VmName;
use blk::Env;
use blk::exec::JoinHandle;
use blk::sync::Signal;
use engine::{Options, SpacePolicy};
use jiff::Timestamp;

use crate::daemon::age_clock::AgeClock;
use crate::daemon::bin::policy::BinPolicy;
use crate::daemon::cores::{Cores, StartedCore};
use crate::daemon::datastore::hang::{Opening, until_hung};
use crate::daemon::datastore::identity::Expected;
use crate::daemon::datastore::store_memory::StoreMemory;
use crate::daemon::datastore::{Absent, Datastore, Home};
use crate::daemon::defect::Planted;
use crate::daemon::place::Place;
use crate::daemon::policies::registry::Policies;
use crate::daemon::running::client::front_end::front_end;
use crate::daemon::running::descriptors::Descriptors;
use crate::daemon::running::messages::ControlSide;
use crate::daemon::running::running_vms::{CoreNumber, RunningVms};
use crate::daemon::stuns::Stuns;
use crate::daemon::tracked::Tracked;
use crate::daemon::vm::event_feed::EventFeed;
use crate::daemon::vm::frozen_guests::FrozenGuests;
use crate::daemon::vm::home_locks::Holds;
use crate::daemon::vm::journal::Journal;
use crate::daemon::vm::vm_record::{Broken, VmRecord};
use crate::log::LineLimit;
use crate::memory::Memory;

/// Maximum number of log lines per second about writes that begin or cease to wait for space.
const SPACE_LINES_MAX: u32 = 2;

pub(crate) struct Daemon {
    pub env: Env,
    /// Datastore that the daemon was started on. Its folder has the API's socket, and it cannot be removed.
    pub main: Rc<Datastore>,
    /// All datastores that are served, the main one first.
    pub(super) datastores: RefCell<Vec<Rc<Datastore>>>,
    /// Datastores that were added and could not be opened. The others are served.
    pub(super) absent: RefCell<Vec<Absent>>,
    /// Cache size in bytes for the maps of each store.
    pub store_memory: StoreMemory,
    pub memory: Memory,
    pub bin: BinPolicy,
    ages: AgeClock,
    /// Whether the daemon is ending; nothing is evicted any more then.
    pub(super) bin_ends: Cell<bool>,
    pub nbd: Vec<NbdListen>,
    /// Folder of the commands that freeze and thaw guests.
    pub guests_dir: PathBuf,
    /// URLs of the API over TCP, once it is served.
    pub web: RefCell<Vec<String>>,
    pub started: Timestamp,
    /// What the control side's own core runs.
    pub running: Rc<RunningVms>,
    pub cores: Cores,
    /// Records of the VMs of other cores whose events arrive, by core and by the VM's number there.
    pub(super) listened: RefCell<BTreeMap<(usize, u64), Weak<VmRecord>>>,
    pub descriptors: Rc<Descriptors>,
    pub journal: Rc<Journal>,
    /// Stuns since the start.
    pub stuns: Stuns,
    pub frozen_guests: FrozenGuests,
    pub feed: Arc<EventFeed>,
    pub(super) vms: RefCell<BTreeMap<String, Rc<VmRecord>>>,
    /// Homes that could not be opened, and why. The others are served.
    pub(super) broken: RefCell<BTreeMap<String, Broken>>,
    /// Homes that their users have closed.
    pub(super) closed: RefCell<BTreeMap<String, Home>>,
    /// Locks of the homes that are open, or being created or removed.
    pub holds: Holds,
    pub policies: Policies,
    /// VMs that have another name since the last look of the alarms: the old one, and the new one.
    pub renamed: RefCell<Vec<(VmName, VmName)>>,
    pub defects: Planted,
    /// Names of VMs and datastores, and folders, that an operation is creating, opening or removing at the moment.
    pub(super) claimed: RefCell<BTreeSet<String>>,
    pub(super) jobs: RefCell<Vec<Tracked>>,
    /// The last number given to a job.
    pub(super) jobs_numbered: Cell<u64>,
    /// Limit on log lines about space; a guest that writes to a nearly full datastore causes many of them.
    pub(super) space_log: LineLimit,
    /// Tasks that accept NBD clients.
    pub(super) front_end_tasks: RefCell<Vec<JoinHandle<()>>>,
    stopped: Cell<bool>,
    stop_signal: Signal,
}

fn boot_us(env: &Env) -> i64 {
    i64::try_from(env.boot_ns() / 1000).unwrap_or(i64::MAX)
}

impl Daemon {
    /// Returns the daemon with the main datastore locked and nothing opened yet.
    pub(super) async fn new(
        env: Env,
        place: &Place,
        journal: Journal,
        control: ControlSide,
        cores: Vec<StartedCore>,
    ) -> Result<Rc<Daemon>> {
        let store_memory = StoreMemory::new(place.memory, place.map_cache_bytes);
        let main = Rc::new(open_main(&env, place, store_memory.clone()).await?);
        let descriptors = Descriptors::new(env.clone(), place.memory);
        let core = CoreNumber { own: 0, count: cores.len() + 1 };
        let front_end =
            front_end(place.memory, descriptors.connections(), (core.own, core.count), &place.activity);
        let started = Timestamp::now();
        let running = RunningVms::new(core, env.clone(), front_end, control, descriptors.clone(), None);
        let ages = AgeClock::new(env.unix_us(), boot_us(&env));
        Ok(Rc::new(Daemon {
            env,
            ages,
            datastores: RefCell::new(vec![main.clone()]),
            main,
            absent: RefCell::default(),
            store_memory,
            memory: place.memory,
            bin: place.bin,
            bin_ends: Cell::new(false),
            nbd: place.nbd.clone(),
            guests_dir: place.guests_dir.clone(),
            web: RefCell::default(),
            started,
            cores: Cores::new(running.clone(), cores),
            running,
            listened: RefCell::default(),
            descriptors,
            journal: Rc::new(journal),
            stuns: Stuns::default(),
            frozen_guests: FrozenGuests::default(),
            feed: Arc::new(EventFeed::new(started)),
            vms: RefCell::default(),
            broken: RefCell::default(),
            closed: RefCell::default(),
            holds: Holds::default(),
            policies: Policies::default(),
            renamed: RefCell::default(),
            defects: Planted::default(),
            claimed: RefCell::default(),
            jobs: RefCell::default(),
            jobs_numbered: Cell::new(0),
            space_log: LineLimit::new(SPACE_LINES_MAX),
            front_end_tasks: RefCell::default(),
            stopped: Cell::new(false),
            stop_signal: Signal::default(),
        }))
    }

    /// Returns the time by which ages are judged, in microseconds since 1970.
    pub(super) fn age_now_us(&self) -> i64 {
        self.ages.now_us(self.env.unix_us(), boot_us(&self.env))
    }

    /// Returns the engine's options. Writes that find no space wait where their clients are served
    /// (`running/client/writers.rs`), not in the engine.
    pub(super) fn options(&self) -> Options {
        let (defects, default) = (self.defects.of_engine(), Options::default());
        // The cores divide what their VMs may have together.
        let cores = self.cores.all().len();
        let map_cap_bytes = self.memory.maps_bytes() / cores;
        let unwritten_cap_bytes = default.unwritten_cap_bytes / cores as u64;
        Options { map_cap_bytes, unwritten_cap_bytes, space_policy: SpacePolicy::Error, defects, ..default }
    }

    pub(super) fn track_front_end(&self, task: JoinHandle<()>) {
        self.front_end_tasks.borrow_mut().push(task);
    }

    pub(super) fn end(&self) {
        self.stopped.set(true);
        self.stop_signal.notify();
    }

    pub(super) async fn stopped(&self) {
        while !self.stopped.get() {
            self.stop_signal.wait().await;
        }
    }

    pub(super) fn uri(&self, export: &str) -> String {
        self.nbd.first().map(|n| n.uri(export)).unwrap_or_default()
    }
}

/// Opens and locks the main datastore's folder. Without it nothing is served.
async fn open_main(env: &Env, place: &Place, memory: StoreMemory) -> Result<Datastore> {
    let opening = Opening::new(env, &place.name);
    let open = async {
        let (name, root) = (place.name.clone(), &place.root);
        let main = Datastore::in_folder(env, name, root, Expected::Any, memory, &opening).await?;
        main.set_served_by(None).await?;
        Ok(main)
    };
    let opened = until_hung(env, || opening.hang(), &mut pin!(open)).await;
    opened.unwrap_or_else(|hang| Err(hang.refusal()))
}
