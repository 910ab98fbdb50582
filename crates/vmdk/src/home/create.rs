//! New files in a home: a whole VM, and the children that takes make.

use std::rc::Rc;

use blk::layer::Layer;
use blk::{Dir, Error, ErrorKind, Result, SECTOR};

use super::{Growth, Home, links};
use crate::cowd::NEW_CAPACITY_SECTORS_MAX;
use crate::descriptor::{Descriptor, NewBase, NewChild, note_for_child_of};
use crate::names::{BaseNames, base_names, next_delta_names};
use crate::text::check_name;
use crate::vmfssparse::{Facts, VmfsSparse};
use crate::vmsd::Vmsd;
use crate::vmx::{VM_DISKS_MAX, Vmx};

/// A VM to make: its name is also that of its files.
#[derive(Debug, Clone)]
pub struct NewVm<'a> {
    pub name: &'a str,
    /// Multiples of 512.
    pub disk_bytes: &'a [u64],
}

impl NewVm<'_> {
    fn check(&self, place: &str) -> Result<()> {
        check_name(place, "VM name", self.name)?;
        if self.disk_bytes.len() > VM_DISKS_MAX {
            let cause = format!("{} disks asked for, expected at most {VM_DISKS_MAX}", self.disk_bytes.len());
            return Err(Error::invalid(place, cause));
        }
        for bytes in self.disk_bytes {
            if *bytes == 0 || !bytes.is_multiple_of(SECTOR) || bytes / SECTOR > NEW_CAPACITY_SECTORS_MAX {
                let cause = format!("a disk of {bytes} bytes was asked for");
                let expected =
                    "expected a multiple of 512 up to 2,032 GiB, the most a VMFSsparse snapshot can follow";
                return Err(Error::invalid(place, format!("{cause}, {expected}")));
            }
        }
        Ok(())
    }
}

impl Home {
    /// Makes a VM with thin flat disks in an empty folder. Durable when this returns; until the .vmx is there, which comes last,
    /// the folder is no VM.
    pub async fn create(dir: Dir, growth: Growth, vm: NewVm<'_>) -> Result<Home> {
        vm.check(dir.path())?;
        let home = Home::new(dir, growth);
        let taken = home.dir.list().await?;
        if let Some(name) = taken.first() {
            let cause = format!("the folder is not empty: it holds {name}");
            return Err(Error::new(ErrorKind::Exists, home.dir.path(), cause));
        }
        let mut descriptors = Vec::new();
        for (index, bytes) in vm.disk_bytes.iter().enumerate() {
            let names = base_names(vm.name, index)?;
            home.create_base(&names, *bytes).await?;
            descriptors.push(names.descriptor);
        }
        let vmsd = format!("{}.vmsd", vm.name);
        home.dir.replace_file(&vmsd, &Vmsd::create(&vmsd).to_bytes()).await?;
        let vmx = format!("{}.vmx", vm.name);
        home.dir.replace_file(&vmx, &Vmx::create(&vmx, vm.name, &descriptors)?.to_bytes()).await?;
        Ok(home)
    }

    async fn create_base(&self, names: &BaseNames, bytes: u64) -> Result<()> {
        let base = NewBase {
            extent_file: &names.extent,
            capacity_sectors: bytes / SECTOR,
            content_id: self.new_content_id(),
            uuid: self.random(),
        };
        let extent = self.dir.create_new(&names.extent).await?;
        extent.set_len(bytes).await?;
        extent.flush().await?;
        self.dir.replace_file(&names.descriptor, &base.descriptor(&names.descriptor)?.to_bytes()).await
    }

    pub(super) async fn create_child(&self, parent: &str) -> Result<Rc<dyn Layer>> {
        let (name, link) = self.create_child_descriptor(parent).await?;
        let layer = match self.create_child_extent(&name, &link).await {
            Ok(layer) => layer,
            Err(e) => {
                // What cannot be removed now is debris with our mark, for the next load.
                let _ = self.remove_link(&name, &link).await;
                self.prepared.borrow_mut().remove(&name);
                return Err(e);
            }
        };
        Ok(Rc::new(layer))
    }

    /// The descriptor, durable and marked as prepared.
    async fn create_child_descriptor(&self, parent: &str) -> Result<(String, Descriptor)> {
        let _turn = self.turn.lock().await;
        let parent_link = links::read(&self.dir, parent).await?;
        let taken = self.names().await?;
        let names = next_delta_names(parent, |name| taken.contains(name))?;
        let child = NewChild {
            extent_file: &names.extent,
            capacity_sectors: parent_link.capacity_sectors(),
            content_id: self.new_content_id(),
            parent,
            parent_cid: parent_link.cid(),
            note: note_for_child_of(&parent_link),
        };
        let link = child.descriptor(&self.dir.path_of(&names.descriptor))?;
        self.prepared.borrow_mut().insert(names.descriptor.clone());
        self.fresh.borrow_mut().insert(names.descriptor.clone());
        self.fresh.borrow_mut().remove(parent);
        match self.dir.replace_file(&names.descriptor, &link.to_bytes()).await {
            Ok(()) => Ok((names.descriptor, link)),
            Err(e) => {
                self.prepared.borrow_mut().remove(&names.descriptor);
                Err(e)
            }
        }
    }

    async fn create_child_extent(&self, name: &str, link: &Descriptor) -> Result<VmfsSparse> {
        let extent = &link.extents()[0];
        let file = self.dir.create_new(&extent.file).await?;
        let facts = Facts { name, capacity_sectors: extent.sectors, writable: true, growth: self.growth };
        let layer = VmfsSparse::create(self.dir.env().clone(), file, facts).await?;
        self.dir.sync().await?;
        Ok(layer)
    }

    pub(super) async fn discard_child(&self, name: &str) -> Result<()> {
        let _turn = self.turn.lock().await;
        if !self.prepared.borrow().contains(name) {
            let cause = format!("{name:?} is not a child that was made in this session and never published");
            return Err(Error::refused(self.dir.path(), cause));
        }
        let link = links::read(&self.dir, name).await?;
        self.remove_link(name, &link).await?;
        self.prepared.borrow_mut().remove(name);
        Ok(())
    }
}
