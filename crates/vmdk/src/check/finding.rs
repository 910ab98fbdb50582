//! What a check found: one line each.

use std::fmt;

use blk::{Error, ErrorKind};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Data is lost, or wrong, or cannot be read.
    Damage,
    /// Works, and will not for long, or not everywhere.
    Warning,
    /// To be known.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Damage => "damage",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

/// One fault: where, what is there, what should be, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Decides the order of findings and the exit code.
    pub severity: Severity,
    /// The path relative to the caller's folder.
    pub file: String,
    /// The key, the header field, the table entry or the file as a whole.
    pub field: String,
    /// What is there, with units.
    pub found: String,
    /// What should be there, with units.
    pub expected: String,
    /// What the user can do; empty where nothing need be done.
    pub remedy: String,
}

impl Finding {
    /// A fault that a reader reported. Readers say "FIELD is FOUND, expected EXPECTED; REMEDY" where they compare. `remedy`
    /// stands in where they name none. What this version does not read is no damage.
    pub fn of_error(error: &Error, remedy: &str) -> Self {
        let (said, own_remedy) = match error.cause.rsplit_once("; ") {
            Some((said, own)) => (said, Some(own)),
            None => (error.cause.as_str(), None),
        };
        let (left, expected) = said.split_once(", expected ").unwrap_or((said, "what the format allows"));
        let (field, found) = left.split_once(" is ").unwrap_or(("the content", left));
        let cut = said.ends_with("the file was cut");
        let unread = error.kind == ErrorKind::Unsupported;
        Self {
            severity: if unread { Severity::Warning } else { Severity::Damage },
            file: error.place.clone(),
            field: field.into(),
            found: found.into(),
            expected: expected.into(),
            remedy: own_remedy.unwrap_or(if cut { REMEDY_CUT } else { remedy }).into(),
        }
    }

    /// Stands behind `last` for those of its kind that are not listed.
    pub(super) fn of_the_rest(last: &Finding, count: usize) -> Self {
        Self {
            field: "the number of faults".into(),
            found: format!("{count} more than are listed"),
            expected: "none".into(),
            ..last.clone()
        }
    }
}

/// Findings of one report: what a hostile folder can make us say. A line is about 300 bytes, so 3 MB.
pub(super) const REPORT_FINDINGS_MAX: usize = 10_000;

/// The faults of one report in the making: never more than twice what is reported, the worst of them.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    kept: Vec<Finding>,
    /// Of those that were let go.
    more: usize,
}

impl Faults {
    pub(crate) fn push(&mut self, finding: Finding) {
        self.kept.push(finding);
        if self.kept.len() >= 2 * REPORT_FINDINGS_MAX {
            self.shorten();
        }
    }

    pub(crate) fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        findings.into_iter().for_each(|finding| self.push(finding));
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&Finding) -> bool) {
        self.kept.retain(keep);
    }

    fn shorten(&mut self) {
        self.kept.sort_by(|a, b| (a.severity, &a.file).cmp(&(b.severity, &b.file)));
        self.kept.dedup();
        self.more += self.kept.len().saturating_sub(REPORT_FINDINGS_MAX);
        self.kept.truncate(REPORT_FINDINGS_MAX);
    }

    /// Returns the worst, each once; one more says how many there are.
    pub(crate) fn into_vec(mut self) -> Vec<Finding> {
        self.shorten();
        if let Some(last) = self.kept.last().filter(|_| self.more > 0) {
            let rest = Finding::of_the_rest(last, self.more);
            self.kept.push(rest);
        }
        self.kept
    }
}

/// What was cut off must not be made up.
pub(super) const REMEDY_CUT: &str =
    "copy the file again, or take it from a backup; what is missing must not be filled with zeros";

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { severity, file, field, found, expected, remedy } = self;
        write!(f, "{severity}: {file}: {field} is {found}, expected {expected}; {remedy}")
    }
}

/// Findings of one file kept before the rest is only counted.
const FINDINGS_MAX: usize = 100;

/// Collects findings, and bounds how many an untrusted file can cause.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    more: usize,
}

impl Findings {
    pub(crate) fn add(&mut self, finding: Finding) {
        if self.kept.len() < FINDINGS_MAX {
            self.kept.push(finding);
        } else {
            self.more += 1;
        }
    }

    /// The last one says how many were left out.
    pub(crate) fn into_vec(mut self) -> Vec<Finding> {
        if let Some(last) = self.kept.last().filter(|_| self.more > 0) {
            let rest = Finding::of_the_rest(last, self.more);
            self.kept.push(rest);
        }
        self.kept
    }
}
