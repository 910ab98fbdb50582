//! The operations under way, and the three places where they wait: the ring, the files threads, the timers.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{self, Context, Poll};
use std::time::Duration;

use super::age::{Ages, Flight};
use super::blocking::Blocking;
use super::clock::{boot_ns, now_ns};
use super::descriptor::Device;
use super::files::FilesThreads;
use super::handles::{Entry, Handles};
use super::images::Images;
use super::net;
use super::open::{Kind, Opened, open_root};
use super::peer;
use super::plan::{Plan, plan};
use super::ring::{Completion, Ring};
use super::spin::Spin;
use super::task::{Answer, Task};
use super::wake::EventWaker;
use super::work::{Class, Step, Work};
use crate::error::Errno;
use crate::fence::Deadline;
use crate::reactor::{Handle, Op, Outcome, Pending, Token};

/// Repetitions after "interrupted" and "try again" before these count as failures: more than any storm of signals
/// causes, and few enough to end on a file system that never succeeds.
const RETRIES_MAX: u8 = 100;
/// The slot of the read that wakes the core; it is always under way.
const WAKE_SLOT: u32 = 0;

/// State of an operation.
enum State {
    Free,
    /// In the ring. `waiting` if it may stay there without limit, and must be cancelled to end.
    Ring {
        waiting: bool,
    },
    Files,
    /// With an image of RBD, which has the request in `images`.
    Image,
    Timer {
        at_ns: u64,
        sequence: u64,
    },
    Done(Outcome),
    /// Forgotten: its resources are released when it completes.
    Orphan,
}

struct Slot {
    state: State,
    waker: Option<task::Waker>,
    retries: u8,
    /// The file system for which it waits.
    device: Option<Device>,
    /// Distinguishes the operations that used one slot.
    number: u64,
    /// Checked whenever a part of the operation is about to be passed to the kernel.
    deadline: Option<Arc<Deadline>>,
}

pub(super) struct Core {
    // Dropped first, and joined, so that no answer arrives afterwards.
    files: FilesThreads,
    pub(super) blocking: Blocking,
    pub(super) ring: Ring,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Number of operations so far.
    numbered: u64,
    ages: Ages,
    handles: Handles,
    images: Images,
    /// Slots of timers by time and, within one time, by order of submission.
    timers: BTreeMap<(u64, u64), u32>,
    timer_sequence: u64,
    waker: Arc<EventWaker>,
    spin: Spin,
    /// Tasks to wake as soon as the caller has released the core.
    pub(super) woken: Vec<task::Waker>,
    /// Another thread has woken the core for a task that only the executor can see.
    roused: bool,
    completions: Vec<Completion>,
    pub(super) notices: Vec<String>,
    /// Devices for which the operator has been notified.
    noticed: BTreeSet<(u32, u32)>,
}

impl Core {
    pub(super) fn new(ring: Ring, files: FilesThreads, waker: Arc<EventWaker>) -> Core {
        let mut core = Core {
            files,
            blocking: Blocking::default(),
            ring,
            slots: Vec::new(),
            free: Vec::new(),
            numbered: 0,
            ages: Ages::default(),
            handles: Handles::default(),
            images: Images::default(),
            timers: BTreeMap::new(),
            timer_sequence: 0,
            waker,
            spin: Spin::default(),
            woken: Vec::new(),
            roused: false,
            completions: Vec::new(),
            notices: Vec::new(),
            noticed: BTreeSet::new(),
        };
        let slot = core.take_slot(State::Ring { waiting: true });
        assert_eq!(slot, WAKE_SLOT);
        core.ring.start(WAKE_SLOT, core.waker.work(), None);
        core
    }

