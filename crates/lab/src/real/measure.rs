use std::rc::Rc;

use api::Vm;
use api::client::Client;
use blk::Result;

use super::facts::facts;
use super::stack::{Setup, Stack, open_served};
use super::uring_executor::UringExecutor;
use crate::run::{End, Record};
use crate::runner::{self, Plan, RunObserver};
use crate::subject::Subject;

/// Runs a plan on a stack, on this thread and in real time. A stack that cannot be set up gives a failed run.
pub fn run(stack: &Stack, setup: &Setup<'_>, mut plan: Plan, observer: RunObserver) -> Record {
    plan.head.subject = stack.name().to_string();
    plan.head.machine = facts(setup.folder);
    run_on(plan, observer, |executor| stack.open(executor, setup))
}

/// Runs a plan on a VM of a daemon that runs already.
pub fn run_served(client: Client, vm: &Vm, mut plan: Plan, observer: RunObserver) -> Record {
    plan.head.subject = vm.store.as_str().to_string();
    plan.head.machine = facts(&vm.home);
    run_on(plan, observer, |executor| open_served(executor, client, vm))
}

fn run_on(
    mut plan: Plan,
    observer: RunObserver,
    open: impl FnOnce(&UringExecutor) -> Result<Rc<dyn Subject>>,
) -> Record {
    let opened = UringExecutor::new().and_then(|executor| open(&executor).map(|subject| (executor, subject)));
    match opened {
        Err(e) => Record { end: End::Failed(e.to_string()), ..plan.head },
        Ok((executor, subject)) => {
            let env = executor.env();
            plan.head.began_unix_us = env.unix_us();
            executor.run(async move { runner::run(&env, subject, plan, observer).await })
        }
    }
}
