//! Homes that are being created or removed. A record exists before a home's first file and until its last one is
//! removed. A start therefore undoes an unfinished creation, and finishes an unfinished removal.
//!
//! The datastore has the record of a VM with files. The store has the record of a native VM, so the record moves with
//! the store.

use std::rc::Rc;

use blk::dir::{OWN_FOLDER, TEMPORARY_SUFFIX};
use blk::{Dir, Error, ErrorKind, Result};
use engine::native::{VmHome, VmHomeState};
use tracing::error;

use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::defect::Defect;
use crate::daemon::running::home_files::{HomeFiles, MadeFiles};
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_records::{HomeRecord, HomeState};
use crate::daemon::vm::home_removal::{self, has_vmx, open_home};
use crate::daemon::vm::vm_record::Broken;
use crate::daemon::vm::{formats, native_homes};

impl Daemon {
    /// Creates a home with files in a datastore. The home is a VM when this returns, and nothing of it is left after an
    /// error. Anything that cannot be removed then is listed as broken, and is removed at the next start. Returns the
    /// notices about the files.
    pub(crate) async fn make_files(
        &self,
        home: &Home,
        name: &str,
        id: Option<u128>,
        making: impl Future<Output = Result<MadeFiles>>,
    ) -> Result<Vec<String>> {
        let (datastore, defects) = (&home.datastore, &self.defects);
        let first = if defects.has(Defect::WholeEarly) { HomeState::Whole } else { HomeState::Making };
        let made = async {
            if !defects.has(Defect::RecordLate) {
                datastore.records.put(name, datastore.record(&home.path, first, id)).await?;
            }
            let MadeFiles { id, notices } = making.await?;
            datastore.records.put(name, datastore.record(&home.path, HomeState::Whole, id)).await?;
            Ok::<Vec<String>, Error>(notices)
        };
        let made = made.await;
        if let Err(error) = &made {
            let record = datastore.record(&home.path, HomeState::Making, id);
            self.take_back(name, home, record, &error.clone().into()).await;
        }
        made
    }

    /// Undoes a failed creation, even if no space is left for another record.
    pub(crate) async fn take_back(
        &self,
        name: &str,
        home: &Home,
        record: HomeRecord,
        cause: &api::error::Error,
    ) {
        let undone = async {
            // The last record may say that the home is whole. Without a record nothing was created.
            if home.datastore.records.get(name).is_some_and(|known| known != record) {
                home.datastore.records.put(name, record.clone()).await?;
            }
            self.finish(name, home, &record).await
        };
        if let Err(e) = undone.await {
            self.list_left_over(name, home, cause, &e);
        }
    }

    /// Lists a failed creation that could not be removed. Its name is taken until the next start.
    pub(crate) fn list_left_over(&self, name: &str, home: &Home, cause: &api::error::Error, left: &Error) {
        let message =
            format!("{cause}; its incomplete files remain until the next start removes them: {left}");
        error!("VM {name} was not created: {message}");
        let cause = api::error::Error::new(cause.kind, message);
        self.broken.borrow_mut().insert(name.to_owned(), Broken { home: home.clone(), cause });
    }

    /// Finishes what a crash has interrupted in a datastore, before its homes are opened. Reports what cannot be
    /// finished.
    pub(crate) async fn finish_all(self: &Rc<Self>, datastore: &Rc<Datastore>) {
        let mut notices = self.finish_bin(datastore).await;
        if let Err(e) = self.sweep(datastore).await {
            notices.push(e.to_string());
        }
        for (name, _) in datastore.records.all() {
            // The operation that has the claim deals with the record.
            let Ok(_claim) = self.claim(&name) else { continue };
            let Some(record) = datastore.records.get(&name).filter(|record| record.state != HomeState::Whole)
            else {
                continue;
            };
            let home = datastore.at(&record.path.clone().unwrap_or_else(|| datastore.root.join(&name)));
            if let Err(e) = self.finish(&name, &home, &record).await {
                notices.push(format!(
                    "VM {name}: the remains of an interrupted creation or removal cannot be removed: {e}"
                ));
            }
        }
        if let Err(e) = self.finish_native(datastore).await {
            notices.push(e.to_string());
        }
        for notice in notices {
            error!("{notice}");
            datastore.notices.borrow_mut().push(notice);
        }
    }

