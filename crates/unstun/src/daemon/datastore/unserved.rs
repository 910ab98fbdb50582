//! Check of a native store that no daemon serves.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::{Checked, Finding, Severity};
use blk::uring::UringReactor;
use blk::{ErrorKind as K, Executor};
use engine::native::Store;

use crate::daemon::datastore::device::{claim_to_read, image_at, is_device, refuse_leased};
use crate::daemon::datastore::native::STORE_NAME;
use crate::daemon::datastore::scrub::answer;

/// First bytes of pages of a store, and their offsets: both superblocks, and the journal.
const MAGICS: [(u64, &[u8; 8]); 3] = [(0, b"unstunSB"), (8 * 4096, b"unstunSB"), (16 * 4096, b"unstunJB")];

/// Returns the store at a path: a file or device that is one, or that of a datastore's folder. A file of that name is
/// one even if its superblocks are lost.
pub(crate) fn store_at(path: &Path) -> Option<PathBuf> {
    if image_at(path).is_some() {
        return Some(path.to_path_buf());
    }
    let file = if path.is_dir() { path.join(STORE_NAME) } else { path.to_path_buf() };
    let is_named = || file.is_file() && file.file_name().is_some_and(|name| name == STORE_NAME);
    let has_magic = || {
        let opened = std::fs::File::open(&file);
        let has = |opened: &std::fs::File, at: u64, magic: &[u8; 8]| {
            let mut found = [0; 8];
            opened.read_exact_at(&mut found, at).is_ok() && found == *magic
        };
        is_device(&file)
            && opened.is_ok_and(|opened| MAGICS.into_iter().any(|(at, magic)| has(&opened, at, magic)))
    };
    (is_named() || has_magic()).then_some(file)
}

/// Checks a store that no daemon serves. It is not changed. The answer lists what is wrong with it; an error concerns the
/// path itself.
pub(crate) fn check_store(path: &Path) -> Result<Checked> {
    let executor = Executor::new(Rc::new(UringReactor::new()?));
    let env = executor.env();
    let store = path.to_path_buf();
    let checked = executor.run(async move {
        let claimed = claim_to_read(&env, &store).await.map_err(in_use)?;
        let leased = refuse_leased(&env, &claimed).await?;
        let checked = match Store::check_unserved(env, claimed.file.clone()).await {
            Ok((report, names)) => Ok(answer(&store, &report, &names)),
            Err(e) if matches!(e.kind, K::Damaged | K::Invalid | K::Io) => Ok(unreadable(&store, &e)),
            Err(e) => Err(e.into()),
        };
        if let Some(leased) = leased {
            // Otherwise other hosts wait for its end.
            let _ = leased.release().await;
        }
        checked
    });
    checked.ok_or_else(|| Error::failed("the reactor stopped"))?
}

fn in_use(error: Error) -> Error {
    match error.kind {
        ErrorKind::Locked => {
            let remedy = "`unstun check` without a path checks the stores that the daemon serves";
            Error::new(ErrorKind::Locked, format!("{}; {remedy}", error.message))
        }
        _ => error,
    }
}

fn unreadable(store: &Path, error: &blk::Error) -> Checked {
    let finding = Finding {
        severity: Severity::Damage,
        file: store.display().to_string(),
        field: "store".to_owned(),
        found: error.to_string(),
        expected: "a store that can be opened".to_owned(),
        remedy: format!("`unstun datastore rebuild {} --into PATH` copies what can be read", store.display()),
    };
    Checked { path: store.to_path_buf(), findings: vec![finding] }
}
