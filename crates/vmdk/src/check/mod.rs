mod finding;

pub(crate) use finding::Findings;
pub use finding::{Finding, Severity};
