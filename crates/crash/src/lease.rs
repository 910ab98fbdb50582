//! Several machines over one device, in virtual time. A run is a function of its seed.
//!
//! One run: a store is created, and machines open it by its lease, one after the other. The guests of the machine that
//! owns the lease write stamped sectors, read and flush. Then that machine is paused (for less than the lease's bounds,
//! about them or far beyond them), is killed, or closes the store. One or two other machines try to open the store
//! meanwhile, and may be paused too. The machine that gets the store compares the whole disk with the oracle. A paused
//! machine continues afterwards, and must not change a store that another machine owns. At the end the power may be cut
//! for all of them.
//!
//! In half of the runs the device has persistent reservations, and holds writes back for longer than the lease allows,
//! which no lease alone survives.

mod plan;
mod shift;

use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::{Env, ErrorKind};
use engine::Defects;
use engine::native::change::Op;
use engine::native::layout::{BLOCK, HEADER_BLOCKS};
use engine::native::{NewStore, Store, StoreOptions, TakeOver};
use sim::{Cut, Host, Options, Pause, Rng, SimWorld};

use crate::campaign::Outcome;
use crate::run::replayed;
use plan::{MS_NS, Plan};
use shift::{Model, Shift};

const LAYOUT: NewStore = NewStore { journal_pages: 1024, group_blocks: 256, ..NewStore::DEFAULT };
const GROUPS: u64 = 4;
/// Machines of a run: each opens the store once.
const HOSTS: usize = 10;

/// Plays one run. An error is a broken promise, with the seed and the command to replay it.
pub fn run(seed: u64, defects: Defects) -> Result<Outcome, String> {
    replayed(seed, || run_plan(&Rc::new(Plan::draw(seed, defects))))
}

fn run_plan(plan: &Rc<Plan>) -> Result<Outcome, String> {
    let options = Options { device: plan.device(), reservations: plan.reserves, ..Options::default() };
    let world = SimWorld::new(plan.seed, options);
    let node = create(&world)?;
    let model = Rc::new(Model::new(world.clone(), node));
    if let Some(ns) = plan.cut_after_ns {
        world.cut_at(Cut::After { ns });
    }
    let (own, book) = (plan.clone(), model.clone());
    let ended = world.run_hosts(HOSTS, |env, hosts| async move {
        Campaign { env, plan: own.clone(), model: book, rng: Rng::new(own.seed), hosts, used: 0 }.run().await
    });
    let mut cuts = 0;
    match ended {
        Some(result) => result?,
        None => {
            cuts = 1;
            world.mark("power cut");
            world.power_cut();
        }
    }
    world.cancel_cut();
    world.clear_faults();
    model.begin_anew();
    let (own, book) = (plan.clone(), model.clone());
    let last = world.run_hosts(1, |_, hosts| async move {
        let shift = Shift::open(&hosts[0], 0, &book, &own, TakeOver::FromAnyOwner).await;
        shift.map_err(|e| e.to_string())?.close().await.map_err(|e| e.to_string())
    });
    last.expect("nothing is cut at the end")?;
    model.verdict()?;
    Ok(Outcome::of(&world, cuts))
}

/// Makes the store with one disk, without cuts or faults.
fn create(world: &SimWorld) -> Result<u64, String> {
    let made = world.run(|env| async move {
        let dir = env.open_root("/")?;
        let file = dir.create_new(shift::FILE).await?;
        dir.sync().await?;
        let blocks = HEADER_BLOCKS + LAYOUT.journal_pages + GROUPS * LAYOUT.group_blocks;
        file.allocate(0, blocks * BLOCK).await?;
        Store::format(&env, &file, LAYOUT).await?;
        drop(file);
        let file = dir.open(shift::FILE, OpenMode::Write).await?;
        let store = Store::open(env, file, StoreOptions::default(), Default::default(), false).await?;
        let node = store.new_node_id();
        store.change(&[Op::Create { node, size_blocks: shift::DISK_BLOCKS }])?;
        store.close().await?;
        Ok(node)
    });
    made.expect("nothing is cut while it is made").map_err(|e: blk::Error| format!("making the store: {e}"))
}