    fn take_slot(&mut self, state: State) -> u32 {
        self.numbered += 1;
        let slot =
            Slot { state, waker: None, retries: 0, device: None, number: self.numbered, deadline: None };
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = slot;
            return index;
        }
        self.slots.push(slot);
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations")
    }

    fn free_slot(&mut self, index: u32) -> State {
        let slot = &mut self.slots[index as usize];
        slot.waker = None;
        self.free.push(index);
        std::mem::replace(&mut slot.state, State::Free)
    }

    pub(super) fn submit(&mut self, op: Op) -> Token {
        let file = op.file().and_then(|file| self.handles.get(file).ok());
        let (deadline, device) = file.map_or((None, None), |file| (file.deadline.clone(), file.device));
        let index = match plan(op, &self.handles) {
            Plan::Ring(work) => {
                let index = self.take_slot(State::Ring { waiting: work.class() == Class::Waiting });
                self.slots[index as usize].device = device;
                self.slots[index as usize].deadline = deadline;
                self.start(index, work);
                index
            }
            Plan::Files(device, task) => {
                let index = self.take_slot(State::Files);
                self.slots[index as usize].device = Some(device);
                self.slots[index as usize].deadline = deadline.clone();
                self.files.submit(device, index, task, deadline);
                index
            }
            Plan::Image(image, request) => {
                let index = self.take_slot(State::Image);
                self.slots[index as usize].device = device;
                if deadline.is_some_and(|deadline| !deadline.is_open(boot_ns())) {
                    self.slots[index as usize].state = State::Done(request.failed(Errno::FENCED));
                } else {
                    self.images.start(index, image, request, self.files.answers());
                }
                index
            }
            Plan::Blocking(call) => {
                let index = self.take_slot(State::Files);
                let answers = self.files.answers();
                self.blocking.run(Box::new(move || answers.send(index, Answer::Outcome(call()))));
                index
            }
            Plan::Timer(at_ns) => {
                let sequence = self.timer_sequence;
                self.timer_sequence += 1;
                let index = self.take_slot(State::Timer { at_ns, sequence });
                self.timers.insert((at_ns, sequence), index);
                index
            }
            Plan::Done(outcome) => self.take_slot(State::Done(outcome)),
        };
        Token(index)
    }

    fn start(&mut self, index: u32, work: Work) {
        let deadline = self.slots[index as usize].deadline.clone();
        self.ring.start(index, work, deadline);
    }

    /// Opens a folder by its path, on a thread of its own.
    pub(super) fn open_root(&mut self, path: &str) -> Token {
        let index = self.take_slot(State::Files);
        let (answers, path) = (self.files.answers(), path.to_string());
        self.blocking.run(Box::new(move || answers.send(index, Answer::Opened(open_root(&path)))));
        Token(index)
    }

    /// Returns the call that the file system of a handle has not answered, and since when.
    pub(super) fn pending(&mut self, handle: Handle) -> Option<Pending> {
        let device = self.handles.get(handle).ok()?.device?;
        let slots = (0u32..).zip(&self.slots).filter(|(_, slot)| slot.device == Some(device));
        let flights = slots.filter_map(|(index, slot)| {
            let doing = match slot.state {
                State::Ring { waiting: false } => self.ring.doing(index),
                _ => self.images.doing(index),
            };
            Some(Flight { index, number: slot.number, doing: doing? })
        });
        let transfer = self.ages.oldest(device, flights, now_ns());
        transfer.into_iter().chain(self.files.present(device)).min_by_key(|pending| pending.since_ns)
    }

    pub(super) fn fence(&mut self, file: Handle, deadline: Arc<Deadline>) {
        self.handles.set_deadline(file, deadline);
    }

    pub(super) fn poll(&mut self, token: Token, cx: &mut Context<'_>) -> Poll<Outcome> {
        let slot = &mut self.slots[token.0 as usize];
        match &slot.state {
            State::Done(_) => {}
            State::Free | State::Orphan => panic!("token {} is dead", token.0),
            _ => {
                match &slot.waker {
                    Some(old) if old.will_wake(cx.waker()) => {}
                    _ => slot.waker = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
        }
        match self.free_slot(token.0) {
            State::Done(outcome) => Poll::Ready(outcome),
            _ => unreachable!("looked at above"),
        }
    }

    pub(super) fn forget(&mut self, token: Token) {
        let slot = &mut self.slots[token.0 as usize];
        slot.waker = None;
        match slot.state {
            State::Free | State::Orphan => {}
            State::Done(_) => {
                let state = self.free_slot(token.0);
                self.release(state);
            }
            State::Timer { at_ns, sequence } => {
                self.timers.remove(&(at_ns, sequence));
                self.free_slot(token.0);
            }
            State::Files | State::Image => slot.state = State::Orphan,
            State::Ring { waiting } => {
                slot.state = State::Orphan;
                if waiting {
                    self.ring.cancel(token.0);
                }
            }
        }
    }

    /// Releases the resources of an operation. An outcome that was not taken may hold a handle.
    fn release(&mut self, state: State) {
        match state {
            State::Done(Outcome::Opened(Ok((handle, _)))) => self.close(handle),
            State::Done(Outcome::Accepted(Ok((handle, _)))) => self.close(handle),
            _ => {}
        }
    }

    pub(super) fn close(&mut self, handle: Handle) {
        if let Some(entry) = self.handles.remove(handle) {
            self.close_entry(entry);
        }
    }

    /// Gives up a connected stream, which is not shut down.
    pub(super) fn release_stream(&mut self, socket: Handle) -> Option<OwnedFd> {
        if !matches!(self.handles.get(socket).ok()?.kind, Kind::Stream) {
            return None;
        }
        // The descriptor is shared with operations under way only, of which there are none.
        Arc::try_unwrap(self.handles.remove(socket)?.fd).ok()
    }

    pub(super) fn count_files_in(&mut self, open_files: Arc<AtomicU64>) {
        self.handles.count_files_in(open_files);
    }

    /// Closes a handle. A socket is shut down, which ends the operations that wait on it; its descriptor is closed with
    /// the last of them.
    fn close_entry(&mut self, entry: Entry) {
        match entry.kind {
            Kind::File(_) | Kind::ServerLock => {
                if let Some(device) = entry.device {
                    self.files.close(device, entry.fd);
                }
            }
            // Closed with the last of its requests.
            Kind::Plain | Kind::Image(_) => {}
            Kind::Listener { path, .. } => {
                if let Some(path) = path {
                    // The file is removed while the socket still answers, so that no other process can have a new
                    // socket at this path.
                    let _ = std::fs::remove_file(path);
                }
                let _ = rustix::net::shutdown(&*entry.fd, rustix::net::Shutdown::Both);
            }
            // ENOTCONN if the peer was faster.
            Kind::Stream => drop(rustix::net::shutdown(&*entry.fd, rustix::net::Shutdown::Both)),
        }
    }

    /// Adds an opened descriptor. `folder` is the file system of the folder in which it was opened.
    pub(super) fn adopt(&mut self, opened: Opened, folder: Option<Device>) -> Handle {
        if let Some((device, notice)) = opened.notice
            && self.noticed.insert(device)
        {
            self.notices.push(notice);
        }
        self.handles.insert(opened.fd, opened.kind, opened.device.or(folder), opened.shared)
    }

    pub(super) fn entry(&self, handle: Handle) -> Result<&Entry, Errno> {
        self.handles.get(handle)
    }

    pub(super) fn trust_owner(&mut self, folder: Handle) -> Result<(), Errno> {
        self.handles.trust_owner(folder)
    }

    pub(super) fn open_files(&self) -> u64 {
        self.handles.open_files()
    }

    /// Submits queued operations, then collects all completions and all timers that are due.
    pub(super) fn turn(&mut self) {
        self.ring.submit();
        self.take_in();
    }

    fn take_in(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.reap(&mut completions);
        for (index, work, result) in completions.drain(..) {
            self.complete(index, work, result);
        }
        self.completions = completions;
        self.fire_timers();
    }

    fn complete(&mut self, index: u32, work: Work, result: i32) {
        let slot = &mut self.slots[index as usize];
        if matches!(slot.state, State::Orphan) {
            // The operation is not continued, because its outcome is not wanted. An accepted connection is closed with
            // the step.
            drop(work.completed(result));
            self.free_slot(index);
            return;
        }
        if matches!(Errno(-result), Errno::EAGAIN | EINTR) && slot.retries < RETRIES_MAX {
            slot.retries += 1;
            return self.start(index, work);
        }
        // A failed reservation frees what it has reserved, which is a change of the file too.
        let late = slot.deadline.as_ref().is_some_and(|deadline| !deadline.is_open(boot_ns()));
        let result = if late && matches!(work, Work::Reserve { .. }) { -Errno::FENCED.0 } else { result };
        match work.completed(result) {
            Step::Done(outcome) => self.finish(index, outcome),
            Step::Again(work) => self.start(index, work),
            Step::Files(task) => self.go_on_in_files(index, task),
            Step::Accepted { fd, tcp } => {
                if tcp {
                    net::tune_tcp(&fd);
                }
                let named = peer::of(&fd, tcp);
                let handle = self.handles.insert(fd, Kind::Stream, None, None);
                let peer = named.unwrap_or_else(peer::unnamed);
                self.finish(index, Outcome::Accepted(Ok((handle, peer))));
            }
            Step::Woken(work) => {
                self.waker.acknowledge();
                self.roused = true;
                self.ring.start(WAKE_SLOT, work, None);
                self.take_answers();
            }
        }
    }

    fn go_on_in_files(&mut self, index: u32, task: Task) {
        let slot = &mut self.slots[index as usize];
        let device = slot.device.expect("files have a file system");
        slot.state = State::Files;
        self.files.submit(device, index, task, slot.deadline.clone());
    }

    fn take_answers(&mut self) {
        for (index, answer) in self.files.take_answers() {
            let slot = &mut self.slots[index as usize];
            let request = self.images.end(index);
            if matches!(slot.state, State::Orphan) {
                self.free_slot(index);
                continue;
            }
            let folder = slot.device;
            let outcome = match answer {
                Answer::Zero { fd, offset, end, by_writing } => {
                    slot.state = State::Ring { waiting: false };
                    self.start(index, Work::zero(fd, offset, end, by_writing));
                    continue;
                }
                Answer::Outcome(outcome) => outcome,
                Answer::Image(result) => request.expect("it was under way").outcome(result),
                Answer::Opened(Err(e)) => Outcome::Opened(Err(e)),
                Answer::Opened(Ok(opened)) => {
                    let limits = opened.kind.limits();
                    Outcome::Opened(Ok((self.adopt(opened, folder), limits)))
                }
            };
            self.finish(index, outcome);
        }
    }

    fn finish(&mut self, index: u32, outcome: Outcome) {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Done(outcome);
        self.woken.extend(slot.waker.take());
    }

    fn fire_timers(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = now_ns();
        while let Some(first) = self.timers.first_entry() {
            if first.key().0 > now {
                return;
            }
            let index = first.remove();
            self.finish(index, Outcome::Unit(Ok(())));
        }
    }

    fn next_timer_ns(&self) -> Option<u64> {
        let (&(at_ns, _), _) = self.timers.first_key_value()?;
        Some(at_ns.saturating_sub(now_ns()))
    }

    /// Returns whether a task may be ready. A wake that was acknowledged is not repeated, so the core must not sleep
    /// after it.
    fn has_work(&self) -> bool {
        self.roused || !self.woken.is_empty()
    }

    /// Returns when a task may be ready, or after any event that may have made one ready.
    pub(super) fn wait(&mut self) {
        self.roused = false;
        let spinning = self.spin.is_worth_it(&self.ring);
        if spinning || self.ring.has_news() {
            self.turn();
            if self.has_work() {
                return;
            }
        }
        let limit_ns = self.next_timer_ns();
        if spinning && Spin::run(&mut self.ring, limit_ns) {
            self.turn();
            if self.has_work() {
                return;
            }
        }
        let timeout = self.next_timer_ns().map(Duration::from_nanos);
        self.ring.wait(timeout);
        self.take_in();
    }
}

const EINTR: Errno = Errno(rustix::io::Errno::INTR.raw_os_error());

impl Drop for Core {
    fn drop(&mut self) {
        let entries: Vec<Entry> = self.handles.drain().collect();
        for entry in entries {
            self.close_entry(entry);
        }
        self.images.wait(&self.files);
    }
}
