//! Undoes the last repair. Nothing is written unless all its files are unchanged since.

use blk::reactor::OpenMode;
use blk::{Dir, Error, ErrorKind, Result};

use super::apply::{link_all, read_sector, remove_folder, write_sectors};
use super::cuts::Piece;
use super::record::{
    Change, FOLDER, Kind, LOCK, PIECES_BYTES_MAX, RECORD, UNDONE, after_name, aside_name, before_name,
    cut_name, folder_name, numbers, read_if_there, read_pieces, read_record, refuse_pending,
};
use crate::read::parse;
use crate::text::{TEXT_BYTES_MAX, shown};

/// A run that was undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// Path of the folder with the copies.
    pub copies: String,
    /// Names of the files that are in their state from before the repair.
    pub files: Vec<String>,
}

/// Remaining step for one file.
enum Step {
    /// The file is as it was before the repair.
    Nothing,
    Text(Option<Vec<u8>>),
    Name,
    Folder,
    Sectors(Vec<(u64, Piece)>),
}

/// Undoes the last run that was not undone yet.
///
/// # Errors
/// `NotFound` if there is none. `Refused` if a file was changed since; nothing is written then.
pub async fn undo(dir: &Dir) -> Result<Undone> {
    refuse_pending(dir).await?;
    let none =
        || Error::not_found(dir.path(), format!("there is no repair to take back: no record in {FOLDER}"));
    let runs = match dir.open_dir(FOLDER, false).await {
        Err(e) if e.kind == ErrorKind::NotFound => return Err(none()),
        opened => opened?,
    };
    let _lock = runs.lock(LOCK).await?;
    for number in numbers(&runs).await?.into_iter().rev() {
        let run = runs.open_dir(&folder_name(number), false).await?;
        let names = run.list().await?;
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        if !has(RECORD) || has(UNDONE) {
            continue;
        }
        let bytes = run.read_file(RECORD, TEXT_BYTES_MAX as u64).await?;
        let changes = parse(run.env(), run.path_of(RECORD), bytes, read_record).await?;
        take_back(dir, &run, &changes).await?;
        run.replace_file(UNDONE, b"").await?;
        drop_second_names(&run, &changes).await;
        let files = changes.into_iter().map(|change| change.file).collect();
        return Ok(Undone { copies: run.path().to_owned(), files });
    }
    Err(none())
}

/// Removes the second names of restored files, which would keep their space in use. One that cannot be removed is only
/// an additional copy.
async fn drop_second_names(run: &Dir, changes: &[Change]) {
    for change in changes {
        let _ = match change.kind {
            Kind::Aside => run.unlink(&aside_name(&change.file)).await,
            Kind::FolderAside => remove_folder(run, &aside_name(&change.file)).await,
            Kind::Text { .. } | Kind::Cut => continue,
        };
    }
}

async fn take_back(dir: &Dir, run: &Dir, changes: &[Change]) -> Result<()> {
    let mut steps = Vec::new();
    for change in changes {
        let Some(step) = step(dir, run, change).await? else {
            let cause = format!("it was changed since the repair, whose copies lie in {}", shown(run.path()));
            return Err(Error::refused(
                dir.path_of(&change.file),
                format!("{cause}; nothing was taken back"),
            ));
        };
        steps.push((&change.file, step));
    }
    for (file, step) in steps {
        carry_out(dir, run, file, step).await?;
    }
    dir.sync().await
}

/// Returns the remaining step of a file. None if the file is in neither the state from before the repair nor that after
/// it.
async fn step(dir: &Dir, run: &Dir, change: &Change) -> Result<Option<Step>> {
    let file = &change.file;
    match change.kind {
        Kind::Text { existed } => text_step(dir, run, file, existed).await,
        Kind::Aside => Ok(match (inode(dir, file).await?, inode(run, &aside_name(file)).await?) {
            (None, Some(_)) => Some(Step::Name),
            (now, aside) => (now == aside).then_some(Step::Nothing),
        }),
        Kind::FolderAside => folder_step(dir, run, file).await,
        Kind::Cut => cut_step(dir, run, file).await,
    }
}

async fn text_step(dir: &Dir, run: &Dir, file: &str, existed: bool) -> Result<Option<Step>> {
    let limit = TEXT_BYTES_MAX as u64;
    let now = read_if_there(dir, file).await?;
    let before = match existed {
        true => Some(run.read_file(&before_name(file), limit).await?),
        false => None,
    };
    if now == before {
        return Ok(Some(Step::Nothing));
    }
    let after = run.read_file(&after_name(file), limit).await?;
    Ok((now == Some(after)).then_some(Step::Text(before)))
}

async fn inode(dir: &Dir, name: &str) -> Result<Option<u64>> {
    match dir.open(name, OpenMode::Read).await {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        opened => opened.map(|file| Some(file.limits().inode)),
    }
}

/// Returns the remaining step of a folder. Files of another program in a folder of that name are a lock that is held.
async fn folder_step(dir: &Dir, run: &Dir, file: &str) -> Result<Option<Step>> {
    let now = match dir.open_dir(file, false).await {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(Some(Step::Folder)),
        opened => opened?,
    };
    let aside = run.open_dir(&aside_name(file), false).await?;
    for name in now.list().await? {
        if inode(&now, &name).await? != inode(&aside, &name).await? {
            return Ok(None);
        }
    }
    Ok(Some(Step::Folder))
}

async fn cut_step(dir: &Dir, run: &Dir, file: &str) -> Result<Option<Step>> {
    let name = cut_name(file);
    let bytes = run.read_file(&name, PIECES_BYTES_MAX).await?;
    let (length, pieces) = read_pieces(&run.path_of(&name), &bytes)?;
    let now = match dir.open(file, OpenMode::Read).await {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if now.size().await? != length {
        return Ok(None);
    }
    for (offset, piece) in &pieces {
        let sector = read_sector(&now, *offset).await?;
        if sector != piece.before && sector != piece.after {
            return Ok(None);
        }
    }
    Ok(Some(Step::Sectors(pieces)))
}

async fn carry_out(dir: &Dir, run: &Dir, file: &str, step: Step) -> Result<()> {
    match step {
        Step::Nothing => Ok(()),
        Step::Text(None) => dir.unlink_if_present(file).await,
        Step::Text(Some(before)) => {
            let like = run.open(&before_name(file), OpenMode::Read).await?;
            dir.replace_file_like(file, &before, &like).await
        }
        Step::Name => run.link(&aside_name(file), dir, file).await,
        Step::Folder => {
            let aside = run.open_dir(&aside_name(file), false).await?;
            link_all(&aside, &dir.open_dir(file, true).await?).await
        }
        Step::Sectors(pieces) => {
            let sectors: Vec<(u64, &[u8])> =
                pieces.iter().map(|(offset, piece)| (*offset, piece.before.as_slice())).collect();
            write_sectors(&dir.open(file, OpenMode::Write).await?, &sectors).await
        }
    }
}
