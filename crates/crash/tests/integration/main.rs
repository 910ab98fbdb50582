//! Tests of the engine over VMware's formats and the native store, on the simulator: scripted, without campaigns.

mod bin;
mod branches;
mod difference;
mod extreme;
mod grains;
mod killed;
mod limits;
mod memory;
mod relocate;
mod support;
mod tree;
