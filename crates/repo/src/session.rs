//! A session: writes one backup, from its begin in the log to its entry.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use blk::{Error, ErrorKind, Result};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::chunk::{self, ChunkId, ChunkRef, REF_BYTES};
use crate::disk_writer::{DiskWriter, PageStore};
use crate::entry::hash_of;
use crate::event::{Backup, DiskBackup, Event, Figures, Origin};
use crate::gather;
use crate::known::{Binding, Known};
use crate::names::{self, PackName};
use crate::objects::{Objects, Put, put_own};
use crate::packs::{Kind, Packs};
use crate::page::Page;
use crate::pages::Pages;
use crate::parallel::in_parallel;
use crate::repository::Repository;

/// References of one list of chunks: 3.3 MiB.
const LIST_REFS: usize = 65_536;
/// Lines of one part of a table of packs, each of 12 bytes.
const TABLE_LINES: usize = 65_536;
/// Bytes of a line: epoch, number, references.
const LINE_BYTES: usize = 12;
/// Requests for lists at once.
const REQUESTS: usize = 8;

/// A backup that is being written.
pub struct Session<'r> {
    repository: &'r mut Repository,
    epoch: u32,
    begun_us: u64,
    pages: Pages,
    packs: Packs,
    /// None after the cache has failed: chunks are stored again then.
    known: Option<Known>,
    /// Chunks of the list that is written next.
    list: Vec<ChunkRef>,
    lists: u32,
    disks: Vec<DiskBackup>,
    named: BTreeSet<PackName>,
    figures: Figures,
}

