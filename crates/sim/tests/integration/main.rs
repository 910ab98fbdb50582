//! The contract of `blk::reactor` in virtual time: guarantees of the simulator, and effects of power cuts and faults.

mod conformance;
mod determinism;
mod faults;
mod hosts;
mod names;
mod power_cut;
mod storage;
mod support;
mod writes;
