//! The state of each alarm from look to look. Pure functions: what was found and the state give the new state and what is
//! to be told.
//!
//! Looks are counted, and not time, so that a clock that jumps raises and clears nothing.

use std::collections::{BTreeMap, BTreeSet};

use api::{Acknowledged, Alarm, AlarmRule, AlarmSeverity};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Number of looks in a row that must find a reason before an alarm is raised. A critical one is raised at once.
const RAISE_LOOKS: u32 = 2;
/// Number of looks in a row that must find none before it is cleared.
const CLEAR_LOOKS: u32 = 3;

/// Returns the number of looks that clear an alarm. That a guest goes on is known from the guest itself, so one is enough.
fn clear_looks(rule: AlarmRule) -> u32 {
    if rule == AlarmRule::GuestFrozen { 1 } else { CLEAR_LOOKS }
}
/// Maximum number of alarms that have ended and are still listed.
const ENDED_MAX: usize = 200;

/// What a look finds about an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    pub rule: AlarmRule,
    pub object: String,
    pub vm: Option<String>,
    pub grade: Grade,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grade {
    Reason(AlarmSeverity),
    /// Neither a reason to raise an alarm, nor one to clear it: between the two thresholds, or unknown.
    Hold,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Raised,
    MoreSevere,
    Cleared,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Notification {
    pub change: Change,
    pub alarm: Alarm,
}

/// The alarms that last, those that have ended, and how often reasons were found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct States {
    pub lasting: BTreeMap<String, Alarm>,
    pub ended: Vec<Alarm>,
    /// Looks in a row with a reason, of alarms that are not raised yet; without one, of those that last.
    #[serde(skip)]
    looks: BTreeMap<String, u32>,
}

impl States {
    pub(super) fn acknowledge(&mut self, id: &str, acknowledged: Option<Acknowledged>) -> Option<Alarm> {
        let alarm = self.lasting.get_mut(id)?;
        alarm.acknowledged = acknowledged;
        Some(alarm.clone())
    }

    fn counted(&mut self, id: &str) -> u32 {
        let looks = self.looks.entry(id.to_owned()).or_default();
        *looks += 1;
        *looks
    }
}

/// Enters the findings of a look. An object that is not among them gives no reason.
pub(super) fn evaluate(states: &mut States, findings: Vec<Finding>, now: Timestamp) -> Vec<Notification> {
    let mut notifications = Vec::new();
    let mut found = BTreeSet::new();
    for finding in findings {
        let id = format!("{}:{}", finding.rule.as_str(), finding.object);
        found.insert(id.clone());
        match (finding.grade, states.lasting.contains_key(&id)) {
            (Grade::Reason(severity), true) => notifications.extend(go_on(states, &id, finding, severity)),
            (Grade::Reason(severity), false) => {
                notifications.extend(begin(states, &id, finding, severity, now));
            }
            // The looks begin anew.
            (Grade::Hold, _) => _ = states.looks.remove(&id),
        }
    }
    states.looks.retain(|id, _| found.contains(id) || states.lasting.contains_key(id));
    let missing = states.lasting.iter().filter(|(id, _)| !found.contains(*id));
    let missing: Vec<_> = missing.map(|(id, alarm)| (id.clone(), clear_looks(alarm.rule))).collect();
    for (id, looks) in missing {
        if states.counted(&id) >= looks {
            notifications.extend(end(states, &id, now));
        }
    }
    notifications
}

fn begin(
    states: &mut States,
    id: &str,
    finding: Finding,
    severity: AlarmSeverity,
    now: Timestamp,
) -> Option<Notification> {
    let looks = states.counted(id);
    if severity < AlarmSeverity::Critical && looks < RAISE_LOOKS {
        return None;
    }
    states.looks.remove(id);
    let Finding { rule, object, vm, message, .. } = finding;
    let vm = vm.and_then(|vm| vm.parse().ok());
    let id = id.to_owned();
    let alarm = Alarm {
        id: id.clone(),
        rule,
        severity,
        object,
        vm,
        message,
        raised: now,
        cleared: None,
        acknowledged: None,
    };
    states.lasting.insert(id, alarm.clone());
    Some(Notification { change: Change::Raised, alarm })
}

/// An acknowledgement is of the severity at its time.
fn go_on(states: &mut States, id: &str, finding: Finding, severity: AlarmSeverity) -> Option<Notification> {
    states.looks.remove(id);
    let alarm = states.lasting.get_mut(id)?;
    alarm.message = finding.message;
    let before = std::mem::replace(&mut alarm.severity, severity);
    if severity <= before {
        return None;
    }
    alarm.acknowledged = None;
    Some(Notification { change: Change::MoreSevere, alarm: alarm.clone() })
}

