//! Clients of other projects against the daemon as a process: QEMU's tools, libnbd's, fio, and a guest that is killed.
//!
//! All files are under the build's folder, on a real file system, so that O_DIRECT is used.

mod access;
mod alarms;
mod attach;
mod bent;
mod between;
mod bin;
mod branches;
mod browser;
mod cdp;
mod compare;
mod console;
mod copies;
mod cores;
mod daemon;
mod datastores;
mod defragment;
mod descriptors;
mod devices;
mod difference;
mod disks;
mod experiments;
#[allow(dead_code, reason = "the unit tests of a freeze use the rest")]
mod fake_agent;
mod figures;
mod file_systems;
mod full;
mod gate;
mod greedy;
mod guest;
mod guides;
mod holds;
mod home;
mod hostile;
mod import;
mod keeps;
mod kill;
mod limits;
mod load;
mod metrics;
mod moves;
mod native;
mod nbd;
mod policies;
mod programs;
mod quiesce;
mod random;
mod rebuild;
mod reconnects;
mod record;
mod refusals;
mod removal;
mod rename;
mod rest;
mod rest_answers;
mod serving;
mod skip;
mod snapshots;
mod space;
mod supervised;
mod tools;
mod upgrade;
mod vhost;
#[path = "../../../export/tests/vhost_user/client.rs"]
mod vhost_client;
