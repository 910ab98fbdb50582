//! The catalogue: an ordered map of small items - nodes, groups, VMs, snapshots - as of the last checkpoint.
//!
//! Items are in chunks of about 32 KiB, and chunks in pages. A checkpoint writes the chunks that changed, the directory
//! of all chunks, and a head page that the superblock names. Every part is checked against the checksum in its parent,
//! and a rebuildable store has each part twice.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use blk::{Buf, Error, ErrorKind, File, Result};
use zerocopy::IntoBytes;

use super::bytes::{Reader, Writer};
use super::change::Key;
use super::layout::{
    ADDRESS_AT, BLOCK, CHECKSUM_AT, Extent, HEAD_BYTES, STORE_ID_AT, checksum, get_struct, get_u64,
    page_checksum, put_head, seal_page,
};
use super::space::Space;
use super::stored::USER_KINDS;
use super::superblock::{CatalogueHead, SHORT_BYTES, Superblock};

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
    /// The pages of each copy; the second one is empty in a store whose catalogue has one copy.
    pub copies: [Vec<Extent>; 2],
}

/// The catalogue of a store in memory.
#[derive(Default)]
pub(super) struct Catalogue {
    pub items: BTreeMap<Key, Vec<u8>>,
    /// Damage of parts whose other copy was read.
    pub damaged: Vec<Error>,
    /// Each part has two copies.
    pub has_two_copies: bool,
    /// Chunks by the first key that they may hold; each reaches to the next one.
    chunks: BTreeMap<Key, Blob>,
    dirty: BTreeSet<Key>,
    directory: Blob,
    head: [Vec<Extent>; 2],
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
    fn extents(&self) -> impl Iterator<Item = Extent> {
        self.copies.iter().flatten().copied()
    }

    fn into_extents(self) -> impl Iterator<Item = Extent> {
        self.copies.into_iter().flatten()
    }
}

fn pages_of(extents: &[Extent]) -> u64 {
    extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.len))
}

/// Reads the parts of a catalogue, each from the copy that is whole.
struct CopyReader<'a> {
    file: &'a File,
    store_id: u64,
    place: String,
    has_two_copies: bool,
    damaged: Vec<Error>,
}

impl CopyReader<'_> {
    /// Returns the content of a part. Both copies are read, so that damage of one is found while the other is whole.
    async fn read(&mut self, blob: &Blob) -> Result<Vec<u8>> {
        let mut found: Option<Vec<u8>> = None;
        let mut errors = Vec::new();
        for extents in blob.copies.iter().take(if self.has_two_copies { 2 } else { 1 }) {
            match read_blob(self.file, self.store_id, blob, extents, &self.place).await {
                Ok(bytes) => found = Some(bytes),
                Err(e) if e.kind == ErrorKind::Damaged || e.kind == ErrorKind::Io => errors.push(e),
                Err(e) => return Err(e),
            }
        }
        match found {
            Some(bytes) => {
                self.damaged.append(&mut errors);
                Ok(bytes)
            }
            None => Err(errors.swap_remove(0)),
        }
    }
}

impl Catalogue {
    /// Reads the catalogue that a superblock names. If one copy of a part is damaged, the other one counts, and the next
    /// checkpoint writes all parts again.
    pub(super) async fn read(file: &File, superblock: &Superblock) -> Result<Catalogue> {
        let has_two_copies = superblock.is_rebuildable();
        let mut catalogue = Catalogue { has_two_copies, ..Catalogue::default() };
        let CatalogueHead { addr, bytes, checksum } = superblock.catalogue;
        if addr == 0 {
            return Ok(catalogue);
        }
        let place = format!("{}: catalogue", file.name());
        let (store_id, damaged) = (superblock.store_id, Vec::new());
        let mut reader = CopyReader { file, store_id, place, has_two_copies, damaged };
        catalogue.head = superblock.catalogue_heads().map(|addr| match addr {
            0 => Vec::new(),
            addr => vec![Extent { addr, len: 1 }],
        });
        let head = Blob { bytes, checksum, copies: catalogue.head.clone() };
        let bytes = reader.read(&head).await?;
        let place = reader.place.clone();
        catalogue.directory = decode_blob(&mut Reader::new(&bytes, &place), has_two_copies)?;
        let bytes = reader.read(&catalogue.directory).await?;
        let mut directory = Reader::new(&bytes, &place);
        while !directory.is_empty() {
            let first = directory.key()?;
            let blob = decode_blob(&mut directory, has_two_copies)?;
            let bytes = reader.read(&blob).await?;
            let mut items = Reader::new(&bytes, &place);
            while !items.is_empty() {
                catalogue.items.insert(items.key()?, items.bytes("value")?.to_vec());
            }
            catalogue.chunks.insert(first, blob);
        }
        catalogue.damaged = reader.damaged;
        if !catalogue.damaged.is_empty() {
            catalogue.dirty.extend(catalogue.chunks.keys());
        }
        Ok(catalogue)
    }

