use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Env, Local, Result};
use sim::SimWorld;

use super::storage_counters;
use crate::plain::Plain;
use crate::run::{Counters, Stun};
use crate::subject::{CommitEnd, CommitProgress, FrozenDisks, Subject};

/// Flat files as disks. A take and a commit cost nothing, because the array does them in its own metadata. A backup
/// reads the running disks in place of a snapshot's, at the same cost; its data is not frozen.
pub struct Flat {
    env: Env,
    world: SimWorld,
    disks: Vec<Rc<dyn Volume>>,
    stuns: RefCell<Vec<Stun>>,
}

impl Flat {
    pub async fn make(env: &Env, world: &SimWorld, disk_bytes: &[u64]) -> Result<Flat> {
        let dir = env.open_root("/")?;
        let mut disks: Vec<Rc<dyn Volume>> = Vec::new();
        for (n, bytes) in disk_bytes.iter().enumerate() {
            let file = dir.create_new(&format!("disk{n}-flat")).await?;
            file.set_len(*bytes).await?;
            disks.push(Rc::new(Plain::new(file, *bytes)));
        }
        Ok(Flat { env: env.clone(), world: world.clone(), disks, stuns: RefCell::default() })
    }

    fn note_stun(&self, cause: &str) {
        let at_us = self.env.now_ns() / 1000;
        self.stuns.borrow_mut().push(Stun { at_us, stun_us: 0, disk: None, cause: cause.to_string() });
    }
}

impl Subject for Flat {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn disks(&self) -> Vec<Rc<dyn Volume>> {
        self.disks.clone()
    }

    fn counters(&self) -> Option<Counters> {
        Some(storage_counters(&self.world))
    }

    fn take_stuns(&self) -> Vec<Stun> {
        self.stuns.take()
    }

    fn take<'a>(&'a self, _name: &'a str) -> Local<'a, Result<()>> {
        self.note_stun("take");
        Box::pin(async { Ok(()) })
    }

    fn commit<'a>(&'a self, _name: &'a str) -> Local<'a, Result<CommitEnd>> {
        self.note_stun("commit");
        Box::pin(async { Ok(CommitEnd::Done) })
    }

    fn progress(&self) -> CommitProgress {
        CommitProgress::default()
    }

    fn frozen<'a>(&'a self, _name: &'a str) -> Local<'a, Result<FrozenDisks>> {
        Box::pin(async { Ok((self.disks.clone(), Box::new(()) as Box<dyn Any>)) })
    }

    fn close(&self) -> Local<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}
