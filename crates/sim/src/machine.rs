//! One simulated machine: operations under way, and the clock.
//!
//! Time advances only in `step`, from one completion to the next; ties are resolved in order of submission. An
//! operation takes effect on the medium at its completion. A write that changes neither size nor space may become
//! visible at its submission, and a read may be served then. Both are allowed of operations under way, and code that is
//! not prepared for it is wrong.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use blk::Errno;
use blk::fence::Deadline;
use blk::reactor::{Handle, Limits, Op, Outcome, Reservation, Token};

use crate::content::EffectId;
use crate::device::{Access, Admitted, Media, NEVER_NS, Piece, Placement};
use crate::dir::NodeId;
use crate::fault::{Action, Faults};
use crate::file::byte_range;
use crate::fs::{EBADF, FileSystem};
use crate::kind::{OpKind, describe, refusal};
use crate::options::{ContentMode, Options};
use crate::reservations::{HostNumber, Reservations};
use crate::rng::Rng;
use crate::trace::{Facts, Trace, hash_name};

/// Token of a machine without power.
const DEAD: Token = Token(u32::MAX);
/// Processor time of 64 polls of tasks. Tasks that wait by yielding therefore do not stop the clock.
const TURN_NS: u64 = 3_200;
/// Turns in a row without an event, after which a task must be spinning.
const IDLE_TURNS_MAX: u64 = 10_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Power {
    On,
    /// Nothing happens any more. The state of the medium has not been decided yet.
    Off,
}

/// An open handle.
pub(crate) struct Open {
    pub node: NodeId,
    pub name: Rc<str>,
    pub name_hash: u64,
    pub writable: bool,
    pub lock: bool,
    /// Operations that are submitted after this are refused.
    pub deadline: Option<Arc<Deadline>>,
}

/// Progress of an operation.
pub(crate) enum Work {
    Free,
    /// It takes effect at its completion.
    Waiting(Op),
    /// A write that is visible and has not completed.
    Exposed {
        effect: EffectId,
        len: u64,
    },
    /// A read that was served and has not completed.
    Answered(Outcome),
    Failing(Op, Errno),
    /// Completed; the caller has not taken the outcome.
    Done(Outcome),
}

pub(crate) struct Slot {
    pub work: Work,
    facts: Facts,
    /// Node of the operation, which stays open until it completes.
    node: Option<NodeId>,
    /// The machine that has submitted it.
    host: HostNumber,
    /// Number of its submission's event: a flush covers writes that completed at earlier events.
    submitted_event: u64,
    /// Outstanding completions of the media; 0 if the time was known at the submission.
    parts: u32,
    /// Time from the last of them to the completion.
    delay_ns: u64,
    forgotten: bool,
    waker: Option<Waker>,
}

/// Result of one step of the clock.
pub(crate) enum Step {
    /// No power, or nothing is under way.
    Nothing,
    /// A completion without a waiting task.
    Quiet,
    Wake(Waker),
}

pub(crate) struct Machine {
    pub seed: u64,
    pub options: Options,
    pub limits: Limits,
    pub rng: Rng,
    /// Source of `Env::random`, so that the caller's draws do not change the world's.
    pub entropy: Rng,
    pub now_ns: u64,
    /// Microseconds by which the clock that shows dates is ahead of the others.
    pub clock_ahead_us: i64,
    /// Submissions and completions since the world began, without timers.
    pub events: u64,
    pub fs: FileSystem,
    pub reservations: Reservations,
    pub faults: Faults,
    pub trace: Trace,
    pub power: Power,
    /// Number of this boot. Reactors of earlier boots are dead.
    pub boot: u32,
    /// Files that processes keep in the host's memory; lost with the power.
    pub memory: BTreeMap<String, Vec<u8>>,
    /// Number of power cuts so far.
    pub cuts: u64,
    /// Planted defects: operations that are acknowledged without an effect.
    pub ignores_flushes: bool,
    pub ignores_dir_syncs: bool,
    pub ignores_memory_writes: bool,
    pub opens: Vec<Option<Open>>,
    pub media: Media,
    pub slots: Vec<Slot>,
    pub free: Vec<u32>,
    pub due: BinaryHeap<Reverse<(u64, u64, u32)>>,
    sequence: u64,
    pub idle_turns: u64,
    no_name: Rc<str>,
    /// Buffer for one call, kept for reuse.
    pieces: Vec<Piece>,
    arrived: Vec<u32>,
}

