//! JSON of the commands of repositories.

use api::*;

use super::Actual;

/// Adds what the commands of repositories print.
pub(super) fn add(actual: &mut Actual) {
    let (text, time) = (String::new, jiff::Timestamp::UNIX_EPOCH);
    let key = RepositoryKey { id: text(), passphrase: false, label: text(), created: time, in_use: true };
    actual.add("RepositoryKey", &key);
    let shown = RepositoryShown {
        repo: text(),
        id: text(),
        chunk_bytes: 65_536,
        created: time,
        backups: 1,
        removed: 0,
        keys: vec![key],
    };
    actual.add("RepositoryShown", &shown);
    let disk = BackupDisk { number: 0, size_bytes: 512, data_bytes: 512 };
    actual.add("BackupDisk", &disk);
    let backup = Backup {
        backup: 2,
        vm: text(),
        taken: time,
        snapshot: text(),
        quiesced: false,
        host: text(),
        note: text(),
        removed: false,
        size_bytes: 512,
        data_bytes: 512,
        read_bytes: 512,
        new_bytes: 512,
        stored_bytes: 512,
        took_us: 1,
        disks: vec![disk],
    };
    actual.add("Backup", &backup);
    let (backups, findings) = (vec![2], Vec::new());
    actual.add("BackupBooted", &BackupBooted { backup: 2, vm: text(), took_us: 1 });
    actual.add("BackupsVerified", &BackupsVerified { backups, chunks: 1, bytes: 512, skipped: 0, findings });
    let pruned = RepositoryPruned {
        dry_run: true,
        removed: vec![2],
        gone: 0,
        abandoned: 0,
        reclaimed_bytes: 0,
        kept_bytes: 512,
    };
    actual.add("RepositoryPruned", &pruned);
    let restored = Restored { backup: 2, vm: None, files: Vec::new(), size_bytes: 512, complete: true };
    actual.add("Restored", &restored);
}
