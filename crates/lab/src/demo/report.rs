//! Results of the demo: figures for each phase, and beside them figures that others published.

use api::Job;
use api::output::{fields, table};
use api::units::{format_bytes, format_us};
use serde::Serialize;

use crate::demo::meter::Counts;

/// One row of the live table, and of `phases` in the JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    pub name: &'static str,
    pub seconds: f64,
    pub reads_s: f64,
    pub writes_s: f64,
    /// Operations per second as a fraction of those of the baseline phase; null in that phase and before it.
    pub of_baseline: Option<f64>,
    pub p99_us: u64,
    pub longest_gap_us: u64,
    /// Stun as the engine counted it; null where nothing was taken or committed.
    pub stun_us: Option<u64>,
}

impl Phase {
    pub fn new(name: &'static str, seconds: f64, counts: &Counts, baseline: Option<&Phase>) -> Self {
        let per_s = |count: u64| count as f64 / seconds.max(f64::EPSILON);
        let (reads_s, writes_s) = (per_s(counts.reads), per_s(counts.writes));
        let of_baseline =
            baseline.map(Phase::operations_s).filter(|&b| b > 0.0).map(|b| (reads_s + writes_s) / b);
        let (p99_us, longest_gap_us) = (counts.p99_us(), counts.longest_gap_us);
        Self { name, seconds, reads_s, writes_s, of_baseline, p99_us, longest_gap_us, stun_us: None }
    }

    fn operations_s(&self) -> f64 {
        self.reads_s + self.writes_s
    }
}

/// Output of `demo --json`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub nbd_uri: String,
    pub phases: Vec<Phase>,
    pub take_stun_us: u64,
    /// Longest stun of the commit; null if the daemon recorded none.
    pub commit_stun_us: Option<u64>,
    pub commit_seconds: f64,
    /// Bytes in the delta when its commit started.
    pub commit_bytes_held: u64,
    pub commit_bytes_moved: u64,
    /// Number of reads. Every read of the load is judged by the stamps that it shows.
    pub reads_checked: u64,
    pub reads_wrong: u64,
    /// Command that attaches QEMU to the disk.
    pub attach: String,
}

impl Report {
    pub fn describe(&self) -> String {
        let mut rows = table(&["", "published", "here"]);
        for (what, published, here) in self.rows() {
            rows.add_row([what, published, here.as_str()]);
        }
        let checked = match self.reads_wrong {
            0 => format!("{} reads, each showed its own block's last write", self.reads_checked),
            wrong => format!("{wrong} of {} reads were WRONG", self.reads_checked),
        };
        let closing = fields(&[("checked", checked), ("attach QEMU", self.attach.clone())]);
        format!(
            "{rows}\nPublished figures are of other machines and loads; compare shares, not seconds.\n\n{closing}"
        )
    }

    fn rows(&self) -> [(&'static str, &'static str, String); 5] {
        let share = |name| match self.phases.iter().find(|p| p.name == name).and_then(|p| p.of_baseline) {
            Some(share) => format!("{:.0} % of baseline", share * 100.0),
            None => "not measured".to_owned(),
        };
        let commit_gap = self.phases.iter().find(|p| p.name == COMMIT).map_or(0, |p| p.longest_gap_us);
        let take_gap = self.phases.iter().find(|p| p.name == SNAPSHOT).map_or(0, |p| p.longest_gap_us);
        let moved = format_bytes(self.commit_bytes_moved);
        let held = format_bytes(self.commit_bytes_held);
        [
            ("IOPS with a snapshot", "VMFS 22 %, 12 %, 3.65 %; qcow2 44-97 %", share(SNAPSHOT)),
            ("IOPS while committing", "VMFS 5.5 %, 7 %, 2.6 %; QEMU 25-39 %", share(COMMIT)),
            (
                "commit under load",
                "VMFS never ended; QEMU not after 60 s",
                format!("ended in {:.1} s, {moved} moved of {held} held", self.commit_seconds),
            ),
            (
                "stun of the take",
                "12 idle disks: 1.96 s (5.5), 0.65 s (6.0)",
                format!(
                    "{}; longest gap seen by the guest {}",
                    format_us(self.take_stun_us),
                    format_us(take_gap)
                ),
            ),
            (
                // VMware calls the commit of the same VM "delete"; the figures are the sum over its steps.
                "stun of the commit",
                "12 idle disks: 12.65 s (5.5), 0.83 s (6.0)",
                match self.commit_stun_us {
                    Some(us) => format!("{}; longest gap {}", format_us(us), format_us(commit_gap)),
                    None => format!("longest gap {}", format_us(commit_gap)),
                },
            ),
        ]
    }
}

pub const WARM_UP: &str = "warm-up";
pub const BASELINE: &str = "baseline";
pub const SNAPSHOT: &str = "snapshot";
pub const COMMIT: &str = "commit";
pub const AFTER: &str = "after";

/// Returns the duration of an ended commit in seconds.
pub fn commit_seconds(job: &Job) -> f64 {
    job.ended.map_or(0.0, |ended| ended.duration_since(job.started).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_compared_with_the_baseline() {
        let counts = |reads, writes| Counts { reads, writes, ..Counts::default() };
        let baseline = Phase::new(BASELINE, 2.0, &counts(14_000, 6_000), None);
        assert_eq!((baseline.reads_s, baseline.of_baseline), (7_000.0, None));
        let commit = Phase::new(COMMIT, 1.0, &counts(6_000, 2_000), Some(&baseline));
        assert_eq!(commit.of_baseline, Some(0.8));
        let idle = Phase::new(BASELINE, 2.0, &counts(0, 0), None);
        assert_eq!(Phase::new(COMMIT, 1.0, &counts(1, 1), Some(&idle)).of_baseline, None);
    }
}