impl<'r> Session<'r> {
    /// Begins a session. `cache` is a file for what is known of the repository's chunks; without one, or while another
    /// process uses it, only chunks of this session and of its parent are recognised.
    pub async fn begin(
        repository: &'r mut Repository,
        cache: Option<&Path>,
        now_us: u64,
    ) -> Result<Session<'r>> {
        repository.refresh().await?;
        let epoch = repository.append_always(&Event::Begin, now_us).await?;
        refuse_replacing(repository, epoch).await?;
        let known = bound_to(repository, open_cache(cache)).await?;
        let pages = Pages::new(repository.objects.clone(), repository.keys.clone());
        let packs = Packs::new(repository.objects.clone(), epoch);
        let mut session = Session {
            repository,
            epoch,
            begun_us: now_us,
            pages,
            packs,
            known,
            list: Vec::new(),
            lists: 0,
            disks: Vec::new(),
            named: BTreeSet::new(),
            figures: Figures::default(),
        };
        if cache.is_some() {
            session.read_lists().await?;
        }
        Ok(session)
    }

    /// Returns the repository's state, as far as it was read.
    pub fn state(&self) -> &crate::state::State {
        self.repository.state()
    }

    /// Adds the lists of other sessions to the cache.
    async fn read_lists(&mut self) -> Result<()> {
        let (objects, keys) = (self.repository.objects.clone(), self.repository.keys.clone());
        let mut wanted = Vec::new();
        for object in objects.list(names::INDEX).await? {
            let Some(list) = names::parse_pair(names::INDEX, &object.name) else { continue };
            let unread = self.known.as_ref().is_some_and(|known| known.has_list(list).is_ok_and(|has| !has));
            if unread && self.repository.state.is_complete(list.0) {
                wanted.push((list, object.name));
            }
        }
        let read = wanted.into_iter().map(|(list, name)| {
            let (objects, keys) = (objects.clone(), keys.clone());
            async move {
                match objects.get(&name).await {
                    // Without a list, what it has is stored again.
                    Ok(body) => {
                        Ok(keys.data.open(&name, name.as_bytes(), &body).ok().map(|content| (list, content)))
                    }
                    // It was removed with the packs of its session.
                    Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(e),
                }
            }
        });
        let mut read = stream::iter(read).buffered(REQUESTS);
        while let Some(found) = read.try_next().await? {
            let Some((list, content)) = found else { continue };
            let refs: Vec<_> = content.chunks_exact(REF_BYTES).map(ChunkRef::decode).collect();
            use_cache(&mut self.known, |known| known.add(&refs, Some(list)));
        }
        Ok(())
    }

    /// Returns the bytes of a chunk; the last one of a disk can be shorter.
    pub fn chunk_bytes(&self) -> u32 {
        self.repository.info.chunk_bytes
    }

    /// Begins the map of a disk: that of `parent` if one is given, else zeros.
    ///
    /// # Errors
    /// `Invalid`: the parent is larger, so that its map would have chunks beyond the disk.
    pub async fn disk(
        &mut self,
        number: u32,
        size_bytes: u64,
        parent: Option<&DiskBackup>,
    ) -> Result<DiskWriter> {
        let mut disk = DiskWriter::new(number, size_bytes, self.repository.info.chunk_bytes)?;
        if let Some(parent) = parent {
            if parent.size_bytes > size_bytes {
                let cause = format!("{size_bytes} bytes, and the backup before has {}", parent.size_bytes);
                return Err(Error::invalid(format!("disk{number}"), cause));
            }
            let (objects, keys) = (&*self.repository.objects, &self.repository.keys);
            disk.old_root = parent.root;
            disk.data_bytes = parent.data_bytes;
            let table = read_table(objects, keys, parent).await;
            disk.packs = self.explained(table).await?;
        }
        Ok(disk)
    }

    /// Returns what happened to a pack that the store does not have: the sweep of a prune that ran meanwhile, or a loss.
    async fn explained<T>(&mut self, result: Result<T>) -> Result<T> {
        let Err(e) = &result else { return result };
        let name = e.place.find(names::PACKS).map(|at| &e.place[at..]);
        let pair = name.and_then(|name| names::parse_pair(names::PACKS, name));
        if let (ErrorKind::NotFound | ErrorKind::Damaged, Some((epoch, number))) = (e.kind, pair) {
            self.repository.refresh().await?;
            if self.repository.state.is_swept(PackName { epoch, number }) {
                return Err(self.gone(PackName { epoch, number }));
            }
        }
        result
    }

    fn gone(&self, pack: PackName) -> Error {
        let cause = format!("a prune reclaimed {} meanwhile; begin the backup again", names::pack(pack));
        Error::new(ErrorKind::Locked, self.repository.place(), cause)
    }

    /// Writes chunks of a disk, in ascending order of their numbers. None, and a content of zeros, is a hole.
    pub async fn write(&mut self, disk: &mut DiskWriter, chunks: Vec<(u64, Option<Vec<u8>>)>) -> Result<()> {
        let written = self.write_chunks(disk, &chunks).await;
        self.explained(written).await
    }

    async fn write_chunks(&mut self, disk: &mut DiskWriter, chunks: &[(u64, Option<Vec<u8>>)]) -> Result<()> {
        disk.check(chunks)?;
        let keys = self.repository.keys.clone();
        let named = in_parallel(chunks, |(_, content)| {
            let content = content.as_ref().filter(|content| content.iter().any(|byte| *byte != 0));
            content.map(|content| (chunk::id_of(&keys, content), content))
        });
        let mut unknown: BTreeMap<ChunkId, &[u8]> = BTreeMap::new();
        let mut old = Vec::with_capacity(chunks.len());
        for ((n, _), named) in chunks.iter().zip(&named) {
            let found = disk.old(*n, &mut Store(self)).await?;
            if let Some((id, content)) =
                named.as_ref().filter(|(id, _)| found.is_none_or(|old| old.id != *id))
            {
                unknown.insert(*id, content);
            }
            old.push(found);
        }
        let placed = self.place(&unknown).await?;
        for (((n, _), named), old) in chunks.iter().zip(&named).zip(&old) {
            self.figures.read_bytes += named.as_ref().map_or(0, |(_, content)| content.len() as u64);
            let kept = |id: &ChunkId| old.filter(|old| old.id == *id);
            let new = named.as_ref().map(|(id, _)| kept(id).unwrap_or_else(|| placed[id]));
            disk.set(*n, new);
        }
        Ok(())
    }

    fn find(&mut self, ids: &[ChunkId]) -> Option<Vec<Option<ChunkRef>>> {
        let (state, epoch) = (&self.repository.state, self.epoch);
        use_cache(&mut self.known, |known| known.find(ids, state, epoch))
    }

    /// Returns where contents are, after those that the repository does not have were stored.
    async fn place(&mut self, contents: &BTreeMap<ChunkId, &[u8]>) -> Result<HashMap<ChunkId, ChunkRef>> {
        let ids: Vec<_> = contents.keys().copied().collect();
        let found = self.find(&ids).unwrap_or_else(|| vec![None; ids.len()]);
        let new: Vec<_> =
            contents.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(one, _)| one).collect();
        let keys = self.repository.keys.clone();
        let sealed = in_parallel(&new, |(id, content)| chunk::seal(&keys, id, content));
        let mut placed: HashMap<_, _> = found.into_iter().flatten().map(|found| (found.id, found)).collect();
        let mut added = Vec::with_capacity(new.len());
        for ((id, content), sealed) in new.into_iter().zip(sealed) {
            let reference = self.packs.add(Kind::Data, *id, &sealed?, content.len()).await?;
            self.figures.new_bytes += content.len() as u64;
            added.push(reference);
            placed.insert(*id, reference);
        }
        self.note(&added).await?;
        Ok(placed)
    }

    /// Makes new chunks known to this session, and to later ones by a list.
    async fn note(&mut self, added: &[ChunkRef]) -> Result<()> {
        if added.is_empty() {
            return Ok(());
        }
        use_cache(&mut self.known, |known| known.add(added, None));
        self.list.extend_from_slice(added);
        match self.list.len() >= LIST_REFS {
            true => self.write_list().await,
            false => Ok(()),
        }
    }

    async fn write_list(&mut self) -> Result<()> {
        let mut content = Vec::with_capacity(self.list.len() * REF_BYTES);
        self.list.drain(..).for_each(|reference| reference.encode(&mut content));
        if content.is_empty() {
            return Ok(());
        }
        let name = names::index(self.epoch, self.lists);
        let body = self.repository.keys.data.seal(name.as_bytes(), &content)?;
        put_own(&self.repository.objects, &name, body.into()).await?;
        let list = (self.epoch, self.lists);
        use_cache(&mut self.known, |known| known.add(&[], Some(list)));
        self.lists += 1;
        Ok(())
    }

    /// Stores the map of a disk, which becomes part of the backup.
    pub async fn finish(&mut self, mut disk: DiskWriter) -> Result<()> {
        let done = disk.finish(&mut Store(self)).await;
        let mut done = self.explained(done).await?;
        let lines: Vec<_> = disk.packs.iter().collect();
        for part in lines.chunks(TABLE_LINES) {
            let mut table = Vec::with_capacity(part.len() * LINE_BYTES);
            for (pack, count) in part {
                [pack.epoch, pack.number, **count]
                    .iter()
                    .for_each(|n| table.extend_from_slice(&n.to_le_bytes()));
            }
            done.packs.push(self.add_map_chunk(&table).await?);
        }
        self.named.extend(disk.packs.keys());
        self.named.extend(done.packs.iter().map(|part| part.pack));
        self.figures.size_bytes += done.size_bytes;
        self.disks.push(done);
        Ok(())
    }

    /// Stores a chunk of a map, unless the repository has it.
    async fn add_map_chunk(&mut self, content: &[u8]) -> Result<ChunkRef> {
        let id = chunk::id_of(&self.repository.keys, content);
        if let Some(Some(found)) = self.find(&[id]).map(|found| found[0]) {
            return Ok(found);
        }
        let sealed = chunk::seal(&self.repository.keys, &id, content)?;
        let reference = self.packs.add(Kind::Map, id, &sealed, content.len()).await?;
        self.note(&[reference]).await?;
        Ok(reference)
    }

    /// Ends the session with its backup, which is durable and readable once this returns its number.
    ///
    /// # Errors
    /// `Locked`: what the backup is made of was reclaimed meanwhile; it can be made again. `Damaged`: a pack that the
    /// repository should have is missing.
    pub async fn commit(mut self, origin: Origin, taken_us: u64, now_us: u64) -> Result<(u32, Figures)> {
        self.packs.finish().await?;
        self.write_list().await?;
        let confirmed = self.confirm_packs().await;
        self.explained(confirmed).await?;
        self.figures.stored_bytes = self.packs.stored_bytes;
        self.figures.packs = self.packs.count();
        self.figures.took_us = now_us.saturating_sub(self.begun_us);
        let backup = Backup {
            epoch: self.epoch,
            taken_us,
            origin,
            disks: std::mem::take(&mut self.disks),
            figures: self.figures,
        };
        let event = Event::Backup(Box::new(backup));
        loop {
            // Each entry that came first was read before: a sweep among them may have given up what this backup names.
            self.refuse_swept()?;
            if let Some(number) = self.repository.append(event.clone(), now_us).await? {
                let binding = binding(self.repository);
                use_cache(&mut self.known, |known| known.bind(&binding));
                return Ok((number, self.figures));
            }
        }
    }

    fn refuse_swept(&self) -> Result<()> {
        let state = &self.repository.state;
        if state.fenced(self.epoch) {
            let cause = "this backup took more than a week, so a prune took it for dead; begin it again";
            return Err(Error::new(ErrorKind::Locked, self.repository.place(), cause));
        }
        match self.named.iter().find(|pack| state.is_swept(**pack)) {
            Some(pack) => Err(self.gone(*pack)),
            None => Ok(()),
        }
    }

    /// Makes sure that the store has every pack that the backup names: objects may have been removed by other means.
    async fn confirm_packs(&self) -> Result<()> {
        let epochs: BTreeSet<_> = self.named.iter().map(|pack| pack.epoch).collect();
        let lists = epochs.into_iter().map(|epoch| self.repository.objects.list(&names::packs_of(epoch)));
        let mut lists = stream::iter(lists).buffer_unordered(REQUESTS);
        let mut missing: BTreeSet<_> = self.named.iter().map(|pack| names::pack(*pack)).collect();
        while let Some(listed) = lists.try_next().await? {
            listed.iter().for_each(|object| _ = missing.remove(&object.name));
        }
        // A list may be old.
        for name in missing {
            match self.repository.objects.size(&name).await {
                Err(e) if e.kind == ErrorKind::NotFound => {
                    let cause = "the pack is missing in the store; the backups that need it are lost. `unstun backup verify` names them";
                    return Err(Error::damaged(format!("{}/{name}", self.repository.place()), cause));
                }
                size => drop(size?),
            }
        }
        Ok(())
    }
}

