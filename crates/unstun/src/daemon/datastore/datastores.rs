//! Datastores of the daemon: the one it was started on, which records the others, and those that were added.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::DatastoreName;
use api::units::format_bytes;
use blk::Env;
use engine::native::TakeOver;
use tracing::{error, info, warn};

use crate::daemon::cores::vm_handle::Guard;
use crate::daemon::datastore::added::{Added, AddedDatastore, expected};
use crate::daemon::datastore::hang::{Opening, or_go_on, until_hung};
use crate::daemon::datastore::identity::Expected;
use crate::daemon::datastore::lease::Wanted;
use crate::daemon::datastore::{Absent, Datastore, asked, device};
use crate::daemon::requests::api_types;
use crate::daemon::requests::prepare::only_vmx;
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::VmRecord;

impl Daemon {
    pub(crate) fn datastores(&self) -> Vec<Rc<Datastore>> {
        self.datastores.borrow().clone()
    }

    /// Returns the paths of the datastores for messages.
    pub(crate) fn place(&self) -> String {
        let datastores = self.datastores.borrow();
        let paths: Vec<_> = datastores.iter().map(|datastore| datastore.path.display().to_string()).collect();
        format!("datastore {}", paths.join(", "))
    }

    /// Returns the datastore with this name; without a name, the main one.
    pub(crate) fn datastore(&self, name: Option<&DatastoreName>) -> Result<Rc<Datastore>> {
        let Some(name) = name else { return Ok(self.main.clone()) };
        if let Some(datastore) = self.datastores().into_iter().find(|datastore| datastore.name == *name) {
            return Ok(datastore);
        }
        if let Some(absent) = self.absent.borrow().iter().find(|absent| absent.name == *name) {
            return Err(Error::new(
                absent.cause.kind,
                format!(
                    "datastore {name} is not served: {}; correct the cause, then run `unstun datastore add \
                     {name}={}`",
                    absent.cause,
                    absent.path.display()
                ),
            ));
        }
        let known: Vec<_> = self.datastores().iter().map(|datastore| datastore.name.to_string()).collect();
        Err(Error::not_found(format!(
            "no datastore {name}; the daemon serves {} (`unstun datastore add` adds another)",
            known.join(", ")
        )))
    }

    async fn added(&self) -> Result<Added> {
        Added::read(&self.main.own).await
    }

    /// Opens the added datastores at the start. Reports those that cannot be opened, and serves the others.
    pub(crate) async fn open_added(self: &Rc<Self>) -> Result<()> {
        for AddedDatastore { name, path, id } in self.added().await?.all()? {
            let opening = Opening::new(&self.env, &name);
            let mut work = {
                let (daemon, name, path, opening) =
                    (self.clone(), name.clone(), path.clone(), opening.clone());
                let open = async move {
                    daemon.refuse_nested(&path).await?;
                    let known = (&*path, Expected::Added(id.as_ref()));
                    let datastore =
                        daemon.open_datastore(name, known, TakeOver::FromNobody.into(), &opening).await?;
                    daemon.record_id(&datastore).await;
                    Ok(datastore)
                };
                Box::pin(open)
            };
            match until_hung(&self.env, || opening.hang(), &mut work).await {
                Ok(Ok(datastore)) => self.datastores.borrow_mut().push(datastore),
                Ok(Err(cause)) => self.leave_absent(name, path, cause).await,
                Err(hang) => {
                    self.note_absent(name.clone(), path, false, hang.refusal_to_serve());
                    let daemon = self.clone();
                    self.env
                        .spawn_detached(Box::pin(async move { daemon.serve_late(&name, work.await).await }));
                }
            }
        }
        Ok(())
    }

    async fn leave_absent(self: &Rc<Self>, name: DatastoreName, path: PathBuf, cause: Error) {
        let is_device = is_device(&self.env, &path).await;
        if cause.kind == ErrorKind::Refused && is_device {
            self.wait_for_lease(&name, &path);
        }
        self.note_absent(name, path, is_device, cause);
    }

    fn note_absent(&self, name: DatastoreName, path: PathBuf, is_device: bool, cause: Error) {
        error!("datastore {name} is not served: {cause}");
        self.absent.borrow_mut().push(Absent { name, path, is_device, cause });
    }

