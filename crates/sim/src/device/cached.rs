//! Controller of an array: a read cache, and a write cache with a pool of limited size for data that is not on the
//! disks.
//!
//! A write is acknowledged when it is in the pool. The pool is written out continuously, with a few requests at once,
//! in order of address and with neighbours together. When it is full, writes wait for space, and the array is as slow
//! as its disks. The cache survives a loss of power, so a flush only costs an acknowledgement. Not modelled:
//! read-ahead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use super::lru::Lru;
use super::model::Model;
use super::server::{Access, LowerDevice, Request, Server, Slab, Timers};
use crate::rng::Rng;

/// Parameters of a controller. Times in ns.
#[derive(Debug, Clone, PartialEq)]
pub struct Cached {
    /// Size of the read cache; 0 means none.
    pub read_bytes: u64,
    /// Page size of both caches.
    pub page_bytes: u64,
    /// Maximum of data that is acknowledged and not on the devices behind; 0 means write-through.
    pub dirty_bytes: u64,
    pub hit_ns: u64,
    /// Time until a write that finds space is acknowledged.
    pub write_ns: u64,
    pub per_kib_ns: u64,
    /// Shortest time between two requests: 1 / gap is the maximum rate.
    pub gap_ns: u64,
    /// Number of requests with which the pool is written out concurrently.
    pub destages: u32,
    /// Longest of these requests.
    pub destage_bytes: u64,
    pub back: Box<Model>,
}

enum BackingRequest {
    /// A read that was not cached, or a write without write cache.
    Passed(Request),
    Destage(Range<u64>),
}

pub(crate) struct Controller {
    cached: Cached,
    back: LowerDevice,
    held: Lru,
    /// Dirty bytes by page, without those that are being written out.
    dirty: BTreeMap<u64, Range<u64>>,
    dirty_bytes: u64,
    /// Pages that are being written out.
    leaving: BTreeSet<u64>,
    leaving_bytes: u64,
    destages: u32,
    /// Page at which writing out continues.
    cursor: u64,
    waiting: VecDeque<Request>,
    behind: Slab<BackingRequest>,
    acknowledged: Timers,
    narrow_free_ns: u64,
    arrived: Vec<u32>,
}

impl Controller {
    pub(super) fn new(cached: Cached, rng: &mut Rng) -> Controller {
        assert!(cached.page_bytes > 0, "a cache without pages");
        assert!(cached.dirty_bytes == 0 || cached.destages > 0, "a pool that is not written out");
        Controller {
            back: LowerDevice::new(cached.back.server(rng)),
            held: Lru::new((cached.read_bytes / cached.page_bytes) as usize),
            cached,
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
            leaving: BTreeSet::new(),
            leaving_bytes: 0,
            destages: 0,
            cursor: 0,
            waiting: VecDeque::new(),
            behind: Slab::default(),
            acknowledged: Timers::default(),
            narrow_free_ns: 0,
            arrived: Vec::new(),
        }
    }

    fn pages(&self, request: &Request) -> Range<u64> {
        let page_bytes = self.cached.page_bytes;
        request.at / page_bytes..(request.at + request.len).div_ceil(page_bytes)
    }

    fn holds(&self, page: u64) -> bool {
        self.held.holds(page) || self.dirty.contains_key(&page) || self.leaving.contains(&page)
    }

    fn pass(&mut self, now_ns: u64, request: Request) {
        let tag = self.behind.add(BackingRequest::Passed(request));
        self.back.submit(now_ns, Request { tag, ..request });
    }

    fn read(&mut self, now_ns: u64, request: Request, answer_ns: u64) -> Option<u64> {
        if !self.pages(&request).all(|page| self.holds(page)) {
            self.pass(now_ns, request);
            return None;
        }
        self.pages(&request).for_each(|page| self.held.touch(page));
        Some(answer_ns + self.cached.hit_ns)
    }

    fn has_room(&self, request: &Request) -> bool {
        let used = self.dirty_bytes + self.leaving_bytes;
        used == 0 || used + request.len <= self.cached.dirty_bytes
    }