/// A session as its disks' maps use it.
struct Store<'s, 'r>(&'s mut Session<'r>);

impl PageStore for Store<'_, '_> {
    async fn load(&mut self, level: usize, refs: &[Option<ChunkRef>]) -> Result<Page> {
        Ok(Page::clone(&*self.0.pages.load(level, refs).await?))
    }

    async fn store(&mut self, level: usize, page: &Page) -> Result<ChunkRef> {
        self.0.add_map_chunk(&page.encode(level)).await
    }
}

fn binding(repository: &Repository) -> Binding {
    let state = &repository.state;
    Binding { repository: repository.info.id.clone(), number: state.number, hash: state.hash.clone() }
}

/// Opens a cache: in the file, which is made anew if it is damaged, or in memory while another process uses it.
fn open_cache(path: Option<&Path>) -> Option<Known> {
    let opened = match (Known::open(path), path) {
        (Err(e), Some(path)) if e.kind == ErrorKind::Damaged => {
            // If this fails, opening it fails again.
            let _ = std::fs::remove_file(path);
            Known::open(Some(path))
        }
        (opened, _) => opened,
    };
    opened.or_else(|_| Known::open(None)).ok()
}

/// Clears a cache of another repository, or of one whose log was another then: it names packs that may not be there. The
/// cache is bound to the session's first entry before the session adds anything.
async fn bound_to(repository: &Repository, mut known: Option<Known>) -> Result<Option<Known>> {
    let bound = use_cache(&mut known, Known::binding).flatten();
    let is_same = match bound.filter(|bound| bound.repository == repository.info.id) {
        None => false,
        Some(bound) => match repository.objects.get(&names::log(bound.number)).await {
            Ok(body) => hash_of(&body) == bound.hash,
            Err(e) if e.kind == ErrorKind::NotFound => false,
            Err(e) => return Err(e),
        },
    };
    if !is_same {
        use_cache(&mut known, Known::clear);
    }
    let binding = binding(repository);
    use_cache(&mut known, |known| known.bind(&binding));
    Ok(known)
}

