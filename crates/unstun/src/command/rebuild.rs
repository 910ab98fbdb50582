//! `unstun datastore rebuild`: offline, without a daemon.

use std::path::Path;

use api::error::{Error, ErrorKind, Result};
use api::output::Output;
use api::units::format_bytes;
use api::{RebuiltState, StoreRebuilt};

use crate::daemon;

/// Most lost ranges that are listed for a state.
const RANGES_SHOWN: usize = 8;

/// Returns the exit code.
pub(super) fn run(source: &Path, into: &Path, output: Output) -> Result<u8> {
    let source = daemon::absolute_store(source, "no such file or folder")?;
    let into = std::path::absolute(into).map_err(|e| Error::invalid(format!("{}: {e}", into.display())))?;
    let rebuilt = daemon::rebuild_datastore(&source, &into)?;
    output.result(&rebuilt, describe)?;
    Ok(if rebuilt.complete { 0 } else { ErrorKind::Damaged.exit_code() })
}

fn describe(rebuilt: &StoreRebuilt) -> String {
    let mut lines: Vec<String> = rebuilt.states.iter().map(state).collect();
    lines.extend(rebuilt.notes.iter().map(|note| format!("note: {note}")));
    let (path, count) = (rebuilt.path.display(), rebuilt.states.len());
    let states = if count == 1 { "state" } else { "states" };
    lines.push(format!("{path}: {count} {states} of disks, {}", loss(rebuilt)));
    if rebuilt.catalogue && rebuilt.journal {
        let checkpoint = rebuilt.checkpoint;
        lines.push(format!(
            "changes after checkpoint {checkpoint} are in its journal, and show when it is served"
        ));
    }
    lines.push(format!("serve it with `unstun datastore add [NAME=]{path}`, and not beside the source"));
    lines.join("\n")
}

/// Returns what is lost, as the end of a sentence.
fn loss(rebuilt: &StoreRebuilt) -> String {
    let lost: u64 = rebuilt.states.iter().flat_map(|state| &state.lost).map(|range| range.length_bytes).sum();
    let names = if rebuilt.catalogue { "" } else { ", and so are the names of VMs and snapshots" };
    match (rebuilt.complete, lost) {
        (true, _) => "nothing is lost".to_owned(),
        (false, 0) if rebuilt.states.is_empty() => "everything is lost; see the notes".to_owned(),
        (false, 0) if !rebuilt.catalogue => {
            "the names of VMs and snapshots are lost, and none of the data of these states".to_owned()
        }
        (false, 0) => "none of the data of these states is lost; see the notes".to_owned(),
        (false, lost) => {
            let bytes = format_bytes(lost);
            format!("{bytes} of disks are lost, which read as an error until they are written{names}")
        }
    }
}

fn state(state: &RebuiltState) -> String {
    // A name from a damaged store may have any characters; those that control a terminal are shown as escapes.
    let name = state.name.as_deref().map(|name| name.escape_debug().to_string());
    let name = name.unwrap_or_else(|| format!("state {} without a name", state.node));
    let (size, recovered) = (format_bytes(state.size_bytes), format_bytes(state.recovered_bytes));
    let mut line = format!("{name}: {recovered} of {size} recovered");
    for range in state.lost.iter().take(RANGES_SHOWN) {
        line += &format!("\n  lost: {} bytes from {}", range.length_bytes, range.start_bytes);
    }
    if state.lost.len() > RANGES_SHOWN {
        line += &format!("\n  lost: {} more ranges", state.lost.len() - RANGES_SHOWN);
    }
    line
}

#[cfg(test)]
mod tests {
    use api::DiskRange;

    use super::*;

    fn rebuilt(catalogue: bool, lost: Vec<DiskRange>) -> StoreRebuilt {
        let state = RebuiltState {
            node: 3,
            name: Some("web\u{1b}[2J/disk0".to_owned()),
            size_bytes: 8 << 20,
            recovered_bytes: 4 << 20,
            lost,
        };
        StoreRebuilt {
            source: "/old".into(),
            path: "/new".into(),
            checkpoint: 7,
            catalogue,
            journal: true,
            complete: false,
            states: vec![state],
            notes: Vec::new(),
        }
    }

    fn summary(rebuilt: &StoreRebuilt) -> String {
        describe(rebuilt).lines().find(|line| line.starts_with("/new: ")).unwrap().to_owned()
    }

    #[test]
    fn the_summary_names_what_is_lost_and_nothing_else() {
        let range = DiskRange { start_bytes: 0, length_bytes: 4096 };
        assert_eq!(
            summary(&rebuilt(false, Vec::new())),
            "/new: 1 state of disks, the names of VMs and snapshots are lost, and none of the data of these states"
        );
        assert_eq!(
            summary(&rebuilt(true, Vec::new())),
            "/new: 1 state of disks, none of the data of these states is lost; see the notes"
        );
        assert_eq!(
            summary(&rebuilt(true, vec![range])),
            "/new: 1 state of disks, 4 KiB of disks are lost, which read as an error until they are written"
        );
        assert!(summary(&rebuilt(false, vec![range])).ends_with("and so are the names of VMs and snapshots"));
    }

    #[test]
    fn a_name_does_not_control_the_terminal() {
        assert!(!describe(&rebuilt(true, Vec::new())).contains('\u{1b}'));
    }
}