/// The script of one run.
struct Campaign {
    env: Env,
    plan: Rc<Plan>,
    model: Rc<Model>,
    rng: Rng,
    hosts: Vec<Host>,
    used: usize,
}

impl Campaign {
    async fn run(mut self) -> Result<(), String> {
        let mut shift =
            self.open(TakeOver::FromNobody).await.map_err(|e| format!("the first opening: {e}"))?;
        for _ in 0..self.plan.rounds {
            self.env.sleep_us(self.rng.between(1, 120) * 1000).await;
            shift = match self.rng.below(6) {
                0 => self.after_death(shift).await?,
                1 => self.after_close(shift).await?,
                _ => self.after_pause(shift).await?,
            };
            self.model.verdict()?;
        }
        self.closed(&shift).await?;
        self.model.verdict()
    }

    fn next_host(&mut self) -> (Host, usize) {
        let number = self.used;
        self.used += 1;
        (self.hosts[number].clone(), number)
    }

    fn opening(
        &mut self,
        take_over: TakeOver,
    ) -> (Host, impl Future<Output = blk::Result<Rc<Shift>>> + 'static) {
        let (host, number) = self.next_host();
        let (model, plan, on, mut rng) =
            (self.model.clone(), self.plan.clone(), host.clone(), self.rng.fork());
        let opening = async move {
            let shift = Shift::open(&on, number, &model, &plan, take_over).await?;
            shift.work(&mut rng);
            Ok(shift)
        };
        (host, opening)
    }

    async fn open(&mut self, take_over: TakeOver) -> blk::Result<Rc<Shift>> {
        let (host, opening) = self.opening(take_over);
        host.env.spawn(opening).join().await
    }

    /// Lets the device hold back writes that the owner will submit, until after a take-over.
    fn hold_writes_back(&mut self) {
        if !self.plan.reserves {
            return;
        }
        for _ in 0..self.rng.below(3) {
            let (nth, ns) = (self.rng.between(1, 6), self.rng.between(100, 1500) * MS_NS);
            self.model.hold_write_back(nth, ns);
        }
    }

    async fn after_death(&mut self, shift: Rc<Shift>) -> Result<Rc<Shift>, String> {
        self.hold_writes_back();
        self.env.sleep_us(self.rng.below(5) * 1000).await;
        shift.host.kill();
        self.model.mark("taken over from the dead");
        // The killed machine's last heartbeat may still be under way, so that it appears alive once more.
        self.open_at_last().await
    }

    async fn closed(&mut self, shift: &Rc<Shift>) -> Result<(), String> {
        let closing = shift.clone();
        let closed = shift.host.env.spawn(async move { closing.close().await }).join().await;
        match closed {
            // A heartbeat that the device holds back ends the lease, and nothing can be released.
            Err(e) if self.plan.reserves && e.kind == ErrorKind::LeaseLost => Ok(()),
            closed => closed.map_err(|e| format!("closing: {e}")),
        }
    }

    async fn after_close(&mut self, shift: Rc<Shift>) -> Result<Rc<Shift>, String> {
        self.closed(&shift).await?;
        let (one, first) = self.opening(TakeOver::FromNobody);
        let (two, second) = self.opening(TakeOver::FromNobody);
        if self.rng.coin() {
            two.pause(Pause::AtWrite(1));
        }
        let (first, second) = (one.env.spawn(first), two.env.spawn(second));
        self.env.sleep_us(self.rng.between(50, 400) * 1000).await;
        two.resume();
        self.model.mark("two claimed together");
        self.winner(vec![first.join().await, second.join().await]).await
    }