    /// Creates a catalogue of two copies that has no part on the medium yet. `place` returns the places of so many pages
    /// of a copy. Until `write` values may still change, but not their sizes.
    pub(super) fn lay_out(
        items: BTreeMap<Key, Vec<u8>>,
        place: &mut dyn FnMut(usize, u64) -> Vec<Extent>,
    ) -> Catalogue {
        let mut catalogue = Catalogue { items, has_two_copies: true, ..Catalogue::default() };
        catalogue.dirty.insert(FIRST_KEY);
        let mut place = |bytes: usize| {
            let pages = bytes.div_ceil(PAYLOAD).max(1) as u64;
            Blob { bytes: bytes as u64, checksum: 0, copies: [place(0, pages), place(1, pages)] }
        };
        for (key, bytes) in catalogue.pack(FIRST_KEY) {
            let blob = place(bytes.len());
            catalogue.placed.insert(BlobId::Chunk(key), blob);
        }
        let directory = place(catalogue.directory_bytes().len());
        catalogue.placed.insert(BlobId::Directory, directory);
        let head = place(catalogue.head_bytes(&Superblock::default()).len());
        catalogue.placed.insert(BlobId::Head, head);
        catalogue
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
                freed.extend(self.chunks.remove(&first).into_iter().flat_map(Blob::into_extents));
                continue;
            }
            pieces.extend(self.pack(first).into_iter().map(|(key, bytes)| (BlobId::Chunk(key), bytes.len())));
        }
        self.placed.retain(|part, blob| {
            let keep = pieces.contains_key(part) || matches!(part, BlobId::Directory | BlobId::Head);
            if !keep {
                freed.extend(std::mem::take(blob).into_extents());
            }
            keep
        });
        for (part, bytes) in pieces {
            self.place_blob(space, part, bytes, freed).await?;
        }
        // Its length follows from the number of extents, which is known now.
        self.place_blob(space, BlobId::Directory, self.directory_bytes().len(), freed).await?;
        let head = self.head_bytes(&Superblock::default());
        self.place_blob(space, BlobId::Head, head.len(), freed).await?;
        match self.placed[&BlobId::Head].copies[0][..] {
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
        if self.placed.get(&part).is_some_and(|blob| pages_of(&blob.copies[0]) == pages) {
            return Ok(());
        }
        let mut blob = Blob { bytes: bytes as u64, ..Blob::default() };
        if let Err(e) = self.place_copies(space, pages, &mut blob).await {
            blob.into_extents().for_each(|extent| space.unplace_meta(extent));
            return Err(e);
        }
        let old = match self.placed.insert(part, blob) {
            Some(placed) => placed.copies,
            None => self.copies_of(part),
        };
        freed.extend(old.into_iter().flatten());
        Ok(())
    }

    /// Places the pages of a part; those of the second copy are half a group away where there is room.
    async fn place_copies(&self, space: &Rc<Space>, pages: u64, blob: &mut Blob) -> Result<()> {
        let [first, second] = &mut blob.copies;
        while pages_of(first) < pages {
            first.push(space.place_meta(pages - pages_of(first)).await?);
        }
        while self.has_two_copies && pages_of(second) < pages {
            second.push(space.place_meta_apart(pages - pages_of(second), first[0].addr).await?);
        }
        Ok(())
    }

    /// Returns the place of a part as of the last checkpoint.
    fn copies_of(&self, part: BlobId) -> [Vec<Extent>; 2] {
        match part {
            BlobId::Chunk(key) => self.chunks.get(&key).map(|blob| blob.copies.clone()).unwrap_or_default(),
            BlobId::Directory => self.directory.copies.clone(),
            BlobId::Head => self.head.clone(),
        }
    }

    /// Returns the number of pages of all copies once the parts that were placed are written.
    pub(super) fn next_pages(&self) -> u64 {
        let is_replaced = |part: BlobId| self.placed.contains_key(&part);
        let chunks = self.chunks.iter().filter(|(key, _)| !is_replaced(BlobId::Chunk(**key)));
        let kept = chunks.map(|(_, blob)| blob).chain(self.placed.values());
        kept.flat_map(Blob::extents).map(|extent| extent.len).sum()
    }

    /// Writes the changed parts to the places found, without a flush. On an error nothing has changed here, and the
    /// call may be repeated. Returns the head of the first copy, and the address of the second one's.
    ///
    /// A head page has a copy of the next superblock, in which the catalogue is left out.
    pub(super) async fn write(
        &mut self,
        file: &File,
        superblock: &Superblock,
    ) -> Result<(CatalogueHead, u64)> {
        let store_id = superblock.store_id;
        for first in self.dirty.clone() {
            for (key, bytes) in self.pack(first) {
                self.write_placed(file, store_id, BlobId::Chunk(key), &bytes).await?;
            }
        }
        let directory = self.directory_bytes();
        self.write_placed(file, store_id, BlobId::Directory, &directory).await?;
        let head = self.head_bytes(superblock);
        self.write_placed(file, store_id, BlobId::Head, &head).await?;
        Ok(self.settle())
    }

    fn head_bytes(&self, superblock: &Superblock) -> Vec<u8> {
        let mut out = Writer::default();
        encode_blob(&mut out, &self.placed[&BlobId::Directory], self.has_two_copies);
        if self.has_two_copies {
            let without =
                Superblock { catalogue: CatalogueHead::default(), second_catalogue: 0, ..*superblock };
            out.bytes(without.as_bytes());
        }
        out.done()
    }

    async fn write_placed(&mut self, file: &File, store_id: u64, part: BlobId, bytes: &[u8]) -> Result<()> {
        let blob = self.placed.get_mut(&part).expect("placed before it is written");
        (blob.bytes, blob.checksum) = (bytes.len() as u64, checksum(bytes));
        for extents in &blob.copies {
            write_blob(file, store_id, extents, bytes).await?;
        }
        Ok(())
    }

    /// Makes the places that were written those of the catalogue.
    fn settle(&mut self) -> (CatalogueHead, u64) {
        let (mut head, mut second) = (CatalogueHead::default(), 0);
        for (part, blob) in std::mem::take(&mut self.placed) {
            match part {
                BlobId::Chunk(key) => drop(self.chunks.insert(key, blob)),
                BlobId::Directory => self.directory = blob,
                BlobId::Head => {
                    let [first, other] =
                        [0, 1].map(|copy: usize| blob.copies[copy].first().map_or(0, |at| at.addr));
                    head = CatalogueHead { addr: first, bytes: blob.bytes, checksum: blob.checksum };
                    second = other;
                    self.head = blob.copies;
                }
            }
        }
        self.dirty.clear();
        (head, second)
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
            encode_blob(&mut out, blob, self.has_two_copies);
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
        let chunks = self.chunks.values().flat_map(Blob::extents);
        chunks.chain(self.directory.extents()).chain(self.head.iter().flatten().copied())
    }
}