/// Uses the cache, which is given up if it fails.
fn use_cache<T>(known: &mut Option<Known>, action: impl FnOnce(&Known) -> Result<T>) -> Option<T> {
    let done = known.as_ref().and_then(|known| action(known).ok());
    if done.is_none() {
        *known = None;
    }
    done
}

/// Refuses a store that creates an object again: two writers would replace each other's entries.
async fn refuse_replacing(repository: &Repository, epoch: u32) -> Result<()> {
    let name = names::log(epoch);
    let body = repository.objects.get(&name).await?;
    match repository.objects.put_new(&name, body).await? {
        Put::Exists => Ok(()),
        Put::Created => {
            let cause = "the store replaced an object that it should have kept; it cannot be used for backups any more";
            Err(Error::unsupported(repository.place(), cause))
        }
    }
}

/// Returns the packs that a disk's map names, with the number of references.
pub(crate) async fn read_table(
    objects: &dyn Objects,
    keys: &crate::key::Keys,
    disk: &DiskBackup,
) -> Result<BTreeMap<PackName, u32>> {
    let parts = gather::read(objects, keys, &disk.packs).await?;
    let mut table = BTreeMap::new();
    for line in parts.iter().flat_map(|part| part.chunks_exact(LINE_BYTES)) {
        let number = |n: usize| u32::from_le_bytes(line[4 * n..4 * n + 4].try_into().expect("4 bytes"));
        table.insert(PackName { epoch: number(0), number: number(1) }, number(2));
    }
    Ok(table)
}
