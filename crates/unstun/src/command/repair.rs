//! `unstun repair`: the plan of a repair, its execution, and its undo, without a daemon.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::error::{Error, ErrorKind, Result};
use api::output::Output;
use api::{Finding, Mend, MendAction, Repair, RepairUndone, Severity};

use crate::cli::RepairArgs;
use crate::daemon::{self, RepairOptions};

/// Returns the exit code, which is that of a check of the files after the repair.
pub(super) fn run(args: &RepairArgs, output: Output) -> Result<u8> {
    let folder = folder_of(&args.path)?;
    if args.undo {
        output.result(&daemon::repair_undo(&folder)?, describe_undo)?;
        return Ok(0);
    }
    let terms = RepairOptions {
        ignore_content_ids: args.ignore_content_ids,
        parents: parents(&args.parent)?,
        cut_deltas: args.cut_deltas,
        stale_locks: args.stale_locks,
        move_orphans: args.move_orphans,
    };
    let repair = daemon::repair(&folder, terms, args.yes)?;
    output.result(&repair, describe)?;
    let written = repair.undo_copies.is_some();
    let is_damage = |finding: &Finding| finding.severity == Severity::Damage;
    let damaged = match written {
        true => repair.unmended.iter().any(|one| is_damage(&one.finding)),
        false => repair.findings.iter().any(is_damage),
    };
    Ok(if damaged { ErrorKind::Damaged.exit_code() } else { 0 })
}

fn parents(named: &[(String, String)]) -> Result<BTreeMap<String, String>> {
    let parents: BTreeMap<String, String> = named.iter().cloned().collect();
    match parents.len() == named.len() {
        true => Ok(parents),
        false => Err(Error::invalid("--parent: expected one parent for each link")),
    }
}

/// Returns the folder of a VM, which the path names itself or by its .vmx or .vmsd.
fn folder_of(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    let found = path.canonicalize().map_err(|e| Error::at_path(&shown, "no such file or folder", &e))?;
    if found.is_dir() {
        return Ok(found);
    }
    let ending = found.extension().map(|ending| ending.to_ascii_lowercase());
    let is_vm = ending.is_some_and(|ending| ending == "vmx" || ending == "vmsd");
    match found.parent().filter(|_| is_vm) {
        Some(folder) => Ok(folder.to_path_buf()),
        None => Err(Error::invalid(format!("{shown}: expected the folder of a VM, or its .vmx"))),
    }
}

fn describe(repair: &Repair) -> String {
    let mut text: String = repair.mends.iter().map(mend).collect();
    for unmended in &repair.unmended {
        let Finding { severity, file, field, found, expected, .. } = &unmended.finding;
        let severity = severity.as_str();
        text.push_str(&format!(
            "not repaired: {severity}: {file}: {field} is {found}, expected {expected}; {}\n",
            unmended.reason
        ));
    }
    let path = repair.path.display();
    let (mends, stays) = (repair.mends.len(), repair.unmended.len());
    let end = match &repair.undo_copies {
        Some(copies) => format!("written; copies of the old files are in {}", copies.display()),
        None if mends == 0 => "there is nothing to write".to_owned(),
        None => "nothing is written yet; --yes writes the repairs".to_owned(),
    };
    let plural = if mends == 1 { "" } else { "s" };
    text.push_str(&format!("{path}: {mends} repair{plural}, {stays} not repaired; {end}"));
    text
}

fn mend(mend: &Mend) -> String {
    let Mend { file, action, lines, reason, caution } = mend;
    let verb = match action {
        MendAction::Edit => "write",
        MendAction::Create => "create with",
        MendAction::MoveAside => "move aside",
        MendAction::Cut => "cut at its end",
    };
    let caution = caution.as_ref().map(|caution| format!("; {caution}")).unwrap_or_default();
    format!("repair: {file}: {verb} {}: {reason}{caution}\n", lines.join(" | "))
}

fn describe_undo(undone: &RepairUndone) -> String {
    let restored: String = undone.files.iter().map(|file| format!("{file}: restored\n")).collect();
    format!("{restored}{}: the last repair is undone", undone.path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_is_written_where_and_why() {
        let mend = Mend {
            file: "web-000002.vmdk".into(),
            action: MendAction::Edit,
            lines: vec!["parentCID=0000000b".into()],
            reason: "it is 0000000a".into(),
            caution: Some("no file proves it".into()),
        };
        let mut repair = Repair {
            path: "/srv/web".into(),
            mends: vec![mend],
            unmended: Vec::new(),
            findings: Vec::new(),
            undo_copies: None,
        };
        assert_eq!(
            describe(&repair),
            "repair: web-000002.vmdk: write parentCID=0000000b: it is 0000000a; no file proves it\n\
             /srv/web: 1 repair, 0 not repaired; nothing is written yet; --yes writes the repairs"
        );
        repair.undo_copies = Some("/srv/web/unstun-repair/0001".into());
        assert!(describe(&repair).ends_with("copies of the old files are in /srv/web/unstun-repair/0001"));
    }
}
