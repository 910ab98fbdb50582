//! A rotating disk: its parameters, the position of its head, and its buffers.
//!
//! Addresses fill a track, then the tracks of a cylinder, then the next cylinder. Each track begins later than the
//! previous one by the time of the shortest seek, so that a transfer can continue over its end. Simplifications: no
//! zones, no defects; the disk writes through.

use super::seek::Seek;
use super::server::{Access, Request};

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
    /// Overhead of each command.
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
    /// A request that has waited longer is served first.
    pub patience_ns: u64,
}

/// A disk with values derived from its parameters, which every request needs.
pub(crate) struct Drive {
    pub disk: Disk,
    cylinders: u64,
    /// The shortest seek, by which tracks are skewed.
    skew_ns: u64,
}

impl Drive {
    pub(super) fn new(disk: Disk) -> Drive {
        let cylinders = (disk.capacity_bytes / disk.track_bytes / disk.tracks_per_cylinder).max(1);
        let skew_ns = disk.seek.time_ns(1.0 / cylinders as f64).max(disk.switch_ns);
        Drive { disk, cylinders, skew_ns }
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

    fn transfer_ns(&self, at: u64, len: u64) -> u64 {
        let crossings = (at % self.disk.track_bytes + len.max(1) - 1) / self.disk.track_bytes;
        self.media_ns(len) + crossings * self.skew_ns
    }

    fn cable_ns(&self, len: u64) -> u64 {
        self.disk.overhead_ns + self.disk.buffers.per_kib_ns * len.div_ceil(1024)
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

/// Head and buffers in operation.
pub(crate) struct Arm {
    track: u64,
    segments: Vec<Segment>,
    /// The segment that the head fills by reading ahead, and since when.
    reading_on: Option<(usize, u64)>,
    uses: u64,
}

impl Arm {
    pub(super) fn new() -> Arm {
        Arm { track: 0, segments: Vec::new(), reading_on: None, uses: 0 }
    }

    pub(super) fn distance(&self, drive: &Drive, at: u64) -> u64 {
        (self.track / drive.disk.tracks_per_cylinder).abs_diff(drive.cylinder(at))
    }

    /// Returns the end of a request that needs no head: a read of buffered data, or a flush.
    pub(super) fn without_head(&mut self, drive: &Drive, now_ns: u64, request: &Request) -> Option<u64> {
        match request.access {
            Access::Flush => Some(now_ns + drive.disk.overhead_ns),
            Access::Write => {
                self.forget(request);
                None
            }
            Access::Read => {
                self.settle(drive, now_ns);
                let end = request.at + request.len;
                let holds = |s: &Segment| s.start <= request.at && end <= s.end;
                let found = self.segments.iter().position(holds)?;
                self.use_on(drive, found, end);
                Some(now_ns + drive.cable_ns(request.len))
            }
        }
    }

    fn use_on(&mut self, drive: &Drive, segment: usize, end: u64) {
        self.uses += 1;
        let segment = &mut self.segments[segment];
        segment.used = self.uses;
        segment.start = segment.start.max(end.saturating_sub(drive.disk.buffers.bytes));
        segment.limit = segment.limit.max(end + drive.disk.buffers.bytes);
    }

    fn forget(&mut self, written: &Request) {
        let end = written.at + written.len;
        for segment in self.segments.iter_mut().filter(|s| s.start < end && written.at < s.end) {
            (segment.start, segment.end, segment.limit) = (0, 0, 0);
        }
    }

    /// Records how far the head has read ahead.
    fn settle(&mut self, drive: &Drive, now_ns: u64) {
        if let Some((at, since_ns)) = self.reading_on {
            let segment = &mut self.segments[at];
            let read = drive.media_bytes(now_ns.saturating_sub(since_ns));
            segment.end = (segment.end + read).min(segment.limit).max(segment.end);
            self.reading_on = Some((at, now_ns.max(since_ns)));
        }
    }

    /// Returns the duration of a request that begins now.
    pub(super) fn time_ns(&self, drive: &Drive, now_ns: u64, request: &Request) -> u64 {
        if let Some(ns) = self.on_the_way_ns(drive, now_ns, request) {
            return ns;
        }
        let settle_ns = if request.access == Access::Write { drive.disk.write_settle_ns } else { 0 };
        let moved_ns =
            drive.disk.overhead_ns + drive.move_ns(self.track, drive.track(request.at)) + settle_ns;
        let arrived = (now_ns + moved_ns) % drive.disk.revolution_ns;
        let turn_ns =
            (drive.angle_ns(request.at) + drive.disk.revolution_ns - arrived) % drive.disk.revolution_ns;
        moved_ns + turn_ns + drive.transfer_ns(request.at, request.len)
    }

    /// Returns the duration of a read towards which the head is reading ahead.
    fn on_the_way_ns(&self, drive: &Drive, now_ns: u64, request: &Request) -> Option<u64> {
        let (at, since_ns) = self.reading_on.filter(|_| request.access == Access::Read)?;
        let segment = &self.segments[at];
        let end = request.at + request.len;
        if request.at < segment.start || request.at > segment.end || end > segment.limit {
            return None;
        }
        let arrives_ns = since_ns + drive.media_ns(end.saturating_sub(segment.end));
        Some(drive.cable_ns(request.len).max(arrives_ns.saturating_sub(now_ns)))
    }

    /// Notes that the head has completed the request at `done_ns`.
    pub(super) fn move_to(&mut self, drive: &Drive, done_ns: u64, request: &Request, on_the_way: bool) {
        let end = request.at + request.len;
        self.track = drive.track(end.saturating_sub(1));
        if request.access == Access::Write {
            return self.reading_on = None;
        }
        match self.reading_on.filter(|_| on_the_way) {
            Some((segment, _)) => {
                self.settle(drive, done_ns);
                self.use_on(drive, segment, end);
            }
            None => self.begin_segment(drive, done_ns, request.at, end),
        }
    }

    fn begin_segment(&mut self, drive: &Drive, done_ns: u64, start: u64, end: u64) {
        let Buffers { count, bytes, .. } = drive.disk.buffers;
        self.reading_on = None;
        if count == 0 {
            return;
        }
        self.uses += 1;
        let segment =
            Segment { start: start.max(end.saturating_sub(bytes)), end, limit: end + bytes, used: self.uses };
        let at = if self.segments.len() < count as usize {
            self.segments.push(segment);
            self.segments.len() - 1
        } else {
            let oldest = (0..self.segments.len()).min_by_key(|&n| self.segments[n].used);
            let oldest = oldest.expect("one at least");
            self.segments[oldest] = segment;
            oldest
        };
        self.reading_on = Some((at, done_ns));
    }

    /// Ends reading ahead, because the head is needed elsewhere. The data that was read stays.
    pub(super) fn leave(&mut self, drive: &Drive, now_ns: u64) {
        self.settle(drive, now_ns);
        self.reading_on = None;
    }

    pub(super) fn is_on_the_way(&self, drive: &Drive, now_ns: u64, request: &Request) -> bool {
        self.on_the_way_ns(drive, now_ns, request).is_some()
    }
}
