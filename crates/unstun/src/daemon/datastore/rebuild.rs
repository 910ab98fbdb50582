//! `datastore rebuild`: a new datastore with what can be read of a damaged store. It needs no daemon.

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::{DiskRange, RebuiltState, StoreRebuilt};
use blk::dir::TEMPORARY_SUFFIX;
use blk::uring::UringReactor;
use blk::{Env, Executor, File};
use engine::Defects;
use engine::native::{RebuildReport, RebuiltNode, rebuild as rebuild_store};

use crate::daemon::datastore::device::{claim_to_read, refuse_leased};
use crate::daemon::datastore::native::STORE_NAME;

/// Rebuilds the store in the file, folder or device `source` into the new folder `into`. The source is not changed.
pub(crate) fn rebuild(source: &Path, into: &Path) -> Result<StoreRebuilt> {
    let executor = Executor::new(Rc::new(UringReactor::new()?));
    let env = executor.env();
    let (source, into) = (source.to_path_buf(), into.to_path_buf());
    let made = executor.run(async move { make(&env, &source, &into).await });
    made.ok_or_else(|| Error::failed("the reactor stopped"))?
}

async fn make(env: &Env, source: &Path, into: &Path) -> Result<StoreRebuilt> {
    let file = if source.is_dir() { source.join(STORE_NAME) } else { source.to_path_buf() };
    let claimed = claim_to_read(env, &file).await?;
    let leased = refuse_leased(env, &claimed).await?;
    let made = make_from(env, source, &claimed.file, into).await;
    if let Some(leased) = leased {
        // Otherwise other hosts wait for its end.
        let _ = leased.release().await;
    }
    made
}

async fn make_from(env: &Env, source: &Path, file: &File, into: &Path) -> Result<StoreRebuilt> {
    if let Err(e) = std::fs::create_dir(into) {
        let kind = match e.kind() {
            std::io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            _ => ErrorKind::Failed,
        };
        return Err(Error::new(kind, format!("{}: {e}", into.display())));
    }
    let dir = env.open_path(&into.to_string_lossy()).await?;
    let making = format!("{STORE_NAME}{TEMPORARY_SUFFIX}");
    let target = dir.create_new(&making).await?;
    let rebuilt = rebuild_store(env, file, &target, Defects::default()).await;
    drop(target);
    let report = match rebuilt {
        Ok(report) => report,
        Err(e) => {
            // What is left of a failed attempt is no store.
            let _ = dir.unlink(&making).await;
            let _ = std::fs::remove_dir(into);
            return Err(e.into());
        }
    };
    dir.rename(&making, STORE_NAME).await?;
    dir.sync().await?;
    if let Some(parent) = into.parent() {
        // The name of the new folder.
        env.open_path(&parent.to_string_lossy()).await?.sync().await?;
    }
    Ok(answer(source, into, &report))
}

fn answer(source: &Path, into: &Path, report: &RebuildReport) -> StoreRebuilt {
    StoreRebuilt {
        source: source.to_path_buf(),
        path: into.to_path_buf(),
        checkpoint: report.checkpoint,
        catalogue: report.has_catalogue,
        journal: report.has_journal,
        complete: report.is_complete(),
        states: report.nodes.iter().map(state).collect(),
        notes: report.notes.clone(),
    }
}

fn state(node: &RebuiltNode) -> RebuiltState {
    let range =
        |range: &Range<u64>| DiskRange { start_bytes: range.start, length_bytes: range.end - range.start };
    RebuiltState {
        node: node.node,
        name: node.name.clone(),
        size_bytes: node.bytes,
        recovered_bytes: node.recovered_bytes,
        lost: node.lost.iter().map(range).collect(),
    }
}
