//! `check`: verification of a folder or a chain, without a daemon and without a write.

use std::path::Path;
use std::rc::Rc;

use api::error::{Error, Result};
use api::{Checked, Finding, Severity};
use blk::uring::UringReactor;
use blk::{Env, Executor};
use vmdk::check::{self, Target};

/// Verifies the folder of a VM, or the chain that ends in the descriptor at `path`, which is absolute and exists. Changes
/// nothing. The answer lists what is wrong with the files; an error concerns the path itself.
pub(crate) fn check(path: &Path) -> Result<Checked> {
    let executor = Executor::new(Rc::new(UringReactor::new()?));
    let env = executor.env();
    let report =
        executor.run(look(env, path.to_path_buf())).ok_or_else(|| Error::failed("the reactor stopped"))??;
    Ok(Checked { path: path.to_path_buf(), findings: report.findings.into_iter().map(present).collect() })
}

async fn look(env: Env, path: std::path::PathBuf) -> Result<check::Report> {
    let (folder, name) = match (path.is_dir(), path.parent(), path.file_name()) {
        (false, Some(folder), Some(name)) => (folder, Some(name.to_string_lossy())),
        _ => (path.as_path(), None),
    };
    let dir = env.open_root(&folder.to_string_lossy())?;
    let target = name.as_deref().map_or(Target::Folder, Target::File);
    Ok(check::check(&dir, target).await?)
}

pub(in crate::daemon) fn present(finding: check::Finding) -> Finding {
    Finding {
        severity: match finding.severity {
            check::Severity::Damage => Severity::Damage,
            check::Severity::Warning => Severity::Warning,
            check::Severity::Note => Severity::Note,
        },
        file: finding.file,
        field: finding.field,
        found: finding.found,
        expected: finding.expected,
        remedy: finding.remedy,
    }
}
