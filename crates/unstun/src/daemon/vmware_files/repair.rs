//! `repair`: repair of what a check finds in a folder of VMware files, and its undo. It needs no daemon.

use std::path::Path;
use std::rc::Rc;

use api::error::{Error, Result};
use api::{Mend, MendAction, Repair, RepairUndone, Unmended};
use blk::dir::OWN_FOLDER;
use blk::file::Lock;
use blk::uring::UringReactor;
use blk::{Dir, Env, Executor};
use vmdk::home::Home;
use vmdk::repair::{self, Plan, RepairOptions};

use crate::daemon::vm::{home_locks, inuse};
use crate::daemon::vmware_files::check;

/// Plans the repairs of the folder at `path`, which is absolute and exists. Carries them out if `write` is set. The
/// terms include the caller's assurance that parents with other content IDs than expected hold unchanged data.
pub(crate) fn repair(path: &Path, terms: RepairOptions, write: bool) -> Result<Repair> {
    let folder = path.to_path_buf();
    run(path, move |env| async move {
        let dir = env.open_root(&folder.to_string_lossy())?;
        let _lock = hold_folder(&dir).await?;
        let plan = repair::plan(&dir, &terms).await?;
        let copies = match write && !plan.is_empty() {
            true => {
                plan.refuse_foreign_use(&dir).await?;
                inuse::refuse_renewed(&folder, plan.stale_locks())?;
                Some(repair::apply(&dir, &plan).await?)
            }
            false => None,
        };
        Ok(present(&folder, plan, copies))
    })
}

/// Restores the files that the last repair of the folder at `path` changed.
pub(crate) fn undo(path: &Path) -> Result<RepairUndone> {
    let folder = path.to_path_buf();
    run(path, move |env| async move {
        let dir = env.open_root(&folder.to_string_lossy())?;
        let _lock = hold_folder(&dir).await?;
        Home::refuse_foreign_use(&dir).await?;
        let undone = repair::undo(&dir).await?;
        Ok(RepairUndone { path: folder, undo_copies: undone.copies.into(), files: undone.files })
    })
}

fn run<T: 'static, F: Future<Output = Result<T>> + 'static>(
    path: &Path,
    main: impl FnOnce(Env) -> F,
) -> Result<T> {
    inuse::refuse_locked(&[path.to_path_buf()])?;
    let executor = Executor::new(Rc::new(UringReactor::new()?));
    let env = executor.env();
    executor.run(main(env)).ok_or_else(|| Error::failed("the reactor stopped"))?
}

/// Locks the folder: no daemon opens it until the lock is dropped.
async fn hold_folder(dir: &Dir) -> Result<Option<Lock>> {
    match dir.open_dir(OWN_FOLDER, false).await {
        Ok(own) => Ok(home_locks::lock_source(&own).await?),
        Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn present(folder: &Path, plan: Plan, copies: Option<String>) -> Repair {
    let mends = plan.mends.into_iter().map(|mend| Mend {
        file: mend.file,
        action: match mend.action {
            repair::Action::Edit => MendAction::Edit,
            repair::Action::Create => MendAction::Create,
            repair::Action::MoveAside => MendAction::MoveAside,
            repair::Action::Cut => MendAction::Cut,
        },
        lines: mend.lines,
        reason: mend.reason,
        caution: mend.caution,
    });
    let unmended = plan.unmended.into_iter();
    let unmended = unmended.map(|one| Unmended { finding: check::present(one.finding), reason: one.reason });
    Repair {
        path: folder.to_path_buf(),
        mends: mends.collect(),
        unmended: unmended.collect(),
        findings: plan.before.findings.into_iter().map(check::present).collect(),
        undo_copies: copies.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use api::error::ErrorKind;

    const BASE: &str = "version=1\nCID=0000000a\ncreateType=\"vmfs\"\nRW 8 VMFS \"web-flat.vmdk\"\n";
    const CHILD: &str = "version=1\nCID=0000000b\nparentCID=0000000a\nparentFileNameHint=\"gone.vmdk\"\n\
                         createType=\"vmfs\"\nRW 8 VMFS \"child-flat.vmdk\"\n";

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("web.vmdk", BASE), ("child.vmdk", CHILD)] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        for name in ["web-flat.vmdk", "child-flat.vmdk"] {
            fs::write(folder.path().join(name), [5; 4096]).unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_that_is_in_use_is_planned_for_and_not_written() {
        let folder = folder();
        let lock = folder.path().join("web.vmdk.lck");
        fs::write(&lock, "").unwrap();
        let plan = repair(folder.path(), RepairOptions::default(), false).unwrap();
        assert!(plan.mends.len() == 1 && plan.undo_copies.is_none(), "{plan:?}");
        assert_eq!(
            repair(folder.path(), RepairOptions::default(), true).unwrap_err().kind,
            ErrorKind::Locked
        );
        assert_eq!(fs::read_to_string(folder.path().join("child.vmdk")).unwrap(), CHILD);
        fs::remove_file(&lock).unwrap();
        let done = repair(folder.path(), RepairOptions::default(), true).unwrap();
        assert!(
            done.undo_copies.is_some() && done.unmended.iter().all(|one| one.finding.field != "parentCID")
        );
        fs::write(&lock, "").unwrap();
        assert_eq!(undo(folder.path()).unwrap_err().kind, ErrorKind::Locked);
        fs::remove_file(&lock).unwrap();
        assert_eq!(undo(folder.path()).unwrap().files, ["child.vmdk"]);
        assert_eq!(fs::read_to_string(folder.path().join("child.vmdk")).unwrap(), CHILD);
    }

    #[test]
    fn a_folder_that_a_daemon_serves_is_refused() {
        let folder = folder();
        let own = folder.path().join(OWN_FOLDER);
        fs::create_dir(&own).unwrap();
        let lock = fs::File::create(own.join("lock")).unwrap();
        lock.lock().unwrap();
        assert_eq!(
            repair(folder.path(), RepairOptions::default(), false).unwrap_err().kind,
            ErrorKind::Locked
        );
        assert_eq!(undo(folder.path()).unwrap_err().kind, ErrorKind::Locked);
        drop(lock);
        assert_eq!(repair(folder.path(), RepairOptions::default(), true).unwrap().mends.len(), 1);
    }
}
