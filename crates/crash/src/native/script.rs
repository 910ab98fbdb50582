//! Operations one by one, from a common start: all short sequences of them, and each with every I/O failing once.

use std::cell::RefCell;
use std::rc::Rc;

use blk::{Env, Errno};
use engine::Defects;
use sim::{Action, Fault, OpKind, SimWorld};

use crate::campaign::caught;

use super::guest::Guest;
use super::harness::{Harness, RunningMachine};
use super::model::Model;
use super::places::SECTORS_PER_BLOCK;
use super::plan::Plan;
use super::user::User;
use super::{FIRST_MACHINE, create};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Four blocks that were never written.
    Write,
    /// Three blocks that snapshots show.
    Overwrite,
    /// Parts of two blocks, across a leaf's edge.
    WriteSectors,
    Flush,
    Take,
    Branch,
    Revert,
    RemoveOldest,
    RemoveNewest,
    Discard,
    Zero,
    Checkpoint,
    Grow,
    /// A clean stop and a start.
    Reopen,
    /// A power cut and a start.
    Cut,
}

impl Operation {
    pub fn ends_boot(self) -> bool {
        matches!(self, Operation::Reopen | Operation::Cut)
    }
}

pub const OPERATIONS: [Operation; 15] = [
    Operation::Write,
    Operation::Overwrite,
    Operation::WriteSectors,
    Operation::Flush,
    Operation::Take,
    Operation::Branch,
    Operation::Revert,
    Operation::RemoveOldest,
    Operation::RemoveNewest,
    Operation::Discard,
    Operation::Zero,
    Operation::Checkpoint,
    Operation::Grow,
    Operation::Reopen,
    Operation::Cut,
];

/// How one I/O goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    Once,
    FromThenOn,
}

/// World, plan and model of one script.
pub struct Script {
    pub world: SimWorld,
    pub plan: Rc<Plan>,
    pub model: Rc<RefCell<Model>>,
}

/// Runs the operations, and compares content and space after every start and at the end.
pub fn run_sequence(operations: &[Operation]) -> Result<(), String> {
    caught(|| {
        let script = Script::begin()?;
        for part in operations.split_inclusive(|operation| operation.ends_boot()) {
            script.boot(part)?;
        }
        script.end()
    })
    .map_err(|e| format!("{operations:?}: {e}"))
}

/// Runs `before`, then one operation with its n-th I/O failing, starts again, and compares. Returns false if the
/// operation has fewer I/Os.
pub fn run_failing(
    before: Operation,
    operation: Operation,
    nth: u64,
    trouble: Trouble,
) -> Result<bool, String> {
    caught(|| {
        let script = Script::begin()?;
        let fault = Fault::nth(nth, Action::Fail(Errno::EIO));
        let fault = if trouble == Trouble::FromThenOn { fault.and_all_later() } else { fault };
        let struck = script.disturbed(before, operation, fault, nth)?;
        // In half of the cases the machine also fails, and loses what was not flushed.
        match nth.is_multiple_of(2) {
            true => script.world.power_cut(),
            false => script.world.kill(),
        }
        script.end().map(|()| struck)
    })
    .map_err(|e| format!("{before:?}, {operation:?}, I/O {nth} fails {trouble:?}: {e}"))
}

/// Runs `before`, then one operation whose n-th write finds no space, once. A checkpoint and a flush in the same start
/// must then succeed. Returns false if the operation has fewer writes.
pub fn run_full_once(before: Operation, operation: Operation, nth: u64) -> Result<bool, String> {
    run_full_once_with(Defects::default(), before, operation, nth)
}

/// Does the same with a defect planted.
pub fn run_full_once_with(
    defects: Defects,
    before: Operation,
    operation: Operation,
    nth: u64,
) -> Result<bool, String> {
    caught(|| {
        let script = Script::begin_with(defects)?;
        let struck = Rc::new(std::cell::Cell::new(false));
        let (world, noted) = (script.world.clone(), struck.clone());
        script.run(async move |actor| {
            actor.act(before).await?;
            let writes = || world.count(OpKind::Write).submitted;
            let done = writes();
            world.add_fault(Fault::nth(nth, Action::Fail(Errno::ENOSPC)).of(OpKind::Write));
            actor.act(operation).await?;
            noted.set(writes() - done >= nth);
            world.clear_faults();
            actor.store_is_sound()?;
            actor.user.checkpoint().await?;
            actor.flush().await?;
            actor.store_is_sound()
        })?;
        script.world.power_cut();
        script.end().map(|()| struck.get())
    })
    .map_err(|e| format!("{before:?}, {operation:?}, write {nth} finds no space: {e}"))
}

impl Script {
    /// Begins with two snapshots and a branch of the older one, some of it merged and some not.
    pub fn begin() -> Result<Script, String> {
        Script::begin_with(Defects::default())
    }

    fn begin_with(defects: Defects) -> Result<Script, String> {
        let mut plan = Plan::scripted();
        plan.options.defects = defects;
        let plan = Rc::new(plan);
        let world = SimWorld::new(plan.seed, plan.world.clone());
        let script = Script { world, plan, model: Rc::default() };
        create(&script.world, &script.plan, &script.model)?;
        script.run(async |actor| actor.prepare().await)?;
        Ok(script)
    }

    /// Starts once and runs `work`, without a stop: what is not durable then stays so. Returns the error of `work`.
    fn run(&self, work: impl AsyncFnOnce(&mut Actor) -> Result<(), String> + 'static) -> Result<(), String> {
        let (world, plan, model) = (self.world.clone(), self.plan.clone(), self.model.clone());
        let ended = self.world.run(move |env| async move {
            let mut actor = Actor::start(&env, &world, &plan, &model).await?;
            work(&mut actor).await
        });
        self.model.borrow_mut().store = None;
        match ended {
            Some(result) => result,
            None => {
                self.world.power_cut();
                Ok(())
            }
        }
    }

