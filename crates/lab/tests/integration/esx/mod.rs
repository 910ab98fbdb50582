//! VMware as it was: its costs in virtual time, and checks that no data is lost, both there and on real files.

mod bytes;
mod commits;
mod costs;
mod setups;
mod stuns;
mod support;
