//! Homes that are being made or removed: each is on record before its first file is, and until its last one is gone; so a start
//! undoes what was being made, and finishes what was being removed.
//!
//! Of a VM with files the datastore has the record, of a native one the store: with that it goes wherever the store does.

use std::rc::Rc;

use blk::dir::{OWN_FOLDER, TEMPORARY_SUFFIX};
use blk::{Dir, Error, ErrorKind, Result};
use engine::native::{VmHome, VmHomeState};
use vmdk::home::Home as VmFiles;

use super::defect::Defect;
use super::formats::{self, HomeFiles};
use super::native;
use super::records::{HomeRecord, HomeState};
use super::registry::Broken;
use super::remove::{self, has_vmx, open_home};
use super::site::{Home, Site};
use super::state::Daemon;
use crate::log::log;

impl Daemon {
    /// Makes a home with files in a datastore. It is a VM when this answers, and nothing is left of it after an error; what cannot
    /// be removed then is listed as broken, and goes at the next start. Answers what the files had to say.
    pub async fn make_files(
        &self,
        home: &Home,
        name: &str,
        id: Option<u128>,
        making: impl Future<Output = Result<VmFiles>>,
    ) -> Result<Vec<String>> {
        let (site, defects) = (&home.site, &self.defects);
        let first = if defects.has(Defect::WholeEarly) { HomeState::Whole } else { HomeState::Making };
        let made = async {
            if !defects.has(Defect::RecordLate) {
                site.records.put(name, site.record(&home.path, first, id)).await?;
            }
            let files = making.await?;
            let id = files.id().await?;
            site.records.put(name, site.record(&home.path, HomeState::Whole, id)).await?;
            Ok::<Vec<String>, Error>(files.take_notices())
        };
        let made = made.await;
        if let Err(error) = &made {
            let record = site.record(&home.path, HomeState::Making, id);
            self.take_back(name, home, record, &error.clone().into()).await;
        }
        made
    }

    /// Undoes what came to nothing, also where no space is left for another record.
    pub async fn take_back(&self, name: &str, home: &Home, record: HomeRecord, cause: &api::error::Error) {
        let undone = async {
            // The last word on record may be that it is whole. Without a record nothing was made.
            if home.site.records.get(name).is_some_and(|known| known != record) {
                home.site.records.put(name, record.clone()).await?;
            }
            self.finish(name, home, &record).await
        };
        if let Err(e) = undone.await {
            self.list_left_over(name, home, cause, &e);
        }
    }

    /// Lists what came to nothing and could not be removed: its name is taken until the next start.
    pub fn list_left_over(&self, name: &str, home: &Home, cause: &api::error::Error, left: &Error) {
        let message =
            format!("{cause}; what was made of it is still there, and goes at the next start: {left}");
        let cause = api::error::Error::new(cause.kind, message);
        self.broken.borrow_mut().insert(name.to_owned(), Broken { home: home.clone(), cause });
    }

    /// Ends what a crash has interrupted in a datastore, before its homes are opened. What cannot be ended is told.
    pub async fn finish_all(self: &Rc<Self>, site: &Rc<Site>) {
        let mut told = self.finish_bin(site).await;
        if let Err(e) = self.sweep(site).await {
            told.push(e.to_string());
        }
        for (name, _) in site.records.all() {
            // Whoever is making or removing it sees to it.
            let Ok(_claim) = self.claim(&name) else { continue };
            let Some(record) = site.records.get(&name).filter(|record| record.state != HomeState::Whole)
            else {
                continue;
            };
            let home = site.at(&record.path.clone().unwrap_or_else(|| site.root.join(&name)));
            if let Err(e) = self.finish(&name, &home, &record).await {
                told.push(format!("VM {name}: was being made or removed, and cannot be cleared away: {e}"));
            }
        }
        if let Err(e) = self.finish_native(site).await {
            told.push(e.to_string());
        }
        for notice in told {
            log(&notice);
            site.notices.borrow_mut().push(notice);
        }
    }

    /// Removes folders that were on their way out: they have lost their names, and nothing but ours is in them. And a store that
    /// was being made.
    async fn sweep(self: &Rc<Self>, site: &Rc<Site>) -> Result<()> {
        site.native.clear_up().await?;
        for name in site.dir.list().await? {
            let Some(going) = name.strip_suffix('/') else { continue };
            let Some(was) = going.strip_suffix(TEMPORARY_SUFFIX) else { continue };
            // Whoever is removing it sees to it.
            let Ok(_claim) = self.claim(was) else { continue };
            remove::remove_nameless(&site.dir, going).await?;
        }
        Ok(())
    }

    async fn finish_native(self: &Rc<Self>, site: &Rc<Site>) -> Result<()> {
        if !site.native.exists().await? {
            return Ok(());
        }
        let store = site.native.open().await?;
        for (id, recorded) in store.homes()?.into_iter().filter(|(_, home)| is_unfinished(home)) {
            let home = site.at(&site.root.join(&recorded.path));
            let name = site.name_of(&home.path);
            let Ok(_claim) = self.claim(&name) else { continue };
            if store.home_of(id)?.is_some_and(|home| is_unfinished(&home)) {
                native::take_away(&home, id).await?;
                site.registry.remove(&name).await?;
                site.records.remove(&name).await?;
            }
        }
        Ok(())
    }

    /// Ends the change of a home that its record tells of; can be repeated.
    pub async fn finish(&self, name: &str, home: &Home, record: &HomeRecord) -> Result<()> {
        if let Some(dir) = existing(home).await? {
            match record.state {
                HomeState::Whole => return Ok(()),
                HomeState::Making => self.unmake(home, &dir, record.id).await?,
                HomeState::Removing => self.remove_all(home, &dir).await?,
                HomeState::Forgetting => remove::remove_folder(home, &dir).await?,
            }
        }
        home.site.registry.remove(name).await?;
        home.site.records.remove(name).await
    }

    /// A home that has no `.unstun` yet has nothing elsewhere.
    async fn unmake(&self, home: &Home, dir: &Dir, id: Option<u128>) -> Result<()> {
        let begun = dir.list().await?.iter().any(|name| name.trim_end_matches('/') == OWN_FOLDER);
        if let Some(id) = id.filter(|_| begun) {
            let files = HomeFiles::open(self, &home.path).await?;
            let found = match files.id().await {
                Err(e) if e.kind == ErrorKind::NoDescriptors => return Err(e),
                // What was being made need not be whole.
                found => found.ok().flatten(),
            };
            if found.is_some_and(|found| found != id) {
                let cause =
                    "has another id than the VM that was being made here; move it away, and start again";
                return Err(Error::refused(home.path.display().to_string(), cause));
            }
            files.remove_made_elsewhere(id).await?;
        }
        remove::remove_made(home).await
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
        remove::remove_files(home).await
    }

    /// Of a home that is held; one change, which is made or not.
    pub async fn remove_layers(&self, home: &Home) -> Result<()> {
        let files = HomeFiles::open(self, &home.path).await?;
        let state = files.manifest().load().await?;
        files.remove_layers(&state).await
    }
}

fn is_unfinished(home: &VmHome) -> bool {
    home.state == VmHomeState::Unfinished
}

/// None where the home is gone.
async fn existing(home: &Home) -> Result<Option<Dir>> {
    match open_home(home).await {
        Ok(dir) => Ok(Some(dir)),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
