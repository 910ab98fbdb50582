//! Executor of a run in real time: tasks on the calling thread, over an io_uring of its own.

use std::future::Future;
use std::rc::Rc;

use blk::uring::UringReactor;
use blk::{Env, Executor, Result};

pub struct UringExecutor {
    executor: Executor,
}

impl UringExecutor {
    /// Sets up the ring. Errors: `Refused` where io_uring is forbidden or absent.
    pub fn new() -> Result<UringExecutor> {
        Ok(UringExecutor { executor: Executor::new(Rc::new(UringReactor::new()?)) })
    }

    pub fn env(&self) -> Env {
        self.executor.env()
    }

    /// Polls `main` and the tasks it spawned until `main` is done.
    pub fn run<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> T {
        self.executor.run(main).expect("tasks on a ring end only with the main task")
    }
}
