//! Chunks that the repository has, by name: a cache on this machine, so that a content is stored once.
//!
//! A lost cache costs space in the repository and no data. An entry counts only if the log says that its pack is there.

use std::path::Path;

use blk::{Error, ErrorKind, Result};
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableDefinition};

use crate::chunk::{ChunkId, ChunkRef, REF_BYTES};
use crate::state::State;

const CHUNKS: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("chunks");
/// Epochs and numbers of the lists of chunks that were read.
const LISTS: TableDefinition<'_, (u32, u32), ()> = TableDefinition::new("lists");
/// What the cache belongs to: the repository's ID and the hash of the last entry that was read, by [`BOUND`].
const BINDING: TableDefinition<'_, &str, (&str, u32, &str)> = TableDefinition::new("binding");
const BOUND: &str = "log";
/// Chunks that a cache in memory has at most: about 150 MiB.
const CHUNKS_IN_MEMORY_MAX: u64 = 1 << 20;
/// Memory of the cache's pages, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Chunks that the repository has.
pub(crate) struct Known {
    database: Database,
    is_in_memory: bool,
}

/// The entry of a log up to which a cache agrees with its repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binding {
    pub repository: String,
    pub number: u32,
    pub hash: String,
}

impl Known {
    /// Opens the cache in the file `path`, or one in memory.
    ///
    /// # Errors
    /// `Locked`: another process uses the file. `Damaged`: it is none of this kind, and can be removed.
    pub(crate) fn open(path: Option<&Path>) -> Result<Known> {
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let opened = match path {
            Some(path) => builder.create(path),
            None => builder.create_with_backend(InMemoryBackend::new()),
        };
        let place = path.map_or("memory".into(), |path| path.display().to_string());
        let database = opened.map_err(|e| match e {
            redb::DatabaseError::DatabaseAlreadyOpen => {
                Error::new(ErrorKind::Locked, &place, "another backup uses this cache")
            }
            e => Error::damaged(&place, e.to_string()),
        })?;
        let known = Known { database, is_in_memory: path.is_none() };
        known.add(&[], None)?;
        Ok(known)
    }

    /// Adds chunks, and the list that they are from.
    pub(crate) fn add(&self, refs: &[ChunkRef], list: Option<(u32, u32)>) -> Result<()> {
        let mut write = self.database.begin_write().map_err(failed)?;
        // After a loss of power the lists are read again.
        write.set_durability(redb::Durability::None).map_err(failed)?;
        {
            let mut chunks = write.open_table(CHUNKS).map_err(failed)?;
            let mut encoded = Vec::with_capacity(REF_BYTES);
            let is_full = self.is_in_memory && chunks.len().map_err(failed)? >= CHUNKS_IN_MEMORY_MAX;
            for reference in refs.iter().filter(|_| !is_full) {
                encoded.clear();
                reference.encode(&mut encoded);
                chunks.insert(&reference.id, &encoded[..]).map_err(failed)?;
            }
            let mut lists = write.open_table(LISTS).map_err(failed)?;
            if let Some(list) = list {
                lists.insert(list, ()).map_err(failed)?;
            }
        }
        write.commit().map_err(failed)
    }

    /// Returns what the cache is bound to; None for a new one.
    pub(crate) fn binding(&self) -> Result<Option<Binding>> {
        let read = self.database.begin_read().map_err(failed)?;
        let table = match read.open_table(BINDING) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            table => table.map_err(failed)?,
        };
        let found = table.get(BOUND).map_err(failed)?;
        Ok(found.map(|found| {
            let (repository, number, hash) = found.value();
            Binding { repository: repository.to_owned(), number, hash: hash.to_owned() }
        }))
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) -> Result<()> {
        let write = self.database.begin_write().map_err(failed)?;
        write.delete_table(CHUNKS).map_err(failed)?;
        write.delete_table(LISTS).map_err(failed)?;
        write.delete_table(BINDING).map_err(failed)?;
        write.commit().map_err(failed)?;
        self.add(&[], None)
    }

    /// Binds the cache to an entry of the log, and makes what was added durable.
    pub(crate) fn bind(&self, to: &Binding) -> Result<()> {
        let write = self.database.begin_write().map_err(failed)?;
        let bound = (&*to.repository, to.number, &*to.hash);
        write.open_table(BINDING).map_err(failed)?.insert(BOUND, bound).map_err(failed)?;
        write.commit().map_err(failed)
    }

    /// Returns whether a list of chunks was added.
    pub(crate) fn has_list(&self, list: (u32, u32)) -> Result<bool> {
        let read = self.database.begin_read().map_err(failed)?;
        Ok(read.open_table(LISTS).map_err(failed)?.get(list).map_err(failed)?.is_some())
    }

    /// Returns where the chunks `ids` are, as far as they may be named by the session `own`.
    pub(crate) fn find(&self, ids: &[ChunkId], state: &State, own: u32) -> Result<Vec<Option<ChunkRef>>> {
        let read = self.database.begin_read().map_err(failed)?;
        let chunks = read.open_table(CHUNKS).map_err(failed)?;
        let find = |id: &ChunkId| {
            let Some(encoded) = chunks.get(id).map_err(failed)? else { return Ok(None) };
            let encoded = encoded.value();
            if encoded.len() != REF_BYTES {
                return Ok(None);
            }
            let found = ChunkRef::decode(encoded);
            let epoch = found.pack.epoch;
            let usable = epoch == own || state.is_complete(epoch) && !state.is_swept(found.pack);
            Ok((usable && found.id == *id).then_some(found))
        };
        ids.iter().map(find).collect()
    }
}

fn failed(e: impl Into<redb::Error>) -> Error {
    Error::new(ErrorKind::Io, "cache of known chunks", e.into().to_string())
}
