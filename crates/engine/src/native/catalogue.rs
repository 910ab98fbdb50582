//! The catalogue: an ordered map of small items - nodes, groups, VMs, snapshots - as of the last checkpoint.
//!
//! Items are in chunks of about 32 KiB, and chunks in pages. A checkpoint writes the chunks that changed, the directory
//! of all chunks, and a head page that the superblock names. Every part is checked against the checksum in its parent.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use blk::{Buf, Error, File, Result};

use super::bytes::{Reader, Writer};
use super::change::Key;
use super::layout::{
    ADDRESS_AT, BLOCK, CHECKSUM_AT, Extent, HEAD_BYTES, STORE_ID_AT, checksum, get_u64, page_checksum,
    put_head, seal_page,
};
use super::space::Space;
use super::stored::USER_KINDS;
use super::superblock::CatalogueHead;

/// "unstCATA".
const MAGIC: u64 = u64::from_le_bytes(*b"unstCATA");
const PAYLOAD: usize = BLOCK as usize - HEAD_BYTES;
/// Size of a chunk: small enough to be written for one changed item, large enough that 100,000 items have few chunks.
const CHUNK_BYTES: usize = 8 * PAYLOAD;
/// Longest blob: a directory of 100,000 chunks. It bounds what a damaged length can make us allocate.
const BLOB_BYTES_MAX: u64 = 16 << 20;
const FIRST_KEY: Key = Key { kind: 0, major: 0, minor: 0 };

/// A sequence of bytes spread over pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Blob {
    pub bytes: u64,
    pub checksum: u64,
    pub extents: Vec<Extent>,
}

/// The catalogue of a store in memory.
#[derive(Default)]
pub(super) struct Catalogue {
    pub items: BTreeMap<Key, Vec<u8>>,
    /// Chunks by the first key that they may hold; each reaches to the next one.
    chunks: BTreeMap<Key, Blob>,
    dirty: BTreeSet<Key>,
    directory: Blob,
    head: Option<Extent>,
    /// Places found for the checkpoint under way.
    placed: BTreeMap<BlobId, Blob>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BlobId {
    Chunk(Key),
    Directory,
    Head,
}

impl Blob {
    fn pages(&self) -> u64 {
        self.extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.len))
    }
}

impl Catalogue {
    pub(super) async fn read(file: &File, store_id: u64, head: CatalogueHead) -> Result<Catalogue> {
        let mut catalogue = Catalogue::default();
        if head.addr == 0 {
            return Ok(catalogue);
        }
        let at = Extent { addr: head.addr, len: 1 };
        let blob = Blob { bytes: head.bytes, checksum: head.checksum, extents: vec![at] };
        let place = format!("{}: catalogue", file.name());
        let bytes = read_blob(file, store_id, &blob, &place).await?;
        catalogue.head = Some(at);
        catalogue.directory = decode_blob(&mut Reader::new(&bytes, &place))?;
        let bytes = read_blob(file, store_id, &catalogue.directory, &place).await?;
        let mut directory = Reader::new(&bytes, &place);
        while !directory.is_empty() {
            let first = directory.key()?;
            let blob = decode_blob(&mut directory)?;
            let bytes = read_blob(file, store_id, &blob, &place).await?;
            let mut items = Reader::new(&bytes, &place);
            while !items.is_empty() {
                catalogue.items.insert(items.key()?, items.bytes("value")?.to_vec());
            }
            catalogue.chunks.insert(first, blob);
        }
        Ok(catalogue)
    }

    /// Returns the items of the store's users.
    pub(super) fn user_items(&self) -> BTreeMap<Key, Vec<u8>> {
        let first = Key { kind: USER_KINDS, ..FIRST_KEY };
        self.items.range(first..).map(|(key, value)| (*key, value.clone())).collect()
    }

    fn mark(&mut self, key: Key) {
        let chunk = self.chunks.range(..=key).next_back().map_or(FIRST_KEY, |(first, _)| *first);
        self.dirty.insert(chunk);
    }

    /// Announces that the item will be set before `write`, to a value of its present size, or of the size of `first`.
    pub(super) fn touch(&mut self, key: Key, first: impl FnOnce() -> Vec<u8>) {
        self.mark(key);
        self.items.entry(key).or_insert_with(first);
    }

    pub(super) fn set(&mut self, key: Key, value: Option<Vec<u8>>) {
        self.mark(key);
        match value {
            Some(value) => self.items.insert(key, value),
            None => self.items.remove(&key),
        };
    }

