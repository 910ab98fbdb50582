//! The map of a disk as a session writes it: the map of the parent with changed chunks, in ascending order.

use std::collections::BTreeMap;

use blk::{Error, Result};

use crate::chunk::ChunkRef;
use crate::event::DiskBackup;
use crate::names::PackName;
use crate::page::{LEVELS, Page};
use crate::pages::slot;

/// A page that is being changed.
struct OpenPage {
    /// Number of the page among those of its level.
    index: u64,
    /// Its references in the parent's map.
    old: Page,
    new: Page,
}

/// Map of a disk that a session writes.
pub struct DiskWriter {
    pub(crate) number: u32,
    pub(crate) size_bytes: u64,
    pub(crate) chunk_bytes: u32,
    pub(crate) old_root: Option<ChunkRef>,
    open: [Option<OpenPage>; LEVELS],
    /// References to each pack.
    pub(crate) packs: BTreeMap<PackName, u32>,
    pub(crate) data_bytes: u64,
}

/// What a step of a map needs of the repository.
pub(crate) trait PageStore {
    /// Returns the page of `level` that `refs` begins with.
    async fn load(&mut self, level: usize, refs: &[Option<ChunkRef>]) -> Result<Page>;

    /// Stores a page, unless the repository has it.
    async fn store(&mut self, level: usize, page: &Page) -> Result<ChunkRef>;
}

impl DiskWriter {
    pub(crate) fn new(number: u32, size_bytes: u64, chunk_bytes: u32) -> Result<DiskWriter> {
        let max = u64::from(chunk_bytes) << (8 * LEVELS);
        if size_bytes > max {
            let cause = format!(
                "{size_bytes} bytes, and a repository with chunks of {chunk_bytes} has disks of at most {max}"
            );
            return Err(Error::unsupported(format!("disk{number}"), cause));
        }
        Ok(DiskWriter {
            number,
            size_bytes,
            chunk_bytes,
            old_root: None,
            open: [const { None }; LEVELS],
            packs: BTreeMap::new(),
            data_bytes: 0,
        })
    }

    /// Returns the content of chunk `n` in the length that it has on this disk: a chunk that was the disk's last one before the
    /// disk grew is shorter, and zeros follow.
    pub(crate) fn whole(&self, n: u64, content: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let chunk_bytes = u64::from(self.chunk_bytes);
        let left = self.size_bytes.saturating_sub(n.saturating_mul(chunk_bytes)).min(chunk_bytes);
        content.map(|mut content| {
            content.resize(left as usize, 0);
            content
        })
    }

    /// Refuses chunks that are not on one page of the map, beyond the disk, or of another length.
    pub(crate) fn check(&self, chunks: &[(u64, Option<Vec<u8>>)]) -> Result<()> {
        let chunk_bytes = u64::from(self.chunk_bytes);
        let invalid = |cause: String| Err(Error::invalid(format!("disk{}", self.number), cause));
        let mut before = None;
        for (n, content) in chunks {
            let left = self.size_bytes.saturating_sub(n.saturating_mul(chunk_bytes)).min(chunk_bytes);
            let found = content.as_ref().map_or(left, |content| content.len() as u64);
            if left == 0 || found != left {
                return invalid(format!("chunk {n} has {found} bytes, expected {left}"));
            }
            if before.is_some_and(|before| before >= *n || before >> 8 != n >> 8) {
                return invalid("the chunks of one call ascend on one page of the map".into());
            }
            before = Some(*n);
        }
        Ok(())
    }

    /// Returns the chunk `n` of the parent. `n` must not be less than those before.
    pub(crate) async fn old(&mut self, n: u64, store: &mut impl PageStore) -> Result<Option<ChunkRef>> {
        self.go_to(n, store).await?;
        Ok(self.open[0].as_ref().expect("open").old.refs[slot(0, n)])
    }

    /// Sets the chunk `n`, which [`DiskWriter::old`] has just returned.
    pub(crate) fn set(&mut self, n: u64, chunk: Option<ChunkRef>) {
        let page = self.open[0].as_mut().expect("open");
        assert_eq!(page.index, n >> 8, "the caller goes to the page first");
        page.new.refs[slot(0, n)] = chunk;
    }

    /// Opens the page of chunk `n` and those above it, and stores those that are left.
    async fn go_to(&mut self, n: u64, store: &mut impl PageStore) -> Result<()> {
        let index = |level: usize| n >> (8 * (level + 1));
        let is_open =
            |page: &Option<OpenPage>, index: u64| page.as_ref().is_some_and(|page| page.index == index);
        let first_open =
            (0..LEVELS).find(|level| is_open(&self.open[*level], index(*level))).unwrap_or(LEVELS);
        for level in 0..first_open {
            self.close(level, store).await?;
        }
        for level in (0..first_open).rev() {
            let old = match self.open.get(level + 1).and_then(Option::as_ref) {
                Some(above) => store.load(level, &above.old.refs[slot(level + 1, n)..]).await?,
                None => store.load(level, &[self.old_root]).await?,
            };
            self.open[level] = Some(OpenPage { index: index(level), new: old.clone(), old });
        }
        Ok(())
    }

