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

use std::ops::RangeInclusive;
use std::rc::Rc;

use blk::{Env, Result};
use serde::{Deserialize, Serialize};

use crate::run::Constant;
use copy_before_write::{FLEECING, LVM};
use qcow2::Layout;

pub use vm::Peer;

/// Another stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// QEMU's overlays, with clusters of 64 KiB.
    #[serde(rename = "qcow2")]
    Qcow2,
    /// The same with clusters of 128 KiB, of which 32 subclusters are allocated one by one.
    #[serde(rename = "qcow2:extended_l2")]
    Qcow2ExtendedL2,
    /// LVM's classic snapshots.
    #[serde(rename = "lvm")]
    Lvm,
    /// QEMU's copy before write, for a backup.
    #[serde(rename = "fleecing")]
    Fleecing,
    /// Ceph's object clones.
    #[serde(rename = "rbd")]
    Rbd,
    /// A copy-on-write file system.
    #[serde(rename = "zfs")]
    Zfs,
}

/// What may differ between two VMs of a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Setup {
    /// Time of each guest's request on its way to the stack, one at a time; 0 leaves it out.
    pub request_ns: u64,
    /// Size of a cluster of qcow2, or of a chunk of LVM; None: the stack's default. The others have none.
    pub unit_bytes: Option<u64>,
    /// Largest cache of qcow2's L2 tables; None: QEMU's default.
    pub l2_cache_bytes: Option<u64>,
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

    /// Creates a VM with disks of these sizes (bytes, multiples of 4 KiB).
    pub async fn create(self, env: &Env, disk_bytes: &[u64], setup: Setup) -> Result<Peer> {
        let vm = Rc::new(vm::Vm::new(env.clone(), env.open_root("/")?, setup.request_ns));
        let mut disks = Vec::new();
        for (number, &bytes) in disk_bytes.iter().enumerate() {
            disks.push(match self {
                Kind::Qcow2 | Kind::Qcow2ExtendedL2 => {
                    qcow2::create(&vm, number, bytes, self.layout(setup)).await?
                }
                Kind::Lvm => {
                    copy_before_write::create(&vm, number, bytes, LVM.with(setup.unit_bytes)).await?
                }
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

    fn layout(self, setup: Setup) -> Layout {
        let layout = if self == Kind::Qcow2ExtendedL2 { Layout::EXTENDED } else { Layout::STANDARD };
        Layout {
            cluster_bytes: setup.unit_bytes.unwrap_or(layout.cluster_bytes),
            cache_max_bytes: setup.l2_cache_bytes.unwrap_or(layout.cache_max_bytes),
            ..layout
        }
    }

    /// Returns the sizes that a cluster or chunk may have, bytes, each a power of two; None: the stack has no such unit.
    pub fn units(self) -> Option<RangeInclusive<u64>> {
        match self {
            // QEMU `docs/interop/qcow2.txt`: 512 bytes to 2 MiB, with extended entries from 16 KiB on. The model's tables
            // have pages of 4 KiB.
            Kind::Qcow2 => Some(4 << 10..=2 << 20),
            Kind::Qcow2ExtendedL2 => Some(16 << 10..=2 << 20),
            // lvcreate(8), --chunksize.
            Kind::Lvm => Some(4 << 10..=512 << 10),
            Kind::Fleecing | Kind::Rbd | Kind::Zfs => None,
        }
    }

    /// Returns the part of a file's name that only the files of snapshots have; None: snapshots have no files of their own.
    pub fn snapshot_names(self) -> Option<&'static str> {
        match self {
            Kind::Qcow2 | Kind::Qcow2ExtendedL2 => Some(".qcow2"),
            Kind::Lvm | Kind::Fleecing => Some(".cow"),
            Kind::Rbd | Kind::Zfs => None,
        }
    }

    /// Returns every number that the model depends on.
    pub fn constants(self, setup: Setup) -> Vec<Constant> {
        match self {
            Kind::Qcow2 | Kind::Qcow2ExtendedL2 => qcow2::constants(self.layout(setup)),
            Kind::Lvm => copy_before_write::constants(LVM.with(setup.unit_bytes)),
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
