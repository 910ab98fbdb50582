//! The contract of `blk::reactor` in virtual time: what the simulator promises, and what power cuts and faults do.

mod conformance;
mod determinism;
mod faults;
mod hosts;
mod names;
mod power_cut;
mod storage;
mod support;
mod writes;
