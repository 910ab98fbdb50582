//! Results of the demo: figures for each phase and store, and beside them figures that others published.

use api::name::VmName;
use api::output::{fields, table};
use api::units::format_us;
use serde::Serialize;

use crate::figures::{Figures, phases};
use crate::run::{self, Quantity, Record};

/// Output of `demo --json`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// One run for each kind of store, the native one first.
    pub runs: Vec<StoreRun>,
    /// What the native store does by metadata alone, without load.
    pub operations: Vec<Operation>,
    /// Command that attaches QEMU to the disk of the first run.
    pub attach: String,
}

/// The run on one kind of store.
#[derive(Debug, Clone, Serialize)]
pub struct StoreRun {
    pub vm: VmName,
    pub store: String,
    pub phases: Vec<Phase>,
    /// Duration of the commit under load; null if the run ended before.
    pub commit_seconds: Option<f64>,
    /// Number of reads. Each is checked against the writes that it may show; a wrong one fails the run.
    pub reads_checked: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    pub name: &'static str,
    pub seconds: f64,
    pub reads_s: f64,
    pub writes_s: f64,
    /// I/Os per second as a fraction of those of the baseline; null in that phase.
    pub of_baseline: Option<f64>,
    /// Median over the seconds of the 99th percentile; null without I/O.
    pub p99_us: Option<f64>,
    /// Longest time without an answer while the guest waited for some.
    pub longest_gap_us: u64,
    /// Longest stun that the engine counted; null where nothing was taken or committed.
    pub stun_us: Option<u64>,
}

/// An operation on snapshots, from the request to the daemon's answer.
#[derive(Debug, Clone, Serialize)]
pub struct Operation {
    pub name: &'static str,
    pub us: u64,
}

impl StoreRun {
    pub fn of(record: &Record, vm: VmName) -> StoreRun {
        let all = phases(record);
        let baseline = all.iter().find(|f| f.phase == Some(run::Phase::Baseline)).and_then(Figures::iops);
        let is_loaded = |figures: &&Figures| figures.phase != Some(run::Phase::Prepare);
        let of_commit = |quantity| record.figure(run::Phase::Commit, quantity);
        let ended = of_commit(Quantity::Converged) == Some(1.0);
        StoreRun {
            vm,
            store: record.subject.clone(),
            phases: all.iter().filter(is_loaded).filter_map(|figures| Phase::of(figures, baseline)).collect(),
            commit_seconds: of_commit(Quantity::Seconds).filter(|_| ended),
            reads_checked: record.samples.iter().map(|sample| sample.reads).sum(),
        }
    }

    fn phase(&self, phase: run::Phase) -> Option<&Phase> {
        self.phases.iter().find(|found| found.name == crate::report::phase_name(phase))
    }

    fn share(&self, phase: run::Phase) -> String {
        let share = self.phase(phase).and_then(|phase| phase.of_baseline);
        share.map_or_else(|| "not measured".to_owned(), |share| format!("{:.0} %", share * 100.0))
    }

    fn stun(&self, phase: run::Phase) -> String {
        let Some(phase) = self.phase(phase) else { return "not measured".to_owned() };
        let gap = format_us(phase.longest_gap_us);
        let stun = phase.stun_us.map_or_else(|| "-".to_owned(), format_us);
        format!("{stun}; longest gap {gap}")
    }

    fn commit(&self) -> String {
        match self.commit_seconds {
            Some(seconds) => format!("ended in {seconds:.1} s"),
            None => "not ended".to_owned(),
        }
    }
}

impl Phase {
    fn of(figures: &Figures, baseline: Option<f64>) -> Option<Phase> {
        let (reads_s, writes_s) = figures.reads_per_s.zip(figures.writes_per_s)?;
        let of_baseline =
            baseline.filter(|&before| before > 0.0 && figures.phase != Some(run::Phase::Baseline));
        Some(Phase {
            name: figures.name(),
            seconds: figures.lasts_us as f64 / 1e6,
            reads_s,
            writes_s,
            of_baseline: of_baseline.map(|before| (reads_s + writes_s) / before),
            p99_us: figures.p99_us,
            longest_gap_us: figures.gap_us,
            stun_us: (figures.stuns > 0).then_some(figures.stun_longest_us),
        })
    }
}

impl Report {
    pub fn describe(&self) -> String {
        let tables: Vec<String> = self.runs.iter().map(phases_of).collect();
        let reads: u64 = self.runs.iter().map(|run| run.reads_checked).sum();
        let operation = |done: &Operation| format!("{} {}", done.name, format_us(done.us));
        let operations: Vec<String> = self.operations.iter().map(operation).collect();
        let closing = fields(&[
            ("native store, without load", operations.join(", ")),
            ("checked", format!("{reads} reads, each showed its own sectors' last writes")),
            ("attach QEMU", self.attach.clone()),
        ]);
        format!(
            "{}\n{}\nPublished figures are of other machines and loads; compare shares, not seconds.\n\n{closing}",
            tables.join("\n"),
            self.published_table()
        )
    }

    /// Returns the published figures beside those of each store.
    fn published_table(&self) -> String {
        type Cell = fn(&StoreRun) -> String;
        let lines: [(&str, &str, Cell); 5] = [
            ("IOPS with a snapshot", "VMFS 22 %, 12 %, 3.65 %; qcow2 44-97 %", |run| {
                run.share(run::Phase::Snapshot)
            }),
            ("IOPS while committing", "VMFS 5.5 %, 7 %, 2.6 %; QEMU 25-39 %", |run| {
                run.share(run::Phase::Commit)
            }),
            ("commit under load", "VMFS never ended; QEMU not after 60 s", StoreRun::commit),
            ("stun of the take", "12 idle disks: 1.96 s (5.5), 0.65 s (6.0)", |run| {
                run.stun(run::Phase::Snapshot)
            }),
            // VMware calls the commit of the same VM "delete"; the figures are the sum over its steps.
            ("stun of the commit", "12 idle disks: 12.65 s (5.5), 0.83 s (6.0)", |run| {
                run.stun(run::Phase::Commit)
            }),
        ];
        let mut header = vec!["", "published"];
        header.extend(self.runs.iter().map(|run| run.store.as_str()));
        let mut rows = table(&header);
        for (what, published, cell) in lines {
            let mut row = vec![what.to_owned(), published.to_owned()];
            row.extend(self.runs.iter().map(cell));
            rows.add_row(row);
        }
        rows.to_string()
    }
}

fn phases_of(run: &StoreRun) -> String {
    let mut rows =
        table(&[&run.store, "s", "reads/s", "writes/s", "of baseline", "p99", "longest gap", "stun"]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for phase in &run.phases {
        rows.add_row([
            phase.name.to_owned(),
            format!("{:.1}", phase.seconds),
            format!("{:.0}", phase.reads_s),
            format!("{:.0}", phase.writes_s),
            or_dash(phase.of_baseline.map(|share| format!("{:.0} %", share * 100.0))),
            or_dash(phase.p99_us.map(|us| format_us(us as u64))),
            format_us(phase.longest_gap_us),
            or_dash(phase.stun_us.map(format_us)),
        ]);
    }
    rows.to_string()
}

/// Returns the command that attaches QEMU to an export.
pub fn attach(nbd_uri: &str) -> String {
    format!("qemu-system-x86_64 -m 1G -drive 'file={nbd_uri},format=raw,if=virtio'")
}
