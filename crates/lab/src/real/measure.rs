use blk::Result;
use std::rc::Rc;

use super::core::World;
use super::facts::facts;
use super::stack::{Site, Stack};
use crate::run::{End, Record};
use crate::runner::{self, Audience, Plan};
use crate::subject::Subject;

/// Runs a plan on a stack, on this thread and in real time. A stack that cannot be set up gives a failed run.
pub fn run(stack: &Stack, site: &Site<'_>, mut plan: Plan, audience: Audience) -> Record {
    plan.head.subject = stack.name().to_string();
    plan.head.machine = facts(site.folder);
    match open(stack, site) {
        Err(e) => Record { end: End::Failed(e.to_string()), ..plan.head },
        Ok((world, subject)) => {
            let env = world.env();
            plan.head.began_unix_us = env.unix_us();
            world.run(async move { runner::run(&env, subject, plan, audience).await })
        }
    }
}

fn open(stack: &Stack, site: &Site<'_>) -> Result<(World, Rc<dyn Subject>)> {
    let world = World::new()?;
    let subject = stack.open(&world, site)?;
    Ok((world, subject))
}
