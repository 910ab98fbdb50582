//! Several devices as one: a mirror, stripes, or stripes with parity.
//!
//! A request becomes steps. Each step is a set of requests to members, and begins when the previous one is done. Only a
//! small write over parity has two steps: it reads the old content, then writes data and parity.
//!
//! A write over parity is an update of each row of strips that it touches. Two updates of the same bytes of a parity
//! strip cannot be under way at once, because the second one depends on the parity that the first one writes. Writes
//! that arrive meanwhile wait, and become one update together, as in the stripe cache of Linux `md`.

use std::ops::Range;

use super::model::Model;
use super::server::{Access, LowerDevice, NEVER_NS, Request, Server, Slab};
use crate::rng::Rng;

/// Members of one kind, and their arrangement.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub level: Level,
    pub members: u32,
    /// Consecutive bytes on one member; unused by a mirror.
    pub strip_bytes: u64,
    pub member: Box<Model>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// RAID-1. A read uses the disk whose last read it continues, or else the member with fewer requests, or else the
    /// one with the nearer head; a write uses all. Linux `md` chooses by the same three rules (`read_balance`).
    Mirror,
    /// RAID-0; over mirrors it is RAID-10.
    Stripe,
    /// RAID-5 with rotating parity. A small write uses the cheaper method: it reads the old data and parity, or the
    /// rest of the stripe.
    Parity,
}

impl Group {
    /// Returns the number of members with data in each row of strips.
    fn data_members(&self) -> u64 {
        u64::from(self.members) - u64::from(self.level == Level::Parity)
    }
}

/// One request to one member.
struct Part {
    member: usize,
    access: Access,
    at: u64,
    len: u64,
}

/// A set of steps that is under way.
struct Job {
    left: u32,
    /// Requests of the next step, when `left` is 0.
    then: Vec<Part>,
    /// The update of a row that it carries out, or the caller's tag.
    of: JobOf,
}

enum JobOf {
    Request(u32),
    Update(Update),
}

/// Writes to one row of strips with parity.
struct Update {
    strips: Vec<Strip>,
    /// Writes that it belongs to.
    writes: Vec<u32>,
}

impl Update {
    fn row(&self) -> u64 {
        self.strips[0].row
    }

    /// Returns the bytes of the parity strip that change.
    fn range(&self) -> Range<u64> {
        let first = self.strips.iter().map(|strip| strip.skip).min().unwrap_or(0);
        first..self.strips.iter().map(|strip| strip.skip + strip.len).max().unwrap_or(0)
    }

    fn meets(&self, row: u64, range: &Range<u64>) -> bool {
        let own = self.range();
        self.row() == row && own.start < range.end && range.start < own.end
    }
}

/// A write over parity that is under way.
struct Write {
    tag: u32,
    rows_left: u32,
}

pub(crate) struct Members {
    group: Group,
    members: Vec<LowerDevice>,
    /// Number of requests at each member.
    under_way: Vec<u32>,
    has_heads: bool,
    /// End of the last read of each disk. A device without a head gains nothing from a continued read.
    read_to: Vec<u64>,
    jobs: Slab<Job>,
    writes: Slab<Write>,
    /// Row and bytes of parity of the updates under way, each with its job.
    updated: Vec<(u64, Range<u64>, u32)>,
    /// Updates that wait for those.
    waiting: Vec<Update>,
    arrived: Vec<u32>,
}

impl Members {
    pub(super) fn new(group: Group, rng: &mut Rng) -> Members {
        let least = if group.level == Level::Parity { 3 } else { 1 };
        assert!(group.members >= least, "{:?} of {} members", group.level, group.members);
        assert!(group.strip_bytes > 0 || group.level == Level::Mirror, "strips of 0 bytes");
        let members: Vec<LowerDevice> =
            (0..group.members).map(|_| LowerDevice::new(group.member.server(rng))).collect();
        Members {
            has_heads: matches!(*group.member, Model::Disk(_)),
            group,
            under_way: vec![0; members.len()],
            read_to: vec![u64::MAX; members.len()],
            members,
            jobs: Slab::default(),
            writes: Slab::default(),
            updated: Vec::new(),
            waiting: Vec::new(),
            arrived: Vec::new(),
        }
    }