fn end(states: &mut States, id: &str, now: Timestamp) -> Option<Notification> {
    states.looks.remove(id);
    let mut alarm = states.lasting.remove(id)?;
    alarm.cleared = Some(now);
    states.ended.push(alarm.clone());
    let surplus = states.ended.len().saturating_sub(ENDED_MAX);
    states.ended.drain(..surplus);
    Some(Notification { change: Change::Cleared, alarm })
}

#[cfg(test)]
mod tests {
    use AlarmSeverity::{Critical, Serious, Warning};
    use proptest::prelude::*;

    use super::*;

    fn finding(object: &str, grade: Grade) -> Finding {
        let (object, message) = (object.to_owned(), "so it is".to_owned());
        Finding { rule: AlarmRule::SnapshotOld, vm: Some(object.clone()), object, grade, message }
    }

    fn at(n: usize) -> Timestamp {
        Timestamp::from_second(n as i64 * 60).unwrap()
    }

    /// Returns the changes of each look.
    fn changes(looks: &[Option<Grade>]) -> Vec<Vec<Change>> {
        let mut states = States::default();
        let look = |(n, grade): (usize, &Option<Grade>)| {
            let findings = grade.map(|grade| finding("web", grade)).into_iter().collect();
            evaluate(&mut states, findings, at(n)).into_iter().map(|one| one.change).collect()
        };
        looks.iter().enumerate().map(look).collect()
    }

    #[test]
    fn an_alarm_needs_looks_to_begin_and_to_end() {
        let reason = Some(Grade::Reason(Warning));
        let told = changes(&[reason, None, reason, reason, None, None, reason, None, None, None, None]);
        let expected: [&[Change]; 11] =
            [&[], &[], &[], &[Change::Raised], &[], &[], &[], &[], &[], &[Change::Cleared], &[]];
        assert_eq!(told, expected);
        let told =
            changes(&[Some(Grade::Reason(Critical)), Some(Grade::Hold), None, None, Some(Grade::Hold), None]);
        assert_eq!(told.concat(), [Change::Raised], "what is held back neither begins nor ends");
    }

    #[test]
    fn the_alarm_of_a_guest_that_goes_on_ends_at_once() {
        let mut states = States::default();
        let frozen = Finding { rule: AlarmRule::GuestFrozen, ..finding("web", Grade::Reason(Critical)) };
        assert_eq!(evaluate(&mut states, vec![frozen], at(1))[0].change, Change::Raised);
        assert_eq!(evaluate(&mut states, Vec::new(), at(2))[0].change, Change::Cleared);
    }

    #[test]
    fn what_becomes_more_severe_is_told_again_and_no_longer_acknowledged() {
        let mut states = States::default();
        let mut look = |severity| evaluate(&mut states, vec![finding("web", Grade::Reason(severity))], at(1));
        look(Warning);
        let raised = look(Warning).remove(0).alarm;
        let by = Acknowledged { by: "a".into(), time: at(2), note: String::new() };
        let known = states.acknowledge(&raised.id, Some(by)).unwrap();
        assert!(known.acknowledged.is_some());
        let mut look = |severity| evaluate(&mut states, vec![finding("web", Grade::Reason(severity))], at(3));
        assert!(look(Warning).is_empty());
        let told = look(Serious).remove(0);
        assert!(told.change == Change::MoreSevere && told.alarm.acknowledged.is_none());
        assert!(look(Warning).is_empty() && look(Warning).is_empty(), "less severe is no news");
    }

    fn any_grade() -> impl Strategy<Value = Option<Grade>> {
        prop_oneof![
            Just(None),
            Just(Some(Grade::Hold)),
            Just(Some(Grade::Reason(Warning))),
            Just(Some(Grade::Reason(Critical)))
        ]
    }

    proptest! {
        #[test]
        fn raises_and_ends_alternate_whatever_is_found(
            looks in prop::collection::vec(any_grade(), 1..200),
            jumps in prop::collection::vec(-100_000_i64..100_000, 200),
        ) {
            let (mut states, mut lasts) = (States::default(), false);
            let mut without = 0;
            for (n, grade) in looks.iter().enumerate() {
                // The clock of each look has nothing to do with the one before.
                let now = Timestamp::from_second(1_800_000_000 + jumps[n]).unwrap();
                let findings = grade.map(|grade| finding("web", grade)).into_iter().collect();
                without = if grade.is_none() { without + 1 } else { 0 };
                for told in evaluate(&mut states, findings, now) {
                    match told.change {
                        Change::Raised => prop_assert!(!std::mem::replace(&mut lasts, true)),
                        Change::Cleared => {
                            prop_assert!(std::mem::replace(&mut lasts, false) && without >= CLEAR_LOOKS);
                        }
                        Change::MoreSevere => prop_assert!(lasts),
                    }
                }
                prop_assert_eq!(states.lasting.len(), usize::from(lasts));
                prop_assert!(lasts || *grade != Some(Grade::Reason(Critical)), "a critical one is raised at once");
            }
        }
    }
}
