//! Single operations from a common start: all short sequences of them, and each with every I/O failing once.

use std::rc::Rc;

use blk::volume::ZeroMode;
use blk::{Env, Errno};
use engine::Defects;
use sim::{Action, Fault, OpKind, SimWorld};

use super::guest::Guest;
use super::harness::Harness;
use super::model::NativeRun;
use super::plan::Plan;
use super::user::User;
use super::windows::SECTORS_PER_BLOCK;
use super::{FIRST_MACHINE, create};
use crate::campaign::caught;
use crate::requests::Request;

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Operation {
            $($(#[$doc])* $name),*
        }

        pub const OPERATIONS: [Operation; [$(Operation::$name),*].len()] = [$(Operation::$name),*];
    };
}

operations! {
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
    /// The first disk's source is copied into the store. Scripts with it begin over a source, others do not.
    Land,
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

/// How one I/O goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoFault {
    Once,
    FromThenOn,
}

impl IoFault {
    /// Returns the failure of the n-th I/O from now on.
    pub fn fault(self, nth: u64) -> Fault {
        let fault = Fault::nth(nth, Action::Fail(Errno::EIO));
        if self == IoFault::FromThenOn { fault.and_all_later() } else { fault }
    }
}

/// Ends the process of a disturbed operation. In half of the cases the machine also fails, and loses what was not
/// flushed. Returns whether only the process ended.
pub fn end_disturbed(world: &SimWorld, nth: u64) -> bool {
    let killed = !world.is_off() && !nth.is_multiple_of(2);
    match killed {
        true => world.kill(),
        false => world.power_cut(),
    }
    killed
}

/// The run of one script.
pub struct Script {
    pub run: NativeRun,
}

/// Runs the operations, and compares content and space after every start and at the end.
pub fn run_sequence(operations: &[Operation]) -> Result<(), String> {
    caught(|| {
        let script = Script::begin_for(operations, Defects::default())?;
        for part in operations.split_inclusive(|operation| operation.ends_boot()) {
            script.boot(part)?;
        }
        script.end()
    })
    .map_err(|e| format!("{operations:?}: {e}"))
}

/// Runs `before`, then one operation with its n-th I/O failing, starts again, and compares. Errors that the fault
/// explains do not count. Returns false if the operation has fewer I/Os.
pub fn run_failing(
    before: Operation,
    operation: Operation,
    nth: u64,
    io_fault: IoFault,
) -> Result<bool, String> {
    caught(|| {
        let script = Script::begin_for(&[before, operation], Defects::default())?;
        let struck = script.start(async move |actor| {
            let world = actor.harness.world.clone();
            actor.act(before).await?;
            let done = world.ios();
            world.add_fault(io_fault.fault(nth));
            let said = actor.act(operation).await;
            let struck = world.ios() - done >= nth;
            match said {
                Err(e) if !struck || e.contains(" shows ") || e.contains("check ") => Err(e),
                _ => Ok(struck),
            }
        })?;
        end_disturbed(&script.run.world, nth);
        script.end().map(|()| struck == Some(true))
    })
    .map_err(|e| format!("{before:?}, {operation:?}, I/O {nth} fails {io_fault:?}: {e}"))
}

/// Runs `before`, then one operation whose n-th write finds no space, once. A checkpoint and a flush in the same start
/// must then succeed. Returns false if the operation has fewer writes.
pub fn run_full_once(
    defects: Defects,
    before: Operation,
    operation: Operation,
    nth: u64,
) -> Result<bool, String> {
    caught(|| {
        let script = Script::begin_for(&[before, operation], defects)?;
        let struck = script.start(async move |actor| {
            let world = actor.harness.world.clone();
            actor.act(before).await?;
            let writes = || world.count(OpKind::Write).submitted;
            let done = writes();
            world.add_fault(Fault::nth(nth, Action::Fail(Errno::ENOSPC)).of(OpKind::Write));
            actor.act(operation).await?;
            let struck = writes() - done >= nth;
            world.clear_faults();
            actor.store_is_sound()?;
            actor.user.checkpoint().await?;
            actor.flush().await?;
            actor.store_is_sound().map(|()| struck)
        })?;
        script.run.world.power_cut();
        script.end().map(|()| struck == Some(true))
    })
    .map_err(|e| format!("{before:?}, {operation:?}, write {nth} finds no space: {e}"))
}