impl Machine {
    pub(crate) fn new(seed: u64, options: Options) -> Machine {
        let block = options.logical_block;
        let is_valid = block.is_power_of_two() && (512..=65536).contains(&block);
        assert!(is_valid, "logical blocks are powers of two from 512 to 65536 bytes, not {block}");
        let limits = Limits {
            logical_block: block,
            physical_block: block,
            memory_align: options.memory_align,
            max_io: options.max_io,
            direct: !options.page_cache,
            shared: false,
            inode: 0,
            modified_us: i64::MAX,
        };
        let mut rng = Rng::new(seed);
        let placement = options.storage.as_ref().map(|s| Placement::new(s.extent_bytes, &s.places));
        Machine {
            seed,
            limits,
            entropy: rng.fork(),
            rng,
            now_ns: 0,
            clock_ahead_us: 0,
            events: 0,
            fs: FileSystem::new(options.capacity_bytes, options.content, placement),
            reservations: Reservations::default(),
            faults: Faults::default(),
            trace: Trace::new(options.trace_events),
            power: Power::On,
            boot: 0,
            memory: BTreeMap::new(),
            cuts: 0,
            ignores_flushes: false,
            ignores_dir_syncs: false,
            ignores_memory_writes: false,
            opens: Vec::new(),
            media: Media::new(options.device, options.storage.as_ref(), seed),
            slots: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            sequence: 0,
            idle_turns: 0,
            no_name: "".into(),
            pieces: Vec::new(),
            arrived: Vec::new(),
            options,
        }
    }

    pub(crate) fn open(&self, handle: Handle) -> Option<&Open> {
        self.opens.get(handle.0 as usize)?.as_ref()
    }

    /// Accepts an operation of a machine.
    pub(crate) fn submit(&mut self, host: HostNumber, op: Op) -> Token {
        if self.power == Power::Off {
            return DEAD;
        }
        let (facts, node) = self.facts(&op);
        let action = if self.faults.any() { self.faults.strike(facts.kind, &facts.name) } else { None };
        let id = self.reserve();
        let when = self.admit(id, &op, &facts, node);
        let delay_ns = match action {
            Some(Action::Delay { ns }) => ns,
            _ => 0,
        };
        let submitted_event = self.events + 1;
        if let Some(node) = node {
            self.fs.open(node);
        }
        let work = self.start(host, op, node, action);
        let mut slot = Slot {
            work,
            facts,
            node,
            host,
            submitted_event,
            parts: 0,
            delay_ns,
            forgotten: false,
            waker: None,
        };
        match when {
            Admitted::At(done_ns) => self.schedule(done_ns.saturating_add(delay_ns), id),
            Admitted::Parts(parts) => slot.parts = parts,
        }
        self.slots[id as usize] = slot;
        self.submitted(id);
        if action == Some(Action::PowerOff) {
            self.power = Power::Off;
        }
        Token(id)
    }

    /// Returns the facts of the operation for the trace, and the node behind its handle.
    fn facts(&self, op: &Op) -> (Facts, Option<NodeId>) {
        let described = describe(op);
        let open = described.handle.and_then(|handle| self.open(handle));
        let (name, name_hash) = match (described.name, open) {
            ("", Some(open)) => (open.name.clone(), open.name_hash),
            ("", None) => (self.no_name.clone(), 0),
            (name, _) => (name.into(), hash_name(name)),
        };
        let (kind, offset, len) = (described.kind, described.offset, described.len);
        (Facts { kind, name, name_hash, offset, len }, open.map(|open| open.node))
    }

