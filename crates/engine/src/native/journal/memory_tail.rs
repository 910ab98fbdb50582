//! The journal's tail in the host's memory: records that no flush covers yet, so that a crash of the process loses no
//! acknowledged write. Each part is the number of its first record, followed by records as in a batch.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use blk::Env;
use blk::memory::{Memory, MemoryLog};

use super::super::layout::get_u64;
use super::record::Record;

/// Length of the number of a part's first record.
const HEAD_BYTES: usize = 8;

/// The tail of one opening of a store.
pub(crate) struct MemoryTail {
    memory: Option<Rc<dyn Memory>>,
    log: MemoryLog,
    prefix: String,
    name: String,
    /// Number of the last record in the tail.
    kept_to: Cell<u64>,
}

fn prefix(store_id: u64) -> String {
    format!("native-{store_id:016x}-")
}

impl MemoryTail {
    /// Creates the tail of the opening `epoch`; nothing is written before `begin`.
    pub(crate) fn new(env: &Env, store_id: u64, epoch: u64) -> MemoryTail {
        let prefix = prefix(store_id);
        let name = format!("{prefix}{epoch}");
        MemoryTail { memory: env.memory(), log: MemoryLog::new(&name), prefix, name, kept_to: Cell::new(0) }
    }

    /// Returns the records from number `from` on that the opening `epoch` left; None where some may be missing.
    pub(crate) fn read(env: &Env, store_id: u64, epoch: u64, from: u64) -> Option<Vec<(u64, Record)>> {
        let memory = env.memory()?;
        let parts = MemoryLog::read(&*memory, &format!("{}{epoch}", prefix(store_id)))?;
        let mut found = BTreeMap::new();
        parts.iter().for_each(|part| decode(part, from, &mut found));
        let whole = found.keys().copied().eq((from..).take(found.len()));
        whole.then(|| found.into_iter().collect())
    }

    /// Begins the tail, with the records that the previous opening left. `forget_others` removes the tails of earlier
    /// openings once they are of no use.
    pub(crate) fn begin(&self, carried: &[(u64, Record)]) {
        let Some(memory) = &self.memory else { return };
        self.log.begin(&**memory);
        for (lsn, record) in carried {
            let mut bytes = vec![0; record.encoded_len()];
            record.encode(&mut bytes);
            self.append(*lsn, &bytes);
        }
    }

    pub(crate) fn forget_others(&self) {
        let Some(memory) = &self.memory else { return };
        let own = format!("{}.", self.name);
        for name in memory.list() {
            if name.starts_with(&self.prefix) && !name.starts_with(&own) {
                memory.remove(&name);
            }
        }
    }

    /// Appends a record that the tail does not have yet.
    pub(crate) fn append(&self, lsn: u64, record: &[u8]) {
        let Some(memory) = self.memory.as_ref().filter(|_| self.log.is_kept()) else { return };
        if lsn <= self.kept_to.replace(lsn.max(self.kept_to.get())) {
            return;
        }
        match self.log.is_part_empty() {
            true => self.log.append(&**memory, &[&lsn.to_le_bytes(), record].concat()),
            false => self.log.append(&**memory, record),
        }
    }

    /// Switches to a new part when a round begins; see `MemoryLog::switch`.
    pub(crate) fn switch(&self) {
        self.log.switch();
    }

    pub(crate) fn settle(&self) {
        if let Some(memory) = &self.memory {
            self.log.settle(&**memory);
        }
    }

    pub(crate) fn end(&self) {
        if let Some(memory) = &self.memory {
            self.log.end(&**memory);
        }
    }
}

/// Adds a part's records to `found`, except for those before `from`. The last record of a killed process may be
/// incomplete; its request was not acknowledged then.
fn decode(part: &[u8], from: u64, found: &mut BTreeMap<u64, Record>) {
    if part.len() < HEAD_BYTES {
        return;
    }
    let (mut lsn, mut rest) = (get_u64(part, 0), &part[HEAD_BYTES..]);
    while let Ok((record, taken)) = Record::decode(rest, "", lsn) {
        if lsn >= from {
            found.insert(lsn, record);
        }
        (lsn, rest) = (lsn.saturating_add(1), &rest[taken..]);
    }
}

#[cfg(test)]
mod tests {
    use sim::{Options, SimWorld};

    use super::*;

    fn record(n: u64) -> Record {
        Record::Unmap { node: n, start: n, len: n, birth: n }
    }

    fn bytes(n: u64) -> Vec<u8> {
        let mut bytes = vec![0; record(n).encoded_len()];
        record(n).encode(&mut bytes);
        bytes
    }

    fn left(env: &Env, from: u64) -> Option<Vec<u64>> {
        let found = MemoryTail::read(env, 1, 5, from)?;
        assert!(found.iter().all(|(lsn, found)| *found == record(*lsn)));
        Some(found.into_iter().map(|(lsn, _)| lsn).collect())
    }

    #[test]
    fn the_next_process_reads_the_unflushed_records() {
        let world = SimWorld::new(1, Options::default());
        world.run(async |env| {
            assert_eq!(left(&env, 1), None, "there is no log");
            let tail = MemoryTail::new(&env, 1, 5);
            tail.begin(&[(7, record(7))]);
            tail.append(8, &bytes(8));
            assert_eq!(left(&env, 7), Some(vec![7, 8]));
            assert_eq!(left(&env, 8), Some(vec![8]), "a flush has covered the first");
            assert_eq!(left(&env, 6), None, "record 6 is missing");
            tail.switch();
            tail.append(9, &bytes(9));
            assert_eq!(left(&env, 7), Some(vec![7, 8, 9]));
            tail.settle();
            assert_eq!(left(&env, 9), Some(vec![9]));
            assert_eq!(left(&env, 10), Some(vec![]));
            let next = MemoryTail::new(&env, 1, 6);
            next.begin(&[]);
            next.forget_others();
            assert_eq!(left(&env, 9), None);
            assert_eq!(MemoryTail::read(&env, 1, 6, 9), Some(vec![]));
        });
        world.power_cut();
        let after = world.run(async |env| MemoryTail::read(&env, 1, 6, 9));
        assert_eq!(after, Some(None), "it ended with the power");
    }

    #[test]
    fn a_partial_record_is_ignored() {
        let world = SimWorld::new(1, Options::default());
        world.run(async |env| {
            let tail = MemoryTail::new(&env, 1, 5);
            tail.begin(&[]);
            tail.append(1, &bytes(1));
            tail.append(2, &bytes(2)[..13]);
            assert_eq!(left(&env, 1), Some(vec![1]));
        });
    }
}
