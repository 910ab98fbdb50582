//! One boot: recovers, compares everything, and works until the power is cut (in the last boot, until all work is
//! done).

use std::collections::BTreeMap;
use std::rc::Rc;

use blk::Env;
use engine::native::change::{Op, decode};
use engine::native::journal::{Record, replay};
use engine::native::stored::USER_KINDS;
use engine::native::superblock::Superblock;
use sim::SimWorld;

use super::guest::Guest;
use super::harness::{FILE, Harness, MACHINE, SNAPSHOT, nothing_else_is_mapped, open_file, read_all};
use super::media::open_anyway;
use super::model::{Existence, NativeRun};
use super::plan::{DEFRAGMENT_TASK, Medium, Plan, SOURCES_TASK};
use super::user::User;
use crate::flush_faults::{FAULT_TASK, fill_up};
use crate::run::{BootPhase, all_joined};
use crate::watch::print;

/// One boot of this many checks that nothing is mapped where nothing was written.
const MAPPED_EVERY: u64 = 3;

/// One boot of this many reads the journal separately, to find out what the recovery has to do.
const JOURNAL_EVERY: u64 = 5;
/// One boot of this many checks the last checkpoint, and another one checks everything.
const CHECKED_EVERY: u64 = 4;

/// Kind of the items of sources.
const SOURCE: u8 = USER_KINDS + 6;

const RECOVERING: &str = "cut in recovery";

/// Plays one boot. Returns None if the power was cut.
pub(super) fn boot(run: &NativeRun, number: u64) -> Option<Result<(), String>> {
    run.boot(async move |env, run| {
        let (world, plan) = (&run.world, &run.plan);
        run.model.borrow_mut().doing.insert(RECOVERING);
        print(|| format!("BOOT {number}"));
        note_journal(&env, world, plan, number).await.map_err(|e| format!("reading the journal: {e}"))?;
        let harness = open_anyway(&env, &run, number).await?;
        harness.recover().await.map_err(|e| format!("after recovery: {e}"))?;
        plan.arm(world, number, BootPhase::Work);
        if plan.medium == Medium::CrowdedFile {
            fill_up(&env, world, plan.rng(number, 2), 4000, (2000, 30_000));
        }
        harness.faults.begin(plan.rng(number, FAULT_TASK), plan.failing_flushes && plan.may_cut(number));
        harness.clone().work().await?;
        harness.faults.end_boot(&env).await;
        if number + 1 == plan.boots {
            return harness.finish().await;
        }
        // The boot ended before the cut: it ends like a clean stop.
        match harness.store.close().await {
            Ok(()) => harness.closed_cleanly(),
            Err(e) if e.is_no_space() => harness.mark("a stop found no space"),
            Err(e) => harness.faults.survive(&env, Err(format!("closing: {e}"))).await?,
        }
        Ok(())
    })
}

/// Marks what a replay of the journal has to do.
async fn note_journal(env: &Env, world: &SimWorld, plan: &Plan, boot: u64) -> blk::Result<()> {
    if !(plan.seed + boot).is_multiple_of(JOURNAL_EVERY) || !world.unreadable(FILE).is_empty() {
        return Ok(());
    }
    let file = open_file(env).await?;
    let superblock = Superblock::read(&file).await?.newest;
    let (geometry, from) = (superblock.geometry(), superblock.journal);
    let found = replay(&file, &geometry, superblock.begin()).await?;
    let lap = |seq: u64| seq / geometry.journal_pages;
    if lap(from.seq) < lap(found.end.seq) {
        world.mark("a replay across the ring's end");
    }
    let mut ops = Vec::new();
    for (_, record) in &found.records {
        match record {
            Record::Change(bytes) => ops.extend(decode(bytes, FILE)?),
            Record::Map { .. } => world.mark("redirects replayed"),
            Record::Sectors(_) => world.mark("sectors replayed"),
            Record::Unmap { .. } => world.mark("discards replayed"),
        }
    }
    for op in ops {
        match op {
            Op::Abort { .. } => world.mark("voids replayed"),
            Op::Take { .. } => world.mark("takes replayed"),
            Op::Branch { .. } => world.mark("branches replayed"),
            Op::Drop { .. } => world.mark("drops replayed"),
            Op::CreateOver { .. } => world.mark("disks over sources replayed"),
            Op::Put { key, .. } if key.kind == SOURCE => world.mark("sources replayed"),
            Op::Delete { key } if key.kind == SOURCE => world.mark("removals of sources replayed"),
            _ => {}
        }
    }
    Ok(())
}

