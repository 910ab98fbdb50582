//! The recorder: what each disk does in each second, on file in `.unstun/record` of the main datastore, and what snapshots
//! cost by it. `docs/formats/record.md` describes the files.
//!
//! It looks at the counters once a second. No request of a guest waits for a look, and no look for a file.

mod activity;
mod cost;
mod difference;
mod encoding;
mod forecast;
mod ledger;
mod lives;
mod series;
mod spans;
mod thread;
mod tier;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::error::{Error, Result};
use api::name::VmName;
use api::{CommitForecast, CommitPreview, Operation, Recorded, SnapshotCost, Store, VmCost};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tracing::warn;

use self::activity::{Activity, quantile_us};
use self::cost::Known;
use self::difference::Known as LastLook;
use self::series::AROUND_S;
use self::spans::{Span, Sum};
use self::thread::{Files, Looked, Thread};
use crate::daemon::{
    CoreHandle, Counters, DiskCounters, EventFeed, EventPosition, RecordedVm, Subject, VmCounters,
};

/// Name of the record's folder in the own folder of the main datastore.
const FOLDER: &str = "record";
/// Seconds of one latency for the alarms, and the number of those that are kept.
const RECENT_S: i64 = 5;
const RECENT_MAX: usize = 12;
/// Time after a snapshot's end at which its cost is final, in seconds: that of the load after it.
const FINAL_S: i64 = AROUND_S + 30;
/// VMs whose costs are brought up to date in one second.
const SETTLED_PER_LOOK: usize = 4;
/// Times by which a commit is expected: that of earlier commits, of the load at each hour, and of the present load.
const COMMITS_SPAN: SignedDuration = SignedDuration::from_hours(31 * 24);
const HOURS_SPAN: SignedDuration = SignedDuration::from_hours(7 * 24);
const PRESENT_SPAN: SignedDuration = SignedDuration::from_mins(10);
/// Maximum number of steps of an answer.
const STEPS_MAX: i64 = 10_000;
/// Number of steps of an answer that asks for no length.
const STEPS: i64 = 360;

/// The record of all VMs.
pub(crate) struct Recorder {
    core: Arc<CoreHandle>,
    /// None if nothing is recorded.
    thread: Option<Thread>,
    recent: Mutex<BTreeMap<String, Recent>>,
}

/// The last latencies of a VM.
#[derive(Default)]
struct Recent {
    /// The five seconds that are being filled.
    begin_s: i64,
    sum: Activity,
    /// Latency that 99 of 100 requests did not exceed; None without requests.
    p99_us: VecDeque<Option<f64>>,
}

/// What the looks before have found.
struct Looker {
    feed: Arc<EventFeed>,
    position: EventPosition,
    /// Counters by the name of a series.
    counters: BTreeMap<String, LastLook>,
    /// Series of each open VM.
    names: BTreeMap<VmName, String>,
    /// VMs with events whose costs are not on file, and the seconds of the first and the last of those.
    unsettled: BTreeMap<VmName, (i64, i64)>,
    /// Seconds that were left out, because the files were too slow.
    left_out: u64,
}

fn series_of_vm(id: u128) -> String {
    format!("vm-{id:032x}")
}

fn series_of_store(datastore: &str) -> String {
    format!("store-{datastore}")
}

impl Recorder {
    /// Creates the recorder. Nothing is recorded if `is_on` is false.
    pub(crate) fn start(core: &Arc<CoreHandle>, own_folder: &Path, is_on: bool) -> Arc<Recorder> {
        let thread = is_on.then(|| Thread::start(own_folder.join(FOLDER)));
        let thread = match thread.transpose() {
            Ok(thread) => thread,
            Err(e) => {
                warn!("{e}; nothing is recorded");
                None
            }
        };
        Arc::new(Recorder { core: core.clone(), thread, recent: Mutex::default() })
    }

    fn thread(&self) -> Result<&Thread> {
        self.thread.as_ref().ok_or_else(|| {
            Error::refused(
                "nothing is recorded: the daemon was started with --no-recorder, or its log says why",
            )
        })
    }

    fn recent(&self) -> MutexGuard<'_, BTreeMap<String, Recent>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the latencies that 99 of 100 requests of a VM did not exceed in each five seconds of the last minute, in
    /// microseconds, without those in which there were no requests.
    pub(crate) fn recent_p99_us(&self, vm: &str) -> Vec<f64> {
        self.recent()
            .get(vm)
            .map(|recent| recent.p99_us.iter().flatten().copied().collect())
            .unwrap_or_default()
    }

