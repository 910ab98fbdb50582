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
    let source =
        source.canonicalize().map_err(|e| Error::at_path(source.display(), "no such file or folder", &e))?;
    let into = std::path::absolute(into).map_err(|e| Error::invalid(format!("{}: {e}", into.display())))?;
    let rebuilt = daemon::rebuild_datastore(&source, &into)?;
    output.result(&rebuilt, describe)?;
    Ok(if rebuilt.complete { 0 } else { ErrorKind::Damaged.exit_code() })
}

fn describe(rebuilt: &StoreRebuilt) -> String {
    let mut lines: Vec<String> = rebuilt.states.iter().map(state).collect();
    lines.extend(rebuilt.notes.iter().map(|note| format!("note: {note}")));
    let (path, count) = (rebuilt.path.display(), rebuilt.states.len());
    let end = match rebuilt.complete {
        true => "nothing is lost".to_owned(),
        false => {
            let lost = rebuilt.states.iter().flat_map(|state| &state.lost).map(|range| range.length_bytes);
            format!(
                "{} of disks are lost; they read as an error until they are written",
                format_bytes(lost.sum())
            )
        }
    };
    lines.push(format!("{path}: {count} states of disks, {end}"));
    lines.push(format!("serve it with `unstun datastore add [NAME=]{path}`, and not beside the source"));
    lines.join("\n")
}

fn state(state: &RebuiltState) -> String {
    let name = state.name.clone().unwrap_or_else(|| format!("state {} without a name", state.node));
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