impl Harness {
    /// Compares what the store has with what it must have.
    pub async fn recover(self: &Rc<Harness>) -> Result<(), String> {
        self.model.borrow_mut().store = Some(self.store.clone());
        if let Some(e) = self.store.broken() {
            return Err(format!("the store is read-only: {e}"));
        }
        self.model.borrow_mut().images.begin_boot(&self.store);
        self.check_unreadable().await?;
        let checked = (self.plan.seed / 2 + self.boot) % CHECKED_EVERY;
        if checked == 0 {
            self.check_committed("as it was found").await?;
        }
        self.check_snapshots().await?;
        self.check_machines().await?;
        let numbers: Vec<u64> = self.model.borrow().machines.keys().copied().collect();
        for number in numbers {
            self.start(number).map_err(|e| format!("machine {number}: {e}"))?;
        }
        if (self.plan.seed + self.boot).is_multiple_of(MAPPED_EVERY) {
            self.check_mapped().await?;
        }
        if checked == 1 {
            self.check_all("with what was replayed").await?;
        }
        self.model.borrow_mut().doing.remove(RECOVERING);
        Ok(())
    }

    /// Checks that a sealed snapshot is there and unchanged, that one whose removal was acknowledged is not there, and
    /// that one whose take was cut is there whole or not at all.
    async fn check_snapshots(self: &Rc<Harness>) -> Result<(), String> {
        let items = self.items(SNAPSHOT);
        let known: BTreeMap<u64, Existence> =
            self.model.borrow().snapshots.iter().map(|(number, s)| (*number, s.existence)).collect();
        if let Some(number) = items.keys().find(|number| !known.contains_key(number)) {
            return Err(format!("snapshot {number} was never taken, or has been removed"));
        }
        for (number, existence) in known {
            match (items.get(&number), existence) {
                (None, Existence::There) => return Err(format!("sealed snapshot {number} is lost")),
                (None, _) => drop(self.model.borrow_mut().snapshots.remove(&number)),
                (Some(nodes), _) if *nodes != self.model.borrow().snapshots[&number].nodes => {
                    return Err(format!("snapshot {number} has nodes {nodes:?}"));
                }
                (Some(_), existence) => {
                    self.look(number).await?;
                    if existence == Existence::Making {
                        self.mark("an interrupted take is there");
                    }
                }
            }
            if let Some(snapshot) = self.model.borrow_mut().snapshots.get_mut(&number) {
                snapshot.existence = Existence::There;
            }
        }
        Ok(())
    }

    async fn check_machines(self: &Rc<Harness>) -> Result<(), String> {
        let items = self.items(MACHINE);
        let known: BTreeMap<u64, Existence> =
            self.model.borrow().machines.iter().map(|(number, m)| (*number, m.existence)).collect();
        if let Some(number) = items.keys().find(|number| !known.contains_key(number)) {
            return Err(format!("machine {number} was never made, or has been removed"));
        }
        for (number, existence) in known {
            let Some(nodes) = items.get(&number) else {
                if existence == Existence::There {
                    return Err(format!("machine {number} is lost"));
                }
                self.model.borrow_mut().machines.remove(&number);
                continue;
            };
            self.model.borrow_mut().machine(number).existence = Existence::There;
            self.check_moved(number, nodes)?;
            self.check_disks(number).await.map_err(|e| format!("machine {number}: {e}"))?;
        }
        Ok(())
    }

