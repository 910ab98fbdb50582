//! Crash campaigns: the engine and VMware's formats on the simulator, judged by oracles. Tests alone link this crate.
//!
//! A campaign is many runs. A run is a function of its seed: it draws a plan, boots a machine several times, and cuts its
//! power at drawn events. Every boot begins by comparing every disk and every snapshot with the oracle.

pub mod campaign;
pub mod content;
mod flush_faults;
pub mod home;
pub mod lease;
pub mod native;
pub mod redo;
mod request_gate;
pub mod requests;
mod run;
mod watch;
