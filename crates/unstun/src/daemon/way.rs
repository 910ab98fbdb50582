//! Plan of a VM's move, and what the move leaves: each plan has one durable step, and one side to remove.

use std::fmt;
use std::rc::Rc;

use api::{self, Store};
use blk::manifest::{DiskState, NewDisk};
use blk::{Error, Result};
use engine::Vm;
use engine::native::NativeVm;
use engine::relocate::refuse_unmovable;

use super::entry::{Entry, Kept};
use super::formats::{self, HomeFiles};
use super::moves::Side;
use super::records::HomeState;
use super::remove::refuse_readers;
use super::site::{Home, Site};
use super::state::Daemon;
use super::{departure, homes, settle};

#[derive(Clone)]
pub enum Way {
    /// The home stays. `native` is the ID of the VM in the store, on whichever side that is.
    Within { home: Home, store: Store, native: u128 },
    /// The VM gets another home in another datastore. `native` is the ID of the VM to be created in that datastore's
    /// store.
    Between { from: Home, to: Home, store: Store, native: Option<u128>, _held: [Rc<Arrival>; 2] },
}

/// Guard that keeps a datastore from being removed while a VM moves to it or from it. The store is written until the
/// clean-up after the move is done.
pub struct Arrival(Rc<Site>);

impl Arrival {
    fn at(site: &Rc<Site>) -> Rc<Arrival> {
        site.arrivals.set(site.arrivals.get() + 1);
        Rc::new(Arrival(site.clone()))
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.arrivals.set(self.0.arrivals.get() - 1);
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Way::Between { to, .. } = self {
            write!(f, "datastore {}, ", to.site.name)?;
        }
        write!(f, "the {} store", self.store().as_str())
    }
}

impl Way {
    /// Returns the VM's home after the move.
    pub fn to(&self) -> &Home {
        match self {
            Way::Within { home, .. } => home,
            Way::Between { to, .. } => to,
        }
    }

    fn store(&self) -> Store {
        match self {
            Way::Within { store, .. } | Way::Between { store, .. } => *store,
        }
    }

    /// Refuses a move that would fill up the target: the writes of other VMs in that datastore would wait.
    pub async fn refuse_without_room(&self, name: &str, bytes: u64) -> Result<()> {
        let site = &self.to().site;
        let free = match self.store() {
            Store::Native => site.space().await?.free_bytes,
            Store::Redo => site.dir.space().await?.free_bytes,
        };
        if free < bytes {
            let place = site.path.display();
            let cause = format!("a move copies {bytes} bytes at most, and {free} are free in {place}");
            return Err(Error::refused(format!("VM {name}"), cause));
        }
        Ok(())
    }
}

impl Daemon {
    /// Plans a move. Refuses a VM that cannot be moved, before anything has changed.
    pub async fn plan_move(&self, entry: &Rc<Entry>, request: &api::VmMove) -> api::error::Result<Way> {
        let site = match &request.datastore {
            Some(name) => self.site(Some(name))?,
            None => entry.site.clone(),
        };
        let held = [Arrival::at(&entry.site), Arrival::at(&site)];
        let store = request.store.unwrap_or(entry.kept.store());
        let stays = Rc::ptr_eq(&site, &entry.site);
        if store == Store::Redo {
            site.refuse_files()?;
        }
        if stays && store == entry.kept.store() {
            let cause = "it is in that store already";
            return Err(Error::refused(format!("VM {}", entry.name), cause).into());
        }
        refuse_to_move(entry, request.disk, store).await?;
        if stays {
            return Ok(self.plan_within(entry, store).await?);
        }
        departure::refuse_departing(&entry.place()).await?;
        let to = site.home(&entry.name);
        if formats::exists(&self.env, to.path.clone()).await {
            let message = format!("{}: exists; expected no such folder", to.path.display());
            return Err(api::error::Error::new(api::error::ErrorKind::Exists, message));
        }
        let native = match store {
            Store::Native => Some(site.native_store().await?.new_vm_id()),
            Store::Redo => None,
        };
        Ok(Way::Between { from: entry.place(), to, store, native, _held: held })
    }

    async fn plan_within(&self, entry: &Entry, store: Store) -> Result<Way> {
        let native = match &entry.kept {
            Kept::Redo(_) => entry.site.native_store().await?.new_vm_id(),
            Kept::Native(vm) => {
                // Files in the folder belong to the user, and a failed move would remove them.
                settle::refuse_inhabited(self, &entry.home).await?;
                vm.id()
            }
        };
        Ok(Way::Within { home: entry.place(), store, native })
    }

