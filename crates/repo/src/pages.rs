//! Pages of maps as they are read: a bounded cache, filled ahead.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use blk::Result;

use crate::chunk::{ChunkId, ChunkRef};
use crate::gather;
use crate::key::Keys;
use crate::objects::Objects;
use crate::page::{FANOUT, LEVELS, Page};

/// Pages that are kept: 15 MiB.
const PAGES_MAX: usize = 1024;
/// Pages that one request for a page reads: those that follow it are next to it in a pack.
const READ_AHEAD: usize = 16;

/// Reads pages of one repository.
pub(crate) struct Pages {
    objects: Arc<dyn Objects>,
    keys: Keys,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    pages: HashMap<(usize, ChunkId), Arc<Page>>,
    order: VecDeque<(usize, ChunkId)>,
}

impl Pages {
    pub(crate) fn new(objects: Arc<dyn Objects>, keys: Keys) -> Pages {
        Pages { objects, keys, kept: Mutex::default() }
    }

    /// Returns the page of `level` that `refs` begins with, and reads those after it ahead.
    pub(crate) async fn load(&self, level: usize, refs: &[Option<ChunkRef>]) -> Result<Arc<Page>> {
        let Some(Some(first)) = refs.first() else {
            return Ok(Arc::new(Page::empty()));
        };
        if let Some(page) = self.kept(level, &first.id) {
            return Ok(page);
        }
        let ahead = refs.iter().flatten().filter(|next| self.kept(level, &next.id).is_none());
        let wanted: Vec<_> = ahead.take(READ_AHEAD).copied().collect();
        let contents = gather::read(&*self.objects, &self.keys, &wanted).await?;
        let mut found = None;
        for (reference, content) in wanted.iter().zip(contents) {
            let page = Arc::new(Page::decode(&reference.place(), level, &content)?);
            found.get_or_insert_with(|| page.clone());
            self.keep(level, reference.id, page);
        }
        Ok(found.expect("the first page is among those that are wanted"))
    }

    /// Returns the page of the lowest level that has chunk `n` of a map.
    pub(crate) async fn leaf(&self, root: Option<ChunkRef>, n: u64) -> Result<Arc<Page>> {
        let mut page = self.load(LEVELS - 1, &[root]).await?;
        for level in (0..LEVELS - 1).rev() {
            page = self.load(level, &page.refs[slot(level + 1, n)..]).await?;
        }
        Ok(page)
    }

    fn kept(&self, level: usize, id: &ChunkId) -> Option<Arc<Page>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.pages.get(&(level, *id)).cloned()
    }

    fn keep(&self, level: usize, id: ChunkId, page: Arc<Page>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.pages.insert((level, id), page).is_none() {
            kept.order.push_back((level, id));
        }
        while kept.order.len() > PAGES_MAX {
            if let Some(oldest) = kept.order.pop_front() {
                kept.pages.remove(&oldest);
            }
        }
    }
}

/// Returns which reference of a page of `level` leads to chunk `n`.
pub(crate) fn slot(level: usize, n: u64) -> usize {
    (n >> (8 * level)) as usize % FANOUT
}
