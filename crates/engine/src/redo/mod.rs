//! The redo store: a disk is a chain of layers, and a snapshot freezes the top one.

mod bin;
mod chain;
mod client;
mod commit;
mod commit_plan;
mod difference;
mod disk;
mod disks;
mod fold;
mod layer_graph;
mod link;
mod listing;
mod load;
mod machine;
mod map;
mod pace;
mod revert;
mod revert_plan;
mod space;
mod take;
mod unwritten;
mod vm;
mod volume;
mod write;

pub use disk::Disk;
pub use layer_graph::LayerGraph;
pub use unwritten::unwritten_bytes;
pub use vm::Vm;