    /// Submits the operation to its media, and returns when it will be done.
    fn admit(&mut self, id: u32, op: &Op, facts: &Facts, node: Option<NodeId>) -> Admitted {
        if let Op::Timer { at_ns } = op {
            return Admitted::At(self.now_ns.max(*at_ns));
        }
        let units = match &mut self.media {
            Media::Plain(lanes) => {
                return Admitted::At(lanes.finish_at_ns(self.now_ns, facts.kind, facts.len, &mut self.rng));
            }
            Media::Placed(units) => units,
        };
        let Some(node) = node else { return Admitted::At(self.now_ns) };
        let access = match facts.kind {
            OpKind::Read => Access::Read,
            OpKind::Write => Access::Write,
            OpKind::Flush | OpKind::SyncDir => Access::Flush,
            kind => {
                match op {
                    Op::Allocate { offset, len, .. } => self.fs.reserve_place(node, *offset, *len),
                    Op::SetLen { len, .. } => self.fs.reserve_place(node, 0, *len),
                    _ => {}
                }
                return Admitted::At(self.now_ns + units.call_ns(self.fs.unit(node), kind));
            }
        };
        self.pieces.clear();
        match access {
            Access::Flush => self.pieces.push(Piece { unit: self.fs.unit(node), at: 0, len: 0 }),
            _ if byte_range(facts.offset, facts.len).is_err() => {}
            _ => self.fs.locate(node, facts.offset, facts.len, &mut self.pieces),
        }
        match self.pieces.is_empty() {
            true => Admitted::At(self.now_ns),
            false => units.submit(self.now_ns, access, &self.pieces, id),
        }
    }

    fn schedule(&mut self, at_ns: u64, id: u32) {
        self.sequence += 1;
        self.due.push(Reverse((at_ns, self.sequence, id)));
    }

    fn start(&mut self, host: HostNumber, op: Op, node: Option<NodeId>, action: Option<Action>) -> Work {
        if let Some(Action::Fail(errno)) = action {
            return Work::Failing(op, errno);
        }
        if let Err(errno) = self.check(&op) {
            // Refused before it began, so it has no effect.
            return Work::Answered(refusal(op, errno));
        }
        let Some(node) = node else { return Work::Waiting(op) };
        if self.options.content != ContentMode::Durable || !self.reservations.admits(node, host, &op) {
            return Work::Waiting(op);
        }
        match op {
            Op::Read { .. } if self.rng.coin() => Work::Answered(self.perform(op, node, 0)),
            Op::Write { offset, ref data, .. } if self.rng.coin() => {
                let exposed = self.fs.file_mut(node).ok().and_then(|(f, _)| f.write_in_place(offset, data));
                match exposed {
                    Some(effect) => Work::Exposed { effect, len: data.len() as u64 },
                    None => Work::Waiting(op),
                }
            }
            op => Work::Waiting(op),
        }
    }

    pub(crate) fn fence(&mut self, file: Handle, deadline: Arc<Deadline>) {
        if let Some(Some(open)) = self.opens.get_mut(file.0 as usize) {
            open.deadline = Some(deadline);
        }
    }

    pub(crate) fn is_admitted(&self, file: Handle) -> bool {
        let deadline = self.open(file).and_then(|open| open.deadline.as_ref());
        deadline.is_none_or(|deadline| deadline.is_open(self.now_ns))
    }

