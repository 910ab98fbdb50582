use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::volume::Volume;
use blk::{Env, Error, ErrorKind, Local, Result};
use engine::native::space::Growth as StoreGrowth;
use engine::native::{NativeVm, NewNativeVm, Store, StoreOptions};
use engine::stats::LayerCounters;
use engine::{Client, CommitWhat, Event, EventKind, Job, JobState, Machine, Options, RunningDisk, Vm};
use sim::SimWorld;
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home, NewVm};

use super::native_store::new_store;
use super::storage_counters;
use crate::run::{Counters, Stun};
use crate::subject::{CommitEnd, CommitProgress, FrozenDisks, LayerSeen, Subject};

/// Name of the VM, its folder, and its users.
const VM: &str = "vm";
const LOAD: &str = "load";
const BACKUP: &str = "backup";
const STORE: &str = "store.unstun";

/// A VM of the real engine in either store, with the options that the daemon has.
pub struct MachineSubject {
    name: &'static str,
    world: SimWorld,
    machine: Rc<dyn Machine>,
    /// The store is closed after the VM.
    store: Option<Rc<Store>>,
    disks: Vec<Rc<dyn Volume>>,
    clients: RefCell<Vec<Rc<Client>>>,
    stuns: Rc<RefCell<Vec<Stun>>>,
    job: RefCell<Option<Rc<Job>>>,
    /// Bytes that commits before `job` moved.
    moved: Cell<u64>,
}

impl MachineSubject {
    /// Creates a VM whose base disks are flat files and whose snapshots are VMFSsparse deltas.
    pub async fn redo(env: &Env, world: &SimWorld, disk_bytes: &[u64]) -> Result<MachineSubject> {
        let dir = env.open_root("/")?.open_dir(VM, true).await?;
        let growth = Growth::default();
        let home = Home::create(dir, Folders::default(), growth, NewVm::new(VM, disk_bytes)).await?;
        let vm = Vm::open(env.clone(), Rc::new(home), Options::default()).await?;
        MachineSubject::over("redo", world, vm, None).await
    }

    /// Creates a VM in a store of its own.
    pub async fn native(env: &Env, world: &SimWorld, disk_bytes: &[u64]) -> Result<MachineSubject> {
        let file = new_store(&env.open_root("/")?, STORE).await?;
        let growth = StoreGrowth::default();
        let store = Store::open(env.clone(), file, StoreOptions::default(), growth, true).await?;
        let disk = |size_bytes: &u64| NewDisk {
            size_bytes: *size_bytes,
            mode: DiskMode::Persistent,
            folder: None,
            source: None,
        };
        let disks: Vec<NewDisk> = disk_bytes.iter().map(disk).collect();
        let id = store.create_vm(NewNativeVm { name: VM, disks: &disks, slots: &[] }).await?;
        let vm = NativeVm::open(&store, id, Options::default()).await?;
        MachineSubject::over("native", world, vm, Some(store)).await
    }

    async fn over(
        name: &'static str,
        world: &SimWorld,
        machine: Rc<dyn Machine>,
        store: Option<Rc<Store>>,
    ) -> Result<MachineSubject> {
        let (mut disks, mut clients) = (Vec::new(), Vec::new());
        for disk in machine.state().disks {
            let (volume, client) = machine.attach(disk.number, LOAD).await?;
            disks.push(volume);
            clients.push(client);
        }
        let stuns: Rc<RefCell<Vec<Stun>>> = Rc::default();
        let (seen, clock) = (stuns.clone(), machine.env().clone());
        machine.listen(Box::new(move |event| seen.borrow_mut().extend(stun_of(event, &clock))));
        Ok(MachineSubject {
            name,
            world: world.clone(),
            machine,
            store,
            disks,
            clients: RefCell::new(clients),
            stuns,
            job: RefCell::default(),
            moved: Cell::new(0),
        })
    }

    fn moved_bytes(&self) -> u64 {
        self.moved.get() + self.job.borrow().as_ref().map_or(0, |job| job.bytes_done.get())
    }
}

/// Converts an event to a stun. The engine reports a stun when it is over. Takes and commits without a stun count too:
/// 0 is a figure.
fn stun_of(event: &Event, clock: &Env) -> Option<Stun> {
    let cause = match event.kind {
        EventKind::Take => "take",
        EventKind::Commit => "commit",
        EventKind::CommitStart if event.stun_us > 0 => "begin of a commit",
        _ => return None,
    };
    let at_us = (clock.now_ns() / 1000).saturating_sub(event.stun_us);
    Some(Stun { at_us, stun_us: event.stun_us, disk: None, cause: cause.to_string() })
}

fn layers_of(disk: usize, running: &dyn RunningDisk) -> Vec<LayerSeen> {
    let seen = |(height, layer): (u32, LayerCounters)| LayerSeen {
        name: format!("disk{disk}/{}", layer.name),
        height,
        host: layer.counters.into(),
    };
    (0..).zip(running.layer_counters()).map(seen).collect()
}

impl Subject for MachineSubject {
    fn name(&self) -> &str {
        self.name
    }

    fn disks(&self) -> Vec<Rc<dyn Volume>> {
        self.disks.clone()
    }

    fn counters(&self) -> Option<Counters> {
        let moved = self.moved_bytes();
        let storage = storage_counters(&self.world);
        let files = self.machine.device_counters();
        Some(Counters {
            table_reads: files.table_reads,
            table_writes: files.table_writes,
            commit_read_bytes: moved,
            commit_written_bytes: moved,
            ..storage
        })
    }

    fn layers(&self) -> Vec<LayerSeen> {
        let disks = self.machine.disks();
        disks.iter().enumerate().flat_map(|(n, disk)| layers_of(n, &**disk)).collect()
    }

    fn take_stuns(&self) -> Vec<Stun> {
        self.stuns.take()
    }

    fn take<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>> {
        Box::pin(async move { self.machine.clone().take(name, "").await.map(drop) })
    }

    fn commit<'a>(&'a self, name: &'a str) -> Local<'a, Result<CommitEnd>> {
        Box::pin(async move {
            let job = self.machine.clone().commit(&CommitWhat::One(name.to_string())).await?;
            self.moved.set(self.moved_bytes());
            *self.job.borrow_mut() = Some(job.clone());
            match job.wait().await {
                JobState::Done => Ok(CommitEnd::Done),
                state => Err(job.error().unwrap_or_else(|| {
                    Error::new(ErrorKind::Cancelled, name, format!("the commit is {}", state.name()))
                })),
            }
        })
    }

    fn progress(&self) -> CommitProgress {
        let job = self.job.borrow();
        let Some(job) = job.as_ref() else { return CommitProgress::default() };
        CommitProgress {
            done_bytes: job.bytes_done.get(),
            total_bytes: Some(job.bytes_total.get()),
            helper_bytes: Vec::new(),
        }
    }

    fn frozen<'a>(&'a self, name: &'a str) -> Local<'a, Result<FrozenDisks>> {
        Box::pin(async move {
            let (mut disks, mut views) = (Vec::new(), Vec::new());
            for disk in self.machine.state().disks {
                let (volume, view) = self.machine.open_view(name, disk.number, BACKUP).await?;
                disks.push(volume);
                views.push(view);
            }
            Ok((disks, Box::new(views) as Box<dyn Any>))
        })
    }

    fn close(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.clients.take();
            self.machine.close().await?;
            match &self.store {
                Some(store) => store.close().await,
                None => Ok(()),
            }
        })
    }
}
