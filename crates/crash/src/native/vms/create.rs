//! Verbs of the user that make, grow and remove VMs and disks.

use std::collections::BTreeMap;
use std::rc::Rc;

use blk::ErrorKind;
use blk::manifest::{DiskMode, NewDisk};
use engine::native::NewNativeVm;
use engine::native::layout::BLOCK;

use super::harness::Running;
use super::model::{ExpectedVm, Outcome};
use super::shape::{DiskShape, Shape};
use super::user::{MODES, User};
use crate::content::Image;

/// Most VMs at the same time, and most disks of one VM.
const VMS_MAX: usize = 4;
const DISKS_MAX: usize = 4;
/// Most blocks of a new disk, and most blocks that a disk may grow by.
const BLOCKS_MAX: u64 = 24;
const GROWN_BLOCKS_MAX: u64 = 8;

fn zeros(bytes: u64) -> Image {
    Rc::new(vec![0; bytes as usize])
}

impl User {
    fn new_disk(&mut self) -> NewDisk {
        let mode =
            if self.rng.coin() { DiskMode::Persistent } else { *self.rng.pick(&MODES).expect("three") };
        NewDisk { size_bytes: self.rng.between(1, BLOCKS_MAX) * BLOCK, mode, folder: None, source: None }
    }

    fn is_full(&self) -> bool {
        self.harness.model.borrow().vms.len() >= VMS_MAX
    }

    /// Notes that a VM that is not there yet is to be `made`. Returns its name.
    fn expect_vm(&self, prefix: &str, made: Outcome) -> String {
        let mut model = self.harness.model.borrow_mut();
        let name = format!("{prefix}{}", model.next_ordinal());
        model.vms.insert(name.clone(), ExpectedVm { ahead: vec![made], ..ExpectedVm::default() });
        name
    }

    async fn came(&self, name: &str, id: blk::Result<u128>) -> Result<(), String> {
        match id {
            Ok(id) => {
                self.harness.model.borrow_mut().arrive(name, None);
                let running = self.harness.serve(id).await?;
                self.harness.check_shape(name)?;
                running.start().await
            }
            Err(e) if e.is_no_space() || e.kind == ErrorKind::Refused => {
                self.harness.model.borrow_mut().stay(name);
                Ok(())
            }
            Err(e) => Err(e.to_string()),
        }
    }

    pub(super) async fn create(&mut self) -> Result<(), String> {
        if self.is_full() {
            return Ok(());
        }
        let disks: Vec<NewDisk> = (0..self.rng.between(1, 2)).map(|_| self.new_disk()).collect();
        let mut made = Outcome { shape: Some(Shape::default()), ..Outcome::default() };
        disks.iter().for_each(|disk| add(&mut made, disk, &[]));
        let name = self.expect_vm("v", made);
        let id =
            self.harness.inner.store.create_vm(NewNativeVm { name: &name, disks: &disks, slots: &[] }).await;
        self.came(&name, id).await
    }

    pub(super) async fn clone_one(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let Some(snapshot) = self.any_snapshot(self.shape(vm).snapshots.into_keys()) else { return Ok(()) };
        if self.is_full() {
            return Ok(());
        }
        let made = {
            let model = self.harness.model.borrow();
            let disks = model.sealed[&snapshot].disks.clone();
            let shape = Shape { disks, ..Shape::default() };
            Outcome { shape: Some(shape), fixed: model.contents(&snapshot), ..Outcome::default() }
        };
        let name = self.expect_vm("c", made);
        let id = vm.vm.clone_to(&snapshot, &name).await;
        self.came(&name, id).await
    }

    /// Removes a VM, unless it is the only one.
    pub(super) async fn remove(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        if self.harness.running.borrow().len() == 1 {
            return Ok(());
        }
        vm.stop().await;
        self.bring_to_rest(vm).await?;
        let shape = self.shape(vm);
        let mut ahead = vec![Outcome::default()];
        if !shape.snapshots.is_empty() {
            let bare = Shape { snapshots: BTreeMap::new(), current: None, ..shape };
            ahead.insert(0, self.ahead(vm, bare));
        }
        self.expect(vm, ahead);
        let id = vm.vm.id();
        self.harness.running.borrow_mut().remove(&vm.name);
        match self.harness.inner.store.remove_vm(id).await {
            Ok(()) => self.harness.model.borrow_mut().arrive(&vm.name, None),
            Err(e) if e.is_no_space() => {
                self.harness.serve(id).await?;
                self.harness.find(&vm.name).await?;
                self.harness.running(&vm.name).start().await?;
            }
            Err(e) => return Err(e.to_string()),
        }
        Ok(())
    }

    async fn bring_to_rest(&self, vm: &Running) -> Result<(), String> {
        vm.vm.close().await.map_err(|e| format!("closing it: {e}"))?;
        self.harness.model.borrow().vms[&vm.name].closed();
        Ok(())
    }

    pub(super) async fn reopen(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        self.bring_to_rest(vm).await?;
        let again = self.harness.serve(vm.vm.id()).await?;
        self.harness.find(&vm.name).await?;
        again.start().await
    }

    pub(super) async fn add_disk(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let shape = self.shape(vm);
        if shape.disks.len() >= DISKS_MAX {
            return Ok(());
        }
        // Entries of the bin keep disk numbers and slots that the model does not record.
        self.empty_bin(vm, true).await?;
        let wanted = self.new_disk();
        let mut next = self.ahead(vm, shape.clone());
        let kept = self.kept_slots(&shape);
        add(&mut next, &wanted, &kept);
        let added = vm.vm.clone();
        match self.attempt(vm, vec![next], added.add_disk(&wanted)).await? {
            Some(disk) => vm.attach(disk.number).await,
            None => Ok(()),
        }
    }

    /// Returns the slots of disks that snapshots of the VM have.
    fn kept_slots(&self, shape: &Shape) -> Vec<String> {
        let model = self.harness.model.borrow();
        let disks = shape.snapshots.keys().flat_map(|name| model.sealed[name].disks.values());
        disks.map(|disk| disk.slot.clone()).collect()
    }

    pub(super) async fn remove_disk(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let mut shape = self.shape(vm);
        let Some(number) = self.any_disk(&shape).filter(|_| shape.disks.len() > 1) else { return Ok(()) };
        shape.disks.remove(&number);
        let mut next = self.ahead(vm, shape);
        next.resets.remove(&number);
        self.attempt(vm, vec![next], vm.vm.clone().remove_disk(number, true)).await.map(drop)
    }

    pub(super) async fn grow(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let mut shape = self.shape(vm);
        let Some(number) = self.any_disk(&shape) else { return Ok(()) };
        let disk = shape.disks.get_mut(&number).expect("it is there");
        disk.size_bytes += self.rng.between(1, GROWN_BLOCKS_MAX) * BLOCK;
        let size_bytes = disk.size_bytes;
        let ahead = vec![self.ahead(vm, shape)];
        self.attempt(vm, ahead, vm.vm.clone().grow_disk(number, size_bytes)).await.map(drop)
    }
}

/// Adds an empty disk.
pub(super) fn add(made: &mut Outcome, wanted: &NewDisk, kept: &[String]) {
    let shape = made.shape.as_mut().expect("it is there");
    let (number, slot) = (shape.next_number(), shape.free_slot(kept));
    shape.disks.insert(number, DiskShape { slot, mode: wanted.mode, size_bytes: wanted.size_bytes });
    made.fixed.insert(number, zeros(wanted.size_bytes));
    if wanted.mode == DiskMode::IndependentNonpersistent {
        made.resets.insert(number, zeros(wanted.size_bytes));
    }
}
