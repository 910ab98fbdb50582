//! One queue of a device: its configuration, its position in the ring, and the answers.
//!
//! A queue takes requests while it is started (its client has passed an event for kicks), enabled, and its connection
//! runs. A kick that arrives earlier is not lost: the ring is examined whenever the queue becomes active.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

use blk::event::Event;
use blk::sync::Signal;
use blk::uring::SharedMemory;
use blk::{Error, Result};
use futures_util::future::{Either, select};

use super::address_space::AddressSpace;
use super::inflight::Inflight;
use super::message::RingAddresses;
use super::protocol::*;
use super::ring::{Chain, Fault, Ring, RingRules};
use super::session::{Halt, Session};

pub(super) struct Queue {
    index: u16,
    pub session: Rc<Session>,
    state: RefCell<State>,
    /// Requests that were taken and have not ended.
    under_way: Cell<usize>,
    drained: Signal,
    /// Signals a change of the configuration.
    pub changed: Signal,
    call: RefCell<Option<Event>>,
    /// Counts the events for interrupts, so that a signal to an earlier one is given up.
    calls: Cell<u64>,
    interrupt_wanted: Cell<bool>,
    /// Signals that an interrupt is wanted, or that the connection has detached.
    pub interrupts: Signal,
}

#[derive(Default)]
struct State {
    entries: u16,
    base: u16,
    addresses: Option<RingAddresses>,
    kick: Option<Event>,
    /// Counts the events, so that the task notices another one.
    kicks: u64,
    enabled: bool,
    records: Option<Rc<SharedMemory>>,
    ring: Option<Ring>,
    inflight: Option<Inflight>,
    /// Requests of an earlier process that are executed again, in order.
    repeated: VecDeque<u16>,
    /// The client stops the queue: only `repeated` is taken. The guest counts these requests as taken, and the client may
    /// never pass their records again.
    stopping: bool,
}

/// A request that was taken and has not ended.
pub(super) struct UnderWay(Rc<Queue>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.update(|n| n - 1);
        self.0.drained.notify();
    }
}

/// A request as it was taken.
pub(super) struct Taken {
    pub under_way: UnderWay,
    pub space: Rc<AddressSpace>,
    pub head: u16,
    /// None if it has more descriptors than the usual number: `Queue::long_chain` reads them.
    pub chain: Option<Chain>,
}

impl UnderWay {
    pub(super) fn queue(&self) -> &Rc<Queue> {
        &self.0
    }
}

impl Queue {
    pub(super) fn new(index: u16, session: &Rc<Session>) -> Rc<Queue> {
        Rc::new(Queue {
            index,
            session: session.clone(),
            state: RefCell::default(),
            under_way: Cell::new(0),
            drained: Signal::default(),
            changed: Signal::default(),
            call: RefCell::default(),
            calls: Cell::new(0),
            interrupt_wanted: Cell::new(false),
            interrupts: Signal::default(),
        })
    }

    pub(super) fn fault(&self, cause: &str) -> Error {
        Error::invalid(&self.session.export, format!("queue {}: {cause}", self.index))
    }

    /// Changes the configuration of a queue that does not run.
    fn configure(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.state.borrow_mut();
        if state.ring.is_some() {
            return Err(self.fault("its ring was changed while it is in use"));
        }
        change(&mut state);
        Ok(())
    }

    pub(super) fn set_entries(&self, entries: u16) -> Result<()> {
        self.configure(|state| state.entries = entries)
    }

    pub(super) fn set_base(&self, base: u16) -> Result<()> {
        self.configure(|state| state.base = base)
    }

    pub(super) fn set_records(&self, records: &Rc<SharedMemory>) -> Result<()> {
        self.configure(|state| state.records = Some(records.clone()))
    }

    /// Sets the places of the ring. A client does that for a running ring too, when it begins to log changes.
    pub(super) fn set_addresses(&self, addresses: RingAddresses) -> Result<()> {
        self.state.borrow_mut().addresses = Some(addresses);
        self.place_again()
    }