    /// Stores the open page of a level if it has changed, and sets it in the page above it.
    async fn close(&mut self, level: usize, store: &mut impl PageStore) -> Result<()> {
        let Some(page) = self.open[level].take() else { return Ok(()) };
        if page.new == page.old {
            return Ok(());
        }
        for (old, new) in page.old.refs.iter().zip(page.new.refs.iter()).filter(|(old, new)| old != new) {
            self.count(level, old.as_ref(), new.as_ref())?;
        }
        let reference = match page.new.is_empty() {
            true => None,
            false => Some(store.store(level, &page.new).await?),
        };
        match self.open.get_mut(level + 1) {
            Some(above) => {
                let above = above.as_mut().expect("a page is open with those above it");
                above.new.refs[(page.index % 256) as usize] = reference;
            }
            None => {
                let old = self.old_root;
                self.count(LEVELS, old.as_ref(), reference.as_ref())?;
                self.old_root = reference;
            }
        }
        Ok(())
    }

    /// Counts the reference that `new` replaces and `new` itself.
    fn count(&mut self, level: usize, old: Option<&ChunkRef>, new: Option<&ChunkRef>) -> Result<()> {
        if let Some(old) = old {
            let place = || format!("table of the packs of disk{}", self.number);
            let wrong = || Error::damaged(place(), format!("{old:?} is not counted"));
            let count = self.packs.get_mut(&old.pack).ok_or_else(wrong)?;
            *count -= 1;
            if *count == 0 {
                self.packs.remove(&old.pack);
            }
        }
        if let Some(new) = new {
            let count = self.packs.entry(new.pack).or_default();
            let full = || Error::unsupported(format!("disk{}", self.number), "2^32 references to one pack");
            *count = count.checked_add(1).ok_or_else(full)?;
        }
        if level == 0 {
            let bytes = |chunk: Option<&ChunkRef>| chunk.map_or(0, |chunk| u64::from(chunk.bytes));
            self.data_bytes = (self.data_bytes + bytes(new)).saturating_sub(bytes(old));
        }
        Ok(())
    }

    /// Stores the rest of the map. `packs` of the result is empty.
    pub(crate) async fn finish(&mut self, store: &mut impl PageStore) -> Result<DiskBackup> {
        for level in 0..LEVELS {
            self.close(level, store).await?;
        }
        Ok(DiskBackup {
            number: self.number,
            size_bytes: self.size_bytes,
            root: self.old_root,
            data_bytes: self.data_bytes,
            packs: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Pages in memory. Each chunk and page is in a pack of its own.
    #[derive(Default)]
    struct Memory(HashMap<u32, (usize, Page)>);

    impl PageStore for Memory {
        async fn load(&mut self, level: usize, refs: &[Option<ChunkRef>]) -> Result<Page> {
            let Some(Some(first)) = refs.first() else { return Ok(Page::empty()) };
            let (found, page) = &self.0[&first.pack.number];
            assert_eq!(*found, level);
            Ok(page.clone())
        }

        async fn store(&mut self, level: usize, page: &Page) -> Result<ChunkRef> {
            let number = self.0.len() as u32;
            self.0.insert(number, (level, page.clone()));
            Ok(chunk(2, number))
        }
    }

    fn chunk(epoch: u32, number: u32) -> ChunkRef {
        let id = [(number % 251) as u8; 32];
        ChunkRef { id, pack: PackName { epoch, number }, offset: 0, sealed_bytes: 9, bytes: 4096 }
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        let mut future = Box::pin(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => value,
            std::task::Poll::Pending => panic!("memory answers at once"),
        }
    }

    /// Returns what a map names: its chunks, and how often each pack is named.
    fn walk(memory: &Memory, root: Option<ChunkRef>) -> (BTreeMap<u64, ChunkRef>, BTreeMap<PackName, u32>) {
        let (mut chunks, mut packs) = (BTreeMap::new(), BTreeMap::new());
        let mut left: Vec<_> = root.map(|root| (LEVELS - 1, 0, root)).into_iter().collect();
        while let Some((level, index, reference)) = left.pop() {
            *packs.entry(reference.pack).or_default() += 1;
            for (n, below) in memory.0[&reference.pack.number].1.refs.iter().enumerate() {
                let Some(below) = below else { continue };
                let at = (index << 8) + n as u64;
                if level > 0 {
                    left.push((level - 1, at, *below));
                    continue;
                }
                chunks.insert(at, *below);
                *packs.entry(below.pack).or_default() += 1;
            }
        }
        (chunks, packs)
    }

    proptest! {
        #[test]
        fn maps_have_what_was_set_and_count_what_they_name(
            rounds in prop::collection::vec(prop::collection::btree_map(0_u64..200_000, prop::option::of(0_u32..50), 0..40), 1..6)
        ) {
            let mut memory = Memory::default();
            let (mut model, mut before) = (BTreeMap::new(), None);
            let mut packs = BTreeMap::new();
            let mut data_bytes = 0;
            for round in rounds {
                let mut disk = DiskWriter::new(0, 200_000 * 4096, 4096).unwrap();
                (disk.old_root, disk.packs, disk.data_bytes) = (before, packs, data_bytes);
                for (n, set) in round {
                    let set = set.map(|number| chunk(1, number));
                    prop_assert_eq!(wait(disk.old(n, &mut memory)).unwrap(), model.get(&n).copied());
                    disk.set(n, set);
                    match set {
                        Some(set) => drop(model.insert(n, set)),
                        None => drop(model.remove(&n)),
                    }
                }
                let done = wait(disk.finish(&mut memory)).unwrap();
                let (chunks, counts) = walk(&memory, done.root);
                prop_assert_eq!(&chunks, &model);
                prop_assert_eq!(&counts, &disk.packs);
                prop_assert_eq!(done.data_bytes, 4096 * model.len() as u64);
                (before, packs, data_bytes) = (done.root, disk.packs, done.data_bytes);
            }
        }
    }
}