    /// Looks at the counters each second until `ends` changes.
    pub(crate) async fn keep(self: Arc<Recorder>, mut ends: watch::Receiver<bool>) {
        if self.thread.is_none() {
            return;
        }
        let Ok(feed) = self.core.ask(Subject::None, async |daemon| Ok(daemon.feed.clone())).await else {
            return;
        };
        let position = feed.end();
        let mut looker = Looker {
            feed,
            position,
            counters: BTreeMap::new(),
            names: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            left_out: 0,
        };
        loop {
            tokio::select! {
                () = tokio::time::sleep(until_next_look(Timestamp::now())) => {}
                _ = ends.changed() => break,
            }
            // The daemon may be ending.
            if let Ok(counters) =
                self.core.ask(Subject::None, async |daemon| Ok(daemon.counters().await)).await
            {
                self.look(&mut looker, &counters);
                self.settle(&mut looker).await;
            }
        }
        if let Ok(thread) = self.thread() {
            let _ = thread
                .ask(|files| {
                    files.close();
                    Ok(())
                })
                .await;
        }
    }

    fn look(&self, looker: &mut Looker, counters: &Counters) {
        let second = Timestamp::now().as_second();
        let looked = looker.differences(second, counters);
        self.add_recent(second, looker, &looked);
        let operations = looker.operations();
        let Ok(thread) = self.thread() else { return };
        let is_recorded = thread.send(move |files| {
            files.add(&looked);
            operations.iter().for_each(|(name, second)| files.keep_around(name, *second));
        });
        match is_recorded {
            false => looker.left_out += 1,
            true if looker.left_out > 0 => {
                warn!("{} s were not recorded: the files of the record were too slow", looker.left_out);
                looker.left_out = 0;
            }
            true => {}
        }
    }

    fn add_recent(&self, second: i64, looker: &Looker, looked: &Looked) {
        let mut all = self.recent();
        all.retain(|name, _| name.parse().is_ok_and(|name: VmName| looker.names.contains_key(&name)));
        let of_series: BTreeMap<&str, &Vec<_>> =
            looked.series.iter().map(|(name, disks)| (name.as_str(), disks)).collect();
        for (vm, series) in &looker.names {
            let disks = of_series.get(series.as_str()).copied();
            all.entry(vm.to_string()).or_default().add(second, disks.into_iter().flatten());
        }
    }

    /// Writes the costs of snapshots that have ended. A few VMs at a time: their states are copied.
    async fn settle(&self, looker: &mut Looker) {
        let now = Timestamp::now().as_second();
        let is_due = |first: i64| !(0..FINAL_S).contains(&(now - first));
        let due = looker.unsettled.iter().filter(|(_, (first, _))| is_due(*first));
        let due: Vec<(VmName, i64)> =
            due.map(|(vm, (_, last))| (vm.clone(), *last)).take(SETTLED_PER_LOOK).collect();
        for (vm, last) in due {
            looker.unsettled.remove(&vm);
            if !is_due(last) {
                looker.unsettled.insert(vm.clone(), (last, last));
            }
            if !self.write_ended(&vm, now).await {
                looker.unsettled.insert(vm, (now, last));
            }
        }
    }

    /// Has the costs of a VM written, without waiting for the files. Returns false if they are too slow to take more work.
    async fn write_ended(&self, vm: &VmName, now: i64) -> bool {
        // The VM may have been removed.
        let (Ok(known), Ok(thread)) = (self.known(vm).await, self.thread()) else { return true };
        let vm = vm.clone();
        let work = move |files: &mut Files| {
            let name = series_of_vm(known.id);
            let folder = files.folder_of(&name);
            let ended = ledger::read(&folder)?;
            let mut lives = lives::lives(&known.events, &known.snapshots);
            lives.retain(|life| {
                let is_final = life.ended.is_some_and(|at| now - at.as_second() >= FINAL_S);
                is_final && !ended.iter().any(|cost| cost::is_same(cost, life))
            });
            let costs =
                cost::of_lives(&lives, now, &mut |spans| sums(files, &name, known.store_series(), spans))?;
            ledger::append(&folder, &costs)
        };
        thread.send(move |files| {
            if let Err(e) = work(files) {
                warn!("the costs of snapshots of VM {vm} that have ended are not on file: {e}");
            }
        })
    }

    async fn known(&self, vm: &VmName) -> Result<RecordedVm> {
        let name = vm.clone();
        self.core.ask(Subject::None, async move |daemon| daemon.recorded_vm(&name).await).await
    }