    /// Returns the requests of everything but a write over parity.
    fn parts(&self, request: &Request) -> Vec<Part> {
        let whole = |member| Part { member, access: request.access, at: request.at, len: request.len };
        let all = || (0..self.members.len()).map(whole).collect();
        match (self.group.level, request.access) {
            (_, Access::Flush) | (Level::Mirror, Access::Write) => all(),
            (Level::Mirror, Access::Read) => vec![whole(self.nearest(request.at))],
            _ => self.strips(request).map(|strip| self.part(request.access, &strip)).collect(),
        }
    }

    fn nearest(&self, at: u64) -> usize {
        let cost = |member: &usize| {
            (self.read_to[*member] != at, self.under_way[*member], self.members[*member].distance(at))
        };
        (0..self.members.len()).min_by_key(cost).expect("a member at least")
    }

    fn strips(&self, request: &Request) -> impl Iterator<Item = Strip> + use<> {
        let (strip_bytes, width) = (self.group.strip_bytes, self.group.data_members());
        let (mut at, end) = (request.at, request.at + request.len);
        std::iter::from_fn(move || {
            let len = (strip_bytes - at % strip_bytes).min(end - at);
            let number = at / strip_bytes;
            let strip = Strip { row: number / width, column: number % width, skip: at % strip_bytes, len };
            at += len;
            (len > 0).then_some(strip)
        })
    }

    /// Returns the member of a column in a row. With parity, the row's parity is one member further to the left in each
    /// row.
    fn member(&self, row: u64, column: u64) -> usize {
        let members = u64::from(self.group.members);
        match self.group.level {
            Level::Parity => ((self.parity_member(row) as u64 + 1 + column) % members) as usize,
            _ => column as usize,
        }
    }

    fn parity_member(&self, row: u64) -> usize {
        let members = u64::from(self.group.members);
        (members - 1 - row % members) as usize
    }

    fn part(&self, access: Access, strip: &Strip) -> Part {
        let at = strip.row * self.group.strip_bytes + strip.skip;
        Part { member: self.member(strip.row, strip.column), access, at, len: strip.len }
    }

    /// Returns the requests of the first step and of the second. The cheaper method reads fewer bytes.
    fn update_steps(&self, strips: &[Strip], range: &Range<u64>) -> (Vec<Part>, Vec<Part>) {
        let (row, len) = (strips[0].row, range.end - range.start);
        let at = row * self.group.strip_bytes + range.start;
        let parity = |access| Part { member: self.parity_member(row), access, at, len };
        let is_new = |column: &u64| strips.iter().any(|s| s.column == *column && s.len == len);
        let others: Vec<u64> = (0..self.group.data_members()).filter(|column| !is_new(column)).collect();
        let old: u64 = strips.iter().map(|strip| strip.len).sum();
        let mut reads: Vec<Part>;
        if others.len() as u64 * len <= old + len {
            let rest = others.iter().map(|&column| Strip { row, column, skip: range.start, len });
            reads = rest.map(|strip| self.part(Access::Read, &strip)).collect();
        } else {
            reads = strips.iter().map(|strip| self.part(Access::Read, strip)).collect();
            reads.push(parity(Access::Read));
        }
        let mut writes: Vec<Part> = strips.iter().map(|strip| self.part(Access::Write, strip)).collect();
        writes.push(parity(Access::Write));
        if reads.is_empty() { (writes, Vec::new()) } else { (reads, writes) }
    }