    /// Creates the target side. The intent is durable before anything is created.
    pub async fn make_side(&self, entry: &Entry, way: Way) -> Result<Side> {
        let native = match &way {
            Way::Within { home, store, native } => {
                settle::begin(self, home, *store, *native).await?;
                *native
            }
            Way::Between { from, to, native, .. } => {
                let shared_writers = entry.gate.guests.shared_writers.get();
                let terms = departure::Terms { when_full: entry.when_full, shared_writers };
                departure::begin(from, to, terms, *native).await?;
                formats::hold(self, &to.path).await?;
                native.unwrap_or_default()
            }
        };
        let disks = entry.vm.state().disks;
        let options = self.options();
        let (home, name) = (way.to().clone(), &entry.name);
        match way.store() {
            Store::Native => {
                let store = home.site.native_store().await?;
                store.create_vm_like(native, name, &disks).await?;
                store.set_home(native, &home.site.relative(&home.path)).await?;
                let vm = NativeVm::open(&store, native, options).await?;
                Ok(Side { vm: vm.clone(), kept: Kept::Native(vm), way })
            }
            Store::Redo => {
                formats::create_in(self, &home.path, name, new_disks(&disks)).await?;
                let files = Rc::new(HomeFiles::open(self, &home.path).await?);
                let vm = Vm::open(self.env.clone(), files.manifest(), options).await?;
                Ok(Side { vm, kept: Kept::Redo(files), way })
            }
        }
    }

    pub async fn step(&self, way: &Way) -> Result<()> {
        match way {
            Way::Within { home, store, .. } => settle::step(self, &home.path, *store).await,
            Way::Between { from, .. } => departure::step(from).await,
        }
    }

    /// Returns whether the homes record the step, durably or not.
    pub async fn has_stepped(&self, way: &Way) -> Result<bool> {
        match way {
            Way::Within { home, store, .. } => settle::has_stepped(self, &home.path, *store).await,
            Way::Between { from, .. } => departure::has_stepped(from).await,
        }
    }

    /// Undoes the step if a failed `step` has carried it out.
    pub async fn step_back(&self, way: &Way) -> Result<()> {
        match way {
            Way::Within { home, store, native } => settle::step_back(self, &home.path, *store, *native).await,
            Way::Between { from, to, .. } => departure::step_back(from, to).await,
        }
    }

    /// Cleans up after a failed move: removes the target side, which is closed.
    pub async fn give_up(&self, way: &Way) -> Result<()> {
        match way {
            Way::Within { home, .. } => settle::settle(self, home).await,
            Way::Between { from, to, .. } => {
                self.holds.release(&to.path);
                departure::give_up(from, to).await
            }
        }
    }

    /// Cleans up after a completed move: removes the source side, which is closed.
    pub async fn clear_away(&self, was: &Entry, moved: &Entry, way: &Way) -> api::error::Result<()> {
        let stays = matches!(was.kept, Kept::Redo(_)) && homes::is_adopted(&was.place()).await?;
        match way {
            Way::Within { home, .. } => settle::settle(self, home).await?,
            Way::Between { from, to, .. } => {
                departure::complete(self, &moved.name, from, to).await?;
                self.holds.release(&from.path);
            }
        }
        if let Kept::Redo(_) = was.kept {
            was.site.records.remove(&was.name).await?;
        }
        if let Kept::Redo(_) = moved.kept {
            let record = moved.site.record(&moved.home, HomeState::Whole, Some(moved.vm.state().id));
            moved.site.records.put(&moved.name, record).await?;
        }
        if stays {
            let home = was.home.display();
            self.note(
                moved,
                &format!("the files it was imported with stay in {home}, as they were at the move"),
            );
        }
        Ok(())
    }
}

fn new_disks(disks: &[DiskState]) -> Vec<NewDisk> {
    let new = |disk: &DiskState| NewDisk { size_bytes: disk.size_bytes, mode: disk.mode, folder: None };
    disks.iter().map(new).collect()
}

pub fn refuse_viewers(entry: &Entry) -> Result<()> {
    match entry.readers().first() {
        Some(reader) => {
            let cause = format!("{reader}; disconnect that client first");
            Err(Error::refused(format!("VM {}", entry.name), cause))
        }
        None => Ok(()),
    }
}

async fn refuse_to_move(entry: &Entry, disk: Option<u32>, to: Store) -> api::error::Result<()> {
    let name = &entry.name;
    let refused = |cause: &str| Err(Error::refused(format!("VM {name}"), cause).into());
    let state = entry.vm.state();
    if let Some(number) = disk {
        entry.vm.disk(number)?;
        if state.disks.len() > 1 {
            return refused("its disks are snapshotted together and stay together; move the whole VM");
        }
    }
    if entry.vm.jobs().iter().any(|job| !job.state().is_over()) {
        return refused("a job of it is under way; wait for it or cancel it (`unstun job list`)");
    }
    refuse_viewers(entry)?;
    refuse_unmovable(name, &state.disks)?;
    if let Kept::Redo(files) = &entry.kept {
        // The readers would lose the layers that they read.
        refuse_readers(name, &*files.manifest()).await?;
    }
    if to == Store::Redo && state.disks.iter().enumerate().any(|(n, disk)| n as u32 != disk.number) {
        return refused("its disks are not numbered from 0 on, which files made anew would be");
    }
    Ok(())
}
