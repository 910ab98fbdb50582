//! Packs that a session writes: chunks one after another, stored when they are large enough.

use std::sync::Arc;

use blk::Result;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::chunk::{ChunkId, ChunkRef};
use crate::names::{self, PackName};
use crate::objects::{Objects, Pending, put_own};

/// Bytes after which a pack is stored.
const PACK_BYTES: usize = 16 << 20;
/// First bytes of a pack.
pub(crate) const MAGIC: &[u8; 8] = b"unstunP1";
/// Packs that are being stored at once. With the two that are filled that is 96 MiB of memory.
const UPLOADS_MAX: usize = 4;

/// What a chunk is for. Chunks of one kind are together, so that maps are read without the data.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Data = 0,
    Map = 1,
}

struct Open {
    name: PackName,
    body: Vec<u8>,
}

/// Packs of a session.
pub(crate) struct Packs {
    objects: Arc<dyn Objects>,
    epoch: u32,
    next: u32,
    open: [Option<Open>; 2],
    uploads: FuturesUnordered<Pending<()>>,
    pub stored_bytes: u64,
}

impl Packs {
    pub(crate) fn new(objects: Arc<dyn Objects>, epoch: u32) -> Packs {
        Packs {
            objects,
            epoch,
            next: 0,
            open: [None, None],
            uploads: FuturesUnordered::new(),
            stored_bytes: 0,
        }
    }

    /// Returns the number of packs.
    pub(crate) fn count(&self) -> u32 {
        self.next
    }

    /// Adds a sealed chunk whose content has `bytes` bytes.
    pub(crate) async fn add(
        &mut self,
        kind: Kind,
        id: ChunkId,
        sealed: &[u8],
        bytes: usize,
    ) -> Result<ChunkRef> {
        let open = self.open[kind as usize].get_or_insert_with(|| {
            let name = PackName { epoch: self.epoch, number: self.next };
            self.next += 1;
            Open { name, body: MAGIC.to_vec() }
        });
        let reference = ChunkRef {
            id,
            pack: open.name,
            offset: open.body.len() as u32,
            sealed_bytes: sealed.len() as u32,
            bytes: bytes as u32,
        };
        open.body.extend_from_slice(sealed);
        if open.body.len() >= PACK_BYTES {
            self.store(kind).await?;
        }
        Ok(reference)
    }

    async fn store(&mut self, kind: Kind) -> Result<()> {
        let Some(open) = self.open[kind as usize].take() else { return Ok(()) };
        self.stored_bytes += open.body.len() as u64;
        if self.uploads.len() >= UPLOADS_MAX {
            self.uploaded().await?;
        }
        self.uploads.push(put_own(&self.objects, &names::pack(open.name), open.body.into()));
        Ok(())
    }

    async fn uploaded(&mut self) -> Result<()> {
        self.uploads.next().await.unwrap_or(Ok(()))
    }

    /// Stores all packs and waits until they are durable.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        self.store(Kind::Data).await?;
        self.store(Kind::Map).await?;
        while !self.uploads.is_empty() {
            self.uploaded().await?;
        }
        Ok(())
    }
}
