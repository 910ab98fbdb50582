//! Work that does not belong on the core: calculation without I/O that takes longer than guests should wait.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::exec::Env;
use crate::reactor::OffloadedWork;

pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a piece of work came to, or its panic.
type Outcome<T> = Result<T, Box<dyn Any + Send>>;

/// The outcome, and the task that waits for it.
struct SharedResult<T> {
    result: Option<Outcome<T>>,
    waker: Option<Waker>,
}

struct ResultFuture<T>(Arc<Mutex<SharedResult<T>>>);

impl<T> Future for ResultFuture<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut shared = lock(&self.0);
        match shared.result.take() {
            Some(Ok(value)) => Poll::Ready(value),
            // As if the work had been done here.
            Some(Err(panic)) => resume_unwind(panic),
            None => {
                shared.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Starts the work by `run`, which may be over at once.
fn start<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    run: impl FnOnce(OffloadedWork),
) -> ResultFuture<T> {
    let shared = Arc::new(Mutex::new(SharedResult { result: None, waker: None }));
    let answer = shared.clone();
    run(Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(work));
        let mut shared = lock(&answer);
        shared.result = Some(result);
        if let Some(waker) = shared.waker.take() {
            waker.wake();
        }
    }));
    ResultFuture(shared)
}

impl Env {
    /// Runs `work` without holding up the core: on a thread of its own in the real world, at once in the simulated one, where
    /// calculation takes no time. Pieces of work run one after the other. A panic of `work` is the caller's.
    pub async fn offload<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        start(work, |work| self.run_offloaded(work)).await
    }

    /// Runs a call on a path without holding up the core, or other such calls: a file system may never answer it.
    pub async fn blocking<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        start(call, |call| self.run_blocking(call)).await
    }
}
