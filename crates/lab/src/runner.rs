//! Carries out a protocol on a subject: load, takes and commits at their times, with measurements throughout.
//!
//! A failure is a result: an operation that fails, hangs or does not converge, a failed I/O, an interruption. The
//! record has what was sampled until then, and states how the run ended.

mod backup;
mod layers;
mod measure;
mod monitor;
mod pings;
mod protocol;
mod recorder;
mod steps;

use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;

use blk::Env;
use futures_util::future::{Either, select};
use monitor::Monitor;
pub use monitor::{FIRST_ROUND, Progress, RunObserver};
pub use protocol::{Action, Protocol, Step};
pub use recorder::{Recorder, read};
use steps::Steps;

use crate::probe::Meter;
use crate::run::{Clock, End, Record};
use crate::subject::Subject;
use crate::workload::{Driver, Workload};

/// Limit for closing the subject, microseconds: as long as that of a take. A subject that takes longer hangs.
const CLOSE_US: u64 = 900_000_000;

/// The description of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Describes the run; the run fills its lists.
    pub head: Record,
    pub workload: Workload,
    pub protocol: Protocol,
    /// File that the run is written to while it is under way; see `read`.
    pub path: Option<PathBuf>,
}

/// Runs the plan and closes the subject. The workload's seed is the record's.
pub async fn run(env: &Env, subject: Rc<dyn Subject>, plan: Plan, observer: RunObserver) -> Record {
    let Plan { head, workload, protocol, path } = plan;
    let (seed, clock) = (head.seed, head.clock);
    let recorder = match Recorder::new(head.clone(), protocol.heartbeat, path.as_deref()) {
        Ok(recorder) => recorder,
        Err(e) => {
            let place = path.map(|path| path.display().to_string()).unwrap_or_default();
            let end = End::Failed(format!("{place}: making the run's file: {e}"));
            return Record { end, ..head };
        }
    };
    let meter = Rc::new(Meter::new(env.now_ns()));
    let driver = match Driver::new(env, &subject.disks(), &workload, seed, meter.clone()) {
        Ok(driver) => driver,
        Err(e) => return recorder.end(0, End::Failed(e)),
    };
    if let Err(e) = protocol.check() {
        return recorder.end(0, End::Failed(e));
    }
    let mut monitor = Monitor::new(env, subject, driver, meter, recorder, observer, protocol.interval_us);
    if clock == Clock::Real {
        monitor.ping();
    }
    let mut ended = Ok(());
    let mut steps = Steps::new(&mut monitor);
    for step in &protocol.steps {
        ended = steps.carry_out(step).await;
        if ended.is_err() {
            break;
        }
    }
    if ended.is_ok() {
        ended = steps.set_load(false).await;
    }
    wind_up(monitor, ended.err().unwrap_or(End::Complete)).await
}

/// Stops what still runs, closes the subject, and ends the record. An interruption has no effect here.
async fn wind_up(mut monitor: Monitor, end: End) -> Record {
    monitor.finish();
    monitor.stop_pings();
    let at_us = monitor.now_us();
    monitor.driver.halt();
    let Monitor { env, subject, driver, mut recorder, .. } = monitor;
    // A stack cannot take its disks down while they are open, which they are until the driver's last I/O.
    drop(driver);
    let name = subject.name().to_string();
    let closed = env.spawn(async move { subject.close().await });
    let nap = env.sleep_us(CLOSE_US);
    match select(pin!(closed.join()), pin!(nap)).await {
        Either::Left((Ok(()), _)) => {}
        Either::Left((Err(e), _)) => recorder.note(format!("closing {name}: {e}")),
        Either::Right(_) => recorder.note(format!("closing {name}: it does not end")),
    }
    recorder.end(at_us, end)
}

#[cfg(test)]
mod tests;