    /// Begins the updates of a write over parity, or lets them wait.
    fn write(&mut self, now_ns: u64, request: &Request) {
        let strips: Vec<Strip> = self.strips(request).collect();
        let rows: Vec<Vec<Strip>> = strips.chunk_by(|a, b| a.row == b.row).map(<[Strip]>::to_vec).collect();
        let write = self.writes.add(Write { tag: request.tag, rows_left: rows.len() as u32 });
        for strips in rows {
            let update = Update { strips, writes: vec![write] };
            let (row, range) = (update.row(), update.range());
            let waits = self.waiting.iter().any(|other| other.meets(row, &range));
            match waits || self.is_updated(row, &range) {
                true => self.waiting.push(update),
                false => self.update(now_ns, update),
            }
        }
    }

    fn is_updated(&self, row: u64, range: &Range<u64>) -> bool {
        let meets = |(other, bytes, _): &(u64, Range<u64>, u32)| {
            *other == row && bytes.start < range.end && range.start < bytes.end
        };
        self.updated.iter().any(meets)
    }

    fn update(&mut self, now_ns: u64, update: Update) {
        let (row, range) = (update.row(), update.range());
        let (first, then) = self.update_steps(&update.strips, &range);
        let job = self.start(now_ns, &first, then, JobOf::Update(update));
        self.updated.push((row, range, job));
    }

    /// Begins the updates that waited for an update of this row, those of the same bytes together.
    fn resume(&mut self, now_ns: u64, row: u64) {
        while let Some(first) = self
            .waiting
            .iter()
            .position(|update| update.row() == row && !self.is_updated(row, &update.range()))
        {
            let mut update = self.waiting.remove(first);
            while let Some(next) = self.waiting.iter().position(|other| {
                let both =
                    update.range().start.min(other.range().start)..update.range().end.max(other.range().end);
                other.meets(row, &update.range()) && !self.is_updated(row, &both)
            }) {
                let other = self.waiting.remove(next);
                update.strips.extend(other.strips);
                update.writes.extend(other.writes);
            }
            self.update(now_ns, update);
        }
    }

    fn start(&mut self, now_ns: u64, first: &[Part], then: Vec<Part>, of: JobOf) -> u32 {
        let job = self.jobs.add(Job { left: first.len() as u32, then, of });
        self.begin(now_ns, job, first);
        job
    }

    fn begin(&mut self, now_ns: u64, job: u32, parts: &[Part]) {
        for Part { member, access, at, len } in parts {
            let request = Request { tag: job, access: *access, at: *at, len: *len };
            if self.has_heads && *access == Access::Read {
                self.read_to[*member] = at + len;
            }
            self.members[*member].submit(now_ns, request);
            self.under_way[*member] += 1;
        }
    }

    fn arrive(&mut self, now_ns: u64, id: u32, done: &mut Vec<u32>) {
        let job = self.jobs.get(id);
        job.left -= 1;
        if job.left > 0 {
            return;
        }
        let then = std::mem::take(&mut job.then);
        if !then.is_empty() {
            job.left = then.len() as u32;
            return self.begin(now_ns, id, &then);
        }
        match self.jobs.remove(id).of {
            JobOf::Request(tag) => done.push(tag),
            JobOf::Update(update) => self.end_update(now_ns, id, &update, done),
        }
    }

    fn end_update(&mut self, now_ns: u64, job: u32, update: &Update, done: &mut Vec<u32>) {
        self.updated.retain(|(.., other)| *other != job);
        for &id in &update.writes {
            let write = self.writes.get(id);
            write.rows_left -= 1;
            if write.rows_left == 0 {
                done.push(self.writes.remove(id).tag);
            }
        }
        self.resume(now_ns, update.row());
    }
}

/// Part of a request within one strip.
#[derive(Clone)]
struct Strip {
    row: u64,
    column: u64,
    skip: u64,
    len: u64,
}

impl Server for Members {
    fn submit(&mut self, now_ns: u64, request: Request) -> Option<u64> {
        if request.len == 0 && request.access != Access::Flush {
            return Some(now_ns);
        }
        if self.group.level == Level::Parity && request.access == Access::Write {
            self.write(now_ns, &request);
        } else {
            let parts = self.parts(&request);
            self.start(now_ns, &parts, Vec::new(), JobOf::Request(request.tag));
        }
        None
    }