    /// Finds places for the parts that will be written; the old places go to `freed`. The caller repeats it until
    /// nothing changes: blocks that are taken and given back change groups, which are items too. Until `write` values
    /// may still change, but not their sizes.
    pub(super) async fn place(&mut self, space: &Rc<Space>, freed: &mut Vec<Extent>) -> Result<()> {
        let mut pieces = BTreeMap::new();
        for first in self.dirty.clone() {
            if self.is_empty_chunk(first) {
                self.dirty.remove(&first);
                freed.extend(self.chunks.remove(&first).into_iter().flat_map(|blob| blob.extents));
                continue;
            }
            pieces.extend(self.pack(first).into_iter().map(|(key, bytes)| (BlobId::Chunk(key), bytes.len())));
        }
        self.placed.retain(|part, blob| {
            let keep = pieces.contains_key(part) || matches!(part, BlobId::Directory | BlobId::Head);
            if !keep {
                freed.append(&mut blob.extents);
            }
            keep
        });
        for (part, bytes) in pieces {
            self.place_blob(space, part, bytes, freed).await?;
        }
        // Its length follows from the number of extents, which is known now.
        self.place_blob(space, BlobId::Directory, self.directory_bytes().len(), freed).await?;
        let head = encoded_blob(&self.placed[&BlobId::Directory]);
        self.place_blob(space, BlobId::Head, head.len(), freed).await?;
        match self.placed[&BlobId::Head].extents[..] {
            [Extent { len: 1, .. }] => Ok(()),
            _ => Err(Error::refused("catalogue", "its directory is in too many pieces for one page")),
        }
    }

    /// Returns whether a chunk holds no items; its keys then go to the chunk before it.
    fn is_empty_chunk(&self, first: Key) -> bool {
        let next =
            self.chunks.range((Bound::Excluded(first), Bound::Unbounded)).next().map(|(next, _)| *next);
        let item = self.items.range(first..).next().map(|(key, _)| *key);
        first != FIRST_KEY && item.is_none_or(|item| next.is_some_and(|next| item >= next))
    }

    async fn place_blob(
        &mut self,
        space: &Rc<Space>,
        part: BlobId,
        bytes: usize,
        freed: &mut Vec<Extent>,
    ) -> Result<()> {
        let pages = bytes.div_ceil(PAYLOAD).max(1) as u64;
        if self.placed.get(&part).is_some_and(|blob| blob.pages() == pages) {
            return Ok(());
        }
        let mut blob = Blob { bytes: bytes as u64, ..Blob::default() };
        while blob.pages() < pages {
            match space.place_meta(pages - blob.pages()).await {
                Ok(extent) => blob.extents.push(extent),
                Err(e) => {
                    blob.extents.into_iter().for_each(|extent| space.unplace_meta(extent));
                    return Err(e);
                }
            }
        }
        let old = match self.placed.insert(part, blob) {
            Some(placed) => placed.extents,
            None => self.extents_of(part),
        };
        freed.extend(old);
        Ok(())
    }

    /// Returns the place of a part as of the last checkpoint.
    fn extents_of(&self, part: BlobId) -> Vec<Extent> {
        match part {
            BlobId::Chunk(key) => self.chunks.get(&key).map(|blob| blob.extents.clone()).unwrap_or_default(),
            BlobId::Directory => self.directory.extents.clone(),
            BlobId::Head => self.head.into_iter().collect(),
        }
    }

    /// Writes the changed parts to the places found, without a flush. On an error nothing has changed here, and the
    /// call may be repeated.
    pub(super) async fn write(&mut self, file: &File, store_id: u64) -> Result<CatalogueHead> {
        for first in self.dirty.clone() {
            for (key, bytes) in self.pack(first) {
                self.write_placed(file, store_id, BlobId::Chunk(key), &bytes).await?;
            }
        }
        let directory = self.directory_bytes();
        self.write_placed(file, store_id, BlobId::Directory, &directory).await?;
        let head = encoded_blob(&self.placed[&BlobId::Directory]);
        self.write_placed(file, store_id, BlobId::Head, &head).await?;
        Ok(self.settle())
    }

    async fn write_placed(&mut self, file: &File, store_id: u64, part: BlobId, bytes: &[u8]) -> Result<()> {
        let blob = self.placed.get_mut(&part).expect("placed before it is written");
        (blob.bytes, blob.checksum) = (bytes.len() as u64, checksum(bytes));
        write_blob(file, store_id, blob, bytes).await
    }

    /// Makes the places that were written those of the catalogue.
    fn settle(&mut self) -> CatalogueHead {
        let mut head = CatalogueHead::default();
        for (part, blob) in std::mem::take(&mut self.placed) {
            match part {
                BlobId::Chunk(key) => drop(self.chunks.insert(key, blob)),
                BlobId::Directory => self.directory = blob,
                BlobId::Head => {
                    let at = blob.extents[0];
                    self.head = Some(at);
                    head = CatalogueHead { addr: at.addr, bytes: blob.bytes, checksum: blob.checksum };
                }
            }
        }
        self.dirty.clear();
        head
    }

    /// Returns the next directory: places found count before the present ones.
    fn directory_bytes(&self) -> Vec<u8> {
        let placed = self.placed.iter().filter_map(|(part, blob)| match part {
            BlobId::Chunk(key) => Some((*key, blob)),
            _ => None,
        });
        let mut all: BTreeMap<Key, &Blob> = self.chunks.iter().map(|(key, blob)| (*key, blob)).collect();
        all.extend(placed);
        let mut out = Writer::default();
        for (first, blob) in all {
            out.key(&first);
            encode_blob(&mut out, blob);
        }
        out.done()
    }

