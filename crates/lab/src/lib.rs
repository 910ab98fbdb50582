//! The lab: where engine, formats and simulator meet.

pub mod crash;
mod home;
pub mod oracle;
