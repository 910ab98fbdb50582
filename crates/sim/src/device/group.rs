//! Several devices as one: a mirror, stripes, or stripes with parity.
//!
//! A request becomes steps. Each step is a set of requests to members, and begins when the previous one is done. Only a
//! small write over parity has two steps: it reads the old content, then writes data and parity.

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
    /// RAID-1. A read uses the member with fewer requests, or else the one with the nearer head; a write uses all.
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

/// A request of the caller that is under way.
struct Parent {
    tag: u32,
    left: u32,
    /// Requests of the next step, when `left` is 0.
    then: Vec<Part>,
}

pub(crate) struct Members {
    group: Group,
    members: Vec<LowerDevice>,
    /// Number of requests at each member.
    under_way: Vec<u32>,
    parents: Slab<Parent>,
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
            group,
            under_way: vec![0; members.len()],
            members,
            parents: Slab::default(),
            arrived: Vec::new(),
        }
    }

    /// Returns the requests of the first step and of the second.
    fn steps(&self, request: &Request) -> (Vec<Part>, Vec<Part>) {
        let whole = |member| Part { member, access: request.access, at: request.at, len: request.len };
        let all = || (0..self.members.len()).map(whole).collect();
        match (self.group.level, request.access) {
            (_, Access::Flush) => (all(), Vec::new()),
            (Level::Mirror, Access::Read) => (vec![whole(self.nearest(request.at))], Vec::new()),
            (Level::Mirror, Access::Write) => (all(), Vec::new()),
            (Level::Parity, Access::Write) => self.parity_write(request),
            _ => (self.strips(request).map(|strip| self.part(request.access, &strip)).collect(), Vec::new()),
        }
    }

    fn nearest(&self, at: u64) -> usize {
        let cost = |member: &usize| (self.under_way[*member], self.members[*member].distance(at));
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

    fn parity_write(&self, request: &Request) -> (Vec<Part>, Vec<Part>) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let strips: Vec<Strip> = self.strips(request).collect();
        for row in strips.chunk_by(|a, b| a.row == b.row) {
            self.parity_row(row, &mut reads, &mut writes);
        }
        if reads.is_empty() { (writes, Vec::new()) } else { (reads, writes) }
    }

    /// Adds all requests that one row of strips needs. `row` is not empty.
    fn parity_row(&self, row: &[Strip], reads: &mut Vec<Part>, writes: &mut Vec<Part>) {
        let (number, width) = (row[0].row, self.group.data_members());
        let first = row.iter().map(|strip| strip.skip).min().expect("not empty");
        let end = row.iter().map(|strip| strip.skip + strip.len).max().expect("not empty");
        let base = number * self.group.strip_bytes;
        let parity =
            |access| Part { member: self.parity_member(number), access, at: base + first, len: end - first };
        let is_whole = |strip: &Strip| strip.len == end - first;
        let others = (0..width).filter(|column| !row.iter().any(|s| s.column == *column && is_whole(s)));
        let others: Vec<u64> = others.collect();
        if others.len() <= row.len() {
            let rest =
                others.iter().map(|&column| Strip { row: number, column, skip: first, len: end - first });
            reads.extend(rest.map(|strip| self.part(Access::Read, &strip)));
        } else {
            reads.extend(row.iter().map(|strip| self.part(Access::Read, strip)));
            reads.push(parity(Access::Read));
        }
        writes.extend(row.iter().map(|strip| self.part(Access::Write, strip)));
        writes.push(parity(Access::Write));
    }

    fn begin(&mut self, now_ns: u64, parent: u32, parts: &[Part]) {
        for Part { member, access, at, len } in parts {
            let request = Request { tag: parent, access: *access, at: *at, len: *len };
            self.members[*member].submit(now_ns, request);
            self.under_way[*member] += 1;
        }
    }

    fn arrive(&mut self, now_ns: u64, id: u32, done: &mut Vec<u32>) {
        let parent = self.parents.get(id);
        parent.left -= 1;
        if parent.left > 0 {
            return;
        }
        let then = std::mem::take(&mut parent.then);
        if then.is_empty() {
            done.push(self.parents.remove(id).tag);
            return;
        }
        parent.left = then.len() as u32;
        self.begin(now_ns, id, &then);
    }
}

/// Part of a request within one strip.
struct Strip {
    row: u64,
    column: u64,
    skip: u64,
    len: u64,
}

impl Server for Members {
    fn submit(&mut self, now_ns: u64, request: Request) -> Option<u64> {
        let (first, then) = self.steps(&request);
        if first.is_empty() {
            return Some(now_ns);
        }
        let id = self.parents.add(Parent { tag: request.tag, left: first.len() as u32, then });
        self.begin(now_ns, id, &first);
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
        self.parents = Slab::default();
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
            let (first, then) = members.steps(&Request { tag: 0, access: Access::Write, at, len });
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
