//! Findings of a check; each is one line of the report.

use std::fmt;

use blk::{Error, ErrorKind};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Data is lost, wrong or unreadable.
    Damage,
    /// The files work now, but will fail later or elsewhere.
    Warning,
    /// For information.
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

/// One fault: where it is, what was found, what was expected, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Decides the order of findings and the exit code.
    pub severity: Severity,
    /// Path of the file, below the path of the folder as the caller gave it.
    pub file: String,
    /// The key, the header field, the table entry or the file as a whole.
    pub field: String,
    /// The value that was found, with its unit.
    pub found: String,
    /// The value that was expected, with its unit.
    pub expected: String,
    /// What the user can do; empty if nothing is necessary.
    pub remedy: String,
}

impl Finding {
    /// Returns a finding that does not say yet what was expected, and has no remedy.
    pub(crate) fn new(
        severity: Severity,
        file: String,
        field: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        let (field, found) = (field.into(), found.into());
        Self { severity, file, field, found, expected: String::new(), remedy: String::new() }
    }

    pub(crate) fn expected(self, expected: impl Into<String>) -> Self {
        Self { expected: expected.into(), ..self }
    }

    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    /// Converts the error of a reader. Readers report comparisons as "FIELD is FOUND, expected EXPECTED; REMEDY".
    /// `remedy` is used if the error has none. A format that this version does not read is not damage.
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
}

/// Appends a finding of the kind of the last one, which replaces `more` further ones.
fn with_the_rest(mut kept: Vec<Finding>, more: usize) -> Vec<Finding> {
    if let Some(last) = kept.last().filter(|_| more > 0) {
        kept.push(Finding {
            field: "the number of faults".into(),
            found: format!("{more} more than are listed"),
            expected: "none".into(),
            ..last.clone()
        });
    }
    kept
}

/// Maximum number of findings in a report, which a hostile folder could otherwise extend without limit. A line has
/// about 300 bytes, so this is 3 MB.
pub(super) const REPORT_FINDINGS_MAX: usize = 10_000;

/// Collects the faults of one report. Keeps the worst ones, at most twice as many as are reported.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    kept: Vec<Finding>,
    /// Number of faults that were dropped.
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

    /// Returns the worst faults, each once, and one that counts the dropped ones.
    pub(crate) fn into_vec(mut self) -> Vec<Finding> {
        self.shorten();
        with_the_rest(self.kept, self.more)
    }
}

/// Content that was cut off must not be replaced.
pub(super) const REMEDY_CUT: &str =
    "copy the file again, or take it from a backup; what is missing must not be filled with zeros";

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { severity, file, field, found, expected, remedy } = self;
        write!(f, "{severity}: {file}: {field} is {found}, expected {expected}; {remedy}")
    }
}

/// Maximum number of findings of one file; further ones are only counted.
const FINDINGS_MAX: usize = 100;

/// Collects findings of one file, and limits their number.
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

    /// Returns the findings. The last one counts those that were dropped.
    pub(crate) fn into_vec(self) -> Vec<Finding> {
        with_the_rest(self.kept, self.more)
    }
}