    /// Puts a write into the pool.
    fn take_in(&mut self, request: &Request) {
        let page_bytes = self.cached.page_bytes;
        for page in self.pages(request) {
            let start = request.at.max(page * page_bytes) - page * page_bytes;
            let end = (request.at + request.len).min((page + 1) * page_bytes) - page * page_bytes;
            let bytes = self.dirty.entry(page).or_insert(start..start);
            let before = bytes.end - bytes.start;
            *bytes = bytes.start.min(start)..bytes.end.max(end);
            self.dirty_bytes += bytes.end - bytes.start - before;
        }
    }

    fn destage(&mut self, now_ns: u64) {
        while self.destages < self.cached.destages {
            let Some((pages, bytes)) = self.next_run() else { return };
            for page in pages.clone() {
                let part = self.dirty.remove(&page).expect("a run of dirty pages");
                self.dirty_bytes -= part.end - part.start;
                self.leaving.insert(page);
            }
            self.leaving_bytes += bytes.end - bytes.start;
            self.cursor = pages.end;
            self.destages += 1;
            let tag = self.behind.add(BackingRequest::Destage(bytes.clone()));
            let len = bytes.end - bytes.start;
            self.back.submit(now_ns, Request { tag, access: Access::Write, at: bytes.start, len });
        }
    }

    /// Returns the next dirty page from the cursor on, with the neighbours that are written with it. A page that is
    /// being written out is not written a second time meanwhile.
    fn next_run(&self) -> Option<(Range<u64>, Range<u64>)> {
        let page_bytes = self.cached.page_bytes;
        let idle = |(page, _): &(&u64, &Range<u64>)| !self.leaving.contains(page);
        let (&first, part) = self
            .dirty
            .range(self.cursor..)
            .find(idle)
            .or_else(|| self.dirty.range(..self.cursor).find(idle))?;
        let mut bytes = first * page_bytes + part.start..first * page_bytes + part.end;
        let mut end = first + 1;
        for (&page, part) in self.dirty.range(end..) {
            let begin = page * page_bytes + part.start;
            let goes_on = page == end && begin == bytes.end && !self.leaving.contains(&page);
            if !goes_on || page * page_bytes + part.end - bytes.start > self.cached.destage_bytes {
                break;
            }
            bytes.end = page * page_bytes + part.end;
            end += 1;
        }
        Some((first..end, bytes))
    }

    fn arrive(&mut self, now_ns: u64, id: u32) {
        match self.behind.remove(id) {
            BackingRequest::Passed(request) => {
                self.pages(&request).for_each(|page| self.held.touch(page));
                self.acknowledged.push(now_ns + self.cached.hit_ns, request.tag);
            }
            BackingRequest::Destage(bytes) => {
                let page_bytes = self.cached.page_bytes;
                for page in bytes.start / page_bytes..bytes.end.div_ceil(page_bytes) {
                    self.leaving.remove(&page);
                    self.held.touch(page);
                }
                self.leaving_bytes -= bytes.end - bytes.start;
                self.destages -= 1;
            }
        }
    }

    /// Admits writes that waited for space, in order.
    fn admit(&mut self, now_ns: u64) {
        while let Some(request) = self.waiting.front().copied().filter(|request| self.has_room(request)) {
            self.waiting.pop_front();
            self.take_in(&request);
            self.acknowledged.push(now_ns + self.cached.write_ns, request.tag);
        }
    }
}

impl Server for Controller {
    fn submit(&mut self, now_ns: u64, request: Request) -> Option<u64> {
        let narrow_ns = self.narrow_free_ns.max(now_ns) + self.cached.gap_ns;
        self.narrow_free_ns = narrow_ns;
        let answer_ns = narrow_ns + self.cached.per_kib_ns * request.len.div_ceil(1024);
        match request.access {
            Access::Read => self.read(now_ns, request, answer_ns),
            Access::Flush => Some(answer_ns + self.cached.write_ns),
            Access::Write if self.cached.dirty_bytes == 0 => {
                self.pass(now_ns, request);
                None
            }
            Access::Write if !self.waiting.is_empty() || !self.has_room(&request) => {
                self.waiting.push_back(request);
                None
            }
            Access::Write => {
                self.take_in(&request);
                self.destage(now_ns);
                Some(answer_ns + self.cached.write_ns)
            }
        }
    }