    /// Serves a datastore that did not answer at the start and answers now, unless it was removed meanwhile.
    async fn serve_late(self: &Rc<Self>, name: &DatastoreName, opened: Result<Rc<Datastore>>) {
        let is_awaited = self.absent.borrow().iter().any(|absent| absent.name == *name);
        match opened {
            Ok(datastore) if is_awaited => {
                self.absent.borrow_mut().retain(|absent| absent.name != *name);
                self.datastores.borrow_mut().push(datastore.clone());
                match self.open_datastores().await {
                    Ok(()) => self.log_served(&datastore).await,
                    Err(e) => error!("datastore {name}: {e}"),
                }
            }
            Ok(datastore) => {
                // A store that cannot be closed is recovered by the daemon that opens it next.
                let _ = datastore.native.close().await;
                self.cores.close_folder(&datastore.root);
                datastore.unlock();
            }
            Err(cause) => {
                error!("datastore {name} is not served: {cause}");
                for absent in self.absent.borrow_mut().iter_mut().filter(|absent| absent.name == *name) {
                    absent.cause = cause.clone();
                }
            }
        }
    }

    /// Waits for the lease of a datastore, and then serves it. After a crash of this host its own lease is still in the
    /// store, and only the wait distinguishes it from another host's lease. The other datastores are served meanwhile.
    fn wait_for_lease(self: &Rc<Self>, name: &DatastoreName, path: &Path) {
        let (daemon, name, path) = (self.clone(), name.clone(), path.to_path_buf());
        self.env.spawn_detached(Box::pin(async move {
            match daemon.datastore_add(name.clone(), path, TakeOver::FromOwnHost.into()).await {
                Ok(_) => info!("datastore {name}: the lease was this host's own, from before its restart"),
                Err(e) => warn!("datastore {name}: the wait for its lease has ended: {e}"),
            }
        }));
    }

    /// Logs a datastore that is served from now on.
    pub(crate) async fn log_served(&self, datastore: &Datastore) {
        let kind = if datastore.native.device().is_some() { "device" } else { "folder" };
        let vms = self.entries().iter().filter(|entry| std::ptr::eq(&*entry.datastore, datastore)).count();
        let space = match asked(datastore, datastore.space()).await {
            Ok(Ok(space)) => {
                format!("{} free of {}", format_bytes(space.free_bytes), format_bytes(space.total_bytes))
            }
            Ok(Err(e)) => format!("space unknown: {e}"),
            Err(hang) => hang.found(),
        };
        let (name, path) = (&datastore.name, datastore.path.display());
        info!("datastore {name} is served: {kind} {path}, {space}, open VMs: {vms}");
    }

