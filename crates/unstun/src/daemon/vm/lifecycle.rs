//! Creating, importing, cloning, opening and closing VMs.

use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use blk::dir::OWN_FOLDER;
use blk::manifest::DiskState;
use engine::GenerationChange;
use engine::native::NewNativeVm;

use crate::daemon::bin;
use crate::daemon::cores::vm_handle::Guard;
use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::relocation::handover;
use crate::daemon::requests::api_types;
use crate::daemon::requests::prepare::Source;
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::source::give_up_sources;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_records::HomeState;
use crate::daemon::vm::vm_record::{Kept, VmRecord};
use crate::daemon::vm::{formats, mark, native_homes, paths, settings};

/// What other software has recorded of the disks of a new VM.
#[derive(Default)]
pub(super) struct NewDisks {
    /// Slots of the disks in their order; a disk without one gets the first free one.
    pub slots: Vec<Option<String>>,
    /// Identity that the files of all images must have.
    pub fingerprint: Option<String>,
}

impl Daemon {
    /// Creates a VM. Fails with `Exists` if the name is taken.
    pub(crate) async fn vm_create(self: &Rc<Self>, request: api::VmCreate) -> Result<api::Vm> {
        if request.store == api::Store::Native {
            let entry = self.create_native(request, NewDisks::default()).await?;
            return self.show(&entry).await;
        }
        let name = request.name.as_str();
        let _claim = self.claim(name)?;
        let datastore = self.datastore(request.datastore.as_ref())?;
        let home = self.home_to_create(&datastore, name).await?;
        datastore.refuse_files()?;
        request.disks.iter().try_for_each(refuse_source)?;
        let disks: Vec<_> = request.disks.iter().map(api_types::new_disk).collect();
        let make =
            async || Ok(formats::create_vm(self, &datastore, name, disks.clone(), request.when_full).await?);
        let notices = self.with_bin(&datastore, make).await?;
        let entry = self.open_new(name, &home).await?;
        self.report_notices(&entry, notices);
        self.show(&entry).await
    }

    /// Creates a native VM.
    pub(super) async fn create_native(
        self: &Rc<Self>,
        request: api::VmCreate,
        recorded: NewDisks,
    ) -> Result<Rc<VmRecord>> {
        let name = request.name.as_str();
        let _claim = self.claim(name)?;
        let datastore = self.datastore(request.datastore.as_ref())?;
        let home = self.home_to_create(&datastore, name).await?;
        let fingerprint = recorded.fingerprint.as_deref();
        let disks = self.native_disks(&datastore, &request.disks, fingerprint).await?;
        let new = NewNativeVm { name, disks: &disks, slots: &recorded.slots };
        let make =
            async || Ok(native_homes::create_vm(self, &datastore, new.clone(), request.when_full).await?);
        let made = self.with_bin(&datastore, make).await;
        made.inspect_err(|_| give_up_sources(&datastore, &disks))?;
        self.open_new(name, &home).await
    }

    /// Returns the home for a VM that is created now.
    async fn home_to_create(&self, datastore: &Rc<Datastore>, name: &str) -> Result<Home> {
        let home = self.free_home(datastore, name).await?;
        self.descriptors.admit_vm(name)?;
        self.refuse_full(datastore, name).await?;
        Ok(home)
    }

    /// Opens a VM that was just created. If that fails, removes it again.
    async fn open_new(self: &Rc<Self>, name: &str, home: &Home) -> Result<Rc<VmRecord>> {
        let opened = self.open_vm(name, home).await;
        if let Err(error) = &opened
            && let Err(e) = self.remove_new(name, home).await
        {
            let cause =
                Error::new(error.kind, format!("{error}; its incomplete files could not be removed: {e}"));
            self.fail_read_only(name, home.clone(), &cause);
        }
        opened
    }