    /// Checks what a fence, O_DIRECT and the open mode forbid.
    fn check(&self, op: &Op) -> Result<(), Errno> {
        if op.file().is_some_and(|file| !self.is_admitted(file)) {
            return Err(Errno::FENCED);
        }
        let (handle, offset, bytes, writes) = match op {
            Op::Read { file, offset, buf } => (file, *offset, Some(&buf[..]), false),
            Op::Write { file, offset, data } => (file, *offset, Some(&data[..]), true),
            Op::Allocate { file, .. }
            | Op::Zero { file, .. }
            | Op::GiveBack { file, .. }
            | Op::SetLen { file, .. } => (file, 0, None, true),
            _ => return Ok(()),
        };
        if !self.open(*handle).is_some_and(|open| open.writable || !writes) {
            return Err(EBADF);
        }
        let block = u64::from(self.limits.logical_block);
        let fits = bytes.is_none_or(|bytes| {
            offset.is_multiple_of(block)
                && (bytes.len() as u64).is_multiple_of(block)
                && bytes.len() <= self.limits.max_io as usize
                && (bytes.as_ptr() as usize).is_multiple_of(self.limits.memory_align as usize)
        });
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Returns a free slot for an operation.
    fn reserve(&mut self) -> u32 {
        if let Some(id) = self.free.pop() {
            return id;
        }
        let facts =
            Facts { kind: OpKind::Timer, name: self.no_name.clone(), name_hash: 0, offset: 0, len: 0 };
        self.slots.push(Slot {
            work: Work::Free,
            facts,
            node: None,
            host: 0,
            submitted_event: 0,
            parts: 0,
            delay_ns: 0,
            forgotten: false,
            waker: None,
        });
        u32::try_from(self.slots.len() - 1).ok().filter(|&id| id != DEAD.0).expect("fewer than 2^32 - 1")
    }

    fn submitted(&mut self, id: u32) {
        let facts = &self.slots[id as usize].facts;
        let kind = facts.kind;
        self.events += u64::from(kind != OpKind::Timer);
        self.trace.submitted(facts, self.events, self.now_ns);
        if kind != OpKind::Timer && self.faults.cuts(self.events, kind, false) {
            self.power = Power::Off;
        }
    }

    /// Advances the clock to the next completion.
    pub(crate) fn step(&mut self) -> Step {
        if self.power == Power::On {
            self.run_media(self.faults.cut_at_ns().unwrap_or(NEVER_NS));
        }
        let Some(&Reverse((due_ns, _, id))) = self.due.peek() else { return Step::Nothing };
        if self.power == Power::Off {
            return Step::Nothing;
        }
        if let Some(cut_ns) = self.faults.cut_at_ns().filter(|&cut_ns| cut_ns < due_ns) {
            self.now_ns = cut_ns;
            self.power = Power::Off;
            return Step::Nothing;
        }
        self.idle_turns = 0;
        self.now_ns = self.now_ns.max(due_ns);
        let kind = self.slots[id as usize].facts.kind;
        if kind != OpKind::Timer {
            self.events += 1;
            assert!(self.events < self.options.events_max, "{}: endless", self.place_and_time());
            if self.faults.cuts(self.events, kind, true) {
                self.power = Power::Off;
                return Step::Nothing;
            }
        }
        self.due.pop();
        self.complete(id)
    }

    /// Advances the media until the next completion is known, but not beyond `until_ns`.
    fn run_media(&mut self, until_ns: u64) {
        loop {
            let at_ns = self.media.next_ns();
            let due_ns = self.due.peek().map_or(NEVER_NS, |Reverse((due_ns, ..))| *due_ns);
            let Media::Placed(units) = &mut self.media else { return };
            if at_ns == NEVER_NS || at_ns > due_ns.min(until_ns) {
                return;
            }
            self.now_ns = self.now_ns.max(at_ns);
            let mut arrived = std::mem::take(&mut self.arrived);
            units.advance(self.now_ns, &mut arrived);
            arrived.drain(..).for_each(|id| self.part_done(id));
            self.arrived = arrived;
        }
    }

    fn part_done(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        slot.parts -= 1;
        if slot.parts == 0 {
            let at_ns = self.now_ns.saturating_add(slot.delay_ns);
            self.schedule(at_ns, id);
        }
    }

    fn complete(&mut self, id: u32) -> Step {
        let outcome = self.finish(id);
        let slot = &mut self.slots[id as usize];
        self.trace.completed(&slot.facts, self.events, self.now_ns, error_of(&outcome));
        if slot.forgotten {
            self.release(id);
            self.dispose(outcome);
            return Step::Quiet;
        }
        slot.work = Work::Done(outcome);
        slot.waker.take().map_or(Step::Quiet, Step::Wake)
    }

    /// Applies the operation to the medium.
    pub(crate) fn finish(&mut self, id: u32) -> Outcome {
        let slot = &mut self.slots[id as usize];
        let (node, host, covers) = (slot.node.take(), slot.host, slot.submitted_event);
        let outcome = match (std::mem::replace(&mut slot.work, Work::Free), node) {
            (Work::Waiting(Op::Reserve { step, .. }), Some(node)) => {
                Outcome::Unit(self.reservation(node, host, step))
            }
            (Work::Waiting(op), Some(node)) if !self.reservations.admits(node, host, &op) => {
                refusal(op, Errno::EBADE)
            }
            (Work::Waiting(op), Some(node)) => self.perform(op, node, covers),
            (Work::Waiting(op), None) => self.perform_without_handle(op),
            (Work::Exposed { effect, len }, Some(node)) => {
                let stamp = self.events;
                let (file, _) = self.fs.file_mut(node).expect("it was written to");
                file.complete(effect, stamp);
                Outcome::Count(Ok(len))
            }
            (Work::Answered(outcome), _) => outcome,
            (Work::Failing(op, errno), node) => self.fail(op, node, errno, covers),
            (Work::Exposed { .. } | Work::Free | Work::Done(_), _) => {
                unreachable!("{}: an operation completes once", self.place_and_time())
            }
        };
        if let Some(node) = node {
            self.fs.close(node);
        }
        outcome
    }

    fn reservation(&mut self, node: NodeId, host: HostNumber, step: Reservation) -> Result<(), Errno> {
        if !self.options.reservations {
            return Err(Errno::EOPNOTSUPP);
        }
        for loser in self.reservations.take(node, host, step)? {
            self.abort_changes(node, loser);
        }
        Ok(())
    }

    /// Ends what a host changes on a device. What is visible stays, and what is not has no effect. The host hears of it
    /// when the operations would have ended.
    fn abort_changes(&mut self, node: NodeId, host: HostNumber) {
        let stamp = self.events;
        for slot in self.slots.iter_mut().filter(|slot| slot.node == Some(node) && slot.host == host) {
            slot.work = match std::mem::replace(&mut slot.work, Work::Free) {
                Work::Exposed { effect, .. } => {
                    let (file, _) = self.fs.file_mut(node).expect("it was written to");
                    file.complete(effect, stamp);
                    Work::Answered(Outcome::Count(Err(Errno::EBADE)))
                }
                Work::Waiting(op) if !self.reservations.admits(node, host, &op) => {
                    Work::Answered(refusal(op, Errno::EBADE))
                }
                other => other,
            };
        }
    }

    pub(crate) fn poll(&mut self, token: Token, waker: &Waker) -> Poll<Outcome> {
        if self.power == Power::Off || token == DEAD {
            return Poll::Pending;
        }
        let slot = &mut self.slots[token.0 as usize];
        if let Work::Done(_) = slot.work
            && let Work::Done(outcome) = std::mem::replace(&mut slot.work, Work::Free)
        {
            self.release(token.0);
            return Poll::Ready(outcome);
        }
        if !slot.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            slot.waker = Some(waker.clone());
        }
        Poll::Pending
    }

