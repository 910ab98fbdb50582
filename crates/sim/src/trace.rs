//! The trace of a world: a hash of all events, counts by kind, and optionally the last events themselves.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;

use blk::Errno;

use crate::kind::OpKind;
use crate::rng::mix;

/// Number of operations of one kind since the world began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KindCount {
    pub submitted: u64,
    pub completed: u64,
    /// Number of completed operations that failed.
    pub failed: u64,
    /// Bytes requested by submitted reads and writes.
    pub bytes: u64,
}

/// One submission or completion.
#[derive(Debug, Clone)]
pub struct TraceEvent {
    /// Number of the event in its world, from 1. A timer has the number of the previous event.
    event: u64,
    time_ns: u64,
    facts: Facts,
    completed: bool,
    error: Option<Errno>,
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceEvent { event, time_ns, facts: Facts { kind, name, offset, len, .. }, .. } = self;
        let phase = if self.completed { "done" } else { "sent" };
        write!(f, "{event:>8} {time_ns:>14} ns {phase} {kind:?} {name} {offset}+{len}")?;
        match self.error {
            Some(errno) => write!(f, " failed: {errno}"),
            None => Ok(()),
        }
    }
}

/// Facts of an operation that both its events have.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub kind: OpKind,
    pub name: Rc<str>,
    pub name_hash: u64,
    pub offset: u64,
    pub len: u64,
}

#[derive(Default)]
pub(crate) struct Trace {
    hash: u64,
    counts: [KindCount; OpKind::COUNT],
    pub marks: BTreeMap<&'static str, u64>,
    pub recent: VecDeque<TraceEvent>,
    recent_max: usize,
}

pub(crate) fn hash_name(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Trace {
    pub(crate) fn new(recent_max: usize) -> Trace {
        Trace { recent_max, ..Trace::default() }
    }

    pub(crate) fn submitted(&mut self, facts: &Facts, event: u64, time_ns: u64) {
        let count = &mut self.counts[facts.kind as usize];
        count.submitted += 1;
        if matches!(facts.kind, OpKind::Read | OpKind::Write) {
            count.bytes += facts.len;
        }
        self.fold(facts, time_ns, 1);
        self.remember(facts, event, time_ns, false, None);
    }

    pub(crate) fn completed(&mut self, facts: &Facts, event: u64, time_ns: u64, error: Option<Errno>) {
        let count = &mut self.counts[facts.kind as usize];
        count.completed += 1;
        count.failed += u64::from(error.is_some());
        self.fold(facts, time_ns, 2 + error.map_or(0, |errno| errno.0 as u64));
        self.remember(facts, event, time_ns, true, error);
    }

    fn fold(&mut self, facts: &Facts, time_ns: u64, phase: u64) {
        let words = [facts.kind as u64 | phase << 8, facts.name_hash, facts.offset, facts.len, time_ns];
        for word in words {
            self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn remember(&mut self, facts: &Facts, event: u64, time_ns: u64, completed: bool, error: Option<Errno>) {
        if self.recent_max == 0 {
            return;
        }
        if self.recent.len() == self.recent_max {
            self.recent.pop_front();
        }
        self.recent.push_back(TraceEvent { event, time_ns, facts: facts.clone(), completed, error });
    }

    pub(crate) fn hash(&self) -> u64 {
        mix(self.hash)
    }

    pub(crate) fn count(&self, kind: OpKind) -> KindCount {
        self.counts[kind as usize]
    }

    pub(crate) fn ios(&self) -> u64 {
        let all: u64 = self.counts.iter().map(|count| count.submitted).sum();
        all - self.count(OpKind::Timer).submitted
    }
}
