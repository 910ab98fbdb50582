//! Controller of an array: a read cache, and a write cache with a pool of limited size for data that is not on the
//! disks.
//!
//! A write is acknowledged when it is in the pool. The pool is written out continuously, with a few requests at once,
//! in order of address and with neighbours together. The cache does not hold the bytes between two writes, so such
//! writes leave separately. When it is full, writes wait for space, and the array is as slow as its disks. The bound of that rate is
//! in `bound`. The cache survives a loss of power, so a flush only costs an acknowledgement. Not modelled: read-ahead.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::lru::Lru;
use super::model::Model;
use super::server::{Access, LowerDevice, Request, Serial, Server, Slab, Timers};
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
    /// Transfer time of the cable, which all requests of one direction share.
    pub per_kib_ns: u64,
    /// Shortest mean time between two requests: 1 / gap is the maximum rate.
    pub gap_ns: u64,
    /// Number of requests with which the pool is written out concurrently.
    pub destages: u32,
    /// Longest of these requests.
    pub destage_bytes: u64,
    pub back: Box<Model>,
}

enum BackingRequest {
    /// A read that was not cached, and the time at which the controller has begun it.
    Read(Request, u64),
    /// A write without write cache, and the time at which its bytes have arrived.
    Write(Request, u64),
    Destage(Range<u64>),
}

pub(crate) struct Controller {
    cached: Cached,
    back: LowerDevice,
    held: Lru,
    /// Extents of dirty bytes, start to end, without those that are being written out. They do not touch.
    dirty: BTreeMap<u64, u64>,
    dirty_bytes: u64,
    /// Extents that are being written out, start to end.
    leaving: BTreeMap<u64, u64>,
    leaving_bytes: u64,
    destages: u32,
    /// Byte at which writing out continues.
    cursor: u64,
    /// Writes that wait for space, each with the time at which its bytes have arrived.
    waiting: VecDeque<(Request, u64)>,
    behind: Slab<BackingRequest>,
    acknowledged: Timers,
    requests: Serial,
    /// Cable to the host, and from the host.
    cable: [Serial; 2],
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
            leaving: BTreeMap::new(),
            leaving_bytes: 0,
            destages: 0,
            cursor: 0,
            waiting: VecDeque::new(),
            behind: Slab::default(),
            acknowledged: Timers::default(),
            requests: Serial::default(),
            cable: Default::default(),
            arrived: Vec::new(),
        }
    }

    /// Returns the pages of an extent, each with the bytes of it that the extent has.
    fn parts(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
        let (page_bytes, end) = (self.cached.page_bytes, at + len);
        (at / page_bytes..end.div_ceil(page_bytes)).map(move |page| {
            let first = page * page_bytes;
            (page, at.max(first) - first..end.min(first + page_bytes) - first)
        })
    }

    fn holds(&self, page: u64, part: &Range<u64>) -> bool {
        let first = page * self.cached.page_bytes;
        let contains = |extents: &BTreeMap<u64, u64>| {
            let below = extents.range(..=first + part.start).next_back();
            below.is_some_and(|(_, &end)| first + part.end <= end)
        };
        self.held.holds(page, part) || contains(&self.dirty) || contains(&self.leaving)
    }

    fn touch(&mut self, at: u64, len: u64) {
        self.parts(at, len).for_each(|(page, part)| self.held.touch(page, &part));
    }

    fn pass(&mut self, now_ns: u64, request: Request, as_what: BackingRequest) {
        let tag = self.behind.add(as_what);
        self.back.submit(now_ns, Request { tag, ..request });
    }

    /// Returns when the bytes of a request have passed the cable.
    fn sent_ns(&mut self, now_ns: u64, request: &Request) -> u64 {
        let cable = &mut self.cable[usize::from(request.access == Access::Write)];
        cable.pass(now_ns, self.cached.per_kib_ns * request.len.div_ceil(1024))
    }

    fn read(&mut self, now_ns: u64, request: Request, begun_ns: u64) -> Option<u64> {
        if !self.parts(request.at, request.len).all(|(page, part)| self.holds(page, &part)) {
            self.pass(now_ns, request, BackingRequest::Read(request, begun_ns));
            return None;
        }
        self.touch(request.at, request.len);
        Some(self.sent_ns(now_ns, &request).max(begun_ns) + self.cached.hit_ns)
    }

    fn has_room(&self, request: &Request) -> bool {
        let used = self.dirty_bytes + self.leaving_bytes;
        used == 0 || used + request.len <= self.cached.dirty_bytes
    }

    /// Puts a write into the pool.
    fn take_in(&mut self, request: &Request) {
        let (mut start, mut end) = (request.at, request.at + request.len);
        while let Some((&from, &to)) = self.dirty.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.dirty.remove(&from);
            self.dirty_bytes -= to - from;
            (start, end) = (start.min(from), end.max(to));
        }
        self.dirty.insert(start, end);
        self.dirty_bytes += end - start;
    }

    fn write(&mut self, now_ns: u64, request: Request, sent_ns: u64) -> Option<u64> {
        if self.cached.dirty_bytes == 0 {
            self.pass(now_ns, request, BackingRequest::Write(request, sent_ns));
            return None;
        }
        if !self.waiting.is_empty() || !self.has_room(&request) {
            self.waiting.push_back((request, sent_ns));
            return None;
        }
        self.take_in(&request);
        self.destage(now_ns);
        Some(sent_ns + self.cached.write_ns)
    }

    fn destage(&mut self, now_ns: u64) {
        while self.destages < self.cached.destages {
            let Some((bytes, extent_end)) = self.next_run() else { return };
            self.dirty.remove(&bytes.start);
            if bytes.end < extent_end {
                self.dirty.insert(bytes.end, extent_end);
            }
            self.leaving.insert(bytes.start, bytes.end);
            self.dirty_bytes -= bytes.end - bytes.start;
            self.leaving_bytes += bytes.end - bytes.start;
            self.cursor = bytes.end;
            self.destages += 1;
            let tag = self.behind.add(BackingRequest::Destage(bytes.clone()));
            let len = bytes.end - bytes.start;
            self.back.submit(now_ns, Request { tag, access: Access::Write, at: bytes.start, len });
        }
    }

    /// Returns the next dirty extent from the cursor on, as much of it as one request takes, and its end. Bytes that are
    /// being written out are not written a second time meanwhile.
    fn next_run(&self) -> Option<(Range<u64>, u64)> {
        let idle = |&(&start, &end): &(&u64, &u64)| {
            self.leaving.range(..end).next_back().is_none_or(|(_, leaving)| *leaving <= start)
        };
        let mut onwards = self.dirty.range(self.cursor..).filter(idle);
        let next = onwards.next().or_else(|| self.dirty.range(..self.cursor).find(idle));
        let (&start, &end) = next?;
        Some((start..end.min(start + self.cached.destage_bytes), end))
    }

    fn arrive(&mut self, now_ns: u64, id: u32) {
        match self.behind.remove(id) {
            BackingRequest::Read(request, begun_ns) => {
                let sent_ns = self.sent_ns(now_ns, &request).max(begun_ns);
                self.answer(&request, sent_ns);
            }
            BackingRequest::Write(request, sent_ns) => self.answer(&request, sent_ns.max(now_ns)),
            BackingRequest::Destage(bytes) => {
                self.leaving.remove(&bytes.start);
                self.touch(bytes.start, bytes.end - bytes.start);
                self.leaving_bytes -= bytes.end - bytes.start;
                self.destages -= 1;
            }
        }
    }

    /// Answers a request that the device behind has served.
    fn answer(&mut self, request: &Request, sent_ns: u64) {
        self.touch(request.at, request.len);
        self.acknowledged.push(sent_ns + self.cached.hit_ns, request.tag);
    }

    /// Admits writes that waited for space, in order.
    fn admit(&mut self, now_ns: u64) {
        while let Some(&(request, sent_ns)) = self.waiting.front() {
            if !self.has_room(&request) {
                return;
            }
            self.waiting.pop_front();
            self.take_in(&request);
            self.acknowledged.push(sent_ns.max(now_ns) + self.cached.write_ns, request.tag);
        }
    }
}