    fn next_ns(&self) -> u64 {
        self.members.iter().map(LowerDevice::next_ns).min().unwrap_or(NEVER_NS)
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<u32>) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for (member, under_way) in self.members.iter_mut().zip(&mut self.under_way) {
            if member.next_ns() <= now_ns {
                let before = arrived.len();
                member.advance(now_ns, &mut arrived);
                *under_way -= (arrived.len() - before) as u32;
            }
        }
        arrived.drain(..).for_each(|id| self.arrive(now_ns, id, done));
        self.arrived = arrived;
    }

    fn distance(&self, at: u64) -> u64 {
        self.members[0].distance(at)
    }

    fn reset(&mut self) {
        self.members.iter_mut().for_each(LowerDevice::reset);
        self.under_way.fill(0);
        self.read_to.fill(u64::MAX);
        (self.jobs, self.writes) = Default::default();
        self.updated.clear();
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::flash::Flash;
    use super::super::trial::*;
    use super::*;

    fn group(level: Level, members: u32) -> Model {
        let member = Box::new(Model::Disk(sas_10k()));
        Model::Group(Group { level, members, strip_bytes: 64 << 10, member })
    }

    const SPAN: u64 = 100 * GIB;

    #[test]
    fn a_mirror_reads_twice_as_fast_at_depth_and_writes_like_one_disk() {
        let rate =
            |model: &Model, depth, access| load(model, depth, 20_000, random(access, 4096, SPAN)).per_s;
        let (one, pair) = (Model::Disk(sas_10k()), group(Level::Mirror, 2));
        assert_near(
            rate(&pair, 16, Access::Read),
            2.0 * rate(&one, 8, Access::Read),
            0.08,
            "reads/s at depth",
        );
        let (alone, both) = (rate(&one, 1, Access::Write), rate(&pair, 1, Access::Write));
        assert!(both < alone && both > 0.75 * alone, "{both} writes/s, one disk {alone}");
        let nearer = rate(&pair, 1, Access::Read) / rate(&one, 1, Access::Read);
        assert!((1.02..1.3).contains(&nearer), "the nearer head gains x{nearer}");
    }

    #[test]
    fn a_mirror_of_flash_reads_from_both() {
        let flash = Flash {
            read_ns: 100_000,
            write_ns: 100_000,
            flush_ns: 0,
            read_per_kib_ns: 0,
            write_per_kib_ns: 0,
            lanes: 2,
            write_lanes: 0,
            gap_ns: 0,
            gap_per_kib_ns: 0,
        };
        let member = Box::new(Model::Flash(flash));
        let pair = Model::Group(Group { level: Level::Mirror, members: 2, strip_bytes: 0, member });
        let found = load(&pair, 16, 20_000, random(Access::Read, 4096, SPAN));
        assert_near(found.per_s, 40_000.0, 0.01, "reads/s of four lanes");
    }

    /// A write costs two accesses on each of two disks, for the old data and parity and for the new ones; the second
    /// access is a revolution later.
    #[test]
    fn a_small_write_over_parity_is_four_accesses() {
        let Model::Group(params) = group(Level::Parity, 5) else { unreachable!("a group") };
        let members = Members::new(params, &mut Rng::new(0));
        let write = |at, len| {
            let strips: Vec<Strip> =
                members.strips(&Request { tag: 0, access: Access::Write, at, len }).collect();
            let (first, then) = members.update_steps(&strips, &(0..len.min(64 << 10)));
            (first.len(), then.len())
        };
        assert_eq!(write(0, 4096), (2, 2));
        assert_eq!(write(256 << 10, 256 << 10), (5, 0), "a whole row needs no reads");
        assert_eq!(write(0, 192 << 10), (1, 4), "the rest of the row is less to read");
        let (pace, read) = (
            load(&group(Level::Parity, 5), 1, 5_000, random(Access::Write, 4096, SPAN)),
            load(&group(Level::Parity, 5), 1, 5_000, random(Access::Read, 4096, SPAN)),
        );
        let extra_ns = pace.mean_ns - read.mean_ns;
        assert!(
            (5.5e6..9e6).contains(&extra_ns),
            "a revolution and the slower of two disks: {extra_ns} ns more"
        );
    }

    #[test]
    fn strips_and_parity_meet_on_no_member() {
        let Model::Group(params) = group(Level::Parity, 4) else { unreachable!("a group") };
        let members = Members::new(params, &mut Rng::new(0));
        let mut parities = [0; 4];
        for row in 0..40 {
            let mut used = vec![members.parity_member(row)];
            parities[used[0]] += 1;
            used.extend((0..3).map(|column| members.member(row, column)));
            used.sort_unstable();
            assert_eq!(used, [0, 1, 2, 3], "row {row}");
        }
        assert_eq!(parities, [10; 4]);
    }

    /// The second update of a parity needs what the first one wrote; all that have waited are one update.
    #[test]
    fn updates_of_one_parity_follow_one_another() {
        let Model::Group(params) = group(Level::Parity, 5) else { unreachable!("a group") };
        let mut members = Members::new(params, &mut Rng::new(0));
        let write = |tag| Request { tag, access: Access::Write, at: u64::from(tag) * (64 << 10), len: 4096 };
        (0..4).for_each(|tag| assert_eq!(members.submit(0, write(tag)), None));
        let mut ends = Vec::new();
        while members.next_ns() != NEVER_NS {
            let (now_ns, mut done) = (members.next_ns(), Vec::new());
            members.advance(now_ns, &mut done);
            ends.extend(done.into_iter().map(|tag| (tag, now_ns)));
        }
        let [(0, first_ns), (1, second_ns), (2, third_ns), (3, fourth_ns)] = ends[..] else {
            panic!("{ends:?}")
        };
        assert!(second_ns > first_ns + 5_000_000, "{ends:?}");
        assert!(second_ns == third_ns && third_ns == fourth_ns, "{ends:?}");
    }

    /// A sequence stays on the disk that reads ahead of it.
    #[test]
    fn a_mirror_reads_a_sequence_from_one_disk() {
        let sequence = || -> Next<'static> {
            let mut at = 0;
            Box::new(move |_| {
                at += 65_536;
                (Access::Read, at - 65_536, 65_536)
            })
        };
        let alone = load(&Model::Disk(sas_10k()), 4, 3000, sequence()).per_s;
        let pair = load(&group(Level::Mirror, 2), 4, 3000, sequence()).per_s;
        assert_near(pair, alone, 0.02, "reads/s");
    }

    #[test]
    fn stripes_of_mirrors_share_the_load() {
        let pair = group(Level::Mirror, 2);
        let four = Model::Group(Group {
            level: Level::Stripe,
            members: 4,
            strip_bytes: 64 << 10,
            member: Box::new(pair.clone()),
        });
        let one = load(&pair, 8, 20_000, random(Access::Read, 4096, SPAN)).per_s;
        let all = load(&four, 32, 40_000, random(Access::Read, 4096, 4 * SPAN)).per_s;
        assert!((3.4..=4.4).contains(&(all / one)), "{all} reads/s of four pairs, {one} of one");
    }

    /// The baseline of seed 000: two workers, 70 % random in 1 GB each, reads 510/s and writes 250/s at about four
    /// each.
    #[test]
    fn the_10k_pair_is_near_the_published_baseline() {
        let worker = |access, base: u64| -> Next<'static> {
            let mut at = base;
            Box::new(move |rng: &mut Rng| {
                at = if rng.below(100) < 70 { base + rng.below(GIB / 4096) * 4096 } else { at + 4096 };
                (access, at, 4096)
            })
        };
        let workers = vec![(4, worker(Access::Read, 0)), (4, worker(Access::Write, 0))];
        let found = load_all(&group(Level::Mirror, 2), 50_000, workers);
        assert_near(found[0].per_s, 510.0, 0.25, "reads/s");
        assert_near(found[1].per_s, 250.0, 0.25, "writes/s");
    }
}