    /// Packs the items of one chunk into pieces of a chunk's size. The first piece keeps the chunk's key.
    fn pack(&self, first: Key) -> Vec<(Key, Vec<u8>)> {
        let next = self.chunks.range((Bound::Excluded(first), Bound::Unbounded)).next();
        let end = next.map(|(next, _)| *next);
        let mut packed = vec![(first, Writer::default())];
        for (key, value) in self.items.range(first..).take_while(|(key, _)| end.is_none_or(|end| **key < end))
        {
            if packed.last().expect("never empty").1.position() + value.len() > CHUNK_BYTES {
                packed.push((*key, Writer::default()));
            }
            packed.last_mut().expect("never empty").1.key(key).bytes(value);
        }
        packed.into_iter().map(|(key, bytes)| (key, bytes.done())).collect()
    }

    /// Returns whether the medium has all of the catalogue.
    pub(super) fn is_written(&self) -> bool {
        self.dirty.is_empty() && self.placed.is_empty()
    }

    /// Returns every block that the catalogue itself uses, for the check.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        let chunks = self.chunks.values().flat_map(|blob| blob.extents.iter());
        chunks.chain(&self.directory.extents).chain(&self.head).copied()
    }
}

fn encode_blob(out: &mut Writer, blob: &Blob) {
    out.u64(blob.bytes).u64(blob.checksum).u32(blob.extents.len() as u32);
    for extent in &blob.extents {
        out.u64(extent.addr).u64(extent.len);
    }
}

fn decode_blob(input: &mut Reader<'_>) -> Result<Blob> {
    let (bytes, checksum, extents) =
        (input.u64("length")?, input.u64("checksum")?, input.u32("number of extents")?);
    let mut blob = Blob { bytes, checksum, extents: Vec::new() };
    for _ in 0..extents {
        blob.extents.push(Extent { addr: input.u64("address")?, len: input.u64("blocks")? });
    }
    Ok(blob)
}

fn encoded_blob(blob: &Blob) -> Vec<u8> {
    let mut out = Writer::default();
    encode_blob(&mut out, blob);
    out.done()
}

async fn write_blob(file: &File, store_id: u64, blob: &Blob, bytes: &[u8]) -> Result<()> {
    let mut payloads = bytes.chunks(PAYLOAD);
    for extent in &blob.extents {
        let mut buf = Buf::zeroed((extent.len * BLOCK) as usize);
        for (n, page) in buf.chunks_exact_mut(BLOCK as usize).enumerate() {
            let payload = payloads.next().unwrap_or_default();
            page[HEAD_BYTES..HEAD_BYTES + payload.len()].copy_from_slice(payload);
            put_head(page, MAGIC, store_id, extent.addr + n as u64);
            seal_page(page);
        }
        file.tables().write(extent.addr * BLOCK, buf).await?;
    }
    assert!(payloads.next().is_none(), "{} bytes in {} pages", bytes.len(), blob.pages());
    Ok(())
}

async fn read_blob(file: &File, store_id: u64, blob: &Blob, place: &str) -> Result<Vec<u8>> {
    let damaged = |what: &str, found: u64, expected: u64| {
        Error::damaged(place, format!("{what}: found {found:#x}, expected {expected:#x}"))
    };
    if blob.bytes > BLOB_BYTES_MAX {
        return Err(damaged("length", blob.bytes, BLOB_BYTES_MAX));
    }
    let expected = blob.bytes.div_ceil(PAYLOAD as u64).max(1);
    if blob.pages() != expected {
        return Err(damaged("pages", blob.pages(), expected));
    }
    let mut bytes = Vec::with_capacity(blob.bytes as usize);
    for extent in &blob.extents {
        let at = extent.addr.checked_mul(BLOCK).ok_or_else(|| damaged("address", extent.addr, 0))?;
        let (buf, result) = file.tables().read(at, Buf::alloc((extent.len * BLOCK) as usize)).await;
        result?;
        for (n, page) in buf.chunks_exact(BLOCK as usize).enumerate() {
            let addr = extent.addr + n as u64;
            let fields = [
                ("magic", get_u64(page, 0), MAGIC),
                ("store id", get_u64(page, STORE_ID_AT), store_id),
                ("its own address", get_u64(page, ADDRESS_AT), addr),
                ("checksum", get_u64(page, CHECKSUM_AT), page_checksum(page)),
            ];
            if let Some((what, found, expected)) =
                fields.into_iter().find(|(_, found, wanted)| found != wanted)
            {
                return Err(damaged(&format!("block {addr}: {what}"), found, expected));
            }
            let left = (blob.bytes as usize - bytes.len()).min(PAYLOAD);
            bytes.extend_from_slice(&page[HEAD_BYTES..HEAD_BYTES + left]);
        }
    }
    let found = checksum(&bytes);
    if found != blob.checksum {
        return Err(damaged("checksum of the whole", found, blob.checksum));
    }
    Ok(bytes)
}
