//! Commands on VMware's files that need no daemon: check, convert, repair.

pub mod check;
pub mod convert;
pub mod repair;
