//! The stacks that can be measured, and their setup for a run.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::client::Client;
use api::{DeltaFormat, Store, Vm};
use blk::volume::Volume;
use blk::{Errno, Error, Result};

use super::hooks::Hooks;
use super::host_volume::{HostVolume, VolumeKind};
use super::needs::{Need, check};
use super::open::open_disk;
use super::operations::{ExternalStack, Operations};
use super::qemu::Qemu;
use super::rbd::{Pool, Rbd};
use super::reflink::Reflinks;
use super::unstun::Served;
use super::uring_executor::UringExecutor;
use crate::subject::Subject;
use crate::vmware::Esx;
use crate::vmware::spec::Spec;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stack {
    /// Our daemon, with disks in this store and new deltas in this format.
    Unstun(Store, DeltaFormat),
    /// `true` is an overlay of 128 KiB clusters that allocates subclusters of 4 KiB; `false` is QEMU's default, 64 KiB
    /// clusters.
    Qemu {
        extended_l2: bool,
    },
    Reflink,
    /// A stack of this machine, over a loop device.
    Volume(VolumeKind),
    /// An image of Ceph's RBD.
    Rbd(Pool),
    /// VMware's ways of committing in the format of our redo chains, without our daemon. `true` is the mirror of 6.0,
    /// `false` the helpers of the versions before it.
    Vmware {
        mirror: bool,
    },
    /// A stack of the user's own: NBD URIs, files or block devices to load, and commands.
    Hooks {
        disks: Vec<String>,
        hooks: Hooks,
    },
}

/// Where a stack is set up. The run has the folder to itself.
pub struct Setup<'a> {
    pub folder: &'a Path,
    /// The binary of our daemon.
    pub program: &'a Path,
    /// Sizes of the VM's disks, bytes. The disks of a user's own stack keep the sizes they have.
    pub disk_bytes: &'a [u64],
}

impl Stack {
    pub fn name(&self) -> &'static str {
        match self {
            Stack::Unstun(_, DeltaFormat::Sesparse) => "redo:sesparse",
            Stack::Unstun(store, DeltaFormat::Fitting) => store.as_str(),
            Stack::Qemu { extended_l2: false } => "qemu",
            Stack::Qemu { extended_l2: true } => "qemu-extl2",
            Stack::Reflink => "reflink",
            Stack::Volume(kind) => kind.name(),
            Stack::Rbd(_) => "rbd",
            Stack::Vmware { mirror: true } => "redo:mirror",
            Stack::Vmware { mirror: false } => "redo:helper",
            Stack::Hooks { .. } => "hooks",
        }
    }

    /// Stacks that need only their name. RBD also needs its pool, and hooks need their commands.
    const NAMED: [Stack; 11] = [
        Stack::Unstun(Store::Native, DeltaFormat::Fitting),
        Stack::Unstun(Store::Redo, DeltaFormat::Fitting),
        Stack::Unstun(Store::Redo, DeltaFormat::Sesparse),
        Stack::Vmware { mirror: false },
        Stack::Vmware { mirror: true },
        Stack::Qemu { extended_l2: false },
        Stack::Qemu { extended_l2: true },
        Stack::Reflink,
        Stack::Volume(VolumeKind::Btrfs),
        Stack::Volume(VolumeKind::LvmThin),
        Stack::Volume(VolumeKind::Zfs),
    ];

    /// Returns the stack of that name. `redo:drain` is a name of `redo`, to set it apart from the other two ways of
    /// committing; `qemu:extended_l2` is an earlier name. Errors: `Invalid`, with the names there are.
    pub fn by_name(name: &str) -> Result<Stack> {
        let wanted = match name {
            "redo:drain" => "redo",
            "qemu:extended_l2" => "qemu-extl2",
            other => other,
        };
        Stack::NAMED.into_iter().find(|stack| stack.name() == wanted).ok_or_else(|| {
            let known: Vec<_> = Stack::NAMED.iter().map(Stack::name).collect();
            let known = known.join(", ");
            Error::invalid(name, format!("no such subject; there are {known}, rbd, and hooks for any other"))
        })
    }

    /// Refuses a stack that this machine cannot run. Errors: `Unsupported`, with what is missing and how to get it.
    pub fn check(&self) -> Result<()> {
        const QEMU: [Need; 2] = [
            Need::Program("qemu-img", "qemu-utils"),
            Need::Program("qemu-storage-daemon", "qemu-system-common"),
        ];
        match self {
            Stack::Qemu { .. } => check(self.name(), &QEMU),
            Stack::Volume(kind) => kind.check(),
            Stack::Rbd(pool) => pool.check(),
            // Whether a folder can share blocks is known when there is one.
            Stack::Unstun(..) | Stack::Reflink | Stack::Vmware { .. } | Stack::Hooks { .. } => Ok(()),
        }
    }

    /// Returns the bytes of each disk of a user's own stack; None for the other stacks, whose disks are created.
    pub fn disk_bytes(&self) -> Result<Option<Vec<u64>>> {
        let Stack::Hooks { disks, .. } = self else { return Ok(None) };
        let executor = UringExecutor::new()?;
        let size = |target: &String| Ok(open_disk(&executor, target)?.info().size_bytes);
        disks.iter().map(size).collect::<Result<_>>().map(Some)
    }

    /// Starts the server of the disks and attaches to them. Server and connections end with the subject.
    pub fn open(&self, executor: &UringExecutor, setup: &Setup<'_>) -> Result<Rc<dyn Subject>> {
        let (disks, operations) = match self {
            Stack::Unstun(store, delta) => {
                let (mut served, uris) =
                    Served::start(setup.program, setup.folder, *store, setup.disk_bytes)?;
                served.delta = *delta;
                attached(executor, (served, uris))?
            }
            Stack::Qemu { extended_l2 } => open_qemu(*extended_l2, executor, setup)?,
            Stack::Reflink => open_reflink(executor, setup)?,
            Stack::Volume(kind) => open_volume(*kind, executor, setup)?,
            Stack::Rbd(pool) => open_rbd(pool, executor, setup)?,
            Stack::Vmware { mirror } => return open_vmware(*mirror, executor, setup),
            Stack::Hooks { disks, hooks } => {
                let volumes = disks.iter().map(|disk| open_disk(executor, disk)).collect::<Result<_>>()?;
                (volumes, Box::new(hooks.clone()) as Box<dyn Operations>)
            }
        };
        Ok(ExternalStack::new(self.name(), executor, disks, operations))
    }
}

