//! Measures the storage under a folder, for about a minute at most, with a file of bounded size.

use std::path::Path;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env, Error, Result};

use super::facts::free_bytes;
use super::uring_executor::UringExecutor;
use crate::plain::Plain;
use crate::probe::Meter;
use crate::storage::measured::{Figure, Load, Measured, asked, loads};
use crate::workload::{Driver, Worker, Workload};

/// Larger than the caches of most drives, and written within seconds.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// The file is at most a quarter of what is free.
const FREE_DIVISOR: u64 = 4;
/// Enough for random requests of 1 MiB with 8 under way.
const FILE_BYTES_MIN: u64 = 64 << 20;
const FILL_BLOCK: u32 = 1 << 20;
const FILL_OUTSTANDING: u32 = 8;
/// Shares of the total time: the longest fill, and the flushes.
const FILL_SHARE: f64 = 0.25;
const FLUSH_SHARE: f64 = 0.05;
/// Interval of the checks whether a phase is over, microseconds.
const LOOK_US: u64 = 20_000;
/// Further flushes would not change the mean.
const FLUSHES_MAX: u32 = 1000;
/// Fewest requests of a figure: their count scatters by a third. On slow storage a figure takes longer.
const REQUESTS_MIN: u64 = 10;
const FILE: &str = "survey";

/// Called repeatedly with the name of the current measurement; an error ends the survey.
pub type SurveyObserver = Rc<dyn Fn(&str) -> Result<()>>;

/// Measures for about `seconds` in `folder`, which exists and which the caller removes afterwards. The loads are those
/// of a prediction for this share of reads.
///
/// Errors: `Refused` where less than 256 MiB are free, the observer's errors, and those of the storage.
pub fn survey(folder: &Path, seconds: f64, read_percent: u8, observer: SurveyObserver) -> Result<Measured> {
    let place = folder.display().to_string();
    let file_bytes = FILE_BYTES_MAX.min(free_bytes(folder)? / FREE_DIVISOR) / FILE_BYTES_MIN * FILE_BYTES_MIN;
    if file_bytes == 0 {
        let needed = FILE_BYTES_MIN * FREE_DIVISOR;
        return Err(Error::refused(
            place,
            format!(
                "less than {needed} bytes are free, which a measurement needs; free some, or name a model"
            ),
        ));
    }
    let executor = UringExecutor::new()?;
    let env = executor.env();
    executor.run(async move {
        let file = env.open_root(&place)?.create_new(FILE).await?;
        file.set_len(file_bytes).await?;
        let disk: Rc<dyn Volume> = Rc::new(Plain::new(file, file_bytes));
        Survey { env, place, disk, file_bytes, observer }.run(seconds, read_percent).await
    })
}

struct Survey {
    env: Env,
    place: String,
    disk: Rc<dyn Volume>,
    file_bytes: u64,
    observer: SurveyObserver,
}

impl Survey {
    async fn run(mut self, seconds: f64, read_percent: u8) -> Result<Measured> {
        self.file_bytes = self.fill(seconds * FILL_SHARE).await?;
        let loads = loads(read_percent);
        let share = (1.0 - FILL_SHARE - FLUSH_SHARE) / (loads.len() + 1) as f64;
        let mut figures = Vec::new();
        for load in loads {
            figures.push(self.measure(load, seconds * share).await?);
        }
        let again = self.measure(asked(read_percent), seconds * share).await?;
        (self.observer)("flushes")?;
        let flush_us = self.flushes(seconds * FLUSH_SHARE).await?;
        Ok(Measured { figures, again, flush_us, file_bytes: self.file_bytes })
    }

    fn driver(&self, worker: Worker, meter: &Rc<Meter>) -> Result<Driver> {
        let workload = Workload { workers: vec![worker], ..Workload::default() };
        Driver::new(&self.env, std::slice::from_ref(&self.disk), &workload, 1, meter.clone())
            .map_err(|cause| Error::invalid(&self.place, cause))
    }

    fn check(&self, driver: &Driver) -> Result<()> {
        driver.failure().map_or(Ok(()), |cause| Err(Error::new(blk::ErrorKind::Io, &self.place, cause)))
    }

