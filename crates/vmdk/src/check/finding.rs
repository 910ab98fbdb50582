//! What a check found: one line each.

use std::fmt;

use blk::Error;

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
    pub severity: Severity,
    /// The path as the caller's folder knows it.
    pub file: String,
    pub field: String,
    pub found: String,
    pub expected: String,
    pub remedy: String,
}

impl Finding {
    /// A fault that a reader reported. Readers say "FIELD is FOUND, expected EXPECTED" where they compare; anything else
    /// they say stands as what was found.
    pub fn of_error(error: &Error, remedy: &str) -> Self {
        let (field, found, expected) = split(&error.cause);
        Self {
            severity: Severity::Damage,
            file: error.place.clone(),
            field: field.into(),
            found: found.into(),
            expected: expected.into(),
            remedy: remedy.into(),
        }
    }

    pub fn with(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }
}

/// Field, found and expected of what `text::wrong` wrote.
fn split(cause: &str) -> (&str, &str, &str) {
    let halves = cause.split_once(", expected ");
    match halves
        .and_then(|(left, expected)| left.split_once(" is ").map(|(field, found)| (field, found, expected)))
    {
        Some(parts) => parts,
        None => ("content", cause, "a file that can be read"),
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { severity, file, field, found, expected, remedy } = self;
        write!(f, "{severity}: {file}: {field} is {found}, expected {expected}; {remedy}")
    }
}

/// Findings of one file kept before the rest is only counted.
const FINDINGS_MAX: usize = 100;

/// Collects, and bounds what a file of a stranger can make us say.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    more: usize,
}

impl Findings {
    pub fn add(&mut self, finding: Finding) {
        if self.kept.len() < FINDINGS_MAX {
            self.kept.push(finding);
        } else {
            self.more += 1;
        }
    }

    /// The last one says how many were left out.
    pub fn into_vec(mut self) -> Vec<Finding> {
        if let Some(last) = self.kept.last().filter(|_| self.more > 0) {
            let more = Finding {
                field: "the number of faults".into(),
                found: format!("{} more than are listed", self.more),
                expected: "none".into(),
                ..last.clone()
            };
            self.kept.push(more);
        }
        self.kept
    }
}
