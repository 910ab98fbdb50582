//! When each snapshot of a VM was taken, committed and gone, by the VM's events and its present tree.

use std::collections::BTreeMap;

use api::{Event, Operation};
use jiff::{SignedDuration, Timestamp};

/// Difference between the time of a snapshot and that of the event of its take.
const SAME_TAKE: SignedDuration = SignedDuration::from_secs(60);

/// The same where the snapshot has another name by now.
const SAME_NAME_CHANGED: SignedDuration = SignedDuration::from_secs(2);

/// The life of a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Life {
    pub name: String,
    /// None if it was taken before the first event.
    pub taken: Option<Timestamp>,
    pub take_stun_us: u64,
    pub commit_began: Option<Timestamp>,
    /// When it was gone, and a commit of it had ended. None: it is there, or its commit goes on.
    pub ended: Option<Timestamp>,
    pub end: Option<Operation>,
    /// Of the commit. Snapshots that were committed together have the same.
    pub commit_stun_us: u64,
    pub bytes_moved: u64,
}

impl Life {
    fn taken(name: &str, taken: Option<Timestamp>, take_stun_us: u64) -> Life {
        Life {
            name: name.to_owned(),
            taken,
            take_stun_us,
            commit_began: None,
            ended: None,
            end: None,
            commit_stun_us: 0,
            bytes_moved: 0,
        }
    }
}

/// Lives that events tell of, in the order of the takes.
#[derive(Default)]
struct Lives {
    all: Vec<Life>,
    /// Places in `all` of the snapshots that are there, by name.
    there: BTreeMap<String, usize>,
}

impl Lives {
    /// Returns the lives of the snapshots that an event is about: there may be a comma in a name.
    fn of(&mut self, subject: &str) -> Vec<usize> {
        let names: Vec<&str> = match self.there.contains_key(subject) {
            true => vec![subject],
            false => subject.split(", ").filter(|name| !name.is_empty()).collect(),
        };
        names.into_iter().map(|name| self.place(name)).collect()
    }

    fn place(&mut self, name: &str) -> usize {
        if let Some(&at) = self.there.get(name) {
            return at;
        }
        self.all.push(Life::taken(name, None, 0));
        self.there.insert(name.to_owned(), self.all.len() - 1);
        self.all.len() - 1
    }

    fn add(&mut self, event: &Event) {
        let subject = event.snapshot.as_deref().unwrap_or("");
        match event.operation {
            Operation::Take => {
                self.there.insert(subject.to_owned(), self.all.len());
                self.all.push(Life::taken(subject, Some(event.time), event.stun_us));
            }
            Operation::CommitStart => {
                self.of(subject).into_iter().for_each(|at| self.all[at].commit_began = Some(event.time));
            }
            Operation::Commit | Operation::CommitCancelled | Operation::CommitFailed | Operation::Discard => {
                for at in self.of(subject) {
                    let life = &mut self.all[at];
                    life.ended = Some(event.time);
                    life.end = Some(event.operation);
                    life.commit_stun_us = event.stun_us;
                    life.bytes_moved = event.disks.iter().map(|disk| disk.bytes_moved).sum();
                    let name = life.name.clone();
                    self.there.remove(&name);
                }
            }
            _ => {}
        }
    }
}

/// Returns the lives, the oldest first. `tree` has the names and times of the present snapshots. Of a snapshot that is gone without an event of its end, nothing is returned.
pub(crate) fn lives(events: &[Event], tree: &[(String, Timestamp)]) -> Vec<Life> {
    let mut lives = Lives::default();
    events.iter().for_each(|event| lives.add(event));
    let Lives { mut all, there } = lives;
    let mut is_there = vec![false; all.len()];
    for (name, created) in tree {
        let apart = |life: &Life| life.taken.map(|taken| taken.duration_since(*created).abs());
        let is_same = |at: &usize| apart(&all[*at]).is_some_and(|apart| apart <= SAME_TAKE);
        // It may have been renamed since.
        let renamed = || {
            let others =
                there.values().filter(|&&at| apart(&all[at]).is_some_and(|apart| apart <= SAME_NAME_CHANGED));
            others
                .copied()
                .find(|at| !is_there[*at] && !tree.iter().any(|(other, _)| *other == all[*at].name))
        };
        match there.get(name).copied().filter(is_same).or_else(renamed) {
            Some(at) => {
                is_there[at] = true;
                all[at].name.clone_from(name);
            }
            None => {
                all.push(Life::taken(name, Some(*created), 0));
                is_there.push(true);
            }
        }
    }
    let mut kept: Vec<Life> = all
        .into_iter()
        .zip(is_there)
        .filter(|(life, is_there)| *is_there || life.commit_began.is_some() || life.ended.is_some())
        .map(|(life, _)| life)
        .collect();
    kept.sort_by_key(|life| life.taken);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn event(second: i64, operation: Operation, subject: &str) -> Event {
        Event {
            id: second.unsigned_abs(),
            time: at(second),
            vm: "web".parse().unwrap(),
            operation,
            snapshot: Some(subject.to_owned()),
            stun_us: 100,
            frozen_us: 0,
            disks: vec![api::EventDisk { number: 0, stun_us: 100, flush_us: 0, bytes_moved: 4096 }],
            message: None,
        }
    }

    #[test]
    fn a_name_may_be_used_again_and_have_a_comma() {
        use Operation::{Commit, CommitStart, Discard, Take};
        let events = [
            event(0, Take, "a"),
            event(10, Take, "b, c"),
            event(20, CommitStart, "a"),
            event(30, Commit, "a"),
            event(40, Take, "a"),
            event(50, Discard, "b, c"),
            event(60, CommitStart, "old, a"),
            event(70, Take, "lost"),
        ];
        let found = lives(&events, &[("imported".to_owned(), at(-500))]);
        let shown: Vec<_> = found
            .iter()
            .map(|life| {
                let second = |time: Option<Timestamp>| time.map(|t| t.as_second() - 1_800_000_000);
                (
                    life.name.as_str(),
                    second(life.taken),
                    second(life.commit_began),
                    second(life.ended),
                    life.end,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("old", None, Some(60), None, None),
                ("imported", Some(-500), None, None, None),
                ("a", Some(0), Some(20), Some(30), Some(Commit)),
                ("b, c", Some(10), None, Some(50), Some(Discard)),
                ("a", Some(40), Some(60), None, None),
            ]
        );
        assert_eq!((found[2].take_stun_us, found[2].commit_stun_us, found[2].bytes_moved), (100, 100, 4096));
    }

    #[test]
    fn a_snapshot_of_the_tree_is_that_of_its_take() {
        let events = [event(0, Operation::Take, "a")];
        let found = lives(&events, &[("a".to_owned(), at(1))]);
        assert_eq!((found.len(), found[0].take_stun_us), (1, 100));
        // It was renamed.
        let found = lives(&events, &[("b".to_owned(), at(0))]);
        assert_eq!((found.len(), found[0].name.as_str(), found[0].take_stun_us), (1, "b", 100));
        // The event is of an earlier snapshot with the name.
        let found = lives(&events, &[("a".to_owned(), at(5000))]);
        assert_eq!((found.len(), found[0].taken), (1, Some(at(5000))));
    }
}
