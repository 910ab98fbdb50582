//! Sources of native stores: images below disks. An image is opened when a disk is made over it and when its store is
//! opened, watched for changes, and copied into the store in the background.

mod backup_server;
mod hashes;
mod image;
mod keep;
pub(super) mod kept;
mod origin;
mod ova;
mod qemu_nbd;
mod raw_image;
mod read_lock;
mod verbs;
mod watched;
mod watched_files;

pub(super) use ova::{OvaVm, OvaVmDisk};
pub(super) use verbs::give_up_sources;
