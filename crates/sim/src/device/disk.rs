//! A rotating disk: its parameters, the position of its head, and its buffers.
//!
//! Addresses fill a track, then the tracks of a cylinder, then the next cylinder. Each track begins later than the
//! previous one by the time of the shortest seek of a write, so that a transfer can continue over its end.
//! Simplifications: no zones, no defects; the disk writes through.

use super::seek::Seek;
use super::server::{Access, Request, Serial};

/// Parameters of a rotating disk. Times in ns.
#[derive(Debug, Clone, PartialEq)]
pub struct Disk {
    /// Capacity. Requests beyond the end wrap around to the start, since only relative positions matter.
    pub capacity_bytes: u64,
    pub revolution_ns: u64,
    pub track_bytes: u64,
    pub tracks_per_cylinder: u64,
    pub seek: Seek,
    /// Time to switch to another track of the same cylinder.
    pub switch_ns: u64,
    /// Additional settle time of a write, which needs a more exact position than a read.
    pub write_settle_ns: u64,
    /// Overhead of each command: before its seek, or from its arrival on if it needs no seek because its data is in a
    /// buffer or on the way there.
    pub overhead_ns: u64,
    pub buffers: Buffers,
    pub tags: Tags,
}

/// Memory that keeps data after a read. The head fills it while it has nothing else to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Number of buffers; 0 for a disk without.
    pub count: u32,
    pub bytes: u64,
    /// Transfer time on the cable.
    pub per_kib_ns: u64,
}

/// How the disk chooses its next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tags {
    /// Requests visible to the disk at once; 1 means in order.
    pub depth: u32,
    /// Number of these that it compares: the oldest, and others at random. A disk that always found the shortest access
    /// of all would gain more than real ones do.
    pub compared: u32,
    /// Age that outweighs the longest access: a request that is so much older than another one is served before it.
    pub patience_ns: u64,
}

/// A disk with values derived from its parameters, which every request needs.
pub(crate) struct Drive {
    pub disk: Disk,
    cylinders: u64,
    /// The shortest seek of a write, by which tracks are skewed.
    skew_ns: u64,
}

impl Drive {
    pub(super) fn new(disk: Disk) -> Drive {
        let cylinders = (disk.capacity_bytes / disk.track_bytes / disk.tracks_per_cylinder).max(1);
        let skew_ns = disk.seek.time_ns(1.0 / cylinders as f64).max(disk.switch_ns) + disk.write_settle_ns;
        Drive { disk, cylinders, skew_ns }
    }

    pub(super) fn skew_ns(&self) -> u64 {
        self.skew_ns
    }

    pub(crate) fn track(&self, at: u64) -> u64 {
        at % self.disk.capacity_bytes / self.disk.track_bytes
    }

    pub(crate) fn cylinder(&self, at: u64) -> u64 {
        self.track(at) / self.disk.tracks_per_cylinder
    }

    /// Returns the time within a revolution at which a byte passes the head.
    fn angle_ns(&self, at: u64) -> u64 {
        let on_track = self.media_ns(at % self.disk.capacity_bytes % self.disk.track_bytes);
        (on_track + self.track(at) * self.skew_ns) % self.disk.revolution_ns
    }

    /// Returns the time that so many bytes need to pass the head.
    fn media_ns(&self, bytes: u64) -> u64 {
        scaled(bytes, self.disk.revolution_ns, self.disk.track_bytes)
    }

    fn media_bytes(&self, ns: u64) -> u64 {
        scaled(ns, self.disk.track_bytes, self.disk.revolution_ns)
    }

    pub(crate) fn transfer_ns(&self, at: u64, len: u64) -> u64 {
        let crossings = (at % self.disk.track_bytes + len.max(1) - 1) / self.disk.track_bytes;
        self.media_ns(len) + crossings * self.skew_ns
    }

    /// Returns the time from the start of byte `from` to the start of byte `to` at the head, without a seek.
    fn passing_ns(&self, from: u64, to: u64) -> u64 {
        let crossings = to / self.disk.track_bytes - from / self.disk.track_bytes;
        self.media_ns(to - from) + crossings * self.skew_ns
    }

    /// Returns the time from the start of byte `from` to the end of the byte before `end`.
    fn until_ns(&self, from: u64, end: u64) -> u64 {
        let is_next_track = end.is_multiple_of(self.disk.track_bytes) && end > from;
        self.passing_ns(from, end) - if is_next_track { self.skew_ns } else { 0 }
    }

