//! Reads a disk of a backup at any offset.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use blk::{Error, Result};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::event::DiskBackup;
use crate::gather;
use crate::page::FANOUT;
use crate::pages::Pages;
use crate::repository::Repository;

/// Chunks that are read together.
const WINDOW_CHUNKS: u64 = 16;
/// Contents that are kept, in bytes; at least the windows that are read ahead.
const KEPT_BYTES: u64 = 64 << 20;
/// Windows that are read ahead of one that follows the one before it.
const WINDOWS_AHEAD: u64 = 4;

/// Contents of the chunks of a window; None for zeros.
type Window = Arc<Vec<Option<Vec<u8>>>>;
type Reading = Shared<BoxFuture<'static, Result<Window>>>;

/// Reads a disk of a backup. Clones share one cache.
#[derive(Clone)]
pub struct DiskReader(Arc<Inner>);

struct Inner {
    objects: Arc<dyn crate::objects::Objects>,
    keys: crate::key::Keys,
    pages: Pages,
    disk: DiskBackup,
    chunk_bytes: u64,
    kept: Mutex<Kept>,
}

/// Windows that were read or are being read.
#[derive(Default)]
struct Kept {
    windows: HashMap<u64, Reading>,
    order: VecDeque<u64>,
}

impl DiskReader {
    /// Returns a reader of the disk `number` of a backup.
    pub fn new(repository: &Repository, disk: &DiskBackup) -> DiskReader {
        let (objects, keys) = (repository.objects.clone(), repository.keys.clone());
        DiskReader(Arc::new(Inner {
            pages: Pages::new(objects.clone(), keys.clone()),
            objects,
            keys,
            disk: disk.clone(),
            chunk_bytes: u64::from(repository.info.chunk_bytes),
            kept: Mutex::default(),
        }))
    }

    /// Returns the size of the disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.0.disk.size_bytes
    }

    /// Returns the bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.0.chunk_bytes
    }

    /// Fills `into` with the content from `offset`.
    pub async fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset + into.len() as u64;
        if end > self.size_bytes() {
            let cause =
                format!("{} bytes at {offset} exceed the disk of {} bytes", into.len(), self.size_bytes());
            return Err(Error::invalid(format!("disk{}", self.0.disk.number), cause));
        }
        into.fill(0);
        let chunk_bytes = self.0.chunk_bytes;
        let mut at = offset;
        while at < end {
            let n = at / chunk_bytes;
            let window = self.window(n / WINDOW_CHUNKS).await?;
            let stop = end.min((n + 1) * chunk_bytes);
            if let Some(content) = &window[(n % WINDOW_CHUNKS) as usize] {
                let from = (at - n * chunk_bytes) as usize;
                let to = content.len().min((stop - n * chunk_bytes) as usize);
                if from < to {
                    let begin = (at - offset) as usize;
                    into[begin..begin + to - from].copy_from_slice(&content[from..to]);
                }
            }
            at = stop;
        }
        Ok(())
    }

    /// Returns the work of reading ahead after a read at `offset`, if reads follow one another there.
    pub fn read_ahead(&self, offset: u64) -> Option<impl Future<Output = ()> + Send + use<>> {
        let window = offset / self.0.chunk_bytes / WINDOW_CHUNKS;
        let windows = self.size_bytes().div_ceil(self.0.chunk_bytes * WINDOW_CHUNKS);
        let missing: Vec<_> = {
            let kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if window > 0 && !kept.windows.contains_key(&(window - 1)) {
                return None;
            }
            let next = window + 1..windows.min(window + 1 + WINDOWS_AHEAD);
            next.filter(|next| !kept.windows.contains_key(next)).collect()
        };
        if missing.is_empty() {
            return None;
        }
        let reading: Vec<_> = missing.into_iter().map(|window| self.start(window)).collect();
        // An error is one of the read that needs the window.
        Some(async move { drop(futures_util::future::join_all(reading).await) })
    }

    async fn window(&self, window: u64) -> Result<Window> {
        let reading = self.start(window);
        let read = reading.clone().await;
        if read.is_err() {
            let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
            // The next read tries again.
            if kept.windows.get(&window).is_some_and(|other| other.ptr_eq(&reading)) {
                kept.windows.remove(&window);
            }
        }
        read
    }

    fn start(&self, window: u64) -> Reading {
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reading) = kept.windows.get(&window) {
            return reading.clone();
        }
        let inner = self.0.clone();
        let reading = async move { inner.read_window(window).await }.boxed().shared();
        kept.windows.insert(window, reading.clone());
        kept.order.push_back(window);
        let windows = KEPT_BYTES / (WINDOW_CHUNKS * self.0.chunk_bytes);
        while kept.order.len() as u64 > windows.max(2 * WINDOWS_AHEAD) {
            if let Some(oldest) = kept.order.pop_front() {
                kept.windows.remove(&oldest);
            }
        }
        reading
    }

    /// Returns pieces that cover `range` from its start: lengths, and whether a piece has data. The answer ends with the
    /// page of the map, so it may be shorter.
    pub async fn allocated(&self, range: Range<u64>) -> Result<Vec<(u64, bool)>> {
        let chunk_bytes = self.0.chunk_bytes;
        let first = range.start / chunk_bytes;
        let page = self.0.pages.leaf(self.0.disk.root, first).await?;
        let mut pieces: Vec<(u64, bool)> = Vec::new();
        let mut at = range.start;
        for n in first..(first / FANOUT as u64 + 1) * FANOUT as u64 {
            if at >= range.end {
                break;
            }
            let stop = range.end.min((n + 1) * chunk_bytes);
            let has_data = page.refs[n as usize % FANOUT].is_some();
            match pieces.last_mut() {
                Some((bytes, same)) if *same == has_data => *bytes += stop - at,
                _ => pieces.push((stop - at, has_data)),
            }
            at = stop;
        }
        Ok(pieces)
    }
}

impl Inner {
    async fn read_window(&self, window: u64) -> Result<Window> {
        let first = window * WINDOW_CHUNKS;
        let page = self.pages.leaf(self.disk.root, first).await?;
        let begin = first as usize % FANOUT;
        let refs = &page.refs[begin..begin + WINDOW_CHUNKS as usize];
        let wanted: Vec<_> = refs.iter().flatten().copied().collect();
        let mut contents = gather::read(&*self.objects, &self.keys, &wanted).await?.into_iter();
        Ok(Arc::new(refs.iter().map(|reference| reference.and_then(|_| contents.next())).collect()))
    }
}