    /// Returns what a VM did between two times, in steps. Without a length the steps are about 360.
    ///
    /// # Errors
    /// `Invalid` for times that make no steps, or too many of them.
    pub(crate) async fn recorded(
        &self,
        vm: &VmName,
        from: Timestamp,
        until: Timestamp,
        step_s: u64,
    ) -> Result<Recorded> {
        let (from, until) = (from.as_second(), until.as_second());
        let length = until - from;
        let step_s = match i64::try_from(step_s) {
            Ok(0) => round_step(length / STEPS),
            Ok(step_s) => step_s,
            Err(_) => i64::MAX,
        };
        if length < step_s || length / step_s > STEPS_MAX {
            let message = format!(
                "steps of {step_s} s between times {length} s apart, expected 1 to {STEPS_MAX} steps"
            );
            return Err(Error::invalid(message));
        }
        // Steps have round times. The last one may not have ended.
        let (from, until) =
            (from.div_euclid(step_s) * step_s, until.saturating_add(step_s - 1).div_euclid(step_s) * step_s);
        let known = self.known(vm).await?;
        let (store, name, of_store) = (known.store, series_of_vm(known.id), known.store_series());
        let steps = move |files: &mut Files| {
            let span = from..until;
            let of_vm = spans::steps(files.series(&name), &span, step_s)?;
            let of_store =
                of_store.map(|name| spans::steps(files.series(&name), &span, step_s)).transpose()?;
            Ok((of_vm, of_store))
        };
        let (of_vm, of_store) = self.thread()?.ask(steps).await?;
        let load = |(at, sum)| cost::load(sum, of_store.as_ref().and_then(|all| all.get(at)));
        Ok(Recorded {
            vm: vm.clone(),
            store,
            from: Timestamp::from_second(from).unwrap_or(Timestamp::UNIX_EPOCH),
            step_s: step_s.unsigned_abs(),
            steps: of_vm.iter().enumerate().map(load).collect(),
        })
    }

    /// Returns what the snapshots of a VM cost between two times.
    ///
    /// # Errors
    /// `Invalid` if the first time is not before the second.
    pub(crate) async fn cost(&self, vm: &VmName, since: Timestamp, until: Timestamp) -> Result<VmCost> {
        if since >= until {
            return Err(Error::invalid(format!("since {since} is not before until {until}")));
        }
        let known = self.known(vm).await?;
        let (vm, now) = (vm.clone(), Timestamp::now().as_second());
        let work = move |files: &mut Files| {
            let (name, of_store) = (series_of_vm(known.id), known.store_series());
            // The last second is included.
            let span = since.as_second()..until.as_second() + 1;
            let ended: Vec<SnapshotCost> = ledger::read(&files.folder_of(&name))?;
            let lives = lives::lives(&known.events, &known.snapshots);
            let known = Known { vm, store: known.store, lives, ended };
            let cost =
                cost::of_vm(known, &span, now, &mut |spans| sums(files, &name, of_store.clone(), spans))?;
            Ok(VmCost { since, until, ..cost })
        };
        self.thread()?.ask(work).await
    }
}

impl Recorder {
    /// Adds to a preview what the VM's record says of it. Without a record the preview stays as it is.
    pub(crate) async fn complete(&self, preview: &mut CommitPreview) {
        if preview.bytes_to_move > 0
            && let Ok(forecast) = self.forecast(&preview.vm, preview.bytes_to_move).await
        {
            preview.forecast = forecast;
        }
    }

    async fn forecast(&self, vm: &VmName, bytes: u64) -> Result<Option<CommitForecast>> {
        let now = Timestamp::now();
        let ago = |time| now.checked_sub(time).unwrap_or(Timestamp::UNIX_EPOCH);
        let cost = self.cost(vm, ago(COMMITS_SPAN), now).await?;
        let minutes = self.recorded(vm, ago(PRESENT_SPAN), now, 60).await?;
        let hours = self.recorded(vm, ago(HOURS_SPAN), now, 3600).await?;
        let hours = (hours.from, hours.steps.as_slice());
        Ok(forecast::forecast(bytes, &cost.snapshots, now, &minutes.steps, hours, &TimeZone::system()))
    }
}

impl RecordedVm {
    /// Returns the series of a native VM's store.
    fn store_series(&self) -> Option<String> {
        (self.store == Store::Native).then(|| series_of_store(&self.datastore))
    }
}

type OfBoth = (Vec<Sum>, Option<Vec<Sum>>);

fn sums(files: &mut Files, name: &str, of_store: Option<String>, spans: &[Span]) -> std::io::Result<OfBoth> {
    let of_vm = spans::sums(files.series(name), spans)?;
    let of_store = of_store.map(|name| spans::sums(files.series(&name), spans)).transpose()?;
    Ok((of_vm, of_store))
}

