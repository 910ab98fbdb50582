//! The commands of the bin: list, restore, empty.

use std::rc::Rc;

use super::super::homes;
use super::super::node::Node;
use super::super::site::Home;
use super::BinState;
use crate::api;
use crate::error::{Error, ErrorKind, Result};
use crate::name::{DatastoreName, VmName};
use crate::units::total;

impl Node {
    pub fn bin_list(&self, datastore: Option<DatastoreName>) -> Result<Vec<api::BinEntry>> {
        let found = self.in_bins(datastore.as_ref())?;
        Ok(found.iter().map(|(site, entry, record)| self.bin_entry(site, entry, record)).collect())
    }

    pub async fn bin_restore(self: &Rc<Self>, request: api::BinRestore) -> Result<api::BinRestored> {
        let (site, entry, record) = self.find_in_bin(&request.entry, request.datastore.as_ref())?;
        let shown = self.bin_entry(&site, &entry, &record);
        let busy = || Error::refused(format!("{entry}: is just being brought back or removed; try again"));
        let _busy = site.bin.begin(&entry).ok_or_else(busy)?;
        let to = request.name.unwrap_or_else(|| record.vm.clone());
        super::refuse_reserved(to.as_str())?;
        let _claim = self.claim(to.as_str())?;
        site.refuse_when_leaving()?;
        if self.is_taken(to.as_str()) || site.has(to.as_str()).await? {
            let other = format!("unstun bin restore {entry} --name NEW");
            let cause =
                format!("VM {to}: the name is another's by now; `{other}` brings it back under a new one");
            return Err(Error::new(ErrorKind::Exists, cause));
        }
        let home = self.bring_back(&site, &entry, &to).await.map_err(|e| {
            let cause = Error::from(e);
            match site.bin.get(&entry).is_some_and(|record| record.state == BinState::Kept) {
                true => cause,
                false => Error::new(cause.kind, format!("{cause}; the next start goes on with it")),
            }
        })?;
        let condition = self.serve_restored(&to, &home).await;
        Ok(api::BinRestored { entry: shown, vm: to, home: home.path, condition })
    }

    /// As it was when it was removed. What cannot be opened is listed with the reason, as at a start.
    async fn serve_restored(self: &Rc<Self>, name: &VmName, home: &Home) -> api::VmCondition {
        if homes::is_closed(&home.path) {
            self.closed.borrow_mut().insert(name.to_string(), home.clone());
            return api::VmCondition::Closed;
        }
        match self.open_vm(name.as_str(), home).await {
            Ok(entry) => {
                self.note(&entry, "brought back from the bin");
                api::VmCondition::Open
            }
            Err(cause) => {
                self.break_down(name.as_str(), home.clone(), &cause);
                api::VmCondition::Broken
            }
        }
    }

    pub fn bin_empty_preview(&self, request: &api::BinEmpty) -> Result<api::BinEmptied> {
        let entries = self.chosen(request)?;
        let entries: Vec<_> =
            entries.iter().map(|(site, entry, record)| self.bin_entry(site, entry, record)).collect();
        let bytes = total(entries.iter().filter_map(|entry| entry.bytes));
        Ok(api::BinEmptied { entries, bytes, left: Vec::new() })
    }

    /// Removes entries for good; one that cannot be removed keeps no other.
    pub async fn bin_empty(&self, request: &api::BinEmpty) -> Result<api::BinEmptied> {
        let mut done = api::BinEmptied { entries: Vec::new(), bytes: 0, left: Vec::new() };
        for (site, entry, record) in self.chosen(request)? {
            let shown = self.bin_entry(&site, &entry, &record);
            let _turn = site.bin.turn.lock().await;
            match self.evict(&site, &entry).await {
                Ok(()) => {
                    done.bytes = done.bytes.saturating_add(shown.bytes.unwrap_or(0));
                    done.entries.push(shown);
                }
                Err(e) => {
                    done.left.push(api::BinLeft { id: entry, vm: record.vm, cause: e.to_string() });
                }
            }
        }
        Ok(done)
    }

    fn chosen(&self, request: &api::BinEmpty) -> Result<Vec<(Rc<super::Site>, String, super::BinRecord)>> {
        let datastore = request.datastore.as_ref();
        if request.entries.is_empty() {
            return self.in_bins(datastore);
        }
        let mut found: Vec<(Rc<super::Site>, String, super::BinRecord)> = Vec::new();
        for wanted in &request.entries {
            let one = self.find_in_bin(wanted, datastore)?;
            if !found.iter().any(|(_, entry, _)| *entry == one.1) {
                found.push(one);
            }
        }
        Ok(found)
    }
}