    /// Returns the first byte that has not passed the head `ns` after the start of byte `from`, at most `limit`.
    fn passed(&self, from: u64, ns: u64, limit: u64) -> u64 {
        let (mut at, mut left_ns) = (from, ns);
        loop {
            let rest = self.disk.track_bytes - at % self.disk.track_bytes;
            let rest_ns = self.media_ns(rest);
            if left_ns < rest_ns || at + rest >= limit {
                return (at + self.media_bytes(left_ns)).min(limit);
            }
            at += rest;
            if left_ns < rest_ns + self.skew_ns {
                return at;
            }
            left_ns -= rest_ns + self.skew_ns;
        }
    }

    fn cable_ns(&self, len: u64) -> u64 {
        self.disk.buffers.per_kib_ns * len.div_ceil(1024)
    }

    /// Returns the longest access: of a small block, over the whole stroke, that has just passed.
    pub(super) fn longest_ns(&self) -> u64 {
        let Disk { seek, revolution_ns, write_settle_ns, overhead_ns, .. } = &self.disk;
        overhead_ns + seek.time_ns(1.0) + write_settle_ns + revolution_ns
    }

    fn move_ns(&self, from_track: u64, to_track: u64) -> u64 {
        let cylinders =
            (from_track / self.disk.tracks_per_cylinder).abs_diff(to_track / self.disk.tracks_per_cylinder);
        match cylinders {
            0 if from_track == to_track => 0,
            0 => self.disk.switch_ns,
            n => self.disk.seek.time_ns(n as f64 / self.cylinders as f64),
        }
    }
}

/// Returns `a * b / c` for a product of any size. Nearly all products fit the fast division.
fn scaled(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => (u128::from(a) * u128::from(b) / u128::from(c)) as u64,
    }
}

struct Segment {
    start: u64,
    end: u64,
    /// End of the data with which the segment will be filled.
    limit: u64,
    used: u64,
}

/// The head reads ahead: it was at the start of byte `origin` at `since_ns`, and fills a segment from there on. When the
/// segment is full, the head stays on the track.
#[derive(Clone, Copy)]
struct ReadAhead {
    segment: usize,
    origin: u64,
    since_ns: u64,
}

/// Head and buffers in operation.
pub(crate) struct Arm {
    track: u64,
    segments: Vec<Segment>,
    reading_on: Option<ReadAhead>,
    cable: Serial,
    uses: u64,
}

impl Arm {
    pub(super) fn new() -> Arm {
        Arm { track: 0, segments: Vec::new(), reading_on: None, cable: Serial::default(), uses: 0 }
    }

    pub(super) fn distance(&self, drive: &Drive, at: u64) -> u64 {
        (self.track / drive.disk.tracks_per_cylinder).abs_diff(drive.cylinder(at))
    }

    /// Returns the end of a request that needs no head: a read of buffered data, or a flush. The disk has decoded it at
    /// `decoded_ns`.
    pub(super) fn without_head(
        &mut self,
        drive: &Drive,
        now_ns: u64,
        decoded_ns: u64,
        request: &Request,
    ) -> Option<u64> {
        match request.access {
            Access::Flush => Some(decoded_ns),
            Access::Write => {
                self.forget(request);
                None
            }
            Access::Read => {
                self.settle(drive, now_ns);
                let end = request.at + request.len;
                let holds = |s: &Segment| s.start <= request.at && end <= s.end;
                let found = self.segments.iter().position(holds)?;
                self.use_on(drive, now_ns, found, end);
                Some(self.cable.pass(decoded_ns.max(now_ns), drive.cable_ns(request.len)))
            }
        }
    }

    fn use_on(&mut self, drive: &Drive, now_ns: u64, segment: usize, end: u64) {
        self.uses += 1;
        self.extend(drive, now_ns, segment, end);
        let segment = &mut self.segments[segment];
        segment.used = self.uses;
        segment.start = segment.start.max(end.saturating_sub(drive.disk.buffers.bytes));
    }

    /// Lets the head fill a segment up to a buffer's length behind `end`.
    fn extend(&mut self, drive: &Drive, now_ns: u64, segment: usize, end: u64) {
        let limit = self.segments[segment].limit.max(end + drive.disk.buffers.bytes);
        if let Some(ahead) = self.reading_on.filter(|ahead| ahead.segment == segment) {
            self.reading_on = Some(self.resumed(drive, now_ns, ahead));
        }
        self.segments[segment].limit = limit;
    }

    /// Returns the reading ahead after its segment got room: a head that has waited at a full one first lets the track
    /// come by again.
    fn resumed(&self, drive: &Drive, now_ns: u64, ahead: ReadAhead) -> ReadAhead {
        let limit = self.segments[ahead.segment].limit;
        let full_ns = ahead.since_ns + drive.passing_ns(ahead.origin, limit);
        if now_ns <= full_ns {
            return ahead;
        }
        let turns = (now_ns - full_ns).div_ceil(drive.disk.revolution_ns);
        ReadAhead { origin: limit, since_ns: full_ns + turns * drive.disk.revolution_ns, ..ahead }
    }

