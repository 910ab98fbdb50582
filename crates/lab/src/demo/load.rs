//! Load of the demo: two threads, each with an NBD connection and a runtime of its own. Neither the screen nor the
//! other thread can thus lengthen what a thread measures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::client::runtime;
use api::error::{Error, Result};

use crate::demo::meter::Meter;
use crate::demo::nbd::{self, Connection, Request};
use crate::demo::region::Regions;
use crate::demo::stamp::{self, BLOCK_BYTES, Random};
use crate::demo::wire::Command;

pub const DEPTH: usize = 32;
const READ_PERCENT: u64 = 70;
/// Interval of flushes, like that of a guest's journal. A flush also makes the tables of a fresh delta durable.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of draws for a block without a write in flight. With 32 writes in flight among thousands of blocks,
/// the second draw nearly always finds one.
const DRAWS_MAX: usize = 64;

pub struct Load {
    pub meter: Arc<Meter>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the load. `seed` is also the first sequence number, so a later run must pass a greater one.
    pub fn start(uri: &str, regions: Regions, seed: u64) -> Result<Self> {
        let mut load = Self { meter: Arc::default(), stop: Arc::default(), threads: Vec::new() };
        let (target, stop) = (uri.to_owned(), Arc::clone(&load.stop));
        load.spawn("demo-load", move |meter| {
            runtime()?.block_on(random(&target, regions, seed, &stop, meter))
        })?;
        let (target, stop) = (uri.to_owned(), Arc::clone(&load.stop));
        load.spawn("demo-gap", move |meter| {
            runtime()?.block_on(depth_one(&target, regions, seed, &stop, meter))
        })?;
        Ok(load)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce(&Meter) -> Result<()> + Send + 'static) -> Result<()> {
        let meter = Arc::clone(&self.meter);
        let run = move || {
            if let Err(error) = body(&meter) {
                meter.fail(error);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        self.threads.push(thread.map_err(|e| Error::failed(format!("thread {name}: {e}")))?);
        Ok(())
    }

    /// Stops the load after the requests in flight are complete.
    pub fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| Error::failed("a load thread of the demo panicked"))?;
        }
        self.meter.failure().map_or(Ok(()), Err)
    }
}

impl Drop for Load {
    /// Stops the load without waiting: after Ctrl-C a hanging server must not keep the command alive.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Guest with random 4 KiB reads and writes at a constant depth, and a flush a second.
struct Guest<'a> {
    regions: Regions,
    meter: &'a Meter,
    random: Random,
    sequence: u64,
    /// For each block, the lowest sequence number that a read sent from now on must show.
    acknowledged: Vec<u64>,
    buffer: Vec<u8>,
}

async fn random(uri: &str, regions: Regions, seed: u64, stop: &AtomicBool, meter: &Meter) -> Result<()> {
    let mut connection = Connection::open(uri, DEPTH).await?;
    let mut random = Random(seed);
    let mut buffer = vec![0; BLOCK_BYTES];
    random.fill(&mut buffer);
    let acknowledged = vec![0; regions.load_blocks as usize];
    let mut guest = Guest { regions, meter, random, sequence: seed, acknowledged, buffer };
    let mut flushed = Instant::now();
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        while connection.has_room() && !stopping {
            if connection.has_flush && flushed.elapsed() >= FLUSH_INTERVAL {
                connection.flush(0);
                flushed = Instant::now();
            } else {
                guest.submit(&mut connection);
            }
        }
        if connection.is_idle() {
            return connection.close().await;
        }
        let request = connection.next().await?;
        guest.complete(&request)?;
    }
}

impl Guest<'_> {
    fn submit(&mut self, connection: &mut Connection) {
        let block = self.random.below(self.regions.load_blocks);
        if self.random.below(100) < READ_PERCENT {
            let expected = self.acknowledged[block as usize];
            return connection.read(block * BLOCK_BYTES as u64, BLOCK_BYTES as u32, expected);
        }
        let Some(block) = self.free_block(block, connection) else { return };
        self.sequence += 1;
        stamp::write(block, self.sequence, &mut self.buffer);
        connection.write(block * BLOCK_BYTES as u64, &self.buffer, self.sequence);
    }

    /// Returns a block without a write in flight. Two writes in flight to one block may complete in either order, and a
    /// read of it could not be judged.
    fn free_block(&mut self, first: u64, connection: &Connection) -> Option<u64> {
        let mut block = first;
        for _ in 0..DRAWS_MAX {
            let offset = block * BLOCK_BYTES as u64;
            if !connection.in_flight().any(|r| r.command == Command::Write && r.offset == offset) {
                return Some(block);
            }
            block = self.random.below(self.regions.load_blocks);
        }
        None
    }

    fn complete(&mut self, request: &Request) -> Result<()> {
        nbd::check(request)?;
        let block = request.offset / BLOCK_BYTES as u64;
        let latency = request.submitted.elapsed();
        let mut counts = self.meter.counts();
        match request.command {
            Command::Read => {
                counts.read(latency);
                let shown = stamp::lowest_sequence(block, &request.data);
                if shown.is_none_or(|sequence| sequence < request.tag) {
                    counts.wrong += 1;
                }
            }
            Command::Write => {
                counts.written(latency);
                self.acknowledged[block as usize] = request.tag;
            }
            Command::Flush | Command::Disconnect => {}
        }
        Ok(())
    }
}

/// Sends one write after the other. The longest time between two answers is what a guest would feel of a stun.
async fn depth_one(uri: &str, regions: Regions, seed: u64, stop: &AtomicBool, meter: &Meter) -> Result<()> {
    let mut connection = Connection::open(uri, 1).await?;
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut answered = Instant::now();
    let mut sequence = seed;
    while !stop.load(Ordering::Relaxed) {
        let block = regions.gap_first_block + sequence % regions.gap_blocks;
        sequence += 1;
        stamp::write(block, sequence, &mut buffer);
        connection.write(block * BLOCK_BYTES as u64, &buffer, sequence);
        connection.only().await?;
        meter.counts().record_gap(answered.elapsed());
        answered = Instant::now();
    }
    connection.close().await
}
