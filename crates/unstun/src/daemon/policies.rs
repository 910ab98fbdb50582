//! Policies: snapshots that the daemon takes, backs up and removes by itself.
//!
//! A take is on record with its policy and its scheduled time before it begins (`vm/labels.rs`), so that after a crash
//! none is taken twice, and each policy knows its own snapshots.

mod backup;
mod backup_process;
pub(super) mod registry;
mod removal;
mod run;
mod select;
mod stored;
#[cfg(test)]
mod tests;
mod verbs;
