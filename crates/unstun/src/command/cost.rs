//! `unstun cost`, and the costs in `unstun snapshot tree --cost`.

use api::client::Client;
use api::error::Result;
use api::output::{Output, align_right, table};
use api::units::format_us;
use api::{Load, Snapshot, SnapshotCost, VmCost};
use jiff::{SignedDuration, Timestamp};

use crate::cli::CostArgs;

/// Number of snapshots that are shown, the last ones. `--json` has all.
const SNAPSHOTS_SHOWN: usize = 20;
/// Difference between the time of a snapshot and that of its cost.
const SAME_TAKE: SignedDuration = SignedDuration::from_secs(60);

pub(super) async fn run(args: &CostArgs, client: &Client, output: Output) -> Result<()> {
    let until = args.until.unwrap_or_else(Timestamp::now);
    output.result(&client.vm_cost(&args.vm, args.since, until).await?, show)
}

fn show(cost: &VmCost) -> String {
    let mut times = table(&titles(&[""]));
    for (name, load) in cost.times() {
        times.add_row(std::iter::once(name.to_owned()).chain(load.texts()));
    }
    align_right(&mut times, &[1, 2, 3, 4, 5, 6, 7]);
    let mut text = format!("{} from {:.0} to {:.0}\n\n{times}\n\n", cost.vm, cost.since, cost.until);
    text.push_str(&format!("{}\n", cost.summary()));
    let shown = &cost.snapshots[cost.snapshots.len().saturating_sub(SNAPSHOTS_SHOWN)..];
    if shown.is_empty() {
        return text;
    }
    let mut phases = table(&titles(&["snapshot", ""]));
    for snapshot in shown {
        let head = format!("{} ({})", snapshot.name, snapshot.fate());
        let observed = snapshot.observed();
        if observed.is_empty() {
            phases.add_row([head.clone(), "not recorded".to_owned()]);
        }
        for (at, (name, load)) in observed.into_iter().enumerate() {
            let first = if at == 0 { head.clone() } else { String::new() };
            phases.add_row([first, name.to_owned()].into_iter().chain(load.texts()));
        }
    }
    align_right(&mut phases, &[2, 3, 4, 5, 6, 7, 8]);
    text.push_str(&format!("\n{phases}\n"));
    match cost.snapshots.len() - shown.len() {
        0 => {}
        more => text.push_str(&format!("and {more} before them\n")),
    }
    text
}

fn titles(first: &[&'static str]) -> Vec<&'static str> {
    first.iter().copied().chain(Load::TITLES).collect()
}

/// Returns a line about a snapshot that is there.
pub(super) fn of_snapshot(costs: &VmCost, snapshot: &Snapshot) -> String {
    let is_same = |cost: &&SnapshotCost| {
        let taken = |taken: Timestamp| taken.duration_since(snapshot.created).abs() <= SAME_TAKE;
        cost.name == snapshot.name && cost.taken.is_some_and(taken)
    };
    let Some(cost) = costs.snapshots.iter().rev().find(is_same) else {
        return "cost: not recorded".to_owned();
    };
    let from_to = |before: Option<String>, with: Option<String>| match (before, with) {
        (Some(before), Some(with)) => format!("{before} -> {with}"),
        (None, Some(with)) => with,
        (_, None) => "-".to_owned(),
    };
    let both = |figure: &dyn Fn(&Load) -> Option<String>| from_to(figure(&cost.before), figure(&cost.with));
    format!(
        "cost: stun {}, guest/s {}, host/guest {}, 99 of 100 {}, slowest {}",
        format_us(cost.take_stun_us),
        both(&|load| load.rate_text(load.guest_s())),
        both(&Load::ratio_text),
        both(&Load::p99_text),
        both(&Load::longest_text),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{Latency, Store};

    fn load(observed_s: u64, reads_s: f64, p99_us: f64) -> Load {
        let latency = Some(Latency { mean_us: 210.0, median_us: 200.0, p99_us });
        let (host_reads_s, longest_us) = (reads_s * 1.5, 20_000);
        Load { observed_s, reads_s, host_reads_s, latency, longest_us, ..Load::default() }
    }

    fn cost() -> VmCost {
        let at = |text: &str| text.parse().unwrap();
        let snapshot = SnapshotCost {
            name: "nightly".to_owned(),
            taken: Some(at("2026-11-20T02:00:00Z")),
            commit_began: None,
            ended: None,
            end: None,
            take_stun_us: 210,
            commit_stun_us: 0,
            bytes_moved: 0,
            before: load(600, 1000.0, 900.0),
            with: load(7200, 980.0, 1200.0),
            committing: Load::default(),
            after: Load::default(),
        };
        VmCost {
            vm: "web".parse().unwrap(),
            store: Store::Redo,
            since: at("2026-11-01T00:00:00Z"),
            until: at("2026-12-01T00:00:00Z"),
            takes: 1,
            commits: 0,
            bytes_moved: 0,
            stun_us: 210,
            longest_stun_us: 210,
            without: load(600, 1000.0, 900.0),
            with: load(7200, 980.0, 1200.0),
            committing: Load::default(),
            snapshots: vec![snapshot],
        }
    }

    #[test]
    fn each_time_has_a_row_and_what_was_not_observed_has_none() {
        let text = show(&cost());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let row = |first: &str| lines.iter().find(|line| line.contains(&first)).unwrap();
        assert_eq!(
            row("without")[2..],
            ["10", "min", "0", "s", "1000", "1500", "1.50", "200", "us", "900", "us", "20.00", "ms"]
        );
        assert_eq!(row("committing")[1..], ["-", "-", "-", "-", "-", "-", "-"]);
        assert!(text.contains("nightly (stun 210 us)"), "{text}");
        assert!(!text.contains("after"), "{text}");
    }

    #[test]
    fn a_snapshot_of_the_tree_has_its_cost_in_one_line() {
        let mut snapshot = Snapshot {
            id: String::new(),
            name: "nightly".to_owned(),
            parent: None,
            created: "2026-11-20T02:00:00.2Z".parse().unwrap(),
            current: true,
            sealed: true,
            message: String::new(),
            created_by: None,
            quiesced: false,
            memory_bytes: None,
            delta_bytes: 0,
        };
        assert_eq!(
            of_snapshot(&cost(), &snapshot),
            "cost: stun 210 us, guest/s 1000 -> 980, host/guest 1.50 -> 1.50, 99 of 100 900 us -> 1.20 ms, slowest 20.00 ms -> 20.00 ms"
        );
        snapshot.created = "2026-11-21T02:00:00Z".parse().unwrap();
        assert_eq!(of_snapshot(&cost(), &snapshot), "cost: not recorded");
    }
}
