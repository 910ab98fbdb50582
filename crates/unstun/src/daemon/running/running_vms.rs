//! VMs that one core runs, by name, and the front end that serves them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use api::VmClient;
use api::error::{Error, Result};
use blk::Env;
use export::nbd::FrontEnd;
use futures_util::future::{Either, select};

use crate::daemon::running::client::client_gate::{Shut, Who};
use crate::daemon::running::client::vhost_sockets::VhostSockets;
use crate::daemon::running::messages::ControlSide;
use crate::daemon::running::vm::RunningVm;

/// Maximum time in microseconds until disconnected clients are gone: their requests run to their end first. A request
/// that waits for space on a full datastore may never end; the operation is refused then.
const GONE_WITHIN_US: u64 = 20_000_000;

/// Maximum time in microseconds until the connection of a client that has ended is closed.
const ENDED_WITHIN_US: u64 = 200_000;

/// Interval in microseconds between two checks. A client that has chosen its disk is not listed under it before its
/// first request.
const LOOK_AGAIN_US: u64 = 50_000;

pub(crate) struct RunningVms {
    pub env: Env,
    pub front_end: Rc<FrontEnd>,
    pub vhost: VhostSockets,
    pub control: ControlSide,
    vms: RefCell<BTreeMap<String, Rc<RunningVm>>>,
}

impl RunningVms {
    pub(crate) fn new(
        env: Env,
        front_end: Rc<FrontEnd>,
        vhost: VhostSockets,
        control: ControlSide,
    ) -> Rc<RunningVms> {
        Rc::new(RunningVms { env, front_end, vhost, control, vms: RefCell::default() })
    }

    pub(crate) fn all(&self) -> Vec<Rc<RunningVm>> {
        self.vms.borrow().values().cloned().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Rc<RunningVm>> {
        self.vms.borrow().get(name).cloned()
    }

    /// Serves the VM under its name, in place of the one that had the name.
    pub(crate) fn serve(&self, vm: Rc<RunningVm>) {
        self.vms.borrow_mut().insert(vm.name.clone(), vm.clone());
        self.vhost.follow(&vm);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.vms.borrow_mut().remove(name);
        self.vhost.forget(name);
    }

    /// Disconnects the clients `who`, and waits until none of their requests is under way. Returns these clients. The
    /// gate stays closed as long as the returned `Shut` lives.
    pub(crate) async fn disconnect(&self, vm: &RunningVm, who: Who) -> Result<(Vec<VmClient>, Shut)> {
        let shut = vm.gate.shut();
        let clients = vm.present(who);
        let gone = pin!(self.gone(vm, who));
        let late = pin!(self.env.sleep_us(GONE_WITHIN_US));
        match select(gone, late).await {
            Either::Left(((), _)) => Ok((clients, shut)),
            Either::Right(_) => Err(Error::refused(format!(
                "VM {}: {} clients were disconnected {} s ago, but some of their requests have not ended (a full \
                 datastore delays writes); nothing was changed; try again",
                vm.name,
                vm.present(who).len(),
                GONE_WITHIN_US / 1_000_000
            ))),
        }
    }

    /// Waits for clients that have ended, but whose connections are not closed yet: an operation that follows the end of
    /// a client is not refused because of it. Returns whether none is left.
    pub(crate) async fn await_ended(&self, vm: &RunningVm, who: Who) -> bool {
        let left = pin!(self.left(vm, who, || ()));
        let late = pin!(self.env.sleep_us(ENDED_WITHIN_US));
        matches!(select(left, late).await, Either::Left(_))
    }

    async fn gone(&self, vm: &RunningVm, who: Who) {
        self.left(vm, who, || self.cut(&vm.name, who)).await;
    }

    /// Returns when no such client is left. Calls `act` before each check.
    async fn left(&self, vm: &RunningVm, who: Who, act: impl Fn()) {
        loop {
            // The wait is registered before the check, so that no change between the two is missed.
            let changed = vm.gate.someone_left();
            act();
            if vm.present(who).is_empty() && !vm.gate.is_entered() {
                return;
            }
            select(pin!(changed), pin!(self.env.sleep_us(LOOK_AGAIN_US))).await;
        }
    }

    fn cut(&self, vm: &str, who: Who) {
        let prefix = format!("{vm}/disk");
        for session in self.front_end.sessions() {
            let writes = !session.export.contains('@');
            if session.export.starts_with(&prefix) && (writes || who == Who::All) {
                self.front_end.disconnect(session.id);
            }
        }
        for session in self.vhost.front_end.sessions() {
            if session.export.starts_with(&prefix) {
                self.vhost.front_end.disconnect(session.id);
            }
        }
    }
}
