//! Reads backups as a restore would, and compares what is there with what it should be.

use std::collections::{BTreeMap, HashSet};

use blk::{Error, Result};

use crate::chunk::{self, ChunkId, ChunkRef};
use crate::event::{Backup, DiskBackup};
use crate::gather;
use crate::names::PackName;
use crate::page::{LEVELS, Page};
use crate::repository::Repository;
use crate::session::read_table;

/// Chunks that are read at once: 16 MiB with chunks of 64 KiB.
const BATCH: usize = 256;
/// Chunks that a verification remembers: 256 GiB of disks with chunks of 64 KiB, in about 130 MiB.
const SEEN_MAX: usize = 1 << 22;
/// Findings after which a verification ends.
const FINDINGS_MAX: usize = 100;

/// What a verification read, and what it found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Chunks whose content was read and compared with its hash.
    pub chunks: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Chunks that were not read, because only a sample was wanted or another backup has them too.
    pub skipped: u64,
    /// What is wrong, each with its backup and disk.
    pub findings: Vec<String>,
}

/// What a run of verifications has in common: a chunk that several backups have is read once.
#[derive(Default)]
pub struct Seen(HashSet<[u8; 16]>);

impl Seen {
    /// Returns whether a chunk was not seen before. Half of an ID is enough: a mistake costs one comparison. Chunks beyond
    /// `SEEN_MAX` are read as often as they occur.
    fn is_new(&mut self, id: &ChunkId) -> bool {
        let half: [u8; 16] = id[..16].try_into().expect("16 bytes");
        match self.0.len() < SEEN_MAX {
            true => self.0.insert(half),
            false => !self.0.contains(&half),
        }
    }
}

/// Reads one of `one_in` chunks of a backup, and all of its map. `progress` is called with the bytes of the disk that were
/// passed; an error of it ends the verification.
pub async fn verify(
    repository: &Repository,
    backup: (u32, &Backup),
    one_in: u64,
    seen: &mut Seen,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Verified> {
    let mut verified = Verified::default();
    for disk in &backup.1.disks {
        let place = format!("backup {}, disk{}", backup.0, disk.number);
        let mut walk = Walk {
            repository,
            place,
            one_in: one_in.max(1),
            seen,
            verified: &mut verified,
            packs: BTreeMap::new(),
            batch: Vec::new(),
            progress,
        };
        walk.disk(disk).await?;
    }
    Ok(verified)
}

struct Walk<'a> {
    repository: &'a Repository,
    place: String,
    one_in: u64,
    seen: &'a mut Seen,
    verified: &'a mut Verified,
    packs: BTreeMap<PackName, u32>,
    batch: Vec<ChunkRef>,
    progress: &'a mut dyn FnMut(u64) -> Result<()>,
}

impl Walk<'_> {
    async fn disk(&mut self, disk: &DiskBackup) -> Result<()> {
        let before = self.verified.findings.len();
        let mut left: Vec<_> = disk.root.map(|root| (LEVELS - 1, root)).into_iter().collect();
        let mut data_bytes = 0;
        while let Some((level, reference)) = left.pop() {
            self.count(&reference)?;
            let Some(page) = self.page(level, &reference).await? else { continue };
            if level > 0 {
                left.extend(page.refs.iter().rev().flatten().map(|below| (level - 1, *below)));
                continue;
            }
            for chunk in page.refs.iter().flatten() {
                self.count(chunk)?;
                data_bytes += u64::from(chunk.bytes);
                self.chunk(chunk).await?;
            }
        }
        self.read_batch().await?;
        if self.verified.findings.len() == before {
            self.compare_totals(disk, data_bytes).await?;
        }
        Ok(())
    }

    fn count(&mut self, reference: &ChunkRef) -> Result<()> {
        *self.packs.entry(reference.pack).or_default() += 1;
        Ok(())
    }

    /// Returns a page; None if it is damaged.
    async fn page(&mut self, level: usize, reference: &ChunkRef) -> Result<Option<Page>> {
        let content = self.read(std::slice::from_ref(reference)).await?;
        let Some(content) = content.into_iter().next().flatten() else { return Ok(None) };
        match Page::decode(&reference.place(), level, &content) {
            Ok(page) => Ok(Some(page)),
            Err(e) => self.find(e.to_string()).map(|()| None),
        }
    }

    async fn chunk(&mut self, chunk: &ChunkRef) -> Result<()> {
        (self.progress)(u64::from(chunk.bytes))?;
        let sample = u64::from_le_bytes(chunk.id[..8].try_into().expect("8 bytes"));
        if sample % self.one_in != 0 || !self.seen.is_new(&chunk.id) {
            self.verified.skipped += 1;
            return Ok(());
        }
        self.batch.push(*chunk);
        match self.batch.len() >= BATCH {
            true => self.read_batch().await,
            false => Ok(()),
        }
    }

    async fn read_batch(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let contents = self.read(&batch).await?;
        for content in contents.into_iter().flatten() {
            self.verified.chunks += 1;
            self.verified.bytes += content.len() as u64;
        }
        Ok(())
    }

    /// Returns contents whose hashes are right; None for each that is a finding.
    async fn read(&mut self, refs: &[ChunkRef]) -> Result<Vec<Option<Vec<u8>>>> {
        let (objects, keys) = (&*self.repository.objects, &self.repository.keys);
        let read = match gather::read(objects, keys, refs).await {
            Ok(contents) => contents.into_iter().map(Ok).collect(),
            // One of them fails: each by itself says which.
            Err(_) => {
                let mut contents = Vec::new();
                for reference in refs {
                    let one = gather::read(objects, keys, std::slice::from_ref(reference)).await;
                    contents.push(one.map(|mut one| one.remove(0)));
                }
                contents
            }
        };
        let mut right = Vec::new();
        for (reference, content) in refs.iter().zip(read) {
            right.push(match content {
                Ok(content) if chunk::id_of(keys, &content) == reference.id => Some(content),
                Ok(_) => {
                    let place = reference.place();
                    self.find(format!("{place}: the content is not the one that the map names"))?;
                    None
                }
                Err(e) => {
                    self.find(e.to_string())?;
                    None
                }
            });
        }
        Ok(right)
    }

    async fn compare_totals(&mut self, disk: &DiskBackup, data_bytes: u64) -> Result<()> {
        let table = match read_table(&*self.repository.objects, &self.repository.keys, disk).await {
            Ok(table) => table,
            Err(e) => return self.find(format!("the table of packs: {e}")),
        };
        if data_bytes != disk.data_bytes {
            self.find(format!(
                "the map has {data_bytes} bytes of data, and the backup states {}",
                disk.data_bytes
            ))?;
        }
        if table != self.packs {
            self.find(
                "the table of packs does not count what the map names: a prune may remove too much".into(),
            )?;
        }
        Ok(())
    }

    fn find(&mut self, finding: String) -> Result<()> {
        self.verified.findings.push(format!("{}: {finding}", self.place));
        match self.verified.findings.len() < FINDINGS_MAX {
            true => Ok(()),
            false => Err(Error::damaged(
                &self.place,
                format!("{FINDINGS_MAX} findings, the last: {}", self.verified.findings[FINDINGS_MAX - 1]),
            )),
        }
    }
}
