//! Backups of a repository: found by what a user names, and shown.

use api::error::{Error, Result};
use api::output::{align_right, fields, table};
use api::units::{format_bytes, format_us, parse_past};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use repo::State;

use crate::repository::{time, us};

/// What a user names: a number, a VM for its latest backup, or VM@TIME for the latest one until then.
pub(in crate::command) fn find(state: &State, which: &str) -> Result<u32> {
    if let Ok(number) = which.parse::<u32>() {
        state.backup(number)?;
        return Ok(number);
    }
    let (vm, until) = match which.split_once('@') {
        Some((vm, time)) => (vm, parse_time(time)?),
        None => (which, Timestamp::MAX),
    };
    let until_us = us(until);
    let of_vm = || state.backups.iter().filter(|(_, backup)| backup.origin.vm == vm);
    if let Some((number, _)) = of_vm()
        .filter(|(_, backup)| backup.taken_us <= until_us)
        .max_by_key(|(number, backup)| (backup.taken_us, **number))
    {
        return Ok(*number);
    }
    let found = match of_vm().map(|(_, backup)| backup.taken_us).min() {
        Some(first_us) => format!("VM {vm}: its first backup is of {}", time(first_us)),
        None => format!("VM {vm} has no backup; `unstun backup list` shows those that there are"),
    };
    Err(Error::not_found(found))
}

/// Reads a time: of UTC, of the local time zone, or so long ago.
fn parse_time(text: &str) -> Result<Timestamp> {
    if let Ok(time) = text.parse::<DateTime>()
        && let Ok(zoned) = time.to_zoned(TimeZone::system())
    {
        return Ok(zoned.timestamp());
    }
    parse_past(text).map_err(|e| Error::invalid(format!("{text}: {e}")))
}

/// Returns a backup as users see it.
pub(in crate::command) fn shown(number: u32, backup: &repo::Backup, removed: bool) -> api::Backup {
    let repo::Backup { origin, figures, .. } = backup;
    let disk = |disk: &repo::DiskBackup| api::BackupDisk {
        number: disk.number,
        size_bytes: disk.size_bytes,
        data_bytes: disk.data_bytes,
    };
    api::Backup {
        backup: number,
        vm: origin.vm.clone(),
        taken: time(backup.taken_us),
        snapshot: origin.snapshot.clone(),
        quiesced: origin.consistency == super::FILE_SYSTEM,
        host: origin.host.clone(),
        note: origin.note.clone(),
        removed,
        size_bytes: figures.size_bytes,
        data_bytes: backup.disks.iter().map(|disk| disk.data_bytes).sum(),
        read_bytes: figures.read_bytes,
        new_bytes: figures.new_bytes,
        stored_bytes: figures.stored_bytes,
        took_us: figures.took_us,
        disks: backup.disks.iter().map(disk).collect(),
    }
}

/// Returns all backups, the oldest first.
pub(super) fn all(state: &State, vm: Option<&str>, with_removed: bool) -> Vec<api::Backup> {
    let removed = state.forgotten.iter().filter(|_| with_removed);
    let removed = removed.map(|(number, one)| shown(*number, &one.backup, true));
    let kept = state.backups.iter().map(|(number, backup)| shown(*number, backup, false));
    let mut all: Vec<_> = kept.chain(removed).filter(|backup| vm.is_none_or(|vm| backup.vm == vm)).collect();
    all.sort_by_key(|backup| (backup.taken, backup.backup));
    all
}

pub(super) fn list(all: &[api::Backup]) -> String {
    if all.is_empty() {
        return "no backups".to_owned();
    }
    let mut rows = table(&["backup", "VM", "taken", "size", "data", "read", "new", "stored", "note"]);
    for backup in all {
        let removed = if backup.removed { " (removed)" } else { "" };
        rows.add_row([
            backup.backup.to_string(),
            backup.vm.clone(),
            format!("{:.0}{removed}", backup.taken),
            format_bytes(backup.size_bytes),
            format_bytes(backup.data_bytes),
            format_bytes(backup.read_bytes),
            format_bytes(backup.new_bytes),
            format_bytes(backup.stored_bytes),
            backup.note.clone(),
        ]);
    }
    align_right(&mut rows, &[0, 3, 4, 5, 6, 7]);
    format!("{rows}\n{}", totals(all))
}

/// Returns the reduction of the backups that are listed: their data beside what they added to the repository.
fn totals(all: &[api::Backup]) -> String {
    let sum = |of: fn(&api::Backup) -> u64| all.iter().map(of).sum::<u64>();
    let (data, stored) = (sum(|backup| backup.data_bytes), sum(|backup| backup.stored_bytes));
    let ratio = if stored == 0 { String::new() } else { format!(", {:.1}:1", data as f64 / stored as f64) };
    format!("{} of data in {}{ratio}", format_bytes(data), format_bytes(stored))
}

pub(super) fn describe(backup: &api::Backup) -> String {
    let (data, size) = (format_bytes(backup.data_bytes), format_bytes(backup.size_bytes));
    let (read, new) = (format_bytes(backup.read_bytes), format_bytes(backup.new_bytes));
    let stored = format_bytes(backup.stored_bytes);
    let consistency = if backup.quiesced { "file systems frozen" } else { "as after a power cut" };
    let disk = |disk: &api::BackupDisk| {
        format!(
            "disk{} ({} of {})",
            disk.number,
            format_bytes(disk.data_bytes),
            format_bytes(disk.size_bytes)
        )
    };
    let mut lines = vec![
        ("backup", format!("{} of VM {}, on {}", backup.backup, backup.vm, backup.host)),
        ("taken", format!("{:.0}, {consistency}, snapshot {}", backup.taken, backup.snapshot)),
        ("content", format!("{data} of data on disks of {size}")),
        ("cost", format!("{read} read, {new} new, {stored} stored, in {}", format_us(backup.took_us))),
        ("disks", backup.disks.iter().map(disk).collect::<Vec<_>>().join(", ")),
    ];
    if !backup.note.is_empty() {
        lines.push(("note", backup.note.clone()));
    }
    if backup.removed {
        lines.push(("removed", "yes; `unstun backup recall` takes it back".to_owned()));
    }
    fields(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let mut state = State::default();
        for (number, vm, taken) in [
            (2, "web", "2026-11-20T03:00:00Z"),
            (5, "web", "2026-11-21T03:00:00Z"),
            (6, "db", "2026-11-21T04:00:00Z"),
        ] {
            let taken: Timestamp = taken.parse().unwrap();
            let origin = repo::Origin { vm: vm.into(), ..repo::Origin::default() };
            let figures = repo::Figures::default();
            let taken_us = taken.as_microsecond() as u64;
            state
                .backups
                .insert(number, repo::Backup { epoch: 1, taken_us, origin, disks: Vec::new(), figures });
        }
        state
    }

    #[test]
    fn a_backup_is_found_by_number_vm_and_time() {
        let state = state();
        let found = |which| find(&state, which).unwrap();
        assert_eq!([found("5"), found("web"), found("db")], [5, 5, 6]);
        assert_eq!(found("web@2026-11-20T12:00:00Z"), 2);
        assert_eq!(found("web@2026-11-21T03:00:00Z"), 5);
        for (which, says) in [
            ("7", "no backup of this number"),
            ("mail", "VM mail has no backup"),
            ("web@2026-11-19T03:00:00Z", "its first backup is of 2026-11-20T03:00:00Z"),
            ("web@yesterday", "yesterday"),
        ] {
            let e = find(&state, which).unwrap_err();
            assert!(e.message.contains(says), "{which}: {e}");
        }
    }
}