fn encode_blob(out: &mut Writer, blob: &Blob, has_two_copies: bool) {
    out.u64(blob.bytes).u64(blob.checksum);
    for extents in blob.copies.iter().take(if has_two_copies { 2 } else { 1 }) {
        out.u32(extents.len() as u32);
        for extent in extents {
            out.u64(extent.addr).u64(extent.len);
        }
    }
}

fn decode_blob(input: &mut Reader<'_>, has_two_copies: bool) -> Result<Blob> {
    let (bytes, checksum) = (input.u64("length")?, input.u64("checksum")?);
    let mut blob = Blob { bytes, checksum, copies: Default::default() };
    for extents in blob.copies.iter_mut().take(if has_two_copies { 2 } else { 1 }) {
        for _ in 0..input.u32("number of extents")? {
            extents.push(Extent { addr: input.u64("address")?, len: input.u64("blocks")? });
        }
    }
    Ok(blob)
}

/// Returns the copy of the superblock in the head page at `addr`, with the catalogue that the page begins. None if the
/// page is no head page of the store `store_id`, or of any store if that is None.
pub(super) fn superblock_in_head(page: &[u8], addr: u64, store_id: Option<u64>) -> Option<Superblock> {
    let found = get_u64(page, STORE_ID_AT);
    let is_page = check_page(page, addr, store_id.unwrap_or(found)).is_ok();
    let payload = &page[HEAD_BYTES..];
    let mut input = Reader::new(payload, "head page");
    let directory = decode_blob(&mut input, true).ok().filter(|_| is_page)?;
    let lengths = [SHORT_BYTES, size_of::<Superblock>()];
    let bytes = input.bytes("superblock").ok().filter(|bytes| lengths.contains(&bytes.len()))?;
    let mut fields = [0; size_of::<Superblock>()];
    fields[..bytes.len()].copy_from_slice(bytes);
    let superblock: Superblock = get_struct(&fields);
    let mut head = Writer::default();
    encode_blob(&mut head, &directory, true);
    head.bytes(bytes);
    let head = head.done();
    let catalogue = CatalogueHead { addr, bytes: head.len() as u64, checksum: checksum(&head) };
    let is_head = payload[head.len()..].iter().all(|byte| *byte == 0)
        && superblock.store_id == found
        && superblock.is_rebuildable();
    is_head.then_some(Superblock { catalogue, second_catalogue: addr, ..superblock })
}