    /// Returns the home for a new VM. Refuses a name that is taken.
    pub(crate) async fn free_home(&self, datastore: &Rc<Datastore>, name: &str) -> Result<Home> {
        bin::refuse_reserved(name)?;
        let home = datastore.home(name);
        if self.is_taken(name) || datastore.has(name).await? {
            let message = format!("{} exists already; expected a free VM name", home.path.display());
            return Err(Error::new(ErrorKind::Exists, message));
        }
        Ok(home)
    }

    /// Makes a native VM whose disks are over the images of a VM's folder. The folder is only read.
    async fn import_natively(self: &Rc<Self>, request: api::VmImport, source: Source) -> Result<api::Vm> {
        if request.in_place || request.ignore_content_ids || !request.allow_roots.is_empty() {
            let cause = "a native VM is over the images of one folder as they are";
            return Err(Error::invalid(format!(
                "{cause}: expected no --in-place, --allow-root or --ignore-content-ids"
            )));
        }
        let found = formats::read_vm(self, &source).await?;
        let image = |disk: &DiskState| {
            // VMware drops the writes of a nonpersistent disk at power-on.
            let top = disk.reset_to.as_ref().unwrap_or(&disk.top);
            let uri = source.folder.join(top).to_string_lossy().into_owned();
            let format = Some(api::ImageFormat::Vmdk);
            let from = api::DiskFrom { format, copy: request.copy, ..api::DiskFrom::image(uri) };
            api::DiskCreate { mode: api_types::mode(disk.mode), from: Some(from), ..api::DiskCreate::new(0) }
        };
        let create = api::VmCreate {
            name: source.name.clone(),
            disks: found.disks.iter().map(image).collect(),
            store: api::Store::Native,
            when_full: request.when_full,
            datastore: Some(self.datastore_to_import(&source, &request)?.name.clone()),
        };
        let slots = found.disks.iter().map(|disk| Some(disk.slot.clone())).collect();
        let entry = self.create_native(create, NewDisks { slots, fingerprint: None }).await?;
        let snapshots = match found.snapshots.len() {
            0 => String::new(),
            count => format!(
                "; its {count} snapshots stay there, where `unstun vm import` without --store native has them"
            ),
        };
        let how = "its disks are over the folder's images, which are only read";
        self.note(&entry, &format!("imported from {}: {how}{snapshots}", source.folder.display()));
        self.show(&entry).await
    }

    /// Imports a VM. In place, its folder becomes the VM's home. Otherwise a home in the datastore has deltas on top of
    /// the folder's layers. Fails with `Refused` if the files lead outside the allowed folders.
    pub(crate) async fn vm_import(
        self: &Rc<Self>,
        request: api::VmImport,
        source: Source,
    ) -> Result<api::Vm> {
        if request.store == Some(api::Store::Native) {
            return self.import_natively(request, source).await;
        }
        let name = source.name.as_str();
        let _claims = (self.claim(name)?, self.claim(&source.folder.to_string_lossy())?);
        if self.has_home(&source.folder) {
            let cause = format!("{} is already the home of a VM of this daemon", source.folder.display());
            return Err(Error::new(ErrorKind::Exists, cause));
        }
        if self.is_in_bin(&source.folder) {
            let cause = "this is the folder of a removed VM, which the bin keeps";
            let remedy = "`unstun bin restore` restores the VM";
            return Err(Error::refused(format!("{}: {cause}; {remedy}", source.folder.display())));
        }
        let datastore = self.datastore_to_import(&source, &request)?;
        datastore.refuse_files()?;
        self.descriptors.admit_vm(name)?;
        let home = self.import_home(&datastore, &source, request.in_place).await?;
        let (notices, how) = match request.in_place {
            true => {
                let adopted = self.adopt(&home, &source, &request).await;
                adopted.inspect_err(|_| self.holds.release(&home.path))?;
                (Vec::new(), "in place: its own files are written")
            }
            false => {
                self.refuse_full(&datastore, name).await?;
                let notices = formats::import(self, &datastore, &source, &request).await?;
                (notices, "its folder is not written: changes go to deltas on top of as-imported")
            }
        };
        let opened = match request.in_place {
            true => self.open_rested(name, &home).await,
            false => self.open_vm(name, &home).await,
        };
        let entry = match opened {
            Ok(entry) => entry,
            Err(error) => {
                let state = if request.in_place { HomeState::Forgetting } else { HomeState::Making };
                let record = datastore.record(&home.path, state, None);
                self.take_back(name, &home, record, &error).await;
                self.holds.release(&home.path);
                return Err(error);
            }
        };
        self.report_notices(&entry, notices);
        self.note(&entry, &format!("imported from {}, {how}", source.folder.display()));
        self.show(&entry).await
    }

