//! Copies a backup into another repository: what the last copy of its VM does not have.

use std::path::Path;

use blk::Result;

use crate::chunk::ChunkRef;
use crate::disk_writer::DiskWriter;
use crate::event::{Backup, DiskBackup, Figures};
use crate::gather;
use crate::page::LEVELS;
use crate::pages::Pages;
use crate::repository::Repository;
use crate::session::Session;

/// Copies the backup `number`, unless `target` has it. `progress` is called with the bytes that were read; an error of it ends
/// the copy.
///
/// Chunks are read only if they differ from those of the latest backup of the VM that both repositories have.
pub async fn copy(
    source: &Repository,
    number: u32,
    target: &mut Repository,
    (cache, now_us): (Option<&Path>, u64),
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Option<(u32, Figures)>> {
    let backup = source.state.backup(number)?;
    target.refresh().await?;
    if target.state.backups.values().any(|other| is_same(other, backup)) {
        return Ok(None);
    }
    let parent = parent(source, target, backup);
    let mut session = Session::begin(target, cache, now_us).await?;
    let pages = Pages::new(source.objects.clone(), source.keys.clone());
    for disk in &backup.disks {
        let of_disk = |backup: &Backup| backup.disks.iter().find(|one| one.number == disk.number).cloned();
        let both = parent.as_ref().and_then(|(theirs, own)| Some((of_disk(theirs)?, of_disk(own)?)));
        let both = both.filter(|(_, own)| own.size_bytes <= disk.size_bytes);
        let (before, own) = both.unzip();
        let mut writer = session.disk(disk.number, disk.size_bytes, own.as_ref()).await?;
        write(source, &pages, before.as_ref(), disk, &mut session, &mut writer, progress).await?;
        session.finish(writer).await?;
    }
    session.commit(backup.origin.clone(), backup.taken_us, now_us).await.map(Some)
}

/// Returns whether two repositories have the same backup.
fn is_same(a: &Backup, b: &Backup) -> bool {
    a.taken_us == b.taken_us
        && a.origin.vm_id == b.origin.vm_id
        && a.origin.snapshot_id == b.origin.snapshot_id
        && a.disks.len() == b.disks.len()
}

/// Returns the latest backup of the VM that both repositories have, as the source and as the target has it.
fn parent(source: &Repository, target: &Repository, backup: &Backup) -> Option<(Backup, Backup)> {
    let of_vm = |other: &&Backup| other.origin.vm_id == backup.origin.vm_id;
    let mut own: Vec<_> = target.state.backups.values().filter(of_vm).collect();
    own.sort_by_key(|other| std::cmp::Reverse(other.taken_us));
    own.into_iter().find_map(|own| {
        let theirs = source.state.backups.values().find(|theirs| is_same(theirs, own))?;
        Some((theirs.clone(), own.clone()))
    })
}

/// A page of both maps, by its level and its number among those of the level.
struct Pair {
    level: usize,
    index: u64,
    old: Option<ChunkRef>,
    new: Option<ChunkRef>,
}

/// Writes the chunks of a disk that differ from those of `before`, in ascending order.
async fn write(
    source: &Repository,
    pages: &Pages,
    before: Option<&DiskBackup>,
    disk: &DiskBackup,
    session: &mut Session<'_>,
    writer: &mut DiskWriter,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let old = before.and_then(|before| before.root);
    let mut left = vec![Pair { level: LEVELS - 1, index: 0, old, new: disk.root }];
    while let Some(Pair { level, index, old, new }) = left.pop() {
        // Equal names are equal contents.
        if old.map(|old| old.id) == new.map(|new| new.id) {
            continue;
        }
        let (old, new) = (pages.load(level, &[old]).await?, pages.load(level, &[new]).await?);
        let pairs = old.refs.iter().zip(new.refs.iter()).enumerate();
        let pairs = pairs.map(|(n, (old, new))| ((index << 8) + n as u64, *old, *new));
        if level > 0 {
            let below = pairs.map(|(index, old, new)| Pair { level: level - 1, index, old, new });
            let mut below: Vec<_> = below.collect();
            below.reverse();
            left.extend(below);
            continue;
        }
        let changed: Vec<_> =
            pairs.filter(|(_, old, new)| old.map(|old| old.id) != new.map(|new| new.id)).collect();
        let wanted: Vec<_> = changed.iter().filter_map(|(_, _, new)| *new).collect();
        let mut contents = gather::read(&*source.objects, &source.keys, &wanted).await?.into_iter();
        let mut chunks = Vec::with_capacity(changed.len());
        for (n, _, new) in changed {
            chunks.push((n, writer.whole(n, new.and_then(|_| contents.next()))));
        }
        session.write(writer, chunks).await?;
        progress(wanted.iter().map(|chunk| u64::from(chunk.bytes)).sum())?;
    }
    Ok(())
}