impl Script {
    /// Begins with two snapshots and a branch of the older one, some of it merged and some not.
    pub fn begin(defects: Defects) -> Result<Script, String> {
        Script::begin_for(&[], defects)
    }

    fn begin_for(operations: &[Operation], defects: Defects) -> Result<Script, String> {
        let mut plan = Plan::scripted();
        plan.options.defects = defects;
        plan.over_sources = operations.contains(&Operation::Land);
        let script = Script { run: plan.run() };
        create(&script.run)?;
        script.start(async |actor| actor.prepare().await)?;
        Ok(script)
    }

    /// Starts once and runs `work`, without a stop: what is not durable then stays so. Returns None if `work` ended with
    /// a power cut.
    fn start<T: 'static>(
        &self,
        work: impl AsyncFnOnce(&mut Actor) -> Result<T, String> + 'static,
    ) -> Result<Option<T>, String> {
        let ended = self.run.boot(async move |env, run| work(&mut Actor::start(&env, &run).await?).await);
        self.run.model.borrow_mut().store = None;
        if ended.is_none() {
            self.run.world.power_cut();
        }
        ended.transpose()
    }

    pub fn boot(&self, operations: &[Operation]) -> Result<(), String> {
        let operations = operations.to_vec();
        let ended = self.start(async move |actor| {
            for operation in operations {
                actor.act(operation).await?;
            }
            Ok(())
        });
        ended.map(drop)
    }

    pub fn end(&self) -> Result<(), String> {
        self.start(async |actor| actor.harness.finish().await).map(drop)
    }
}

/// Guest and user of one boot.
pub struct Actor {
    pub harness: Rc<Harness>,
    pub user: User,
    guest: Guest,
}

impl Actor {
    async fn start(env: &Env, run: &NativeRun) -> Result<Actor, String> {
        let harness = Harness::open(env, run, 0).await.map_err(|e| format!("opening it: {e}"))?;
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

    /// Makes a request of sectors, as the model numbers them.
    async fn request(&mut self, request: Request, first: u64, count: u64) -> Result<(), String> {
        let place = self.harness.place_at(&self.harness.machine(FIRST_MACHINE), 0, first, count);
        self.guest.carry_out(&place, request).await
    }

    /// Writes blocks, as the model numbers them.
    async fn write(&mut self, first: u64, count: u64) -> Result<(), String> {
        self.request(Request::Write, first * SECTORS_PER_BLOCK, count * SECTORS_PER_BLOCK).await
    }

    async fn flush(&mut self) -> Result<(), String> {
        self.request(Request::Flush, 0, 1).await
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
        match operation {
            Operation::Write => self.write(9, 4).await,
            Operation::Overwrite => self.write(2, 3).await,
            Operation::WriteSectors => self.request(Request::Write, 20 * SECTORS_PER_BLOCK - 3, 5).await,
            Operation::Flush => self.flush().await,
            Operation::Take => self.user.take().await,
            Operation::Branch => self.user.branch().await,
            Operation::Revert => self.user.revert().await,
            Operation::RemoveOldest => self.remove(sealed.first()).await,
            Operation::RemoveNewest => self.remove(sealed.last()).await,
            Operation::Discard => self.request(Request::Discard, 12, 36).await,
            Operation::Zero => self.request(Request::Zero(ZeroMode::default()), 12, 36).await,
            Operation::Checkpoint => self.user.checkpoint().await,
            Operation::Grow => self.user.grow().await,
            Operation::Land => self.harness.land_first().await,
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
