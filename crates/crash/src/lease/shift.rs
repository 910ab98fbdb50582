//! One machine's ownership of the store, and the expected state across all owners.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, File, Result, SECTOR};
use engine::native::layout::BLOCK;
use engine::native::{Claimant, DiskOptions, Lease, NativeDisk, Owner, Store, StoreOptions, TakeOver};
use engine::options::SpacePolicy;
use sim::oracle::DiskModel;
use sim::{Action, Fault, Host, OpKind, Rng, SimWorld};

use super::plan::Plan;

pub(super) const FILE: &str = "lun";
pub(super) const DISK_BLOCKS: u64 = 64;
const SECTORS: u64 = DISK_BLOCKS * BLOCK / SECTOR;
/// Requests of the guests that are under way at the same time.
const WORKERS: u64 = 4;

/// Expected content of the disk, and the machine that may write it.
pub(super) struct Model {
    world: SimWorld,
    node: u64,
    model: DiskModel,
    /// Number of the present owner. A late acknowledgement to an owner is checked against what its successor found.
    owner: Cell<u64>,
    /// The owner that last read the whole disk, the model as its predecessor left it, and the content that was found.
    handed_over: RefCell<Option<(u64, DiskModel, Vec<u8>)>>,
    /// Former owners: their machines, and the time at which the next one owned the lease.
    former: RefCell<Vec<(Host, u64)>>,
    current: RefCell<Option<Host>>,
    broken: RefCell<Option<String>>,
}

impl Model {
    pub(super) fn new(world: SimWorld, node: u64) -> Model {
        Model {
            world,
            node,
            model: DiskModel::new(0),
            owner: Cell::new(0),
            handed_over: RefCell::default(),
            former: RefCell::default(),
            current: RefCell::default(),
            broken: RefCell::default(),
        }
    }

    /// Lets the device hold back the nth write from now on.
    pub(super) fn hold_write_back(&self, nth: u64, ns: u64) {
        self.world.add_fault(Fault::nth(nth, Action::Delay { ns }).of(OpKind::Write));
    }

    pub(super) fn mark(&self, label: &'static str) {
        self.world.mark(label);
    }

    fn break_promise(&self, what: String) {
        self.broken.borrow_mut().get_or_insert(what);
    }

    /// Returns the first broken promise as an error.
    pub(super) fn verdict(&self) -> std::result::Result<(), String> {
        for (host, until_ns) in self.former.borrow().iter() {
            if host.changed_ns() > *until_ns {
                let (at, until) = (host.changed_ns() / 1000, until_ns / 1000);
                return Err(format!(
                    "a machine changed the store at {at} us, another owned it since {until} us"
                ));
            }
        }
        self.broken.borrow().clone().map_or(Ok(()), Err)
    }

    /// Notes that a power cut has left no earlier machine.
    pub(super) fn begin_anew(&self) {
        self.former.borrow_mut().clear();
        self.current.take();
        self.owner.update(|owner| owner + 1);
    }

    fn owned_by(&self, host: &Host) -> u64 {
        if let Some(before) = self.current.replace(Some(host.clone())) {
            self.former.borrow_mut().push((before, self.world.now_ns()));
        }
        self.owner.update(|owner| owner + 1);
        self.owner.get()
    }

    /// Notes what the new owner has read of the whole disk, and checks it.
    fn found(&self, bytes: Vec<u8>) {
        if let Err(e) = self.model.check_cut(&bytes) {
            self.break_promise(e);
        }
        let before = self.model.clone();
        self.model.replace(&bytes);
        self.handed_over.replace(Some((self.owner.get(), before, bytes)));
    }

    /// Notes a flush that began at `tick` of an earlier owner and was acknowledged when another machine had the store.
    fn flushed_late(&self, tick: u64) {
        self.mark("acknowledged late");
        match &mut *self.handed_over.borrow_mut() {
            Some((owner, model, found)) if *owner == self.owner.get() => {
                model.flushed(tick);
                if let Err(e) = model.check_cut(found) {
                    self.break_promise(format!("a flush that was acknowledged late: {e}"));
                }
            }
            // The new owner has not read the disk yet.
            _ => self.model.flushed(tick),
        }
    }
}

pub(super) struct Shift {
    pub host: Host,
    model: Rc<Model>,
    owner: u64,
    lease: Rc<Lease>,
    store: Rc<Store>,
    disk: Rc<NativeDisk>,
    stop: Cell<bool>,
    working: Cell<u64>,
}

