//! Users, jobs and events of an open VM, the same for both kinds of store.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use blk::manifest::{SnapshotState, VmState};
use blk::{Env, Error, Result};

use crate::client::{ActiveSet, Client, View};
use crate::event::{Event, EventKind, Listener};
use crate::job::Job;
use crate::tree;

/// Most events kept in memory; the daemon writes each to disk as it comes.
const EVENTS_MAX: usize = 1000;
/// Most jobs kept for `job list`; finished ones are removed first.
const JOBS_MAX: usize = 100;

/// What goes on at one open VM.
pub(crate) struct Activity {
    env: Env,
    /// The VM's name, for refusals.
    vm: String,
    clients: ActiveSet<Client>,
    views: ActiveSet<View>,
    /// Snapshots that writes from before the take may still reach.
    pub(crate) unsealed: RefCell<BTreeSet<u128>>,
    jobs: RefCell<Vec<Rc<Job>>>,
    events: RefCell<VecDeque<Event>>,
    listener: RefCell<Option<Listener>>,
}

impl Activity {
    pub(crate) fn new(env: &Env, vm: &str) -> Activity {
        Activity {
            env: env.clone(),
            vm: vm.to_string(),
            clients: ActiveSet::default(),
            views: ActiveSet::default(),
            unsealed: RefCell::default(),
            jobs: RefCell::default(),
            events: RefCell::default(),
            listener: RefCell::default(),
        }
    }

    /// Counts a writable client of a running disk until the guard is dropped.
    pub(crate) fn attach(&self, disk: u32, client: &str) -> Rc<Client> {
        self.attach_held(disk, client, None)
    }

    /// Counts a client like `attach`; `held` is dropped with the guard.
    pub(crate) fn attach_held(&self, disk: u32, client: &str, held: Option<Box<dyn Any>>) -> Rc<Client> {
        self.clients.enter(Client { disk, name: client.to_string(), _held: held })
    }

    /// Counts a reader of a sealed state until the guard is dropped. `still`: see `View`.
    pub(crate) fn view(&self, snapshot: u128, client: &str, still: bool) -> Rc<View> {
        self.view_held(View { snapshot, client: client.to_string(), still, _held: None })
    }

    pub(crate) fn view_held(&self, view: View) -> Rc<View> {
        self.views.enter(view)
    }

    /// Returns the writable clients: (disk number, client).
    pub(crate) fn clients(&self) -> Vec<(u32, String)> {
        self.clients.all().iter().map(|c| (c.disk, c.name.clone())).collect()
    }

    /// Returns the clients on sealed states: (snapshot id, client).
    pub(crate) fn viewers(&self) -> Vec<(u128, String)> {
        self.views().iter().map(|v| (v.snapshot, v.client.clone())).collect()
    }

    pub(crate) fn views(&self) -> Vec<Rc<View>> {
        self.views.all()
    }

    /// Refuses while clients are attached: a change of a disk under a guest that has it mounted corrupts its file
    /// systems.
    pub(crate) fn refuse_clients(&self, disk: Option<u32>) -> Result<()> {
        let attached = self.clients();
        let Some((number, client)) = attached.iter().find(|(n, _)| disk.is_none_or(|disk| disk == *n)) else {
            return Ok(());
        };
        let cause = format!("disk{number} is attached by {client}");
        let remedy = "power the guest off and disconnect it first";
        Err(Error::refused(&self.vm, format!("{cause}; {remedy}")))
    }

    /// Refuses to remove snapshots that are in use: what has readers is neither written nor removed.
    pub(crate) fn refuse_viewed(&self, state: &VmState, is_gone: impl Fn(&u128) -> bool) -> Result<()> {
        let Some((id, client)) = self.viewers().into_iter().find(|(id, _)| is_gone(id)) else {
            return Ok(());
        };
        let name = state.snapshots.iter().find(|s| s.id == id).map_or("?", |s| s.name.as_str());
        let cause = format!("{name} is attached by {client}; disconnect that client first");
        Err(Error::refused(&self.vm, cause))
    }

    pub(crate) fn is_sealed(&self, snapshot: u128) -> bool {
        !self.unsealed.borrow().contains(&snapshot)
    }

    /// Returns a snapshot by name or id, and refuses one that is not sealed.
    pub(crate) fn sealed(&self, state: &VmState, snapshot: &str) -> Result<SnapshotState> {
        let found = tree::find(state, snapshot)?;
        if !self.is_sealed(found.id) {
            let cause =
                format!("{snapshot} is not sealed yet: writes from before the take are still under way");
            return Err(Error::refused(&self.vm, cause));
        }
        Ok(found.clone())
    }

    pub(crate) fn refuse_unsealed(&self, gone: &[SnapshotState]) -> Result<()> {
        match gone.iter().find(|s| !self.is_sealed(s.id)) {
            Some(s) => Err(Error::refused(&self.vm, format!("{} is not sealed yet", s.name))),
            None => Ok(()),
        }
    }

    pub(crate) fn jobs(&self) -> Vec<Rc<Job>> {
        self.jobs.borrow().clone()
    }

    pub(crate) fn add_job(&self, job: Rc<Job>) {
        let mut jobs = self.jobs.borrow_mut();
        jobs.push(job);
        if jobs.len() > JOBS_MAX
            && let Some(at) = jobs.iter().position(|j| j.state().is_over())
        {
            jobs.remove(at);
        }
    }

    /// Stops the jobs at their next safe point; they resume when the VM is opened again.
    pub(crate) fn stop_jobs_for_close(&self) {
        self.jobs().iter().filter(|job| !job.state().is_over()).for_each(|job| job.stop_for_close());
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.borrow().iter().cloned().collect()
    }

    pub(crate) fn listen(&self, listener: Listener) {
        *self.listener.borrow_mut() = Some(listener);
    }

    /// Returns an event of now, without times.
    pub(crate) fn event(&self, kind: EventKind, subject: &str, message: &str) -> Event {
        Event {
            unix_us: self.env.unix_us(),
            kind,
            subject: subject.to_string(),
            stun_us: 0,
            total_us: 0,
            disks: Vec::new(),
            message: message.to_string(),
        }
    }

    pub(crate) fn report(&self, event: Event) {
        if let Some(listener) = &*self.listener.borrow() {
            listener(&event);
        }
        let mut events = self.events.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Reports an event of now, without times.
    pub(crate) fn note(&self, kind: EventKind, subject: &str, message: &str) {
        self.report(self.event(kind, subject, message));
    }

    /// Reports that writes of a disk begin or cease to wait for space.
    pub(crate) fn note_space(&self, disk: &str, full: bool) {
        match full {
            true => {
                let message = "the datastore is full: guest writes wait; reads continue";
                self.note(EventKind::SpaceExhausted, disk, message);
            }
            false => self.note(EventKind::SpaceReturned, disk, "guest writes continue"),
        }
    }
}
