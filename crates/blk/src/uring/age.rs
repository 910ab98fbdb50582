//! Ages of transfers under way. Their submission reads no clock: each query for an age looks at the transfers under
//! way, and remembers them until the next query.

use std::collections::BTreeMap;

use super::descriptor::Device;
use crate::reactor::Pending;

/// An operation under way: its slot, and its unique number.
pub(super) struct Flight {
    pub index: u32,
    pub number: u64,
    pub doing: &'static str,
}

/// Operations of one file system that a query has seen, with the time of the query, and when an operation of each kind
/// was last seen to have ended.
#[derive(Default)]
struct FileSystemOps {
    flights: BTreeMap<(u32, u64), (&'static str, u64)>,
    over_ns: BTreeMap<Kind, u64>,
}

/// Kinds of transfers. A frozen file system answers reads, but no writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Read,
    Other,
}

fn kind(doing: &str) -> Kind {
    if doing == "reading" { Kind::Read } else { Kind::Other }
}

#[derive(Default)]
pub(super) struct Ages(BTreeMap<Device, FileSystemOps>);

impl Ages {
    /// Returns the operation that waits longest. A slow device that answers other operations of the same kind does not
    /// hang.
    pub(super) fn oldest(
        &mut self,
        device: Device,
        flights: impl Iterator<Item = Flight>,
        now_ns: u64,
    ) -> Option<Pending> {
        let seen = self.0.entry(device).or_default();
        let mut before = std::mem::take(&mut seen.flights);
        for flight in flights {
            let key = (flight.index, flight.number);
            let (_, since_ns) = before.remove(&key).unwrap_or((flight.doing, now_ns));
            seen.flights.insert(key, (flight.doing, since_ns));
        }
        for (doing, _) in before.into_values() {
            seen.over_ns.insert(kind(doing), now_ns);
        }
        let waits = |(doing, since_ns): &(&'static str, u64)| {
            let over_ns = seen.over_ns.get(&kind(doing)).copied().unwrap_or(0);
            Pending { since_ns: over_ns.max(*since_ns), doing }
        };
        seen.flights.values().map(waits).min_by_key(|pending| pending.since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device = (8, 1);

    fn look(
        ages: &mut Ages,
        now_ns: u64,
        flights: &[(u32, u64, &'static str)],
    ) -> Option<(u64, &'static str)> {
        let flights = flights.iter().map(|&(index, number, doing)| Flight { index, number, doing });
        ages.oldest(DEVICE, flights, now_ns).map(|pending| (pending.since_ns, pending.doing))
    }

    #[test]
    fn the_age_of_an_operation_counts_from_the_last_answer_of_its_kind() {
        let mut ages = Ages::default();
        assert_eq!(look(&mut ages, 10, &[(1, 7, "writing")]), Some((10, "writing")));
        assert_eq!(look(&mut ages, 20, &[(1, 7, "writing"), (2, 8, "reading")]), Some((10, "writing")));
        // Reads are answered, and the write is not.
        assert_eq!(look(&mut ages, 30, &[(1, 7, "writing"), (2, 9, "reading")]), Some((10, "writing")));
        let two = [(1, 7, "writing"), (3, 10, "flushing a file")];
        assert_eq!(look(&mut ages, 40, &two), Some((10, "writing")));
        // Another write is answered, so the device does not hang.
        assert_eq!(look(&mut ages, 50, &[(3, 10, "flushing a file")]), Some((50, "flushing a file")));
        // The same slot with another operation.
        assert_eq!(look(&mut ages, 60, &[(3, 11, "writing")]), Some((60, "writing")));
        assert_eq!(look(&mut ages, 70, &[]), None);
    }
}
