//! Finds the phases of a record in the events of its vmware.log: the begin and the end of a take and of a
//! consolidation.

use crate::report::extent;
use crate::run::{Phase, PhaseSpan, Record};

/// Events that begin or end a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    TakeBegins,
    TakeEnds,
    TakeFails,
    ConsolidationBegins,
    ConsolidationEnds,
    ConsolidationFails,
}

/// Returns the event that a mark's text reports. One consolidation may report its end in two lines.
fn event(text: &str) -> Option<Event> {
    /// The code of success that follows the message of a consolidation's end.
    const SUCCESS: &str = "(0)";
    let begins = |head: &str| text.starts_with(head);
    match text {
        _ if begins("SnapshotVMX_TakeSnapshot start") => Some(Event::TakeBegins),
        _ if begins("SnapshotVMXTakeSnapshotComplete") && text.contains("fail") => Some(Event::TakeFails),
        _ if begins("SnapshotVMXTakeSnapshotComplete") => Some(Event::TakeEnds),
        _ if begins("SnapshotVMX_ConsolidateCancel") => None,
        _ if begins("SnapshotVMX_Consolidate") => Some(Event::ConsolidationBegins),
        _ if begins("SnapshotVMXConsolidateOnlineCB: Done") => Some(Event::ConsolidationEnds),
        _ if begins("ConsolidateEnd") && text.contains(SUCCESS) => Some(Event::ConsolidationEnds),
        _ if begins("ConsolidateEnd") => Some(Event::ConsolidationFails),
        _ => None,
    }
}

/// What the VM is doing between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The log does not report it.
    Unknown,
    Before,
    Taking,
    Kept,
    Consolidating,
    After,
}

impl State {
    /// Returns the state that an event shows to have been until then, for the first event of a log.
    fn until(event: Event) -> State {
        match event {
            Event::TakeBegins => State::Before,
            Event::TakeEnds | Event::TakeFails | Event::ConsolidationEnds => State::Unknown,
            Event::ConsolidationBegins => State::Kept,
            Event::ConsolidationFails => State::Unknown,
        }
    }

    /// Returns the state after an event. `before_take` is the one to which a failed take returns.
    fn next(self, event: Event, before_take: State) -> State {
        match (self, event) {
            // Helper snapshots are taken during a consolidation, and belong to it.
            (State::Consolidating, Event::TakeBegins | Event::TakeEnds | Event::TakeFails) => self,
            (_, Event::TakeBegins) => State::Taking,
            (_, Event::TakeEnds) => State::Kept,
            (_, Event::TakeFails) => before_take,
            (_, Event::ConsolidationBegins) => State::Consolidating,
            (_, Event::ConsolidationEnds) => State::After,
            (State::After, Event::ConsolidationFails) => self,
            (_, Event::ConsolidationFails) => State::Kept,
        }
    }

    fn phase(self) -> Option<(Phase, &'static str)> {
        match self {
            State::Unknown => None,
            State::Before => Some((Phase::Baseline, "before the take")),
            State::Taking => Some((Phase::Snapshot, "take")),
            State::Kept => Some((Phase::Snapshot, "with the snapshot")),
            State::Consolidating => Some((Phase::Commit, "consolidation")),
            State::After => Some((Phase::After, "after the consolidation")),
        }
    }
}

/// Sets the phases of a record from the events in it. A record with phases, or without events, stays as it is.
pub(super) fn find_phases(record: &mut Record) {
    let mut events: Vec<(u64, Event)> =
        record.marks.iter().filter_map(|mark| Some((mark.at_us, event(&mark.text)?))).collect();
    events.sort_by_key(|(at_us, _)| *at_us);
    // Without a clock the times between events are not known.
    let Some((first_us, first)) = events.first().copied().filter(|_| record.began_unix_us != 0) else {
        return;
    };
    if !record.phases.is_empty() {
        return;
    }
    let (begin_us, end_us) = extent(record);
    let mut spans = Vec::new();
    let (mut state, mut since_us, mut before_take) =
        (State::until(first), begin_us.min(first_us), State::Unknown);
    for (at_us, event) in events {
        if event == Event::TakeBegins {
            before_take = state;
        }
        let next = state.next(event, before_take);
        let is_unseen = event == Event::ConsolidationEnds && state != State::Consolidating && state != next;
        if is_unseen {
            record.notes.push(UNSEEN.into());
            state = State::Unknown;
        }
        if next != state {
            spans.extend(span(state, since_us, at_us));
            (state, since_us) = (next, at_us);
        }
    }
    spans.extend(span(state, since_us, end_us));
    record.phases = spans;
    record.notes.push(FOUND.into());
}