    /// Checks that a revert that was under way has happened to all disks of the machine, or to none.
    fn check_moved(&self, number: u64, nodes: &[u64]) -> Result<(), String> {
        let mut model = self.model.borrow_mut();
        let machine = model.machine(number);
        if machine.moving.as_ref().is_some_and(|moving| moving.nodes == nodes) {
            machine.arrive();
        }
        machine.moving = None;
        let here: Vec<u64> = machine.disks.iter().map(|disk| disk.node).collect();
        match here == nodes {
            true => Ok(()),
            false => Err(format!("machine {number} has nodes {nodes:?}, expected {here:?}")),
        }
    }

    async fn check_disks(self: &Rc<Harness>, number: u64) -> Result<(), String> {
        let disks = self.disks_of(number).map_err(|e| e.to_string())?;
        for (n, disk) in disks.iter().enumerate() {
            let (model, windows) = {
                let mut model = self.model.borrow_mut();
                let known = model.disk(number, n);
                let size_blocks = disk.node.size_blocks.get();
                known.growing.take_if(|grown| grown.size_blocks != size_blocks);
                known.has_grown();
                (known.model.clone(), known.windows.clone())
            };
            let bytes = read_all(disk, &windows).await?;
            model.check_cut(&bytes)?;
            model.replace(&bytes);
        }
        Ok(())
    }

    async fn check_mapped(&self) -> Result<(), String> {
        for (disk, known) in self.running_disks() {
            nothing_else_is_mapped(&disk, &known.windows).await?;
        }
        Ok(())
    }

    /// Runs guests and user at the same time, to their end.
    async fn work(self: Rc<Harness>) -> Result<(), String> {
        let mut tasks = Vec::new();
        for n in 0..self.plan.guests {
            let guest = Guest { harness: self.clone(), rng: self.plan.rng(self.boot, 100 + n) };
            tasks.push(self.env.spawn(guest.run()));
        }
        let user = User { harness: self.clone(), rng: self.plan.rng(self.boot, 1) };
        tasks.push(self.env.spawn(user.run()));
        if self.plan.over_sources {
            tasks.push(self.env.spawn(self.clone().land_some(self.plan.rng(self.boot, SOURCES_TASK))));
        }
        if self.plan.defragments {
            tasks.push(
                self.env.spawn(self.clone().defragment_some(self.plan.rng(self.boot, DEFRAGMENT_TASK))),
            );
        }
        all_joined(tasks).await
    }

    /// Notes that a clean stop has made every completed request durable.
    pub fn closed_cleanly(&self) {
        let model = self.model.borrow();
        model.machines.values().flat_map(|machine| &machine.disks).for_each(|disk| disk.model.closed());
    }

    /// Ends the last boot, after the faults: all content is right, everything dropped gives its space back, and a
    /// reopened store shows the same.
    pub async fn finish(self: &Rc<Harness>) -> Result<(), String> {
        self.world.set_capacity(None);
        let sealed = self.model.borrow().sealed();
        for number in &sealed {
            self.look(*number).await?;
        }
        self.check_live().await?;
        let mut user = User { harness: self.clone(), rng: self.plan.rng(self.boot, 3) };
        let machines: Vec<u64> = self.running.borrow().keys().copied().collect();
        for number in machines.into_iter().filter(|n| *n != super::FIRST_MACHINE) {
            user.remove_machine(number).await?;
        }
        for number in sealed {
            user.remove_snapshot(number).await?;
        }
        self.wait_for_sources().await?;
        self.wait_for_space().await?;
        self.check_all("at the end").await?;
        self.check_live().await?;
        self.store.close().await.map_err(|e| format!("closing: {e}"))?;
        let again = Harness::open(&self.env, &self.run, self.boot).await;
        let again = again.map_err(|e| format!("opening it once more: {e}"))?;
        again.start(super::FIRST_MACHINE).map_err(|e| format!("starting once more: {e}"))?;
        again.check_live().await?;
        again.check_all("once more").await?;
        again.store.close().await.map_err(|e| format!("closing once more: {e}"))
    }

    async fn check_live(&self) -> Result<(), String> {
        for (disk, known) in self.running_disks() {
            let began = known.model.now();
            let bytes = read_all(&disk, &known.windows).await?;
            known.model.check_read(0, &bytes, began)?;
        }
        Ok(())
    }
}