    /// Removes folders whose removal was interrupted: they have lost their names, and contain only files of the daemon.
    /// Also removes a store whose creation was interrupted.
    async fn sweep(self: &Rc<Self>, datastore: &Rc<Datastore>) -> Result<()> {
        datastore.native.clear_up().await?;
        for name in datastore.dir.list().await? {
            let Some(going) = name.strip_suffix('/') else { continue };
            let Some(was) = going.strip_suffix(TEMPORARY_SUFFIX) else { continue };
            // The operation that has the claim removes the folder.
            let Ok(_claim) = self.claim(was) else { continue };
            home_removal::remove_nameless(&datastore.dir, going).await?;
        }
        Ok(())
    }

    async fn finish_native(self: &Rc<Self>, datastore: &Rc<Datastore>) -> Result<()> {
        if !datastore.native.exists().await? {
            return Ok(());
        }
        let store = datastore.native.open().await?;
        for (id, recorded) in store.homes()?.into_iter().filter(|(_, home)| is_unfinished(home)) {
            let home = datastore.at(&datastore.root.join(&recorded.path));
            let name = datastore.name_of(&home.path);
            let Ok(_claim) = self.claim(&name) else { continue };
            if store.home_of(id)?.is_some_and(|home| is_unfinished(&home)) {
                native_homes::take_away(&home, id).await?;
                datastore.registry.remove(&name).await?;
                datastore.records.remove(&name).await?;
            }
        }
        Ok(())
    }

    /// Finishes the creation or removal that the home's record describes. Can be repeated.
    pub(crate) async fn finish(&self, name: &str, home: &Home, record: &HomeRecord) -> Result<()> {
        if let Some(dir) = existing(home).await? {
            match record.state {
                HomeState::Whole => return Ok(()),
                HomeState::Making => self.unmake(home, &dir, record.id).await?,
                HomeState::Removing => self.remove_all(home, &dir).await?,
                HomeState::Forgetting => home_removal::remove_folder(home, &dir).await?,
            }
        }
        home.datastore.registry.remove(name).await?;
        home.datastore.records.remove(name).await
    }

    /// Removes an unfinished home. A home without `.unstun` has no files elsewhere.
    async fn unmake(&self, home: &Home, dir: &Dir, id: Option<u128>) -> Result<()> {
        let begun = dir.list().await?.iter().any(|name| name.trim_end_matches('/') == OWN_FOLDER);
        if let Some(id) = id.filter(|_| begun) {
            let files = HomeFiles::open(self, &home.path).await?;
            let found = match files.id().await {
                Err(e) if e.kind == ErrorKind::NoDescriptors => return Err(e),
                // The unfinished VM may be incomplete.
                found => found.ok().flatten(),
            };
            if found.is_some_and(|found| found != id) {
                let cause = "this folder has another id than the VM that was being created here; move the folder \
                             away, and start the daemon again";
                return Err(Error::refused(home.path.display().to_string(), cause));
            }
            files.remove_made_elsewhere(id).await?;
        }
        home_removal::remove_made(home).await
    }

    async fn remove_all(&self, home: &Home, dir: &Dir) -> Result<()> {
        if has_vmx(dir).await? {
            let held = self.holds.is_held(&home.path);
            formats::hold(self, &home.path).await?;
            let removed = self.remove_layers(home).await;
            if !held {
                self.holds.release(&home.path);
            }
            removed?;
        }
        home_removal::remove_files(home).await
    }

    /// Removes the layers of a home that is held, in one atomic change.
    pub(crate) async fn remove_layers(&self, home: &Home) -> Result<()> {
        let files = HomeFiles::open(self, &home.path).await?;
        let state = files.manifest().load().await?;
        files.remove_layers(&state).await
    }
}

fn is_unfinished(home: &VmHome) -> bool {
    home.state == VmHomeState::Unfinished
}

/// Opens the home. Returns None if it does not exist.
async fn existing(home: &Home) -> Result<Option<Dir>> {
    match open_home(home).await {
        Ok(dir) => Ok(Some(dir)),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