/// Returns the time until the middle of the next second: looks that come a little early or late are in seconds of their own.
fn until_next_look(now: Timestamp) -> Duration {
    let into_ms = now.as_millisecond().rem_euclid(1000).unsigned_abs();
    let wait_ms = if into_ms < 400 { 500 - into_ms } else { 1500 - into_ms };
    Duration::from_millis(wait_ms)
}

/// Returns a round number of seconds that is not less.
fn round_step(seconds: i64) -> i64 {
    const ROUND: [i64; 12] = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21_600, 86_400];
    ROUND.into_iter().find(|&round| round >= seconds).unwrap_or(seconds)
}

impl Looker {
    fn differences(&mut self, second: i64, counters: &Counters) -> Looked {
        let mut series = Vec::new();
        let (mut names, mut last) = (BTreeMap::new(), BTreeMap::new());
        let stores = counters.stores.iter().map(|(datastore, files)| {
            let disk = DiskCounters { files: Some(*files), ..DiskCounters::default() };
            (series_of_store(datastore), VmCounters { id: 0, disks: vec![disk], store: None })
        });
        for (name, vm) in stores.collect::<Vec<_>>() {
            let mut known = self.counters.remove(&name).unwrap_or_default();
            series.push((name.clone(), difference::since(&mut known, &vm)));
            last.insert(name, known);
        }
        for (vm, counters) in &counters.vms {
            let (name, mut known) = (series_of_vm(counters.id), LastLook::new());
            if let Some(before) = self.counters.remove(&name) {
                known = before;
            }
            series.push((name.clone(), difference::since(&mut known, counters)));
            last.insert(name.clone(), known);
            if let Ok(vm) = vm.parse::<VmName>() {
                if !self.names.contains_key(&vm) {
                    // Snapshots may have ended before the daemon's last end.
                    self.unsettled.entry(vm.clone()).or_insert((second, second));
                }
                names.insert(vm, name);
            }
        }
        (self.names, self.counters) = (names, last);
        Looked { second, series }
    }

    /// Returns the series and the seconds of new operations.
    fn operations(&mut self) -> Vec<(String, i64)> {
        let Some(new) = self.feed.after(self.position) else {
            // Some events are not known any more: they may have been of any VM.
            self.position = self.feed.end();
            let second = Timestamp::now().as_second();
            for vm in self.names.keys() {
                self.unsettled.entry(vm.clone()).or_insert((second, second)).1 = second;
            }
            return Vec::new();
        };
        self.position = new.last().map_or(self.position, |(position, _)| *position);
        let mut operations = Vec::new();
        for (_, event) in &new {
            if !is_operation(event.operation) {
                continue;
            }
            let second = event.time.as_second();
            self.unsettled.entry(event.vm.clone()).or_insert((second, second)).1 = second;
            operations.extend(self.names.get(&event.vm).map(|name| (name.clone(), second)));
        }
        operations
    }
}

fn is_operation(operation: Operation) -> bool {
    !matches!(operation, Operation::Home | Operation::SpaceExhausted | Operation::SpaceReturned)
}

impl Recent {
    fn add<'a>(&mut self, second: i64, disks: impl Iterator<Item = &'a (u32, Activity)>) {
        let begin_s = second - second.rem_euclid(RECENT_S);
        if begin_s != self.begin_s {
            self.p99_us.push_back(quantile_us(&self.sum.latencies(), 0.99));
            if self.p99_us.len() > RECENT_MAX {
                self.p99_us.pop_front();
            }
            (self.begin_s, self.sum) = (begin_s, Activity::default());
        }
        disks.for_each(|(_, activity)| self.sum.add(activity));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_in_the_middle_of_a_second() {
        let at = |ms: i64| {
            until_next_look(Timestamp::from_millisecond(1_800_000_000_000 + ms).unwrap()).as_millis()
        };
        assert_eq!([at(0), at(399), at(400), at(500), at(999)], [500, 101, 1100, 1000, 501]);
    }

    #[test]
    fn the_last_minute_is_kept_in_parts() {
        let mut recent = Recent::default();
        for second in 1000..1100 {
            let mut activity = Activity::default();
            activity.reads.latencies[5] = u32::from(second >= 1050);
            recent.add(second, [(0, activity)].iter());
        }
        assert_eq!(recent.p99_us.len(), RECENT_MAX);
        assert_eq!(recent.p99_us.iter().flatten().count(), 9);
    }
}