type Opened = (Vec<Rc<dyn Volume>>, Box<dyn Operations>);

/// Attaches to the disks of a VM of a daemon that runs already.
pub(super) fn open_served(executor: &UringExecutor, client: Client, vm: &Vm) -> Result<Rc<dyn Subject>> {
    let (disks, operations) = attached(executor, Served::connect(client, vm.name.clone())?)?;
    Ok(ExternalStack::new(vm.store.as_str(), executor, disks, operations))
}

fn attached(executor: &UringExecutor, (served, uris): (Served, Vec<String>)) -> Result<Opened> {
    let disks = uris.iter().map(|uri| open_disk(executor, uri)).collect::<Result<_>>()?;
    Ok((disks, Box::new(served)))
}

fn open_qemu(extended_l2: bool, executor: &UringExecutor, setup: &Setup<'_>) -> Result<Opened> {
    make_raw(setup, "qemu")?;
    let qemu = Qemu::start(setup.folder, extended_l2)?;
    Ok((vec![open_disk(executor, &Qemu::uri(setup.folder))?], Box::new(qemu)))
}

fn open_reflink(executor: &UringExecutor, setup: &Setup<'_>) -> Result<Opened> {
    Reflinks::probe(setup.folder)?;
    let disk = make_raw(setup, "reflink")?;
    let volume = open_disk(executor, &disk.to_string_lossy())?;
    Ok((vec![volume], Box::new(Reflinks { disk })))
}

fn open_volume(kind: VolumeKind, executor: &UringExecutor, setup: &Setup<'_>) -> Result<Opened> {
    let volume = HostVolume::create(kind, setup.folder, only_disk(setup, kind.name())?)?;
    Ok((vec![open_disk(executor, &volume.disk())?], Box::new(volume)))
}

fn open_rbd(pool: &Pool, executor: &UringExecutor, setup: &Setup<'_>) -> Result<Opened> {
    let rbd = Rbd::create(pool, setup.folder, only_disk(setup, "rbd")?)?;
    Ok((vec![open_disk(executor, &rbd.uri("disk"))?], Box::new(rbd)))
}

fn open_vmware(mirror: bool, executor: &UringExecutor, setup: &Setup<'_>) -> Result<Rc<dyn Subject>> {
    let spec = Spec::redo(mirror, setup.disk_bytes.to_vec());
    let (env, folder) = (executor.env(), setup.folder.to_string_lossy().into_owned());
    executor.run(async move {
        let dir = env.open_root(&folder)?;
        Ok(Rc::new(Esx::create(env.clone(), dir.clone(), dir, spec).await?) as Rc<dyn Subject>)
    })
}

/// Returns the size of the one disk of a stack that has no VMs.
fn only_disk(setup: &Setup<'_>, stack: &str) -> Result<u64> {
    let [bytes] = setup.disk_bytes else {
        let cause = format!("{} disks; this stack is measured with one", setup.disk_bytes.len());
        return Err(Error::unsupported(stack, cause));
    };
    Ok(*bytes)
}

/// Creates the file of the one disk.
fn make_raw(setup: &Setup<'_>, stack: &str) -> Result<PathBuf> {
    let bytes = only_disk(setup, stack)?;
    let path = setup.folder.join("disk.raw");
    let made = File::create_new(&path).and_then(|file| file.set_len(bytes));
    made.map_err(|e| Errno::from(e).at(path.display().to_string(), "making the disk"))?;
    Ok(path)
}