const FOUND: &str = "Phases are those of the events in vmware.log; --phase NAME=FROM..TO marks others.";
const UNSEEN: &str = "No line has the begin of a consolidation that ended, so the time before it has no phase; \
                      --phase commit=FROM..TO marks it.";

/// Returns the span of a state; None without a length or a phase. No sample counts for a take, which is over at once.
fn span(state: State, begin_us: u64, end_us: u64) -> Option<PhaseSpan> {
    let (phase, label) = state.phase().filter(|_| begin_us < end_us)?;
    let counted_from_us = if state == State::Taking { end_us } else { begin_us };
    Some(PhaseSpan { counted_from_us, ..PhaseSpan::new(phase, label.into(), begin_us, end_us) })
}

#[cfg(test)]
mod tests {
    use super::super::base;
    use super::*;
    use crate::run::{Mark, Sample};

    const TAKE: &str = "SnapshotVMX_TakeSnapshot start: 'a', deviceState=0, lazy=0";
    const TAKEN: &str = "SnapshotVMXTakeSnapshotComplete: Done with snapshot 'a': 2";
    const BEGIN: &str = "SnapshotVMX_Consolidate: Starting online snapshot consolidate operation.";
    const DONE: &str = "SnapshotVMXConsolidateOnlineCB: Done with consolidate";
    const END: &str =
        "ConsolidateEnd: Snapshot consolidate complete: The operation completed successfully (0).";

    /// Returns phase, begin and end in seconds of a record of 100 s with these events.
    fn found(events: &[(u64, &str)]) -> Vec<(Phase, u64, u64)> {
        let mut record = base::record("vmware.log", "t");
        record.began_unix_us = 1;
        record.samples.push(Sample { interval_us: 100_000_000, ..Sample::default() });
        record.marks =
            events.iter().map(|(s, text)| Mark { at_us: s * 1_000_000, text: (*text).into() }).collect();
        find_phases(&mut record);
        record.phases.iter().map(|p| (p.phase, p.begin_us / 1_000_000, p.end_us / 1_000_000)).collect()
    }

    #[test]
    fn events_divide_a_record_into_phases() {
        use Phase::{After, Baseline, Commit, Snapshot};
        let all = [(10, TAKE), (12, TAKEN), (50, BEGIN), (80, DONE), (81, END)];
        let expected =
            [(Baseline, 0, 10), (Snapshot, 10, 12), (Snapshot, 12, 50), (Commit, 50, 80), (After, 80, 100)];
        assert_eq!(found(&all), expected);
        let helper = [all[0], all[1], all[2], (60, TAKE), (61, TAKEN), all[3], all[4]];
        assert_eq!(found(&helper), expected, "helpers are a part of the consolidation");
        assert_eq!(found(&all[2..]), [(Snapshot, 0, 50), (Commit, 50, 80), (After, 80, 100)]);
        assert_eq!(found(&[]), []);
    }

    #[test]
    fn what_the_log_does_not_say_has_no_phase() {
        use Phase::{After, Baseline, Snapshot};
        let no_begin = [(10, TAKE), (12, TAKEN), (80, DONE), (81, END)];
        assert_eq!(found(&no_begin), [(Baseline, 0, 10), (Snapshot, 10, 12), (After, 80, 100)]);
        let failed = "SnapshotVMXTakeSnapshotComplete: Snapshot 2 failed: Failed to quiesce (40).";
        assert_eq!(found(&[(10, TAKE), (12, failed)])[2], (Baseline, 12, 100));
        let cancelled = "ConsolidateEnd: Snapshot consolidate complete: Operation was cancelled (33).";
        assert_eq!(found(&[(50, BEGIN), (80, cancelled)])[2], (Snapshot, 80, 100));
    }
}