    /// Returns the owner among several openings. If none owns the store, opens it on further machines.
    async fn winner(&mut self, openings: Vec<blk::Result<Rc<Shift>>>) -> Result<Rc<Shift>, String> {
        let mut shifts = Vec::new();
        for opening in openings {
            match opening {
                Ok(shift) => shifts.push(shift),
                Err(e) if is_no_fault(&e) => {}
                Err(e) => return Err(format!("opening: {e}")),
            }
        }
        match shifts.into_iter().find(|shift| !shift.is_over()) {
            Some(shift) => Ok(shift),
            None => self.open_at_last().await,
        }
    }

    /// Opens the store on further machines until one succeeds: machines may beat each other to it.
    async fn open_at_last(&mut self) -> Result<Rc<Shift>, String> {
        let mut last = String::new();
        while self.used < HOSTS {
            match self.open(TakeOver::FromAnyOwner).await {
                Ok(shift) => return Ok(shift),
                Err(e) if is_no_fault(&e) => last = e.to_string(),
                Err(e) => return Err(format!("opening: {e}")),
            }
            self.env.sleep_us(500_000).await;
        }
        Err(format!("no machine can open the store: {last}"))
    }

    async fn after_pause(&mut self, shift: Rc<Shift>) -> Result<Rc<Shift>, String> {
        let when = match self.rng.below(3) {
            0 => Pause::Now,
            1 => Pause::AtWrite(self.rng.between(1, 40)),
            _ => Pause::AtSubmission(self.rng.between(1, 200)),
        };
        self.hold_writes_back();
        shift.host.pause(when);
        let before = self.rng.below(150);
        self.env.sleep_us(before * 1000).await;
        let (other, opening) = self.opening(TakeOver::FromAnyOwner);
        let opening = other.env.spawn(opening);
        // The taker may be paused too, for example between its last read and its claim.
        let hindered = self.rng.below(3) == 0;
        if hindered {
            other.pause(match self.rng.below(3) {
                0 => Pause::AtWrite(1),
                // It has claimed the lease, and opens the store.
                1 => Pause::AtWrite(self.rng.between(2, 6)),
                _ => Pause::AtSubmission(self.rng.between(1, 60)),
            });
        }
        let bounds = [(10, 150), (150, 350), (350, 1500)];
        let (low, high) = *self.rng.pick(&bounds).expect("three");
        self.env.sleep_us(self.rng.between(low, high) * 1000).await;
        let third = match hindered && self.rng.coin() {
            true => Some(self.open(TakeOver::FromAnyOwner).await),
            false => None,
        };
        let epoch = shift.epoch();
        shift.host.resume();
        if self.rng.below(3) == 0 {
            self.pause_again(&shift.host).await;
        }
        self.env.sleep_us(self.rng.below(100) * 1000).await;
        other.resume();
        let mut openings = vec![opening.join().await];
        openings.extend(third);
        // By now a machine that has lost the store has noticed it, or must not write.
        self.env.sleep_us(600_000).await;
        if openings.iter().all(|opening| opening.is_err()) && !shift.is_over() {
            self.model.mark("a living owner was left alone");
            let label =
                if shift.epoch() > epoch { "claimed anew after a pause" } else { "went on after a pause" };
            self.model.mark(label);
            return Ok(shift);
        }
        if openings.iter().any(|opening| opening.is_ok()) {
            self.model.mark("taken over while paused");
        }
        self.winner(openings).await
    }

    /// Pauses a resumed holder once more, while it reads its page and claims it anew. The operations that it has
    /// already submitted go on during the pause.
    async fn pause_again(&mut self, host: &Host) {
        self.env.sleep_us(self.rng.below(8) * 1000).await;
        host.pause(Pause::Now);
        self.model.mark("paused again while it claimed anew");
        self.env.sleep_us(self.rng.between(10, 400) * 1000).await;
        host.resume();
    }
}

/// Returns whether an opening may fail with this error while other machines try to open the store.
fn is_no_fault(e: &blk::Error) -> bool {
    matches!(e.kind, ErrorKind::Locked | ErrorKind::Refused | ErrorKind::LeaseLost)
}
