//! The real world of a run: one core with its own ring, on the calling thread.

use std::future::Future;
use std::rc::Rc;

use blk::uring::UringReactor;
use blk::{Env, Executor, Result};

pub struct World {
    pub(super) reactor: Rc<UringReactor>,
    executor: Executor,
}

impl World {
    /// Sets up the ring. Errors: `Refused` where io_uring is forbidden or absent.
    pub fn new() -> Result<World> {
        let reactor = Rc::new(UringReactor::new()?);
        let executor = Executor::new(reactor.clone());
        Ok(World { reactor, executor })
    }

    pub fn env(&self) -> Env {
        self.executor.env()
    }

    /// Polls `main` and the tasks it spawned until `main` is done.
    pub fn run<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> T {
        self.executor.run(main).expect("a real world ends only with its main task")
    }
}
