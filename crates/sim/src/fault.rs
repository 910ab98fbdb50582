//! Faults that a test schedules: power cuts, and failing or slow operations.
//!
//! Every count starts at the call that schedules the fault, so it does not depend on the test's set-up.

use blk::Errno;

use crate::kind::OpKind;

/// When the power is cut. Timers are not counted: they change no durable state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// At the n-th submission or completion from now, counted from 1. After a submission the operation is under way;
    /// after a completion it is done but not reported.
    Event(u64),
    /// When the clock would pass this many nanoseconds from now.
    After { ns: u64 },
    /// At the n-th operation of a kind from now, counted from 1.
    Kind { kind: OpKind, nth: u64, phase: Phase },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// After the submission.
    Submitted,
    /// After the device has done it, before it is reported.
    Completing,
    /// After the report: the power is cut at the next event of any kind.
    Completed,
}

/// Effect of a rule on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Fails at its completion without an effect. Exception: a write that fails with EIO may have changed any of its
    /// sectors.
    Fail(Errno),
    /// Takes this many nanoseconds longer.
    Delay { ns: u64 },
    /// The power is cut at the submission of the operation: a cut by file name.
    PowerOff,
}

/// A rule: which operations it matches, which of these it affects, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Kind of operation; None for any kind except timers.
    pub kind: Option<OpKind>,
    /// Part of the file's name, or of the name in a directory operation.
    pub name: Option<String>,
    /// Affects the n-th operation that matches, counted from 1.
    pub nth: u64,
    /// Affects every later match too.
    pub forever: bool,
    pub action: Action,
}

impl Fault {
    /// Returns a rule that affects the n-th operation of any kind, once.
    pub fn nth(nth: u64, action: Action) -> Fault {
        Fault { kind: None, name: None, nth, forever: false, action }
    }

    pub fn of(self, kind: OpKind) -> Fault {
        Fault { kind: Some(kind), ..self }
    }

    pub fn named(self, part: &str) -> Fault {
        Fault { name: Some(part.to_string()), ..self }
    }

    pub fn and_all_later(self) -> Fault {
        Fault { forever: true, ..self }
    }

    fn matches(&self, kind: OpKind, name: &str) -> bool {
        kind != OpKind::Timer
            && self.kind.is_none_or(|wanted| wanted == kind)
            && self.name.as_ref().is_none_or(|part| name.contains(part.as_str()))
    }
}

struct Rule {
    fault: Fault,
    matched: u64,
}

/// A scheduled cut in absolute terms.
enum Armed {
    Event(u64),
    Time(u64),
    Kind { kind: OpKind, left: u64, phase: Phase },
}

#[derive(Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
    cut: Option<Armed>,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        assert!(fault.nth > 0, "operations are counted from 1");
        self.rules.push(Rule { fault, matched: 0 });
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn any(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Returns the action of the first rule that affects this operation. Every matching rule counts the operation.
    pub(crate) fn strike(&mut self, kind: OpKind, name: &str) -> Option<Action> {
        let mut struck = None;
        for rule in self.rules.iter_mut().filter(|rule| rule.fault.matches(kind, name)) {
            rule.matched += 1;
            let due = rule.matched == rule.fault.nth || (rule.fault.forever && rule.matched > rule.fault.nth);
            if due && struck.is_none() {
                struck = Some(rule.fault.action);
            }
        }
        struck
    }

    pub(crate) fn arm(&mut self, cut: Cut, events: u64, now_ns: u64) {
        self.cut = Some(match cut {
            Cut::Event(nth) => Armed::Event(events + nth.max(1)),
            Cut::After { ns } => Armed::Time(now_ns.saturating_add(ns)),
            Cut::Kind { kind, nth, phase } => Armed::Kind { kind, left: nth.max(1), phase },
        });
    }

    pub(crate) fn disarm(&mut self) {
        self.cut = None;
    }

    pub(crate) fn cut_at_ns(&self) -> Option<u64> {
        match self.cut {
            Some(Armed::Time(at)) => Some(at),
            _ => None,
        }
    }

    /// Returns whether the power is cut at this event, number `event` of the world.
    pub(crate) fn cuts(&mut self, event: u64, kind: OpKind, completion: bool) -> bool {
        let Some(armed) = &mut self.cut else { return false };
        match armed {
            Armed::Event(at) => event >= *at,
            Armed::Time(_) => false,
            Armed::Kind { kind: wanted, left, phase } => {
                if *wanted != kind || completion == (*phase == Phase::Submitted) {
                    return false;
                }
                *left -= 1;
                let due = *left == 0;
                if due && *phase == Phase::Completed {
                    *armed = Armed::Event(event + 1);
                    return false;
                }
                due
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_strikes_the_nth_match_once_or_for_ever() {
        let mut faults = Faults::default();
        let fail = Action::Fail(Errno::EIO);
        faults.add(Fault::nth(2, fail).of(OpKind::Write).named("disk"));
        faults.add(Fault::nth(4, Action::Delay { ns: 1 }).of(OpKind::Write).and_all_later());
        let struck: Vec<_> = ["disk", "other", "disk", "disk", "disk"]
            .into_iter()
            .map(|name| faults.strike(OpKind::Write, name))
            .collect();
        let delay = Some(Action::Delay { ns: 1 });
        assert_eq!(struck, [None, None, Some(fail), delay, delay]);
        assert_eq!(faults.strike(OpKind::Read, "disk"), None);
    }

    #[test]
    fn a_cut_by_kind_counts_its_phase_only() {
        let mut faults = Faults::default();
        faults.arm(Cut::Kind { kind: OpKind::Flush, nth: 2, phase: Phase::Completed }, 0, 0);
        let flushes = [false, true, false, true].map(|completion| completion);
        for (at, completion) in flushes.into_iter().enumerate() {
            assert!(!faults.cuts(at as u64 + 1, OpKind::Flush, completion));
        }
        assert!(faults.cuts(5, OpKind::Write, false));
    }
}
