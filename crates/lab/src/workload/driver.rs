use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::Signal;
use blk::volume::Volume;
use blk::{Buf, Env};
use sim::Rng;

use super::generator::{Generator, Io};
use super::pace::{NAP_NS, Pace};
use super::target::Target;
use super::{Worker, Workload};
use crate::probe::Meter;

/// Shortest time between the issue of a guest's request and the next: interrupt, completion and submission on one CPU
/// take some 10 us. It slows down only requests that the storage completes at once, such as holes in virtual time.
const GUEST_NS: u64 = 10_000;

/// Runs a workload on volumes and counts its I/Os in a meter.
///
/// The first failure, of an I/O or of its content, stops the load and is kept.
#[derive(Clone)]
pub struct Driver(Rc<Inner>);

struct Inner {
    env: Env,
    meter: Rc<Meter>,
    targets: Vec<Rc<Target>>,
    workers: Vec<Rc<Running>>,
    /// Active slots, each with at most one I/O under way.
    slots: Cell<u32>,
    /// Set when no further I/O may be issued.
    stopping: Cell<bool>,
    /// Signals that a slot has ended.
    left: Signal,
    failure: RefCell<Option<String>>,
}

struct Running {
    worker: Worker,
    target: Rc<Target>,
    generator: RefCell<Generator>,
    pace: Pace,
}

impl Driver {
    /// Creates a driver. An error describes how the workload does not fit the disks.
    pub fn new(
        env: &Env,
        disks: &[Rc<dyn Volume>],
        workload: &Workload,
        seed: u64,
        meter: Rc<Meter>,
    ) -> Result<Driver, String> {
        let sizes: Vec<u64> = disks.iter().map(|disk| disk.info().size_bytes).collect();
        workload.check(&sizes)?;
        let target =
            |(n, disk): (usize, &Rc<dyn Volume>)| Rc::new(Target::new(n as u32, disk.clone(), workload));
        let targets: Vec<Rc<Target>> = disks.iter().enumerate().map(target).collect();
        let mut rng = Rng::new(seed);
        let running = |worker: &Worker| {
            let target = targets[worker.disk as usize].clone();
            let generator = Generator::new(worker, target.size_bytes(), rng.fork());
            let (generator, pace) = (RefCell::new(generator), Pace::new(worker));
            Rc::new(Running { worker: worker.clone(), target, generator, pace })
        };
        let workers = workload.workers.iter().map(running).collect();
        Ok(Driver(Rc::new(Inner {
            env: env.clone(),
            meter,
            targets,
            workers,
            slots: Cell::new(0),
            stopping: Cell::new(false),
            left: Signal::default(),
            failure: RefCell::default(),
        })))
    }

    /// Returns the first failure.
    pub fn failure(&self) -> Option<String> {
        self.0.failure.borrow().clone()
    }

    pub fn is_running(&self) -> bool {
        self.0.slots.get() > 0 && !self.0.stopping.get()
    }

    /// Starts the workers, or resumes them where they were stopped. Does nothing while they run.
    pub fn start(&self) {
        if self.is_running() || self.0.failure.borrow().is_some() {
            return;
        }
        self.0.stopping.set(false);
        for worker in &self.0.workers {
            worker.pace.begin(self.0.env.now_ns());
            for _ in 0..worker.worker.outstanding {
                let (driver, worker) = (self.0.clone(), worker.clone());
                self.0.spawn(async move { driver.work(&worker).await });
            }
            if worker.worker.flush_interval_us > 0 {
                let (driver, worker) = (self.0.clone(), worker.clone());
                self.0.spawn(async move { driver.flush(&worker).await });
            }
        }
    }

    /// Stops the issue of I/Os, and resolves when those under way have completed.
    pub async fn stop(&self) {
        self.halt();
        while self.0.slots.get() > 0 {
            self.0.left.wait().await;
        }
    }

