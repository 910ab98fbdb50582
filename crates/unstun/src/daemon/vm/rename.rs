//! Renames of VMs. The folder gets the name, and with it the exports.
//!
//! A crash leaves the folder under one of the two names. The next start opens it as a VM of that name (identity.rs).

use std::rc::Rc;

use api::error::{Error, Result};
use api::name::VmName;
use api::{VmGlob, VmRename};
use tracing::warn;

use crate::daemon::running::home_files::HomeFiles;
use crate::daemon::state::Daemon;
use crate::daemon::vm::remove::refuse_readers;
use crate::daemon::vm::vm_record::{Kept, VmRecord};

impl Daemon {
    /// Gives a VM another name. Fails with `Refused` while a client is connected or a job is open, and where other files
    /// refer to the folder by its name.
    pub(crate) async fn vm_rename(self: &Rc<Self>, vm: &VmName, request: VmRename) -> Result<api::Vm> {
        let (old, new) = (vm.as_str(), request.name.as_str());
        if old == new {
            return Err(Error::invalid(format!("VM {old} has this name: expected another one")));
        }
        let _claims = (self.claim(old)?, self.claim(new)?);
        let entry = self.entry_to_change(old)?;
        let (from, to) = (entry.place(), self.free_home(&entry.datastore, new).await?);
        if !from.datastore.contains(&from.path) {
            let place = from.path.display();
            let remedy =
                format!("close it (`unstun vm close {old}`), rename the folder, and import it again");
            return Err(Error::refused(format!(
                "VM {old}: its folder {place} is outside the datastore; {remedy}"
            )));
        }
        let _shut = self.shut_idle(&entry, "rename the VM").await?;
        refuse_references(&entry).await?;
        if let Err(e) = entry.running.close().await {
            let error = Error::from(e);
            self.fail_read_only(old, from, &error);
            return Err(error);
        }
        // A crash in between leaves the policies with both names.
        let (was, is) = (glob(vm), glob(&request.name));
        if let Err(error) = self.policies_name(vm, |vms| vms.push(is.clone())).await {
            warn!("VM {old}: the policies that name it keep its old name: {error}");
        }
        // The events so far are in the folder before it has another name.
        self.journal.written(&from.path).await;
        self.forget(old);
        self.forget_guest(vm).await;
        self.holds.release(&from.path);
        let dir = &from.datastore.dir;
        let renamed = async {
            dir.rename(old, new).await?;
            dir.sync().await?;
            self.open_vm(new, &to).await
        };
        let entry = match renamed.await {
            Ok(entry) => entry,
            Err(error) => {
                let is_renamed = from.datastore.has(new).await.unwrap_or(false);
                let (name, home) = if is_renamed { (new, to) } else { (old, from.clone()) };
                if !is_renamed
                    && let Err(error) = self.policies_name(vm, |vms| vms.retain(|vm| *vm != is)).await
                {
                    warn!("VM {old}: policies name {new}, too: {error}");
                }
                self.fail_read_only(name, home, &error);
                return Err(error);
            }
        };
        self.note(&entry, &format!("renamed from {old}"));
        self.renamed.borrow_mut().push((vm.clone(), request.name.clone()));
        if let Err(error) = self.policies_name(vm, |vms| vms.retain(|vm| *vm != was)).await {
            warn!("VM {new}: the policies that name it keep its old name, too: {error}");
        }
        self.policies.wake();
        self.show(&entry).await
    }
}

fn glob(vm: &VmName) -> VmGlob {
    vm.as_str().parse().expect("a VM's name is a pattern of it alone")
}

/// Refuses a VM with files to which others refer by their folder's name.
async fn refuse_references(entry: &VmRecord) -> Result<()> {
    if let Kept::Native(_) = entry.kept {
        return Ok(());
    }
    let name = entry.name.clone();
    let refuse = async move |files: &HomeFiles| {
        let manifest = files.manifest();
        refuse_readers(&name, &*manifest).await?;
        let links = manifest.links().await?;
        match links.iter().find(|link| !link.foreign && link.name.starts_with('/')) {
            None => Ok(()),
            Some(link) => {
                let cause = format!(
                    "its layer {} is in another folder and may refer to this one; `unstun vm move {name} --store \
                     native` brings its disks together",
                    link.name
                );
                Err(blk::Error::refused(format!("VM {name}"), cause))
            }
        }
    };
    Ok(entry.running.with_files(async move |files| refuse(files).await).await?)
}
