use sim::Rng;

use super::Worker;

/// One request of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Io {
    pub offset: u64,
    pub len: u32,
    pub read: bool,
}

/// One line of an access specification.
struct Line {
    /// Upper end of the draws of 0..100 that choose this line; the previous line's is the lower end.
    until: u64,
    len: u32,
    read_percent: u64,
    random_percent: u64,
    /// Number of places where a random I/O of this length may begin.
    places: u64,
}

/// Sequence of a worker's requests: a function of its seed, without allocation, tens of nanoseconds per request.
pub(super) struct Generator {
    rng: Rng,
    lines: Vec<Line>,
    first: u64,
    end: u64,
    step: u64,
    run: u32,
    left_of_run: u32,
    /// End of the previously issued I/O.
    next: u64,
}

impl Generator {
    /// Creates a generator. The worker has been checked against a disk of that size.
    pub(super) fn new(worker: &Worker, disk_bytes: u64, rng: Rng) -> Generator {
        let (range, step) = (worker.range(disk_bytes), worker.step_bytes());
        let first = range.start.next_multiple_of(step);
        let places = |len: u32| range.end.saturating_sub(first + u64::from(len)) / step + 1;
        let mut until = 0;
        let mut lines = Vec::with_capacity(worker.mix.len() + 1);
        for access in &worker.mix {
            until += u64::from(access.percent);
            lines.push(Line {
                until,
                len: access.block_bytes,
                read_percent: access.read_percent.into(),
                random_percent: access.random_percent.into(),
                places: places(access.block_bytes),
            });
        }
        lines.push(Line {
            until: 100,
            len: worker.block_bytes,
            read_percent: worker.read_percent.into(),
            random_percent: worker.random_percent.into(),
            places: places(worker.block_bytes),
        });
        let run = worker.sequential_run;
        Generator { rng, lines, first, end: range.end, step, run, left_of_run: 0, next: first }
    }

    pub(super) fn next_io(&mut self) -> Io {
        let line = match self.lines.len() {
            1 => 0,
            _ => {
                let draw = self.rng.below(100);
                self.lines.iter().position(|line| draw < line.until).expect("the last line is until 100")
            }
        };
        let Line { len, read_percent, random_percent, places, .. } = self.lines[line];
        let read = self.rng.below(100) < read_percent;
        let offset = match self.is_random(random_percent) {
            true => self.first + self.rng.below(places) * self.step,
            false => self.following(len),
        };
        self.next = offset + u64::from(len);
        Io { offset, len, read }
    }

    fn is_random(&mut self, percent: u64) -> bool {
        if self.left_of_run > 0 {
            self.left_of_run -= 1;
            return false;
        }
        self.left_of_run = self.run - 1;
        self.rng.below(100) < percent
    }

    fn following(&self, len: u32) -> u64 {
        let at = self.next.next_multiple_of(self.step);
        if at + u64::from(len) > self.end { self.first } else { at }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;
    use crate::workload::Access;

    const MIB: u64 = 1 << 20;

    fn worker(read_percent: u8, random_percent: u8) -> Worker {
        Worker { random_percent, ..Worker::random("w", 4096, read_percent) }
    }

    fn take(worker: &Worker, count: usize) -> Vec<Io> {
        let mut generator = Generator::new(worker, 64 * MIB, Rng::new(3));
        (0..count).map(|_| generator.next_io()).collect()
    }

    #[test]
    fn sequential_goes_on_from_the_last_io_whatever_that_was_and_begins_again_at_the_end() {
        let seen = take(&worker(100, 30), 20_000);
        let follows = seen.windows(2).filter(|w| w[1].offset == w[0].offset + 4096 || w[1].offset == 0);
        let share = follows.count() as f64 / 20_000.0;
        assert!((0.68..0.72).contains(&share), "{share}");
        let around = take(&Worker { first_byte: 60 * MIB, ..worker(100, 0) }, 1025);
        assert_eq!((around[1023].offset, around[1024].offset), (64 * MIB - 4096, 60 * MIB));
    }

    #[test]
    fn sectors_are_the_alignment_of_0_so_that_7_of_8_ios_straddle_pages() {
        let straddling = |align_bytes| {
            let seen = take(&Worker { align_bytes, ..worker(100, 100) }, 8000);
            seen.iter().filter(|io| !io.offset.is_multiple_of(4096)).count()
        };
        assert!((6900..7100).contains(&straddling(0)));
        assert_eq!(straddling(4096), 0);
    }

    #[test]
    fn reads_have_their_share_and_runs_their_length() {
        let seen = take(&Worker { sequential_run: 8, ..worker(70, 100) }, 16_000);
        let reads = seen.iter().filter(|io| io.read).count();
        assert!((11_000..11_400).contains(&reads), "{reads}");
        let runs = seen.chunks_exact(8).filter(|run| run[7].offset == run[0].offset + 7 * 4096);
        // A run at the very end of the disk starts over.
        assert!(runs.count() >= 1998);
    }

    #[test]
    fn a_mix_has_its_shares() {
        let large = Access { percent: 25, block_bytes: 65536, read_percent: 0, random_percent: 100 };
        let seen = take(&Worker { mix: vec![large], ..worker(100, 100) }, 10_000);
        let writes = seen.iter().filter(|io| !io.read && io.len == 65536).count();
        assert!((2400..2600).contains(&writes), "{writes}");
        assert!(seen.iter().all(|io| io.read || io.len == 65536));
    }

    proptest! {
        #[test]
        fn every_io_lies_in_the_working_set_on_its_alignment(
            (blocks, align, first, slack) in (1u32..64, 0u32..64, 0u64..5000, 0u64..9000),
            (random, run, seed) in (0u8..=100, 1u32..20, any::<u64>()),
        ) {
            let align_bytes = align * 512;
            // The range has space for one I/O after its begin is rounded up to the alignment.
            let len = u64::from(blocks + align) * 512 + slack * 512;
            let worker = Worker {
                block_bytes: blocks * 512, align_bytes, first_byte: first * 512, working_set_bytes: len,
                sequential_run: run, ..worker(50, random)
            };
            worker.check(64 * MIB).unwrap();
            let range = worker.range(64 * MIB);
            let mut generator = Generator::new(&worker, 64 * MIB, Rng::new(seed));
            for _ in 0..200 {
                let io = generator.next_io();
                prop_assert!(range.start <= io.offset && io.offset + u64::from(io.len) <= range.end);
                prop_assert!(io.offset.is_multiple_of(worker.step_bytes()));
            }
        }
    }
}