    /// Stops the issue of I/Os.
    pub fn halt(&self) {
        self.0.stopping.set(true);
    }

    /// Writes the workers' ranges, disk by disk and from front to back, with `outstanding` writes under way. Resolves
    /// at the end, at the first failure, or when stopped. The workers have been stopped.
    pub async fn prepare(&self, block_bytes: u32, outstanding: u32) {
        self.sweep_all(block_bytes, outstanding, false).await;
    }

    /// Reads the workers' ranges from front to back, and checks them where the workload verifies.
    #[cfg(test)]
    async fn read_back(&self, block_bytes: u32, outstanding: u32) {
        self.sweep_all(block_bytes, outstanding, true).await;
    }

    async fn sweep_all(&self, block_bytes: u32, outstanding: u32, read: bool) {
        self.0.stopping.set(self.0.failure.borrow().is_some());
        for number in 0..self.0.targets.len() {
            for range in self.ranges(number) {
                self.sweep(number, range, block_bytes, outstanding, read).await;
            }
        }
    }

    /// Returns the workers' ranges on one disk, merged and in order.
    fn ranges(&self, number: usize) -> Vec<Range<u64>> {
        let of_disk = self.0.workers.iter().filter(|w| w.worker.disk as usize == number);
        let mut ranges: Vec<Range<u64>> = of_disk.map(|w| w.worker.range(w.target.size_bytes())).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|later, earlier| {
            let joined = later.start <= earlier.end;
            if joined {
                earlier.end = earlier.end.max(later.end);
            }
            joined
        });
        ranges
    }

    async fn sweep(&self, number: usize, range: Range<u64>, len: u32, outstanding: u32, read: bool) {
        let cursor = Rc::new(Cell::new(range.start));
        for _ in 0..outstanding {
            let (driver, cursor) = (self.0.clone(), cursor.clone());
            let sweep = async move {
                driver.sweep_part(&driver.targets[number], &cursor, range.end, len, read).await;
            };
            self.0.spawn(sweep);
        }
        while self.0.slots.get() > 0 {
            self.0.left.wait().await;
        }
    }
}

impl Inner {
    fn spawn(self: &Rc<Inner>, slot: impl Future<Output = ()> + 'static) {
        self.slots.set(self.slots.get() + 1);
        let driver = self.clone();
        self.env.spawn_detached(Box::pin(async move {
            slot.await;
            driver.slots.set(driver.slots.get() - 1);
            driver.left.notify();
        }));
    }

    /// Issues I/Os of a worker one after the other, in one of its slots.
    async fn work(&self, worker: &Running) {
        let mut buffers = ReadBuffers::new(worker.worker.block_bytes);
        while !self.stopping.get() {
            let due_ns = worker.pace.next(&self.env, &self.stopping).await;
            if self.stopping.get() {
                return;
            }
            let io = worker.generator.borrow_mut().next_io();
            self.perform(&worker.target, io, due_ns, &mut buffers).await;
        }
    }

    /// Flushes a worker's disk at its interval. Flushes are not counted among the I/Os.
    async fn flush(&self, worker: &Running) {
        let mut due_ns = self.env.now_ns();
        loop {
            due_ns += worker.worker.flush_interval_us * 1000;
            while self.env.now_ns() < due_ns && !self.stopping.get() {
                self.env.sleep_until(due_ns.min(self.env.now_ns() + NAP_NS)).await;
            }
            if self.stopping.get() {
                return;
            }
            if let Err(e) = worker.target.flush().await {
                self.fail(e);
            }
        }
    }

    /// Keeps the first failure and stops the load.
    fn fail(&self, failure: String) {
        self.failure.borrow_mut().get_or_insert(failure);
        self.stopping.set(true);
    }

    async fn sweep_part(&self, target: &Target, cursor: &Cell<u64>, end: u64, len: u32, read: bool) {
        let mut buffers = ReadBuffers::new(len);
        while !self.stopping.get() && cursor.get() < end {
            let offset = cursor.get();
            let len = u64::from(len).min(end - offset) as u32;
            cursor.set(offset + u64::from(len));
            self.perform(target, Io { offset, len, read }, self.env.now_ns(), &mut buffers).await;
        }
    }

