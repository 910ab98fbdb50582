//! The lab: where engine, formats and simulator meet.

pub mod crash;
pub mod home;
pub mod oracle;