    async fn open_datastore(
        &self,
        name: DatastoreName,
        (path, expected): (&Path, Expected<'_>),
        wanted: Wanted,
        opening: &Opening,
    ) -> Result<Rc<Datastore>> {
        let all = self.added().await?.all()?;
        let memory = self.store_memory.clone();
        if is_device(&self.env, path).await {
            let (known, main) = ((path, expected), &self.main);
            let datastore =
                Datastore::on_device(&self.env, name, known, main, memory, wanted, opening).await?;
            return match self.refuse_twin(&datastore, &all) {
                Ok(()) => Ok(Rc::new(datastore)),
                Err(e) => {
                    datastore.native.close().await?;
                    Err(e)
                }
            };
        }
        if wanted.reserves.is_some() {
            let cause = "a folder has no reservations: --reservations is about a block device";
            return Err(Error::invalid(format!("{}: {cause}", path.display())));
        }
        let datastore = Datastore::in_folder(&self.env, name, path, expected, memory, opening).await?;
        self.refuse_twin(&datastore, &all)?;
        datastore.set_served_by(Some(&self.main.root)).await?;
        self.open_on_cores(&datastore).await?;
        Ok(Rc::new(datastore))
    }

    /// Opens the folder of a datastore on all cores, which open its homes and search it for readers of layers.
    pub(crate) async fn open_on_cores(&self, datastore: &Datastore) -> Result<()> {
        self.running.folders.add(datastore.dir.clone());
        datastore.elsewhere.replace(self.cores.open_folder(&datastore.root).await?);
        Ok(())
    }

    /// Refuses a datastore inside another one: one of them would take the other for a VM.
    async fn refuse_nested(&self, path: &Path) -> Result<()> {
        for datastore in self.datastores() {
            if path == datastore.path {
                let cause =
                    format!("{} is already datastore {} of this daemon", path.display(), datastore.name);
                return Err(Error::new(ErrorKind::Exists, cause));
            }
            if path.starts_with(&datastore.root) || datastore.root.starts_with(path) {
                let (one, other) = (path.display(), datastore.root.display());
                return Err(Error::refused(format!(
                    "{one} and datastore {other}: one contains the other; choose a folder outside"
                )));
            }
        }
        let folder = path.to_path_buf();
        match self.env.blocking(move || only_vmx(&folder)).await {
            Ok(vmx) => Err(Error::refused(format!(
                "{} belongs to a VM: its folder is not a datastore; `unstun vm import` imports the VM",
                vmx.display()
            ))),
            Err(_) => Ok(()),
        }
    }

    /// Adds a datastore. It is served from now on, and by every later daemon of the main datastore. Fails with `Exists`
    /// if the name or the folder is taken, and with `Locked` while another daemon serves it.
    pub(crate) async fn datastore_add(
        self: &Rc<Self>,
        name: DatastoreName,
        path: PathBuf,
        wanted: Wanted,
    ) -> Result<api::Datastore> {
        let claim = self.claim(&format!("datastore {name}"))?;
        if let Some(datastore) = self.datastores().iter().find(|datastore| datastore.name == name) {
            let message = format!(
                "datastore {name} exists already, in {}; choose another name",
                datastore.path.display()
            );
            return Err(Error::new(ErrorKind::Exists, message));
        }
        let opening = Opening::new(&self.env, &name);
        let (daemon, what) = (self.clone(), format!("adding datastore {name}"));
        let look = {
            let opening = opening.clone();
            move || opening.hang().or_else(|| daemon.main.hang())
        };
        let daemon = self.clone();
        let work = async move {
            let _claim = claim;
            daemon.add_datastore(name, path, wanted, &opening).await
        };
        let added = or_go_on(&self.env, what, look, work).await;
        added.unwrap_or_else(|hang| Err(hang.left_under_way()))
    }

    async fn add_datastore(
        self: &Rc<Self>,
        name: DatastoreName,
        path: PathBuf,
        wanted: Wanted,
        opening: &Opening,
    ) -> Result<api::Datastore> {
        self.refuse_nested(&path).await?;
        device::check_fencing(&self.env, &path).await?;
        let added = self.added().await?;
        let all = added.all()?;
        let known = (&*path, expected(&all, &name, &path)?);
        let datastore = self.open_datastore(name.clone(), known, wanted, opening).await?;
        // A datastore is added to leave the full main one.
        let put = async || added.put(&name, &path, datastore.id.as_ref()).await;
        self.with_reserve(&self.main, put).await?;
        self.absent.borrow_mut().retain(|absent| absent.name != name && absent.path != path);
        self.datastores.borrow_mut().push(datastore.clone());
        self.open_datastores().await?;
        self.log_served(&datastore).await;
        Ok(self.show_datastore(&datastore).await?)
    }

    /// Returns a preview of what ends when the datastore is removed.
    pub(crate) async fn datastore_remove_preview(
        &self,
        name: &DatastoreName,
    ) -> Result<api::DatastoreRemovePreview> {
        let absent = self.absent.borrow().iter().find(|a| a.name == *name).map(|a| a.path.clone());
        let mut preview = api::DatastoreRemovePreview {
            name: name.clone(),
            path: absent.clone().unwrap_or_default(),
            condition: api::DatastoreCondition::Broken,
            vms: Vec::new(),
            idle_vms: Vec::new(),
            clients: Vec::new(),
            bin_entries: 0,
            bin_bytes: 0,
        };
        if absent.is_some() {
            return Ok(preview);
        }
        let datastore = self.removable(name)?;
        for entry in self.entries().into_iter().filter(|entry| Rc::ptr_eq(&entry.datastore, &datastore)) {
            let vm = api_types::vm_name(&entry.name);
            let clients = entry.running.present(Who::All).await.into_iter();
            preview.clients.extend(clients.map(|client| api::DatastoreClient { vm: vm.clone(), client }));
            preview.vms.push(vm);
        }
        let idle = self.idle().into_iter().filter(|idle| Rc::ptr_eq(&idle.home.datastore, &datastore));
        preview.idle_vms = idle.map(|idle| api_types::vm_name(&idle.name)).collect();
        preview.path = datastore.path.clone();
        preview.condition = api::DatastoreCondition::Open;
        preview.bin_entries = datastore.bin.all().len() as u64;
        self.measure_states(&datastore).await;
        preview.bin_bytes = self.bin_bytes(&datastore);
        Ok(preview)
    }

    fn removable(&self, name: &DatastoreName) -> Result<Rc<Datastore>> {
        let datastore = self.datastore(Some(name))?;
        match Rc::ptr_eq(&datastore, &self.main) {
            false => Ok(datastore),
            true => Err(Error::refused(format!(
                "datastore {name} is the daemon's main datastore; stop the daemon, and start it on another one"
            ))),
        }
    }

    /// Stops serving a datastore. Everything in it stays. Fails with `Refused` for the main one, and while a client is
    /// attached or a job is open.
    pub(crate) async fn datastore_remove(
        self: &Rc<Self>,
        name: &DatastoreName,
    ) -> Result<api::DatastoreRemoved> {
        let _claim = self.claim(&format!("datastore {name}"))?;
        let absent = self.absent.borrow().iter().find(|a| a.name == *name).map(|a| a.path.clone());
        if let Some(path) = absent {
            self.added().await?.remove(name).await?;
            self.absent.borrow_mut().retain(|absent| absent.name != *name);
            return Ok(api::DatastoreRemoved { name: name.clone(), path });
        }
        let datastore = self.removable(name)?;
        let path = datastore.path.clone();
        self.empty(&datastore).await?;
        self.added().await?.remove(name).await?;
        // If the file cannot be removed, it leads clients to this daemon, which reports that it does not serve the
        // datastore.
        let _ = datastore.set_served_by(None).await;
        datastore.unlock();
        info!("datastore {name} is no longer served: it was removed from the daemon");
        Ok(api::DatastoreRemoved { name: name.clone(), path })
    }

    /// Closes all VMs of the datastore, and removes them from the registry. Refused while one of them is in use.
    async fn empty(&self, datastore: &Rc<Datastore>) -> Result<()> {
        let of_datastore = |entry: &Rc<VmRecord>| Rc::ptr_eq(&entry.datastore, datastore);
        for entry in self.entries().iter().filter(|entry| of_datastore(entry)) {
            // One client that stays is enough for a refusal.
            if !entry.running.await_ended(Who::All).await {
                break;
            }
        }
        let (mut entries, mut shut): (Vec<Rc<VmRecord>>, Vec<Guard>) = Default::default();
        // No VM is opened between the last look, which finds none, and the datastore's end. A VM that was shut may have
        // been closed meanwhile; its guard does no harm.
        loop {
            let is_new = |entry: &Rc<VmRecord>| !entries.iter().any(|known| Rc::ptr_eq(known, entry));
            let new = self.entries().into_iter().filter(of_datastore).find(is_new);
            let Some(entry) = new else { break };
            shut.push(entry.shut_idle("remove its datastore").await?);
            entries.push(entry);
        }
        entries.retain(|entry| self.entry(&entry.name).is_ok_and(|now| Rc::ptr_eq(&now, entry)));
        if datastore.arrivals.get() > 0 {
            let cause = "a VM is being moved into or out of the datastore; wait for the move or cancel it (`unstun \
                         job list`)";
            return Err(Error::refused(format!("datastore {}: {cause}", datastore.name)));
        }
        datastore.leave();
        self.datastores.borrow_mut().retain(|other| !Rc::ptr_eq(other, datastore));
        // An eviction that is under way ends here; no other one begins.
        drop(datastore.bin.evicting.lock().await);
        datastore.sources.end().await;
        let mut result = Ok(());
        for entry in &entries {
            result = result.and(without_lease(entry.running.close().await));
            self.forget(&entry.name);
            self.holds.release(&entry.home);
        }
        for idle in self.idle().into_iter().filter(|idle| Rc::ptr_eq(&idle.home.datastore, datastore)) {
            self.forget(&idle.name);
            self.holds.release(&idle.home.path);
        }
        self.cores.close_folder(&datastore.root);
        // The job of a VM that has moved away has the VM's former record, which keeps the store's file open.
        self.jobs.borrow_mut().retain(|tracked| !Rc::ptr_eq(&tracked.datastore, datastore));
        result.and(datastore.native.close().await.map_err(Error::from))
    }

    /// Returns the datastores, the main one first.
    pub(crate) async fn datastore_list(&self) -> Vec<api::Datastore> {
        // Both lists are read at the same moment: a datastore that is served meanwhile is in one of them.
        let datastores = self.datastores();
        let shown = |one: &Absent| broken(&one.name, &one.path, one.is_device, &one.cause);
        let absent: Vec<_> = self.absent.borrow().iter().map(shown).collect();
        let mut rows = Vec::new();
        for datastore in datastores {
            rows.push(self.row(&datastore).await);
        }
        rows.extend(absent);
        rows
    }

    /// Returns the list's row for a datastore. For a datastore that hangs, the row is that of its last answer.
    async fn row(&self, datastore: &Rc<Datastore>) -> api::Datastore {
        let is_device = datastore.native.device().is_some();
        match asked(datastore, self.show_datastore(datastore)).await {
            Ok(Ok(row)) => {
                *datastore.last_row.borrow_mut() = Some(row.clone());
                row
            }
            Ok(Err(cause)) => broken(&datastore.name, &datastore.path, is_device, &cause.into()),
            Err(hang) => {
                let last = datastore.last_row.borrow().clone();
                let unknown = || broken(&datastore.name, &datastore.path, is_device, &hang.refusal());
                api::Datastore {
                    is_main: Rc::ptr_eq(datastore, &self.main),
                    vms: Some(self.vms_in(datastore)),
                    condition: api::DatastoreCondition::Hung,
                    message: Some(format!("{}; its figures are the last known ones", hang.found())),
                    hung: Some(hang.shown()),
                    ..last.unwrap_or_else(unknown)
                }
            }
        }
    }

    /// Returns the number of open VMs in the datastore.
    fn vms_in(&self, datastore: &Rc<Datastore>) -> u64 {
        self.entries().iter().filter(|entry| Rc::ptr_eq(&entry.datastore, datastore)).count() as u64
    }

    pub(crate) async fn show_datastore(&self, datastore: &Rc<Datastore>) -> blk::Result<api::Datastore> {
        self.measure_states(datastore).await;
        let space = datastore.space().await?;
        let mut notices = datastore.notices.borrow().clone();
        if let Some(cause) = datastore.native.opened().and_then(|store| store.broken()) {
            notices.push(format!("the store is read-only: {cause}"));
        }
        notices.extend(damage_of(datastore));
        notices.extend(datastore.native.unlinked().await.map(|cause| cause.to_string()));
        Ok(api::Datastore {
            name: datastore.name.clone(),
            path: datastore.path.clone(),
            is_device: datastore.native.device().is_some(),
            is_main: Rc::ptr_eq(datastore, &self.main),
            condition: api::DatastoreCondition::Open,
            message: None,
            hung: None,
            notices,
            free_bytes: Some(space.free_bytes),
            total_bytes: Some(space.total_bytes),
            bin_bytes: Some(self.bin_bytes(datastore)),
            reclaimable_bytes: Some(self.reclaimable_bytes(datastore).await),
            direct_io: Some(datastore.is_direct().await),
            vms: Some(self.vms_in(datastore)),
            native_store: datastore.native.exists().await?,
            reservations: datastore.native.reserves(),
            map_cache_bytes: Some(datastore.native.map_cache_bytes() as u64),
        })
    }
}

/// Ignores a lost lease: a VM whose store belongs to another host has nothing left to write from here.
pub(in crate::daemon) fn without_lease(closed: blk::Result<()>) -> Result<()> {
    match closed {
        Err(e) if e.kind == blk::ErrorKind::LeaseLost => Ok(()),
        closed => Ok(closed?),
    }
}

async fn is_device(env: &Env, path: &Path) -> bool {
    let path = path.to_path_buf();
    env.blocking(move || device::is_device(&path)).await
}

fn broken(name: &DatastoreName, path: &Path, is_device: bool, cause: &Error) -> api::Datastore {
    api::Datastore {
        name: name.clone(),
        path: path.to_path_buf(),
        is_device,
        is_main: false,
        condition: api::DatastoreCondition::Broken,
        message: Some(cause.to_string()),
        hung: None,
        notices: Vec::new(),
        reservations: false,
        free_bytes: None,
        total_bytes: None,
        bin_bytes: None,
        reclaimable_bytes: None,
        direct_io: None,
        vms: None,
        native_store: false,
        map_cache_bytes: None,
    }
}

/// Most damaged parts that are listed one by one.
const DAMAGE_SHOWN: usize = 8;

/// Returns what is damaged in an open store.
fn damage_of(datastore: &Datastore) -> Vec<String> {
    let all = datastore.native.opened().map(|store| store.damage()).unwrap_or_default();
    let mut shown: Vec<String> =
        all.iter().take(DAMAGE_SHOWN).map(|damage| format!("damaged: {damage}")).collect();
    if all.len() > DAMAGE_SHOWN {
        shown.push(format!("damaged: {} more parts; run `unstun check`", all.len() - DAMAGE_SHOWN));
    }
    shown
}