    async fn perform(&self, target: &Target, io: Io, due_ns: u64, buffers: &mut ReadBuffers) {
        self.meter.issued(self.env.now_ns());
        let result = match io.read {
            true => {
                let (buf, result) =
                    target.read(io.offset, buffers.take(io.len), &mut buffers.lower_bounds).await;
                buffers.buf = buf;
                result
            }
            false => target.write(io.offset, io.len).await,
        };
        let now_ns = self.env.now_ns();
        match result {
            Ok(()) => self.meter.done(io.read, io.len, due_ns, now_ns),
            Err(e) => {
                self.meter.failed(now_ns);
                self.fail(e);
            }
        }
        if now_ns == due_ns {
            self.env.sleep_until(now_ns + GUEST_NS).await;
        }
    }
}

/// Buffers for the reads of one slot.
struct ReadBuffers {
    buf: Buf,
    lower_bounds: Vec<u32>,
}

impl ReadBuffers {
    fn new(len: u32) -> ReadBuffers {
        ReadBuffers { buf: Buf::alloc(len as usize), lower_bounds: Vec::new() }
    }

    fn take(&mut self, len: u32) -> Buf {
        let buf = std::mem::replace(&mut self.buf, Buf::alloc(0));
        if buf.len() == len as usize { buf } else { Buf::alloc(len as usize) }
    }
}

#[cfg(test)]
mod tests {
    use blk::reactor::OpenMode;
    use sim::{Device, OpKind, Options, SimWorld};

    use super::*;
    use crate::plain::Plain;
    use crate::workload::Pacing;

    const MIB: u64 = 1 << 20;
    const SECOND_US: u64 = 1_000_000;

    fn worker(json: &str) -> Worker {
        let mut fields: serde_json::Value =
            serde_json::json!({"name": "w", "block_bytes": 4096, "read_percent": 50, "random_percent": 100});
        let more: serde_json::Value = serde_json::from_str(json).unwrap();
        for (key, value) in more.as_object().unwrap() {
            fields[key] = value.clone();
        }
        serde_json::from_value(fields).unwrap()
    }

    /// Runs `act` with a driver on one flat file of 16 MiB whose I/Os take 1 ms.
    fn with_driver<T: 'static, F: Future<Output = T> + 'static>(
        workers: Vec<Worker>,
        verify: bool,
        act: impl FnOnce(Env, Driver, Rc<Meter>, SimWorld) -> F + 'static,
    ) -> T {
        let world = SimWorld::new(5, Options { device: Device::steady(1_000_000), ..Options::default() });
        world.write_file("disk", &vec![0; 16 * MIB as usize]);
        let outside = world.clone();
        let out = world.run(|env| async move {
            let file = env.open_root("/").unwrap().open("disk", OpenMode::Write).await.unwrap();
            let meter = Rc::new(Meter::new(env.now_ns()));
            let disk: Rc<dyn Volume> = Rc::new(Plain::new(file, 16 * MIB));
            let workload = Workload { workers, verify, ..Workload::default() };
            let driver = Driver::new(&env, &[disk], &workload, 9, meter.clone()).unwrap();
            act(env, driver, meter, outside).await
        });
        out.expect("no power cut")
    }

    fn rate(workers: Vec<Worker>) -> u64 {
        with_driver(workers, false, |env, driver, meter, _| async move {
            driver.start();
            env.sleep_us(10 * SECOND_US).await;
            driver.stop().await;
            let totals = meter.totals();
            (totals.reads + totals.writes) / 10
        })
    }