    /// Writes front to back until the file is full or the time is over. Returns the length written, rounded down.
    async fn fill(&self, seconds: f64) -> Result<u64> {
        let meter = Rc::new(Meter::new(self.env.now_ns()));
        let worker = Worker {
            random_percent: 0,
            outstanding: FILL_OUTSTANDING,
            ..Worker::random("fill", FILL_BLOCK, 0)
        };
        let driver = self.driver(worker, &meter)?;
        let end_ns = self.env.now_ns() + (seconds * 1e9) as u64;
        driver.start();
        let written = || meter.totals().writes * u64::from(FILL_BLOCK);
        let in_time = || self.env.now_ns() < end_ns && written() < self.file_bytes;
        while driver.is_running() && (in_time() || written() < FILE_BYTES_MIN) {
            (self.observer)("a file is filled")?;
            self.env.sleep_us(LOOK_US).await;
        }
        driver.stop().await;
        self.check(&driver)?;
        Ok(written().min(self.file_bytes) / FILE_BYTES_MIN * FILE_BYTES_MIN)
    }

    async fn measure(&self, load: Load, seconds: f64) -> Result<Figure> {
        let meter = Rc::new(Meter::new(self.env.now_ns()));
        let Load { block_bytes, read_percent, outstanding } = load;
        let worker = Worker {
            working_set_bytes: self.file_bytes,
            ..Worker::aligned("load", block_bytes, read_percent, outstanding)
        };
        let driver = self.driver(worker, &meter)?;
        (self.observer)(&load.text())?;
        driver.start();
        self.env.sleep_us((seconds * 1e6) as u64).await;
        let completed = || meter.totals().reads + meter.totals().writes;
        while driver.is_running() && completed() < REQUESTS_MIN {
            (self.observer)(&load.text())?;
            self.env.sleep_us(LOOK_US).await;
        }
        let sample = meter.cut(self.env.now_ns());
        driver.stop().await;
        self.check(&driver)?;
        if sample.reads + sample.writes == 0 || sample.interval_us == 0 {
            let cause = format!("{}: no request has completed, so there is nothing to measure", load.text());
            return Err(Error::new(blk::ErrorKind::Io, &self.place, cause));
        }
        let count = (sample.reads + sample.writes) as f64;
        let took_us = sample.read_latency.mean_us * sample.reads as f64
            + sample.write_latency.mean_us * sample.writes as f64;
        Ok(Figure { load, iops: count * 1e6 / sample.interval_us as f64, latency_us: took_us / count })
    }

    /// Returns the mean time of a flush after a small write, us.
    async fn flushes(&self, seconds: f64) -> Result<f64> {
        let end_ns = self.env.now_ns() + (seconds * 1e9) as u64;
        let (mut count, mut took_ns) = (0, 0);
        while count == 0 || (self.env.now_ns() < end_ns && count < FLUSHES_MAX) {
            let block = Buf::zeroed(4096).freeze();
            self.disk
                .clone()
                .write(u64::from(count) * u64::from(FILL_BLOCK) % self.file_bytes, block)
                .await?;
            let began_ns = self.env.now_ns();
            self.disk.clone().flush().await?;
            took_ns += self.env.now_ns() - began_ns;
            count += 1;
        }
        Ok(took_ns as f64 / 1000.0 / f64::from(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_measured_and_made_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let measured = survey(folder.path(), 1.5, 40, Rc::new(|_| Ok(()))).unwrap();
        assert!(measured.figures.iter().all(|figure| figure.iops > 0.0 && figure.latency_us > 0.0));
        assert_eq!(measured.again.load, asked(40));
        assert!(measured.flush_us > 0.0 && measured.file_bytes >= FILE_BYTES_MIN);
        measured.model("here").unwrap();
    }

    #[test]
    fn the_observer_may_end_it() {
        let folder = tempfile::tempdir().unwrap();
        let over: SurveyObserver = Rc::new(|_| Err(Error::invalid("it", "interrupted")));
        assert_eq!(survey(folder.path(), 1.5, 40, over).unwrap_err().cause, "interrupted");
    }
}
