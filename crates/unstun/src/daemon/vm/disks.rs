//! Changes of a VM's list of disks.

use std::rc::Rc;

use api::error::{Error, Result};
use api::name::VmName;
use api::units::format_bytes;

use crate::daemon::requests::api_types;
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::running::client::export_name::lasting_name;
use crate::daemon::source::give_up_sources;
use crate::daemon::state::Daemon;
use crate::daemon::vm::lifecycle::refuse_source;
use crate::daemon::vm::vm_record::{Kept, VmRecord};
use crate::guest::Resize;

impl Daemon {
    pub(crate) async fn disk_add(self: &Rc<Self>, vm: &VmName, disk: api::DiskCreate) -> Result<api::Disk> {
        let mut entry = self.entry_to_change(vm.as_str())?;
        let wanted = match entry.kept {
            Kept::Native(_) => {
                let wanted = self.native_disks(&entry.datastore, std::slice::from_ref(&disk), None).await?;
                wanted.into_iter().next().expect("a disk for each that was asked for")
            }
            Kept::Redo => {
                refuse_source(&disk)?;
                api_types::new_disk(&disk)
            }
        };
        if let Some(folder) = &wanted.folder {
            entry = self.with_folder(&entry, folder).await?;
        }
        let made = entry.running.add_disk(&wanted).await;
        let made = made.inspect_err(|_| give_up_sources(&entry.datastore, std::slice::from_ref(&wanted)))?;
        self.show_disk(&entry, made.number).await
    }

    pub(crate) async fn disk_remove(
        &self,
        vm: &VmName,
        number: u32,
        delete_files: bool,
    ) -> Result<api::DiskRemoved> {
        let entry = self.entry_to_change(vm.as_str())?;
        let disk = self.show_disk(&entry, number).await?;
        // It is refused while the disk has clients.
        entry.running.await_ended(Who::Writers).await;
        entry.running.remove_disk(number, delete_files).await?;
        // Foreign layers do not belong to this VM, so it neither leaves nor deletes them.
        let own = disk.layers.into_iter().filter(|layer| !layer.foreign);
        let layers = own.map(|layer| layer.descriptor).collect();
        Ok(api::DiskRemoved { number, layers, files_deleted: delete_files })
    }

    /// Grows a disk. Fails with `Refused` while the disk has deltas.
    pub(crate) async fn disk_grow(
        &self,
        vm: &VmName,
        number: u32,
        size_bytes: u64,
    ) -> Result<api::DiskGrown> {
        let entry = self.entry_to_change(vm.as_str())?;
        if !has_size(&entry, number, size_bytes).await? {
            entry.running.grow_disk(number, size_bytes).await?;
        }
        // vhost-user has a message for a new size.
        let told = entry.running.tell_sizes().await;
        let mut reconnect = entry.running.present(Who::Writers).await;
        reconnect.retain(|client| client.disk == Some(number));
        let had_clients = !reconnect.is_empty();
        reconnect.retain(|client| !told.contains(&client.client));
        let cause = match self.show_to_guest(&entry, number, size_bytes, &reconnect).await {
            Some(Ok(())) => {
                reconnect.clear();
                None
            }
            told => told.and_then(Result::err),
        };
        let shown = had_clients && reconnect.is_empty();
        if shown {
            self.note(&entry, &format!("disk{number} has {size_bytes} bytes, and its guest sees them"));
        }
        if !reconnect.is_empty() {
            let message = format!(
                "disk{number} has {size_bytes} bytes: its clients see the new size after they reconnect"
            );
            self.note(&entry, &message);
        }
        Ok(api::DiskGrown { disk: self.show_disk(&entry, number).await?, reconnect, shown, cause })
    }

    /// Shows the new size of a disk to a guest whose QEMU has it over NBD. Returns None where there is none to be told.
    async fn show_to_guest(
        &self,
        entry: &VmRecord,
        number: u32,
        size_bytes: u64,
        clients: &[api::VmClient],
    ) -> Option<std::result::Result<(), String>> {
        let monitor = entry.labels.get().guest().qmp.filter(|_| !clients.is_empty())?;
        let generation = entry.running.state().await.generation;
        let stem = format!("{}/disk{number}", entry.name);
        let export = lasting_name(&entry.name, number, generation);
        Some(Resize { monitor: monitor.path().to_owned(), stem, export, size_bytes }.show().await)
    }

    pub(crate) async fn disk_set_mode(
        &self,
        vm: &VmName,
        number: u32,
        mode: api::DiskMode,
    ) -> Result<api::Disk> {
        let entry = self.entry_to_change(vm.as_str())?;
        // It is refused while the disk has clients.
        entry.running.await_ended(Who::Writers).await;
        entry.running.set_mode(number, api_types::engine_mode(mode)).await?;
        self.show_disk(&entry, number).await
    }

    async fn show_disk(&self, entry: &Rc<VmRecord>, number: u32) -> Result<api::Disk> {
        // The engine's own error reports a missing disk.
        entry.running.expect_disk(number).await?;
        let shown = self.show(entry).await?;
        let gone = || Error::not_found(format!("VM {}: disk{number} was removed", entry.name));
        shown.disks.into_iter().find(|disk| disk.number == number).ok_or_else(gone)
    }
}

/// Returns whether a disk has the size, and a guest that could not be told may be told now. Refuses another size that is not
/// larger, with both sizes in the units that people use.
async fn has_size(entry: &VmRecord, number: u32, size_bytes: u64) -> Result<bool> {
    let state = entry.running.state().await;
    let disk = state.disks.iter().find(|disk| disk.number == number);
    let Some(disk) = disk.filter(|disk| size_bytes <= disk.size_bytes) else { return Ok(false) };
    if size_bytes == disk.size_bytes && entry.labels.get().guest().qmp.is_some() {
        return Ok(true);
    }
    Err(Error::invalid(format!(
        "cannot resize {}/disk{number} from {} to {}: a disk can only grow",
        entry.name,
        format_bytes(disk.size_bytes),
        format_bytes(size_bytes)
    )))
}
