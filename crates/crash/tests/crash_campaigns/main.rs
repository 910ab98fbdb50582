//! The crash campaigns of every CI run. `CRASH_SEED=n` replays one run, `CRASH_CUTS=n` sets how many power cuts there are.

mod faults;
mod lease;
mod moves;
mod native;
mod native_script;
mod native_vms;
mod redo;