async fn write_blob(file: &File, store_id: u64, extents: &[Extent], bytes: &[u8]) -> Result<()> {
    if extents.is_empty() {
        return Ok(());
    }
    let mut payloads = bytes.chunks(PAYLOAD);
    for extent in extents {
        let mut buf = Buf::zeroed((extent.len * BLOCK) as usize);
        for (n, page) in buf.chunks_exact_mut(BLOCK as usize).enumerate() {
            let payload = payloads.next().unwrap_or_default();
            page[HEAD_BYTES..HEAD_BYTES + payload.len()].copy_from_slice(payload);
            put_head(page, MAGIC, store_id, extent.addr + n as u64);
            seal_page(page);
        }
        file.tables().write(extent.addr * BLOCK, buf).await?;
    }
    assert!(payloads.next().is_none(), "{} bytes in {} pages", bytes.len(), pages_of(extents));
    Ok(())
}

/// Checks the first fields of a page of the catalogue; the error is the field, what was found and what was expected.
fn check_page(page: &[u8], addr: u64, store_id: u64) -> Result<(), (&'static str, u64, u64)> {
    let fields = [
        ("magic", get_u64(page, 0), MAGIC),
        ("store id", get_u64(page, STORE_ID_AT), store_id),
        ("its own address", get_u64(page, ADDRESS_AT), addr),
        ("checksum", get_u64(page, CHECKSUM_AT), page_checksum(page)),
    ];
    fields.into_iter().find(|(_, found, wanted)| found != wanted).map_or(Ok(()), Err)
}

/// Returns whether a page is one of the store's catalogue, of any checkpoint.
pub(super) fn is_page(page: &[u8], addr: u64, store_id: u64) -> bool {
    check_page(page, addr, store_id).is_ok()
}

async fn read_blob(
    file: &File,
    store_id: u64,
    blob: &Blob,
    extents: &[Extent],
    place: &str,
) -> Result<Vec<u8>> {
    let damaged = |what: &str, found: u64, expected: u64| {
        Error::damaged(place, format!("{what}: found {found:#x}, expected {expected:#x}"))
    };
    if blob.bytes > BLOB_BYTES_MAX {
        return Err(damaged("length", blob.bytes, BLOB_BYTES_MAX));
    }
    let expected = blob.bytes.div_ceil(PAYLOAD as u64).max(1);
    let pages = pages_of(extents);
    if pages != expected {
        return Err(damaged("pages", pages, expected));
    }
    let mut bytes = Vec::with_capacity(blob.bytes as usize);
    for extent in extents {
        let at = extent.addr.checked_mul(BLOCK).ok_or_else(|| damaged("address", extent.addr, 0))?;
        let (buf, result) = file.tables().read(at, Buf::alloc((extent.len * BLOCK) as usize)).await;
        result?;
        for (n, page) in buf.chunks_exact(BLOCK as usize).enumerate() {
            let addr = extent.addr + n as u64;
            if let Err((what, found, expected)) = check_page(page, addr, store_id) {
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
