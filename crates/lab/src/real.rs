//! Stacks on real storage, as subjects. The lab measures them through the interfaces that every user has: NBD, files,
//! block devices, and the stack's own commands or API. It uses no private interface of our engine.

mod facts;
mod hooks;
mod host_volume;
mod measure;
mod needs;
mod open;
mod operations;
mod program;
mod qemu;
mod qmp;
mod rbd;
mod reflink;
mod server;
mod stack;
mod storage_daemon;
mod survey;
mod undo;
mod unstun;
mod uring_executor;

pub use self::facts::{facts, free_bytes};
pub use self::hooks::Hooks;
pub use self::host_volume::VolumeKind;
pub use self::measure::{run, run_served};
pub use self::open::open_disk;
pub use self::rbd::Pool;
pub use self::stack::{Setup, Stack};
pub use self::survey::{SurveyObserver, survey};
pub use self::uring_executor::UringExecutor;
