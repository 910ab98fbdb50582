//! The last events of all VMs, for those that follow them from other threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::Event;
use jiff::Timestamp;
use tokio::sync::watch;

/// Number of events that are kept; at about 500 bytes each, 2 MiB.
const EVENTS_MAX: usize = 4096;

/// A place between two events, as the text `START.NUMBER.TIME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Start of the daemon in microseconds since 1970: the numbers of another start mean nothing.
    start_us: i64,
    /// Number of the event before, from 1.
    number: u64,
    /// Time of that event, in microseconds since 1970.
    time_us: i64,
}

#[derive(Default)]
struct Kept {
    /// Number of the last event.
    last: u64,
    /// Shared, because the core waits while they are handed out.
    events: VecDeque<Arc<Event>>,
}

pub(crate) struct EventFeed {
    start_us: i64,
    kept: Mutex<Kept>,
    added: watch::Sender<()>,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.start_us, self.number, self.time_us)
    }
}

impl std::str::FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Position, String> {
        let parse = || {
            let mut parts = text.split('.');
            let mut next = || parts.next()?.parse::<i64>().ok();
            let position =
                Position { start_us: next()?, number: u64::try_from(next()?).ok()?, time_us: next()? };
            Timestamp::from_microsecond(position.time_us).ok()?;
            parts.next().is_none().then_some(position)
        };
        parse().ok_or_else(|| format!("found {text:?}, expected the ID of an event of this stream"))
    }
}

impl Position {
    /// Returns the place after an event of which only the time is known.
    pub(crate) fn of_time(time: Timestamp) -> Position {
        Position { start_us: 0, number: 0, time_us: time.as_microsecond() }
    }

    pub(crate) fn time(&self) -> Timestamp {
        Timestamp::from_microsecond(self.time_us).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

impl EventFeed {
    pub(crate) fn new(started: Timestamp) -> EventFeed {
        EventFeed {
            start_us: started.as_microsecond(),
            kept: Mutex::default(),
            added: watch::Sender::new(()),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, event: &Event) {
        let event = Arc::new(event.clone());
        {
            let mut kept = self.kept();
            kept.last += 1;
            if kept.events.len() == EVENTS_MAX {
                kept.events.pop_front();
            }
            kept.events.push_back(event);
        }
        self.added.send_replace(());
    }

    /// Changes with each event.
    pub(crate) fn added(&self) -> watch::Receiver<()> {
        self.added.subscribe()
    }

    /// Returns the place after the last event.
    pub(crate) fn end(&self) -> Position {
        let kept = self.kept();
        let time_us = kept.events.back().map_or(self.start_us, |event| event.time.as_microsecond());
        Position { start_us: self.start_us, number: kept.last, time_us }
    }

    /// Returns the events after a place, each with the place after it; None if they are not all kept.
    pub(crate) fn after(&self, position: Position) -> Option<Vec<(Position, Arc<Event>)>> {
        let kept = self.kept();
        let first = kept.last - kept.events.len() as u64 + 1;
        let is_known = position.start_us == self.start_us && position.number <= kept.last;
        if !is_known || position.number + 1 < first {
            return None;
        }
        let skipped = usize::try_from(position.number + 1 - first).ok()?;
        let events = (position.number + 1..).zip(kept.events.iter().skip(skipped));
        Some(events.map(|(number, event)| (self.place(number, event), event.clone())).collect())
    }

    fn place(&self, number: u64, event: &Event) -> Position {
        Position { start_us: self.start_us, number, time_us: event.time.as_microsecond() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64) -> Event {
        Event {
            id,
            time: Timestamp::from_microsecond(1_800_000_000_000_000 + id.cast_signed()).unwrap(),
            vm: "web".parse().unwrap(),
            operation: api::Operation::Take,
            snapshot: None,
            stun_us: 0,
            frozen_us: 0,
            disks: Vec::new(),
            message: None,
        }
    }

    #[test]
    fn the_feed_begins_where_its_reader_ended() {
        let feed = EventFeed::new(Timestamp::UNIX_EPOCH);
        let begin = feed.end();
        assert_eq!(feed.after(begin), Some(Vec::new()));
        (1..=3).for_each(|id| feed.add(&event(id)));
        let all = feed.after(begin).unwrap();
        assert_eq!(all.iter().map(|(_, event)| event.id).collect::<Vec<_>>(), [1, 2, 3]);
        let again: Position = all[1].0.to_string().parse().unwrap();
        assert_eq!(feed.after(again).unwrap(), all[2..]);
        assert_eq!(feed.after(feed.end()), Some(Vec::new()));
        let of_another_start = EventFeed::new(Timestamp::now());
        assert_eq!(of_another_start.after(again), None);
        for text in ["", "1", "1.2", "1.-2.3", "1.2.3.4", "a.b.c", "1.2.9223372036854775807"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_not_kept_any_more_is_reported() {
        let feed = EventFeed::new(Timestamp::UNIX_EPOCH);
        let begin = feed.end();
        let most = EVENTS_MAX as u64;
        (1..=most).for_each(|id| feed.add(&event(id)));
        let all = feed.after(begin).unwrap();
        assert_eq!(all.len(), EVENTS_MAX);
        feed.add(&event(most + 1));
        assert_eq!(feed.after(begin), None);
        assert_eq!(feed.after(all[0].0).unwrap().len(), EVENTS_MAX);
    }
}
