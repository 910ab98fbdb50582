//! Carries out the plan of a repair, after copying every file that it changes.
//!
//! Order: first make durable the copies of all texts as they are and as they will be, second names of files that leave
//! the folder, the changed sectors of deltas, the record that names them all, and their folders. Then replace each text
//! by a rename, remove the first name of each file that leaves, and write the deltas, their headers last. After a crash
//! every file, and every sector of a delta, is in its old or its planned state, and an undo by the record restores
//! either.

use blk::reactor::OpenMode;
use blk::{Buf, Dir, Error, ErrorKind, File, Result};

use super::Plan;
use super::cuts::{Cut, Piece};
use super::record::{
    Change, FOLDER, Kind, LOCK, RECORD, after_name, aside_name, before_name, cut_name, folder_name, numbers,
    read_if_there, refuse_pending, write_pieces, write_record,
};

/// Writes the files of `plan`. Returns the path of the folder with the copies for an undo.
///
/// # Errors
/// `Refused` if a change of unstun's own is pending in the folder; `Locked` if another repair runs. After any error,
/// each file is in its old or its planned state; [`super::undo`] restores those that were written.
pub async fn apply(dir: &Dir, plan: &Plan) -> Result<String> {
    refuse_pending(dir).await?;
    let runs = dir.open_dir(FOLDER, true).await?;
    let _lock = runs.lock(LOCK).await?;
    let number = numbers(&runs).await?.last().map_or(1, |last| last + 1);
    let run = runs.open_dir(&folder_name(number), true).await?;
    let mut changes = copy_texts(dir, &run, plan).await?;
    changes.extend(name_twice(dir, &run, plan).await?);
    changes.extend(copy_pieces(dir, &run, plan).await?);
    run.replace_file(RECORD, &write_record(&changes)).await?;
    runs.sync().await?;
    dir.sync().await?;
    for (file, after) in &plan.changes.texts {
        match original(dir, plan, file).await? {
            Some(like) => dir.replace_file_like(file, after, &like).await?,
            None => dir.replace_file(file, after).await?,
        }
    }
    for change in &changes {
        match change.kind {
            Kind::Aside => dir.unlink(&change.file).await?,
            Kind::FolderAside => remove_folder(dir, &change.file).await?,
            Kind::Text { .. } | Kind::Cut => {}
        }
    }
    for (file, cut) in &plan.changes.cut {
        write_sectors(&dir.open(file, OpenMode::Write).await?, &pieces_after(cut)).await?;
    }
    dir.sync().await?;
    Ok(run.path().to_owned())
}

/// Returns the file whose owner and permissions a text gets: the existing text, or the file for which a new one is
/// written.
async fn original(dir: &Dir, plan: &Plan, file: &str) -> Result<Option<File>> {
    for name in [Some(file), plan.changes.like.get(file).map(String::as_str)].into_iter().flatten() {
        match dir.open(name, OpenMode::Read).await {
            Err(e) if e.kind == ErrorKind::NotFound => {}
            opened => return opened.map(Some),
        }
    }
    Ok(None)
}

async fn copy_texts(dir: &Dir, run: &Dir, plan: &Plan) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for (file, after) in &plan.changes.texts {
        let before = read_if_there(dir, file).await?;
        if let Some(before) = &before {
            let like = dir.open(file, OpenMode::Read).await?;
            run.replace_file_like(&before_name(file), before, &like).await?;
        }
        run.replace_file(&after_name(file), after).await?;
        changes.push(Change { file: file.clone(), kind: Kind::Text { existed: before.is_some() } });
    }
    Ok(changes)
}

/// Gives all files that leave the folder a second name.
async fn name_twice(dir: &Dir, run: &Dir, plan: &Plan) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for name in &plan.changes.gone {
        let (file, kind) = match name.strip_suffix('/') {
            Some(folder) => (folder, Kind::FolderAside),
            None => (name.as_str(), Kind::Aside),
        };
        match kind {
            Kind::FolderAside => {
                let from = dir.open_dir(file, false).await?;
                let aside = run.open_dir(&aside_name(file), true).await?;
                link_all(&from, &aside).await?;
            }
            _ => dir.link(file, run, &aside_name(file)).await?,
        }
        changes.push(Change { file: file.to_owned(), kind });
    }
    // Names must be durable before a record refers to them.
    run.sync().await?;
    Ok(changes)
}

/// Gives all files of a folder a second name in another one, durably.
pub(super) async fn link_all(from: &Dir, to: &Dir) -> Result<()> {
    for name in from.list().await? {
        match from.link(&name, to, &name).await {
            Err(e) if e.kind == ErrorKind::Exists && is_same(from, to, &name).await? => {}
            linked => linked?,
        }
    }
    to.sync().await
}

async fn is_same(a: &Dir, b: &Dir, name: &str) -> Result<bool> {
    let inode = async |dir: &Dir| dir.open(name, OpenMode::Read).await.map(|file| file.limits().inode);
    Ok(inode(a).await? == inode(b).await?)
}

pub(super) async fn remove_folder(dir: &Dir, name: &str) -> Result<()> {
    let folder = dir.open_dir(name, false).await?;
    for file in folder.list().await? {
        folder.unlink(&file).await?;
    }
    folder.sync().await?;
    dir.remove_dir(name).await
}

async fn copy_pieces(dir: &Dir, run: &Dir, plan: &Plan) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for (name, cut) in &plan.changes.cut {
        let file = dir.open(name, OpenMode::Read).await?;
        let same = async {
            for (offset, piece) in &cut.pieces {
                if read_sector(&file, *offset).await? != piece.before {
                    return Ok::<_, Error>(false);
                }
            }
            Ok(file.size().await? == cut.file_bytes)
        };
        if !same.await? {
            return Err(Error::refused(
                file.name(),
                "it was changed since the repair was planned; plan it again",
            ));
        }
        run.replace_file(&cut_name(name), &write_pieces(cut)).await?;
        changes.push(Change { file: name.clone(), kind: Kind::Cut });
    }
    Ok(changes)
}

pub(super) async fn read_sector(file: &File, offset: u64) -> Result<Vec<u8>> {
    let (buf, result) = file.read(offset, Buf::alloc(blk::SECTOR as usize)).await;
    result.map(|()| buf.to_vec())
}

fn pieces_after(cut: &Cut) -> Vec<(u64, &[u8])> {
    cut.pieces.iter().map(|(offset, Piece { after, .. })| (*offset, after.as_slice())).collect()
}

/// Writes sectors of a file durably; the header's, at 0, after the others.
pub(super) async fn write_sectors(file: &File, sectors: &[(u64, &[u8])]) -> Result<()> {
    for is_header in [false, true] {
        for (offset, bytes) in sectors.iter().filter(|(offset, _)| (*offset == 0) == is_header) {
            let mut buf = Buf::zeroed(bytes.len());
            buf.copy_from_slice(bytes);
            file.write(*offset, buf).await?;
        }
        file.flush().await?;
    }
    Ok(())
}