    #[test]
    fn saturated_is_as_much_as_the_depth_allows() {
        assert_eq!(rate(vec![worker("{}")]), 1000);
        assert_eq!(rate(vec![worker(r#"{"outstanding": 8}"#), worker("{}")]), 9000);
    }

    #[test]
    fn a_delay_is_before_each_burst_while_ios_complete() {
        // One I/O starts every 31.25 ms, although each takes 1 ms.
        assert_eq!(rate(vec![worker(r#"{"delay_us": 31250}"#)]), 31);
        // Two slots: four I/Os are issued at once or when a slot is free 1 ms later; then 9 ms pass.
        let bursts = rate(vec![worker(r#"{"delay_us": 9000, "burst": 4, "outstanding": 2}"#)]);
        assert!((399..=400).contains(&bursts), "{bursts}");
    }

    #[test]
    fn open_pacing_does_not_wait_for_completions_and_counts_latency_from_when_it_was_due() {
        assert_eq!(
            rate(vec![worker(r#"{"pacing": {"open": {"interval_us": 200}}, "outstanding": 16}"#)]),
            5000
        );
        let late = worker(r#"{"pacing": {"open": {"interval_us": 500}}}"#);
        assert_eq!(late.pacing, Pacing::Open { interval_us: 500 });
        let sample = with_driver(vec![late], false, |env, driver, meter, _| async move {
            driver.start();
            env.sleep_us(SECOND_US).await;
            driver.stop().await;
            meter.cut(env.now_ns())
        });
        // The last of 1000 was due after 500 ms, and done after a second.
        assert!(
            (490_000.0..510_000.0).contains(&sample.read_latency.max_us.max(sample.write_latency.max_us))
        );
    }

    #[test]
    fn flushes_come_at_their_interval_while_the_load_runs() {
        let flushes = with_driver(
            vec![worker(r#"{"flush_interval_us": 250000}"#)],
            false,
            |env, driver, _, world| async move {
                for _ in 0..2 {
                    driver.start();
                    env.sleep_us(SECOND_US + 1).await;
                    driver.stop().await;
                    env.sleep_us(SECOND_US).await;
                }
                world.count(OpKind::Flush).completed
            },
        );
        assert_eq!(flushes, 8);
    }

    #[test]
    fn preparation_writes_each_part_once_and_what_is_read_back_is_right() {
        let workers = vec![
            worker(r#"{"first_byte": 1048576, "working_set_bytes": 2097152}"#),
            worker(r#"{"first_byte": 2097152, "working_set_bytes": 2097152, "outstanding": 4}"#),
        ];
        let (prepared, failure) = with_driver(workers, true, |env, driver, meter, _| async move {
            driver.prepare(65536, 16).await;
            let prepared = meter.totals();
            driver.start();
            env.sleep_us(SECOND_US).await;
            driver.stop().await;
            driver.read_back(65536, 4).await;
            (prepared, driver.failure())
        });
        assert_eq!(prepared, crate::probe::Totals { reads: 0, writes: 48 });
        assert_eq!(failure, None);
    }

    #[test]
    fn unknown_content_stops_the_load_and_is_reported() {
        let failure =
            with_driver(vec![worker(r#"{"outstanding": 4}"#)], true, |env, driver, _, world| async move {
                driver.prepare(65536, 16).await;
                world.write_at("disk", 0, &vec![7; 16 * MIB as usize]);
                driver.start();
                env.sleep_us(SECOND_US).await;
                assert!(!driver.is_running());
                driver.stop().await;
                driver.failure()
            });
        assert!(failure.unwrap().contains("bytes of no known write"));
    }

    #[test]
    fn a_load_that_was_stopped_goes_on() {
        let totals = with_driver(vec![worker("{}")], false, |env, driver, meter, _| async move {
            for _ in 0..3 {
                driver.start();
                driver.start();
                env.sleep_us(SECOND_US).await;
                driver.stop().await;
                env.sleep_us(SECOND_US).await;
            }
            meter.totals()
        });
        assert_eq!(totals.reads + totals.writes, 3000);
    }
}