    /// Places a running ring anew, in other memory or at another address. Its position stays.
    pub(super) fn place_again(&self) -> Result<()> {
        let mut state = self.state.borrow_mut();
        if state.ring.is_none() {
            return Ok(());
        }
        let mut ring = self.placed(&state)?;
        if let Some(earlier) = &state.ring {
            ring.follow(earlier);
        }
        state.ring = Some(ring);
        Ok(())
    }

    fn placed(&self, state: &State) -> Result<Ring> {
        let addresses = state.addresses.as_ref().ok_or_else(|| self.fault("its ring has no addresses"))?;
        if state.entries == 0 {
            return Err(self.fault("its ring has no length"));
        }
        let features = self.session.features.get();
        let rules =
            RingRules { event_idx: features & F_EVENT_IDX != 0, indirect: features & F_INDIRECT != 0 };
        let space = self.session.space.borrow().clone();
        let placed = Ring::new(&space, addresses, state.entries, rules, state.base);
        placed.map_err(|cause| self.fault(&cause))
    }

    pub(super) fn set_call(&self, call: Option<Event>) {
        self.call.replace(call);
        self.calls.update(|n| n + 1);
        // An earlier process may have ended between an answer and its interrupt.
        self.interrupt();
    }

    pub(super) fn set_kick(&self, kick: Option<Event>) -> Result<()> {
        let mut state = self.state.borrow_mut();
        state.kick = kick;
        state.kicks += 1;
        drop(state);
        self.activate()
    }

    pub(super) fn enable(&self, enabled: bool) -> Result<()> {
        self.state.borrow_mut().enabled = enabled;
        self.activate()
    }

    /// Places the ring as soon as the queue is started and enabled, and has its task examine it.
    pub(super) fn activate(&self) -> Result<()> {
        let mut state = self.state.borrow_mut();
        let is_enabled = state.enabled || self.session.features.get() & F_PROTOCOL_FEATURES == 0;
        if state.ring.is_none() && state.kick.is_some() && state.addresses.is_some() && is_enabled {
            let mut ring = self.placed(&state)?;
            if let Some(records) = &state.records {
                let opened = Inflight::open(records, self.index, state.entries);
                let mut inflight = opened.map_err(|cause| self.fault(&cause))?;
                state.repeated = inflight.recover(&mut ring).map_err(|cause| self.fault(&cause))?.into();
                state.inflight = Some(inflight);
            }
            state.ring = Some(ring);
            self.interrupt();
        }
        drop(state);
        self.changed.notify();
        Ok(())
    }

    /// Stops the queue, and waits until all its requests are answered, those of an earlier process included. Returns the
    /// position of the next request. A request that waits for space or for a limit for long fails or begins: the guest
    /// stands still meanwhile.
    pub(super) async fn stop(&self) -> u16 {
        self.begin_stop();
        let mut patience_us = DRAIN_WAIT_US;
        loop {
            let late = pin!(self.session.env.sleep_us(patience_us));
            if let Either::Left(_) = select(pin!(self.all_answered()), late).await {
                break;
            }
            // Repeated, because requests that begin afterwards may wait too.
            self.session.permit_delayed();
            self.session.volume.end_waits();
            patience_us = DRAIN_AGAIN_US;
        }
        let mut state = self.state.borrow_mut();
        state.base = state.ring.take().map_or(state.base, |ring| ring.next_available());
        (state.inflight, state.stopping) = (None, false);
        state.base
    }

    fn begin_stop(&self) {
        let mut state = self.state.borrow_mut();
        (state.kick, state.stopping) = (None, true);
        self.changed.notify();
    }

    /// Resolves when no request is under way, and none of an earlier process is left.
    async fn all_answered(&self) {
        loop {
            let drained = self.drained.wait();
            if self.under_way.get() == 0 && self.state.borrow().repeated.is_empty() {
                return;
            }
            drained.await;
        }
    }

