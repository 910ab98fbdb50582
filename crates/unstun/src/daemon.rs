//! The daemon: one core thread that runs every VM, and the handle by which the API's thread sends it requests.
//!
//! A request is a closure. The core runs each as a task and sends the answer back. No data of a guest is sent.

mod age_clock;
mod bin;
mod core_messages;
mod cores;
#[cfg(test)]
mod crash_tests;
mod datastore;
mod defect;
mod heartbeat;
#[cfg(test)]
mod identity_tests;
mod jobs;
pub(crate) mod own_files;
mod place;
mod policies;
mod ready;
mod register;
mod relocation;
mod requests;
mod running;
#[cfg(test)]
mod simulated_tests;
mod source;
mod start;
#[cfg(test)]
mod start_tests;
mod state;
#[cfg(test)]
mod state_crash_tests;
mod stuns;
mod tracked;
mod vm;
mod vmware_files;

pub(crate) use bin::policy::BinPolicy;
pub(crate) use datastore::device::{absolute as absolute_store, create as create_datastore, image_at};
pub(crate) use datastore::full::DatastoreGrowth;
pub(crate) use datastore::rebuild::rebuild as rebuild_datastore;
pub(crate) use datastore::unserved::{check_store, store_at};
pub(crate) use heartbeat::Heartbeat;
pub(crate) use place::Place;
pub(crate) use requests::alarm_figures::AlarmFigures;
pub(crate) use requests::answer::Subject;
pub(crate) use requests::bridge::CoreHandle;
pub(crate) use requests::metrics::{Counters, Metrics};
pub(crate) use requests::operations::RecordedVm;
pub(crate) use running::figures::{DiskCounters, DiskFigures, VmCounters, VmFigures};
pub(crate) use state::Daemon;
pub(crate) use vm::event_feed::{EventFeed, Position as EventPosition};
pub(crate) use vm::labels::SnapshotLabel;
pub(crate) use vmdk::repair::RepairOptions;
pub(crate) use vmware_files::check::check;
pub(crate) use vmware_files::convert::convert;
pub(crate) use vmware_files::repair::{repair, undo as repair_undo};
