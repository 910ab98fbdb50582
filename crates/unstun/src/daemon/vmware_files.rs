//! Commands on VMware's files that need no daemon: check, convert, repair.

pub(super) mod chain;
pub(super) mod check;
pub(super) mod convert;
pub(super) mod repair;