    fn next_ns(&self) -> u64 {
        self.acknowledged.next_ns().min(self.back.next_ns())
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<u32>) {
        while let Some(tag) = self.acknowledged.pop_due(now_ns) {
            done.push(tag);
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        self.back.advance(now_ns, &mut arrived);
        arrived.drain(..).for_each(|id| self.arrive(now_ns, id));
        self.arrived = arrived;
        self.admit(now_ns);
        self.destage(now_ns);
    }

    fn distance(&self, at: u64) -> u64 {
        self.back.distance(at)
    }

    fn reset(&mut self) {
        self.back.reset();
        self.held.clear();
        self.dirty.clear();
        self.leaving.clear();
        (self.dirty_bytes, self.leaving_bytes, self.destages, self.cursor) = (0, 0, 0, 0);
        self.waiting.clear();
        self.behind = Slab::default();
        self.acknowledged.clear();
        self.narrow_free_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::{Group, Level};
    use super::super::trial::*;
    use super::*;

    fn raid5(dirty_bytes: u64) -> Model {
        let member = Box::new(Model::Disk(sas_10k()));
        let disks = Group { level: Level::Parity, members: 8, strip_bytes: 64 << 10, member };
        Model::Cached(Cached {
            read_bytes: 1 << 30,
            page_bytes: 32 << 10,
            dirty_bytes,
            hit_ns: 450_000,
            write_ns: 600_000,
            per_kib_ns: 0,
            gap_ns: 0,
            destages: 16,
            destage_bytes: 448 << 10,
            back: Box::new(Model::Group(disks)),
        })
    }

    const SPAN: u64 = 100 * GIB;

    /// A write costs an acknowledgement while there is space, and four accesses of the disks beyond.
    #[test]
    fn writes_are_fast_until_the_pool_is_full_and_then_as_fast_as_the_disks() {
        let first = load(&raid5(1 << 30), 8, 5_000, random(Access::Write, 4096, SPAN));
        assert_near(first.mean_ns, 600_000.0, 0.001, "with room, ns");
        let full = load(&raid5(8 << 20), 64, 60_000, random(Access::Write, 4096, SPAN));
        let bare = load(&raid5(0), 64, 20_000, random(Access::Write, 4096, SPAN));
        assert!(full.per_s < 2_000.0, "{} writes/s into a full pool", full.per_s);
        assert!(full.per_s > 1.1 * bare.per_s, "in order of address: {} against {}", full.per_s, bare.per_s);
    }

    #[test]
    fn what_was_written_or_read_is_read_from_the_cache() {
        let mut turn = 0;
        let next = move |rng: &mut Rng| {
            turn += 1;
            let access = if turn < 4_000 { Access::Write } else { Access::Read };
            (access, rng.below(64) * 32_768, 32_768)
        };
        let found = load(&raid5(64 << 20), 1, 40_000, Box::new(next));
        assert_near(found.mean_ns, 0.1 * 600e3 + 0.9 * 450e3, 0.01, "ns");
    }

    /// Neighbours are written together, with one parity for all of them.
    #[test]
    fn sequential_writes_are_destaged_together() {
        let mut at = 0;
        let next = move |_: &mut Rng| {
            at += 65_536;
            (Access::Write, at - 65_536, 65_536)
        };
        let sequential = load(&raid5(64 << 20), 16, 20_000, Box::new(next));
        let scattered = load(&raid5(64 << 20), 16, 5_000, random(Access::Write, 65_536, SPAN));
        assert!(sequential.per_s > 2.0 * scattered.per_s, "{} and {}", sequential.per_s, scattered.per_s);
    }

    /// The unwritten data never exceeds the pool, however long the load lasts.
    #[test]
    fn the_pool_is_bounded() {
        let Model::Cached(params) = raid5(1 << 20) else { unreachable!("a cache") };
        let mut controller = Controller::new(params, &mut Rng::new(1));
        let (mut rng, mut done, mut now_ns) = (Rng::new(2), Vec::new(), 0);
        for tag in 0..2000 {
            let at = rng.below(SPAN / 4096) * 4096;
            controller.submit(now_ns, Request { tag, access: Access::Write, at, len: 4096 });
            let held = controller.dirty_bytes + controller.leaving_bytes;
            assert!(held <= 1 << 20, "{held} bytes");
            if tag % 2 == 0 && controller.next_ns() != super::super::server::NEVER_NS {
                now_ns = now_ns.max(controller.next_ns());
                controller.advance(now_ns, &mut done);
            }
        }
        assert!(!controller.waiting.is_empty());
    }
}
