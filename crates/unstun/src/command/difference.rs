//! `unstun snapshot diff`.

mod verify;

use api::client::Client;
use api::error::{Error, Result};
use api::name::{SnapshotRef, VmName};
use api::output::Output;
use api::units::format_bytes;
use api::{Diff, Differences, DiskMode, DiskRange};

/// Prints the differences of all disks that are part of snapshots.
pub(super) async fn run(
    vm: &VmName,
    from: &SnapshotRef,
    to: Option<&SnapshotRef>,
    verify: bool,
    client: &Client,
    output: Output,
) -> Result<()> {
    let shown = client.vm_show(vm).await?;
    let mut found = Vec::new();
    for disk in shown.disks.iter().filter(|disk| disk.mode == DiskMode::Persistent) {
        let request = Diff { disk: disk.number, from: from.clone(), to: to.cloned(), start_bytes: 0 };
        let mut differences = all(vm, request, client).await?;
        if let (Some(to), true) = (to, verify) {
            let snapshots = client.snapshot_tree(vm).await?.snapshots;
            differences.verified = Some(verify::run(disk, (from, to), &snapshots, &differences)?);
        }
        found.push(differences);
    }
    output.result(&found, |found| found.iter().map(describe).collect())
}

/// Returns all differences. The daemon returns a part at a time; this function joins the parts, and the ranges that
/// they cut.
pub(super) async fn all(vm: &VmName, request: Diff, client: &Client) -> Result<Differences> {
    let mut found = client.snapshot_diff(vm, &request).await?;
    while found.end_bytes < found.size_bytes {
        let next =
            client.snapshot_diff(vm, &Diff { start_bytes: found.end_bytes, ..request.clone() }).await?;
        if next.end_bytes <= found.end_bytes {
            return Err(Error::failed(format!("disk{}: no progress at {}", found.disk, found.end_bytes)));
        }
        found.end_bytes = next.end_bytes;
        next.ranges.into_iter().for_each(|range| join(&mut found.ranges, range));
    }
    Ok(found)
}

fn join(ranges: &mut Vec<DiskRange>, next: DiskRange) {
    match ranges.last_mut() {
        Some(last) if last.start_bytes + last.length_bytes == next.start_bytes => {
            last.length_bytes += next.length_bytes;
        }
        _ => ranges.push(next),
    }
}

/// Returns a head, and a line `START LENGTH` in bytes for each range.
fn describe(found: &Differences) -> String {
    let bytes: u64 = found.ranges.iter().map(|range| range.length_bytes).sum();
    let (disk, count) = (found.disk, found.ranges.len());
    let lines = found.ranges.iter().map(|range| format!("{} {}\n", range.start_bytes, range.length_bytes));
    let plural = if count == 1 { "" } else { "s" };
    let verified = found.verified.map_or(String::new(), |verified| {
        let (same, equal) = (format_bytes(verified.same_bytes), format_bytes(verified.equal_bytes));
        format!("; verified: {same} outside of them read the same, and {equal} inside")
    });
    let bytes = format_bytes(bytes);
    format!("disk{disk}: {bytes} in {count} range{plural}{verified}\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_one_answer() {
        let range = |start_bytes, length_bytes| DiskRange { start_bytes, length_bytes };
        let mut ranges = vec![range(0, 512)];
        [range(512, 512), range(4096, 512)].into_iter().for_each(|next| join(&mut ranges, next));
        assert_eq!(ranges, [range(0, 1024), range(4096, 512)]);
        let (vm, from) = ("web".parse().unwrap(), "a".to_owned());
        let found = Differences {
            vm,
            disk: 1,
            from,
            to: None,
            size_bytes: 8192,
            start_bytes: 0,
            end_bytes: 8192,
            ranges,
            verified: None,
        };
        assert_eq!(describe(&found), "disk1: 1.50 KiB in 2 ranges\n0 1024\n4096 512\n");
        let one = Differences { ranges: vec![range(0, 512)], ..found };
        assert_eq!(describe(&one), "disk1: 512 B in 1 range\n0 512\n");
    }
}