impl Server for Controller {
    fn submit(&mut self, now_ns: u64, request: Request) -> Option<u64> {
        let begun_ns = self.requests.pass(now_ns, self.cached.gap_ns) - self.cached.gap_ns;
        match request.access {
            Access::Read => self.read(now_ns, request, begun_ns),
            Access::Flush => Some(begun_ns + self.cached.write_ns),
            Access::Write => {
                let sent_ns = self.sent_ns(now_ns, &request).max(begun_ns);
                self.write(now_ns, request, sent_ns)
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
        (self.requests, self.cable) = Default::default();
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
        assert!(full.per_s > 1.05 * bare.per_s, "in order of address: {} against {}", full.per_s, bare.per_s);
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

    /// The cache does not hold the bytes between two writes, so it cannot write them.
    #[test]
    fn writes_leave_together_where_they_touch() {
        let Model::Cached(params) = raid5(1 << 20) else { unreachable!("a cache") };
        let mut controller = Controller::new(params, &mut Rng::new(1));
        let mut write = |at| {
            controller.take_in(&Request { tag: 0, access: Access::Write, at, len: 4096 });
            controller.next_run().expect("dirty").0
        };
        assert_eq!(write(0), 0..4096);
        assert_eq!(write(8192), 0..4096);
        assert_eq!(write(4096), 0..12_288);
        assert_eq!(controller.dirty_bytes, 12_288);
    }

    /// Hits and misses share the cable, and a cap is reached.
    #[test]
    fn the_cable_and_the_processor_are_caps() {
        let Model::Cached(mut params) = raid5(64 << 20) else { unreachable!("a cache") };
        (params.per_kib_ns, params.gap_ns) = (2_000, 20_000);
        let model = Model::Cached(params);
        let held = |len| -> Next<'static> { Box::new(move |rng| (Access::Write, rng.below(16) * len, len)) };
        assert_near(load(&model, 64, 20_000, held(4096)).per_s, 50_000.0, 0.01, "requests/s");
        assert_near(load(&model, 64, 5_000, held(65_536)).per_s, 1e9 / 128e3, 0.02, "of 64 KiB");
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