    /// Returns the datastore that the import belongs to. A home inside a datastore's folder belongs to that datastore.
    fn datastore_to_import(&self, source: &Source, request: &api::VmImport) -> Result<Rc<Datastore>> {
        let around = self.datastores().into_iter().find(|datastore| datastore.contains(&source.folder));
        match around {
            Some(datastore) if request.in_place => Ok(datastore),
            _ => self.datastore(request.datastore.as_ref()),
        }
    }

    /// Returns the home of an import. A start finds a folder in the datastore by its name, so that must be the VM's
    /// name too.
    async fn import_home(&self, datastore: &Rc<Datastore>, source: &Source, in_place: bool) -> Result<Home> {
        let name = source.name.as_str();
        if !in_place {
            return self.free_home(datastore, name).await;
        }
        bin::refuse_reserved(name)?;
        let folder = &source.folder;
        if datastore.contains(folder) && folder.file_name() != Some(name.as_ref()) {
            let cause =
                format!("{} is in the datastore, where a VM has the name of its folder", folder.display());
            return Err(Error::refused(format!("{cause}; omit --name, or rename the folder")));
        }
        if self.is_taken(name) {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("VM {name} exists already; choose another name with --name"),
            ));
        }
        Ok(datastore.at(folder))
    }

    /// Turns a folder into a home in place. Until it is complete, a start removes the daemon's files from it.
    async fn adopt(&self, home: &Home, source: &Source, request: &api::VmImport) -> Result<()> {
        let (datastore, name) = (&home.datastore, source.name.as_str());
        formats::refuse_adoption(self, source, request).await?;
        let record = |state| datastore.record(&home.path, state, None);
        let adopted = async {
            datastore.records.put(name, record(HomeState::Forgetting)).await?;
            formats::adopt(self, source, request).await?;
            if !datastore.contains(&home.path) {
                datastore.registry.add(name, &home.path).await?;
            }
            Ok::<(), Error>(datastore.records.put(name, record(HomeState::Whole)).await?)
        };
        let adopted = adopted.await;
        if let Err(error) = &adopted {
            self.take_back(name, home, record(HomeState::Forgetting), error).await;
        }
        adopted
    }

    async fn remove_new(&self, name: &str, home: &Home) -> Result<()> {
        match mark::read(&self.env, &home.path).await? {
            Some(id) => Ok(native_homes::remove_with_home(home, id).await?),
            None => {
                let id = home.datastore.records.get(name).and_then(|record| record.id);
                let record = home.datastore.record(&home.path, HomeState::Making, id);
                home.datastore.records.put(name, record.clone()).await?;
                Ok(self.finish(name, home, &record).await?)
            }
        }
    }

    /// Creates a linked clone, and returns it. The snapshot is protected as long as the clone exists.
    pub(crate) async fn vm_clone(self: &Rc<Self>, vm: &VmName, request: api::VmClone) -> Result<api::Vm> {
        let parent = self.entry_to_change(vm.as_str())?;
        let name = request.name.as_str();
        let _claim = self.claim(name)?;
        let home = self.free_home(&parent.datastore, name).await?;
        self.descriptors.admit_vm(name)?;
        self.refuse_full(&parent.datastore, name).await?;
        let snapshot = request.snapshot.as_str();
        let notices = match &parent.kept {
            Kept::Redo => {
                let make = async || Ok(formats::clone(self, &parent, snapshot, name).await?);
                self.with_bin(&parent.datastore, make).await?
            }
            Kept::Native(vm) => {
                let (datastore, when_full) = (&parent.datastore, parent.when_full);
                let make =
                    async || Ok(native_homes::clone(self, datastore, vm, snapshot, name, when_full).await?);
                self.with_bin(datastore, make).await?;
                Vec::new()
            }
        };
        let entry = self.open_new(name, &home).await?;
        self.report_notices(&entry, notices);
        self.note(&entry, &format!("cloned from {vm}@{}", request.snapshot));
        self.note(&parent, &format!("{name} was cloned from {}", request.snapshot));
        self.show(&entry).await
    }

    /// Closes a VM. Fails with `Refused` while a client writes, unless `disconnect` is set.
    pub(crate) async fn vm_close(self: &Rc<Self>, vm: &VmName, disconnect: bool) -> Result<api::VmClosed> {
        let _claim = self.claim(vm.as_str())?;
        let entry = self.entry(vm.as_str())?;
        let clients = match disconnect {
            true => entry.running.disconnect(Who::All).await?.0,
            false => Vec::new(),
        };
        let _shut = self.shut_idle(&entry, "close the VM").await?;
        self.note(&entry, "closed");
        if let Err(error) = self.bring_to_rest(&entry).await {
            self.fail_read_only(vm.as_str(), entry.place(), &error);
            return Err(error);
        }
        self.rest(vm.as_str(), entry.place());
        Ok(api::VmClosed { name: vm.clone(), home: entry.home.clone(), clients })
    }

    async fn bring_to_rest(&self, entry: &VmRecord) -> Result<()> {
        entry.running.close().await?;
        let mark = async || settings::mark_closed(&self.env, &entry.home, true).await;
        Ok(self.with_reserve(&entry.datastore, mark).await?)
    }

    /// Opens a VM, or serves the plain names of an open one again. With `take_over`, this side of an interrupted move
    /// becomes the VM first.
    pub(crate) async fn vm_open(self: &Rc<Self>, vm: &VmName, take_over: bool) -> Result<api::Vm> {
        let name = vm.as_str();
        self.open_found(name).await;
        let _claim = self.claim(name)?;
        if let Ok(entry) = self.entry(name) {
            if take_over {
                handover::take_over(&entry.place()).await?;
                return self.show(&entry).await;
            }
            self.open_plain_names(&entry).await?;
            return self.show(&entry).await;
        }
        let Some(home) = self.idle_home(name) else {
            return Err(Error::not_found(format!("{}: no VM {name:?}", self.place())));
        };
        if take_over {
            // Another daemon may hold the home through its own registry.
            formats::hold(self, &home.path).await?;
            let taken = handover::take_over(&home).await;
            self.holds.release(&home.path);
            taken?;
        }
        let entry = match self.open_rested(name, &home).await {
            Ok(entry) => entry,
            // This error says nothing about the VM.
            Err(error) if error.kind == ErrorKind::NoDescriptors => return Err(error),
            Err(error) => {
                self.fail_read_only(name, home, &error);
                return Err(error);
            }
        };
        settings::mark_closed(&self.env, &home.path, false).await?;
        self.note(&entry, "opened");
        self.show(&entry).await
    }

    /// Serves the exports under their plain names again: the user states that no earlier client still runs.
    async fn open_plain_names(&self, entry: &VmRecord) -> Result<()> {
        if !entry.running.generation().await.is_opened() {
            entry.refuse_when_moving()?;
            entry.running.change_generation(GenerationChange::Open).await?;
            self.note(entry, "its exports are served under their plain names again");
        }
        Ok(())
    }

    /// Opens a VM that was not served. Other programs may have written its files, so earlier clients are refused for
    /// ever. No other program writes a store.
    async fn open_rested(self: &Rc<Self>, name: &str, home: &Home) -> Result<Rc<VmRecord>> {
        let (entry, _shut) = self.open_vm_shut(name, home).await?;
        let change = match entry.kept {
            Kept::Redo => GenerationChange::RaiseAndOpen,
            Kept::Native(_) => GenerationChange::Open,
        };
        if let Err(error) = entry.running.change_generation(change).await {
            // The first error is more specific.
            let _ = entry.running.close().await;
            self.forget(name);
            self.holds.release(&home.path);
            return Err(error.into());
        }
        Ok(entry)
    }

    pub(crate) async fn vm_set_shared_writers(&self, vm: &VmName, shared: bool) -> Result<api::Vm> {
        let entry = self.entry_to_change(vm.as_str())?;
        let own = paths::open_path(&self.env, &entry.home).await?.open_dir(OWN_FOLDER, true).await?;
        settings::write_shared_writers(&own, shared).await?;
        entry.running.set_shared_writers(shared).await;
        let how = if shared { "several clients may write one disk" } else { "one client may write a disk" };
        self.note(&entry, &format!("from now on {how} at a time"));
        self.show(&entry).await
    }

    pub(crate) async fn vm_set_snapshot_dir(
        self: &Rc<Self>,
        vm: &VmName,
        dir: Option<String>,
    ) -> Result<api::Vm> {
        let mut entry = self.entry_to_change(vm.as_str())?;
        if let Some(dir) = &dir {
            entry = self.with_folder(&entry, dir).await?;
        }
        entry.refuse_without_files("create deltas of")?;
        entry.running.with_files(async move |files| files.set_snapshot_dir(dir.as_deref()).await).await?;
        self.show(&entry).await
    }

    /// Returns the VM with `folder` among those that it may write to. Reopens the VM for that, unless it already had
    /// the folder.
    pub(crate) async fn with_folder(
        self: &Rc<Self>,
        entry: &Rc<VmRecord>,
        folder: &str,
    ) -> Result<Rc<VmRecord>> {
        entry.refuse_without_files("keep in another folder")?;
        let wanted = folder.to_owned();
        if entry.running.with_files(async move |files| files.has_own_folder(&wanted)).await {
            return Ok(entry.clone());
        }
        let _claim = self.claim(&entry.name)?;
        let purpose = format!("let it use {folder}, for which the VM is reopened");
        let _shut = self.shut_idle(entry, &purpose).await?;
        let added = folder.to_owned();
        entry.running.with_files(async move |files| files.add_own_folder(&added).await).await?;
        let (name, home) = (entry.name.clone(), entry.place());
        // After the close a refusal would be too late. The descriptors that the close releases suffice for the
        // reopening.
        self.descriptors.admit_vm(&name)?;
        // A VM whose close failed is not reopened: what its writers left is unknown.
        let reopened = async {
            entry.running.close().await?;
            self.open_vm(&name, &home).await
        };
        reopened.await.inspect_err(|error| self.fail_read_only(&name, home.clone(), error))
    }

    /// Closes the client gate. Refused while a client is connected or a job is open.
    pub(crate) async fn shut_idle(&self, entry: &VmRecord, purpose: &str) -> Result<Guard> {
        entry.running.await_ended(Who::All).await;
        entry.shut_idle(purpose).await
    }
}

/// Refuses a disk over an image in a VM with files.
pub(super) fn refuse_source(disk: &api::DiskCreate) -> Result<()> {
    let Some(from) = &disk.from else { return Ok(()) };
    let remedy = "make it in a native VM, which `unstun vm move VM --store redo` moves under its guest; or copy the image, with \
                  `--from FILE` in place of `--disk from=FILE`";
    Err(Error::refused(format!("{}: only disks of native VMs can be over an image; {remedy}", from.uri)))
}

impl VmRecord {
    pub(crate) async fn shut_idle(&self, purpose: &str) -> Result<Guard> {
        let shut = self.running.shut_idle(purpose).await?;
        self.refuse_when_moving()?;
        Ok(shut)
    }
}