    pub fn boot(&self, operations: &[Operation]) -> Result<(), String> {
        let operations = operations.to_vec();
        self.run(async move |actor| {
            for operation in operations {
                actor.act(operation).await?;
            }
            Ok(())
        })
    }

    /// Returns whether the fault struck. Errors that the fault explains do not count: the next start compares
    /// everything.
    fn disturbed(
        &self,
        before: Operation,
        operation: Operation,
        fault: Fault,
        nth: u64,
    ) -> Result<bool, String> {
        let world = self.world.clone();
        let struck = Rc::new(std::cell::Cell::new(false));
        let noted = struck.clone();
        self.run(async move |actor| {
            actor.act(before).await?;
            let done = ios(&world);
            world.add_fault(fault);
            let said = actor.act(operation).await;
            noted.set(ios(&world) - done >= nth);
            match said {
                Err(e) if !noted.get() || e.contains(" shows ") || e.contains("check ") => Err(e),
                _ => Ok(()),
            }
        })?;
        self.world.clear_faults();
        Ok(struck.get())
    }

    pub fn end(&self) -> Result<(), String> {
        self.run(async |actor| actor.harness.finish().await)
    }
}

/// Returns the I/Os submitted so far, without timers, as a fault rule counts them.
pub fn ios(world: &SimWorld) -> u64 {
    OpKind::ALL.iter().filter(|kind| **kind != OpKind::Timer).map(|kind| world.count(*kind).submitted).sum()
}

/// Guest and user of one boot.
pub struct Actor {
    pub harness: Rc<Harness>,
    pub user: User,
    guest: Guest,
}

impl Actor {
    async fn start(
        env: &Env,
        world: &SimWorld,
        plan: &Rc<Plan>,
        model: &Rc<RefCell<Model>>,
    ) -> Result<Actor, String> {
        let harness =
            Harness::open(env, world, plan, model, 0).await.map_err(|e| format!("opening it: {e}"))?;
        harness.recover().await?;
        Ok(Actor::of(&harness))
    }

    pub fn of(harness: &Rc<Harness>) -> Actor {
        let user = User { harness: harness.clone(), rng: harness.plan.rng(0, 1) };
        let guest = Guest { harness: harness.clone(), rng: harness.plan.rng(0, 2) };
        Actor { harness: harness.clone(), user, guest }
    }

    /// Checks that nothing that happened makes another start necessary.
    fn store_is_sound(&self) -> Result<(), String> {
        match self.harness.store.broken() {
            Some(e) => Err(format!("needs another start: {e}")),
            None => Ok(()),
        }
    }

    fn machine(&self) -> Rc<RunningMachine> {
        self.harness.machine(FIRST_MACHINE)
    }

    /// Writes blocks, as the model numbers them.
    pub async fn write(&mut self, first: u64, count: u64) -> Result<(), String> {
        self.write_sectors(first * SECTORS_PER_BLOCK, count * SECTORS_PER_BLOCK).await
    }

    async fn write_sectors(&mut self, first: u64, count: u64) -> Result<(), String> {
        let target = self.guest.target_at(&self.machine(), 0, first, count);
        self.guest.write(&target).await
    }

    async fn flush(&mut self) -> Result<(), String> {
        let target = self.guest.target_at(&self.machine(), 0, 0, 1);
        self.guest.flush(&target).await
    }

    /// Writes blocks 0 to 7 and those around the first leaf's edge; the blocks between stay free for `Write`.
    async fn prepare(&mut self) -> Result<(), String> {
        self.write(0, 8).await?;
        self.write(16, 8).await?;
        self.flush().await?;
        self.user.take().await?;
        self.write(1, 4).await?;
        self.write(19, 2).await?;
        self.user.branch().await?;
        self.user.take().await?;
        self.user.checkpoint().await?;
        self.write(2, 2).await?;
        self.flush().await
    }

    pub async fn act(&mut self, operation: Operation) -> Result<(), String> {
        let sealed = self.harness.model.borrow().sealed();
        let inner = |actor: &Actor| actor.guest.target_at(&actor.machine(), 0, 12, 36);
        match operation {
            Operation::Write => self.write(9, 4).await,
            Operation::Overwrite => self.write(2, 3).await,
            Operation::WriteSectors => self.write_sectors(20 * SECTORS_PER_BLOCK - 3, 5).await,
            Operation::Flush => self.flush().await,
            Operation::Take => self.user.take().await,
            Operation::Branch => self.user.branch().await,
            Operation::Revert => self.user.revert().await,
            Operation::RemoveOldest => self.remove(sealed.first()).await,
            Operation::RemoveNewest => self.remove(sealed.last()).await,
            Operation::Discard => self.guest.discard(&inner(self)).await,
            Operation::Zero => self.guest.zero(&inner(self)).await,
            Operation::Checkpoint => self.user.checkpoint().await,
            Operation::Grow => self.user.grow().await,
            Operation::Reopen => self.close().await,
            Operation::Cut => {
                self.harness.world.switch_off();
                self.harness.env.sleep_us(1).await;
                Ok(())
            }
        }
    }

    async fn remove(&mut self, snapshot: Option<&u64>) -> Result<(), String> {
        match snapshot {
            Some(number) => self.user.remove_snapshot(*number).await,
            None => Ok(()),
        }
    }

    pub async fn close(&mut self) -> Result<(), String> {
        self.harness.store.close().await.map_err(|e| format!("closing: {e}"))?;
        self.harness.closed_cleanly();
        Ok(())
    }
}
