//! Error of a freeze.

#[derive(Debug)]
pub(super) struct NotFrozen {
    pub cause: String,
    /// Whether file systems may be frozen nevertheless: an answer is missing, or not all commands were carried out.
    pub may_be: bool,
}