impl Shift {
    /// Opens the store on a machine, and compares the whole disk.
    pub(super) async fn open(
        host: &Host,
        number: usize,
        model: &Rc<Model>,
        plan: &Plan,
        take_over: TakeOver,
    ) -> Result<Rc<Shift>> {
        let owner = Owner {
            id: u128::from(host.env.random()) | 1,
            host: format!("host{number}"),
            ..Owner::default()
        };
        let reserves = plan.reserves.then_some(true);
        let claimant =
            Claimant { owner, terms: plan.terms(), take_over, reserves, has_ended: Rc::new(|_| false) };
        let lease = Lease::acquire(&host.env, open_file(host).await?, claimant).await?;
        // A machine that was paused since its last heartbeat owns nothing; it owns the store once its fence admits I/O.
        if lease.fence().pass().await.is_err() {
            return Err(lease.lost().expect("a fence that waits refuses only what is lost"));
        }
        let owner = model.owned_by(host);
        let opened = Shift::open_leased(host, model, owner, lease, plan.store()).await;
        if opened.is_err() {
            model.mark("lost it while opening");
        }
        opened
    }

    async fn open_leased(
        host: &Host,
        model: &Rc<Model>,
        owner: u64,
        lease: Rc<Lease>,
        options: StoreOptions,
    ) -> Result<Rc<Shift>> {
        let file = open_file(host).await?;
        file.set_fence(lease.fence());
        let store = Store::open(host.env.clone(), file, options, Default::default(), false).await?;
        let terms = DiskOptions { policy: SpacePolicy::Wait, space_retry_us: 10_000 };
        let disk = NativeDisk::new(&store, store.node(model.node)?, "disk0".to_string(), 0, terms);
        let (bytes, read) = disk.clone().read(0, Buf::alloc((DISK_BLOCKS * BLOCK) as usize)).await;
        read?;
        if model.owner.get() == owner {
            model.found(bytes.to_vec());
        }
        let (stop, working) = (Cell::new(false), Cell::new(0));
        let (host, model) = (host.clone(), model.clone());
        Ok(Rc::new(Shift { host, model, owner, lease, store, disk, stop, working }))
    }

    pub(super) fn is_over(&self) -> bool {
        self.lease.lost().is_some()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.lease.epoch()
    }

    /// Starts guests that go on until the machine loses the store or closes it.
    pub(super) fn work(self: &Rc<Self>, rng: &mut Rng) {
        for _ in self.working.get()..WORKERS {
            self.working.update(|working| working + 1);
            let (shift, mut rng) = (self.clone(), rng.fork());
            self.host.env.spawn_detached(Box::pin(async move {
                while !shift.stop.get() && shift.request(&mut rng).await.is_ok() {}
                shift.working.update(|working| working - 1);
            }));
        }
    }

    fn owns(&self) -> bool {
        self.model.owner.get() == self.owner
    }

    async fn request(&self, rng: &mut Rng) -> Result<()> {
        let first = rng.below(SECTORS);
        let count = rng.between(1, 12).min(SECTORS - first);
        match rng.below(10) {
            0..6 => self.write(first, count).await,
            6..8 => self.flush().await,
            _ => self.read(first, count).await,
        }
    }

    /// Writes a range. The model counts the write only if its machine owns the store when it begins.
    async fn write(&self, first: u64, count: u64) -> Result<()> {
        if !self.owns() {
            let zeros = Buf::zeroed((count * SECTOR) as usize).freeze();
            return self.disk.clone().write(first * SECTOR, zeros).await;
        }
        let model = &self.model.model;
        let write = model.begin(first, count);
        let data = Buf::copy_of(&model.data(&write)).freeze();
        self.disk.clone().write(first * SECTOR, data).await?;
        if self.owns() {
            model.end(&write);
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        let owned = self.owns();
        let tick = self.model.model.flush_begins();
        self.disk.clone().flush().await?;
        match (owned, self.owns()) {
            (true, true) => self.model.model.flushed(tick),
            (true, false) if self.model.owner.get() == self.owner + 1 => self.model.flushed_late(tick),
            _ => {}
        }
        Ok(())
    }

    async fn read(&self, first: u64, count: u64) -> Result<()> {
        let tick = self.model.model.now();
        let buf = Buf::alloc((count * SECTOR) as usize);
        let (bytes, read) = self.disk.clone().read(first * SECTOR, buf).await;
        read?;
        if self.owns()
            && let Err(e) = self.model.model.check_read(first, &bytes, tick)
        {
            self.model.break_promise(e);
        }
        Ok(())
    }

    /// Ends the guests, closes the store and releases the lease.
    pub(super) async fn close(&self) -> Result<()> {
        self.stop.set(true);
        while self.working.get() > 0 {
            self.host.env.sleep_us(1000).await;
        }
        self.disk.clone().flush().await?;
        self.store.close().await?;
        self.lease.release().await
    }
}

async fn open_file(host: &Host) -> Result<File> {
    host.env.open_root("/")?.open(FILE, OpenMode::Write).await
}
