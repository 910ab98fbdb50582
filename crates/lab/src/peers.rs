//! Models of the snapshots of other stacks, in virtual time.
//!
//! The mechanisms and their constants come from the public documents and sources of each stack, and each constant names
//! its own. The bytes are real, so tests verify what a model reads; a run needs only their times. No model recovers
//! from a power cut: tables are written for their cost.

mod copy_before_write;
mod qcow2;
mod rbd;
mod source;
mod sparse;
mod versions;
mod vm;
mod zfs;

use std::rc::Rc;

use blk::{Env, Result};
use serde::{Deserialize, Serialize};

use crate::run::Constant;
use copy_before_write::{FLEECING, LVM};

pub use vm::Peer;

/// Another stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// QEMU's overlays, with clusters of 64 KiB.
    Qcow2,
    /// The same with clusters of 128 KiB, of which subclusters of 4 KiB are allocated.
    Qcow2ExtendedL2,
    /// LVM's classic snapshots.
    Lvm,
    /// QEMU's copy before write, for a backup.
    Fleecing,
    /// Ceph's object clones.
    Rbd,
    /// A copy-on-write file system.
    Zfs,
}

impl Kind {
    pub const ALL: [Kind; 6] =
        [Kind::Qcow2, Kind::Qcow2ExtendedL2, Kind::Lvm, Kind::Fleecing, Kind::Rbd, Kind::Zfs];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Qcow2 => "qcow2",
            Kind::Qcow2ExtendedL2 => "qcow2:extended_l2",
            Kind::Lvm => "lvm",
            Kind::Fleecing => "fleecing",
            Kind::Rbd => "rbd",
            Kind::Zfs => "zfs",
        }
    }

    /// Creates a VM with disks of these sizes (bytes, multiples of 4 KiB). `request_ns` is the time of each guest's
    /// request on its way to the stack, one at a time; 0 leaves it out.
    pub async fn create(self, env: &Env, disk_bytes: &[u64], request_ns: u64) -> Result<Peer> {
        let vm = Rc::new(vm::Vm::new(env.clone(), env.open_root("/")?, request_ns));
        let mut disks = Vec::new();
        for (number, &bytes) in disk_bytes.iter().enumerate() {
            disks.push(match self {
                Kind::Qcow2 => qcow2::create(&vm, number, bytes, false).await?,
                Kind::Qcow2ExtendedL2 => qcow2::create(&vm, number, bytes, true).await?,
                Kind::Lvm => copy_before_write::create(&vm, number, bytes, LVM).await?,
                Kind::Fleecing => copy_before_write::create(&vm, number, bytes, FLEECING).await?,
                Kind::Rbd => rbd::create(&vm, number, bytes).await?,
                Kind::Zfs => zfs::create(&vm, number, bytes).await?,
            });
        }
        Ok(Peer::new(self.name(), vm, disks, self.stops_for_takes()))
    }

    /// Returns whether the guest's I/O is held back while a snapshot is taken.
    fn stops_for_takes(self) -> bool {
        match self {
            Kind::Qcow2 | Kind::Qcow2ExtendedL2 | Kind::Lvm | Kind::Fleecing | Kind::Rbd => true,
            Kind::Zfs => false,
        }
    }

    /// Returns every number that the model depends on.
    pub fn constants(self) -> Vec<Constant> {
        match self {
            Kind::Qcow2 => qcow2::constants(false),
            Kind::Qcow2ExtendedL2 => qcow2::constants(true),
            Kind::Lvm => copy_before_write::constants(LVM),
            Kind::Fleecing => copy_before_write::constants(FLEECING),
            Kind::Rbd => rbd::constants(),
            Kind::Zfs => zfs::constants(),
        }
    }

    /// Returns what the model leaves out, one sentence each.
    pub fn left_out(self) -> &'static [&'static str] {
        match self {
            Kind::Qcow2 | Kind::Qcow2ExtendedL2 => &qcow2::LEFT_OUT,
            Kind::Lvm => &copy_before_write::LVM_LEFT_OUT,
            Kind::Fleecing => &copy_before_write::FLEECING_LEFT_OUT,
            Kind::Rbd => &rbd::LEFT_OUT,
            Kind::Zfs => &zfs::LEFT_OUT,
        }
    }
}

#[cfg(test)]
mod tests;