    /// Resolves when no request is under way.
    pub(super) async fn drain(&self) {
        loop {
            let drained = self.drained.wait();
            if self.under_way.get() == 0 {
                return;
            }
            drained.await;
        }
    }

    /// Wakes the queue's tasks, so that they notice the state of the connection.
    pub(super) fn wake(&self) {
        self.changed.notify();
        self.interrupts.notify();
    }

    fn is_active(&self, state: &State) -> bool {
        let is_enabled = state.enabled || self.session.features.get() & F_PROTOCOL_FEATURES == 0;
        let is_started = state.kick.is_some() && is_enabled || state.stopping && !state.repeated.is_empty();
        is_started && !self.session.is_detached() && self.session.halt() == Halt::Run
    }

    /// Takes the next request.
    pub(super) fn take(self: &Rc<Self>) -> std::result::Result<Option<Taken>, Fault> {
        let mut state = self.state.borrow_mut();
        if !self.is_active(&state) {
            return Ok(None);
        }
        let State { ring: Some(ring), inflight, repeated, .. } = &mut *state else { return Ok(None) };
        let head = match repeated.pop_front() {
            Some(head) => head,
            None => {
                let Some(head) = ring.next_head()? else { return Ok(None) };
                ring.take();
                if let Some(inflight) = inflight {
                    inflight.taken(head);
                }
                ring.disable_kicks();
                head
            }
        };
        self.under_way.update(|n| n + 1);
        let under_way = UnderWay(self.clone());
        let space = self.session.space.borrow().clone();
        // The guard of a bad request changes the counter, not the state.
        let chain = ring.chain(&space, head, CHAIN_DESCRIPTORS_SHORT)?;
        Ok(Some(Taken { under_way, space, head, chain }))
    }

    /// Reads the descriptors of a request that has more than the usual number. None if the connection has detached.
    pub(super) fn long_chain(
        &self,
        space: &AddressSpace,
        head: u16,
    ) -> std::result::Result<Option<Chain>, Fault> {
        let state = self.state.borrow();
        let Some(ring) = state.ring.as_ref().filter(|_| !self.session.is_detached()) else { return Ok(None) };
        match ring.chain(space, head, CHAIN_DESCRIPTORS_MAX)? {
            Some(chain) => Ok(Some(chain)),
            None => Err(format!("a chain of more than {CHAIN_DESCRIPTORS_MAX} descriptors")),
        }
    }

    /// Requests a kick for the next request. Returns whether one waits already.
    pub(super) fn enable_kicks(&self) -> std::result::Result<bool, Fault> {
        let mut state = self.state.borrow_mut();
        if !self.is_active(&state) {
            return Ok(false);
        }
        let space = self.session.space.borrow().clone();
        state.ring.as_mut().map_or(Ok(false), |ring| ring.enable_kicks(&space))
    }

    /// Answers a request: the guest sees it from here on.
    pub(super) fn answer(&self, head: u16, len: u32) {
        if self.session.is_detached() {
            return;
        }
        let mut state = self.state.borrow_mut();
        let State { ring: Some(ring), inflight, .. } = &mut *state else { return };
        let space = self.session.space.borrow().clone();
        ring.answer(&space, head, len, |used, show| match inflight {
            Some(inflight) => inflight.answered(head, used, show),
            None => show(),
        });
        if ring.wants_interrupt() {
            self.interrupt();
        }
    }

    /// Returns the event for an interrupt if one is wanted, and counts it as given.
    pub(super) fn take_interrupt(&self) -> Option<Event> {
        let call = self.call.borrow().clone();
        call.filter(|_| self.interrupt_wanted.replace(false))
    }

    /// Returns the number of events for interrupts so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.get()
    }

    fn interrupt(&self) {
        self.interrupt_wanted.set(true);
        self.interrupts.notify();
    }

    /// Returns the event for kicks, and its number.
    pub(super) fn kick(&self) -> (u64, Option<Event>) {
        let state = self.state.borrow();
        (state.kicks, state.kick.clone())
    }
}