    fn forget(&mut self, written: &Request) {
        let end = written.at + written.len;
        for (n, segment) in self.segments.iter_mut().enumerate() {
            if segment.start < end && written.at < segment.end {
                (segment.start, segment.end, segment.limit) = (0, 0, 0);
                self.reading_on.take_if(|ahead| ahead.segment == n);
            }
        }
    }

    /// Records how far the head has read ahead.
    pub(super) fn settle(&mut self, drive: &Drive, now_ns: u64) {
        let begun = self.reading_on.filter(|ahead| ahead.since_ns <= now_ns);
        if let Some(ReadAhead { segment, origin, since_ns }) = begun {
            let segment = &mut self.segments[segment];
            let passed = drive.passed(origin, now_ns - since_ns, segment.limit);
            segment.end = segment.end.max(passed);
        }
    }

    /// Returns the duration of a request that begins now; the disk has decoded it at `decoded_ns`. `settle` must have
    /// been called for this time.
    pub(super) fn time_ns(&self, drive: &Drive, now_ns: u64, decoded_ns: u64, request: &Request) -> u64 {
        if let Some(ns) = self.on_the_way_ns(drive, now_ns, decoded_ns, request) {
            return ns;
        }
        let to_track = drive.track(request.at);
        let settle_ns = if request.access == Access::Write { drive.disk.write_settle_ns } else { 0 };
        let moved_ns = drive.disk.overhead_ns + drive.move_ns(self.track, to_track) + settle_ns;
        let arrived = (now_ns + moved_ns) % drive.disk.revolution_ns;
        let turn_ns =
            (drive.angle_ns(request.at) + drive.disk.revolution_ns - arrived) % drive.disk.revolution_ns;
        moved_ns + turn_ns + drive.transfer_ns(request.at, request.len)
    }

    /// Returns the duration of a read towards which the head is reading ahead.
    pub(super) fn on_the_way_ns(
        &self,
        drive: &Drive,
        now_ns: u64,
        decoded_ns: u64,
        request: &Request,
    ) -> Option<u64> {
        let ahead = self.reading_on.filter(|_| request.access == Access::Read)?;
        let segment = &self.segments[ahead.segment];
        let end = request.at + request.len;
        if !(segment.start..=segment.limit).contains(&request.at) {
            return None;
        }
        let from = if end > segment.limit { self.resumed(drive, now_ns, ahead) } else { ahead };
        let arrives_ns = match end <= segment.end {
            true => now_ns,
            false => from.since_ns + drive.until_ns(from.origin, end),
        };
        let sent_ns = decoded_ns.max(now_ns) + drive.cable_ns(request.len);
        Some(arrives_ns.max(sent_ns) - now_ns)
    }

    /// Returns whether the request begins on the track of the head or the next one.
    pub(super) fn is_near(&self, drive: &Drive, request: &Request) -> bool {
        (self.track..=self.track + 1).contains(&drive.track(request.at))
    }

    /// Begins a request. Returns its end.
    pub(super) fn begin(&mut self, drive: &Drive, now_ns: u64, decoded_ns: u64, request: &Request) -> u64 {
        let done_ns = now_ns + self.time_ns(drive, now_ns, decoded_ns, request);
        let end = request.at + request.len;
        let on_the_way = self.on_the_way_ns(drive, now_ns, decoded_ns, request).is_some();
        match self.reading_on.filter(|_| on_the_way) {
            Some(ReadAhead { segment, .. }) => {
                self.use_on(drive, now_ns, segment, end);
            }
            None => {
                self.reading_on = None;
                if request.access == Access::Read {
                    self.begin_segment(drive, done_ns, request.at, end);
                }
            }
        }
        self.track = drive.track(end.saturating_sub(1));
        done_ns
    }

    fn begin_segment(&mut self, drive: &Drive, done_ns: u64, start: u64, end: u64) {
        let Buffers { count, bytes, .. } = drive.disk.buffers;
        if count == 0 {
            return;
        }
        self.uses += 1;
        // Empty until the head has read the request itself.
        let start = start.max(end.saturating_sub(bytes));
        let segment = Segment { start, end: start, limit: end + bytes, used: self.uses };
        let at = if self.segments.len() < count as usize {
            self.segments.push(segment);
            self.segments.len() - 1
        } else {
            let oldest = (0..self.segments.len()).min_by_key(|&n| self.segments[n].used);
            let oldest = oldest.expect("one at least");
            self.segments[oldest] = segment;
            oldest
        };
        self.reading_on = Some(ReadAhead { segment: at, origin: end, since_ns: done_ns });
    }
}