    pub(crate) fn forget(&mut self, token: Token) {
        if self.power == Power::Off || token == DEAD {
            return;
        }
        let slot = &mut self.slots[token.0 as usize];
        slot.forgotten = true;
        slot.waker = None;
        if let Work::Done(_) = slot.work
            && let Work::Done(outcome) = std::mem::replace(&mut slot.work, Work::Free)
        {
            self.release(token.0);
            self.dispose(outcome);
        }
    }

    fn release(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        slot.work = Work::Free;
        slot.waker = None;
        self.free.push(id);
    }

    /// Drops an outcome that will not be taken: a handle in it would stay open.
    fn dispose(&mut self, outcome: Outcome) {
        if let Outcome::Opened(Ok((handle, _))) = outcome {
            self.close(handle);
        }
    }

    pub(crate) fn close(&mut self, handle: Handle) {
        if self.power == Power::Off {
            return;
        }
        let Some(open) = self.opens.get_mut(handle.0 as usize).and_then(Option::take) else { return };
        if open.lock {
            self.fs.unlock(open.node);
        }
        self.fs.close(open.node);
    }

    /// Accounts for the time in which tasks have run without waiting.
    pub(crate) fn turn(&mut self) -> Step {
        self.idle_turns += 1;
        assert!(self.idle_turns < IDLE_TURNS_MAX, "{}: a task spins", self.place_and_time());
        let until_ns = self.now_ns + TURN_NS;
        if self.power == Power::On {
            self.run_media(until_ns.min(self.faults.cut_at_ns().unwrap_or(NEVER_NS)));
        }
        match self.due.peek() {
            Some(&Reverse((due_ns, _, _))) if due_ns <= until_ns => self.step(),
            _ if self.power == Power::On && self.faults.cut_at_ns().is_none() => {
                self.now_ns = self.now_ns.max(until_ns);
                Step::Nothing
            }
            _ => Step::Nothing,
        }
    }

    pub(crate) fn place_and_time(&self) -> String {
        format!("seed {}, event {}, {} ns", self.seed, self.events, self.now_ns)
    }
}

fn error_of(outcome: &Outcome) -> Option<Errno> {
    match outcome {
        Outcome::Unit(result) => result.err(),
        Outcome::Read(_, result) => result.err(),
        Outcome::Received(_, result) => result.as_ref().err().copied(),
        Outcome::Count(result) => result.err(),
        Outcome::Opened(result) => result.err(),
        Outcome::Accepted(result) => result.as_ref().err().copied(),
        Outcome::Extents(result) => result.as_ref().err().copied(),
        Outcome::Names(result) => result.as_ref().err().copied(),
        Outcome::Space(result) => result.err(),
    }
}
