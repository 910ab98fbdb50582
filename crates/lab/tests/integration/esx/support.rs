//! A VM in a simulated world, and a load that checks what it reads.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env, SECTOR};
use lab::subject::Subject;
use lab::vmware::Esx;
use lab::vmware::spec::{Snapshots, Spec, Version};
use sim::oracle::DiskModel;
use sim::{Device, Options, Rng, SimWorld};

pub(super) const MS: u64 = 1_000_000;
pub(super) const SNAPSHOT: &str = "s";

pub(super) fn world(device: Device) -> SimWorld {
    SimWorld::new(3, Options { device, events_max: 20_000_000, ..Options::default() })
}

/// Returns a VM of one disk whose stuns and new blocks cost nothing, so that clocks and counters show only the I/O
/// path. Its commits copy one piece at a time, which makes their rate that of the device.
pub(super) fn spec(version: Version, disk_bytes: u64) -> Spec {
    let mut spec = Spec::esx(version, vec![disk_bytes]);
    spec.zeroing = lab::vmware::Zeroing::Nothing;
    spec.stun.checkpoint_us = 0;
    spec.rules.pieces_at_once = 1;
    spec.stun.file_operation = lab::vmware::spec::FileOperation::DeclaredUs(0);
    assert_eq!(spec.snapshots, Snapshots::Deltas);
    spec
}

pub(super) async fn create(env: &Env, spec: Spec) -> Rc<Esx> {
    let dir = env.open_root("/").unwrap();
    Rc::new(Esx::create(env.clone(), dir.clone(), dir, spec).await.unwrap())
}

/// Runs in virtual time on a device that takes 1 ms for everything. Returns the result and the world's hash.
pub(super) fn steady<T: 'static, F>(main: impl FnOnce(Env) -> F) -> (T, u64)
where
    F: Future<Output = T> + 'static,
{
    let world = world(Device::steady(MS));
    let outcome = world.run(main).expect("no power cut");
    (outcome, world.event_hash())
}

pub(super) async fn write(disk: &Rc<dyn Volume>, offset: u64, len: usize) {
    disk.clone().write(offset, Buf::zeroed(len).freeze()).await.unwrap();
}

pub(super) async fn read(disk: &Rc<dyn Volume>, offset: u64, len: usize) -> Buf {
    let (buf, result) = disk.clone().read(offset, Buf::alloc(len)).await;
    result.unwrap();
    buf
}

/// A load of reads and writes of 1 to `sectors_max` sectors anywhere, checked against the model.
pub(super) struct Load {
    pub disk: Rc<dyn Volume>,
    pub model: Rc<RefCell<DiskModel>>,
    pub sectors_max: u64,
}

impl Load {
    pub(super) fn new(disk: Rc<dyn Volume>, sectors_max: u64) -> Rc<Load> {
        Rc::new(Load { disk, model: Rc::new(RefCell::new(DiskModel::new(1))), sectors_max })
    }

    /// Issues `count` I/Os, one after another.
    pub(super) async fn run(&self, seed: u64, count: usize) {
        let mut rng = Rng::new(seed);
        let sectors = self.disk.info().size_bytes / SECTOR;
        for _ in 0..count {
            let len = 1 + rng.below(self.sectors_max);
            let first = rng.below(sectors - len);
            match rng.below(8) {
                0 => self.disk.clone().flush().await.unwrap(),
                1..=3 => self.check(first, len).await,
                _ => self.write(first, len).await,
            }
        }
    }

    pub(super) async fn write(&self, first: u64, len: u64) {
        let (open, data) = {
            let model = self.model.borrow_mut();
            let open = model.begin(first, len);
            let data = model.data(&open);
            (open, data)
        };
        self.disk.clone().write(first * SECTOR, Buf::copy_of(&data).freeze()).await.unwrap();
        self.model.borrow_mut().end(&open);
    }

    pub(super) async fn check(&self, first: u64, len: u64) {
        let began = self.model.borrow_mut().now();
        let bytes = read(&self.disk, first * SECTOR, (len * SECTOR) as usize).await;
        self.model.borrow().check_read(first, &bytes, began).unwrap();
    }

    pub(super) async fn check_all(&self) {
        let sectors = self.disk.info().size_bytes / SECTOR;
        for first in (0..sectors).step_by(2048) {
            self.check(first, 2048.min(sectors - first)).await;
        }
    }
}

/// Runs `depth` loads concurrently, until each has done `count` I/Os.
pub(super) async fn run_loads(env: &Env, load: &Rc<Load>, seed: u64, depth: u64, count: usize) {
    let tasks: Vec<_> = (0..depth)
        .map(|task| {
            let load = load.clone();
            env.spawn(async move { load.run(seed * 100 + task, count).await })
        })
        .collect();
    for task in tasks {
        task.join().await;
    }
}

pub(super) fn disk(esx: &Rc<Esx>) -> Rc<dyn Volume> {
    esx.disks().remove(0)
}
