//! VMware as it was: what it costs, in virtual time, and that it loses nothing, there and on real files.

mod bytes;
mod commits;
mod costs;
mod setups;
mod stuns;
mod support;
