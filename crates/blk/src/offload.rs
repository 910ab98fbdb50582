//! Runs long calculations off the core's thread, so that guests do not wait for them.

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

/// The result of a piece of work, or its panic.
type Outcome<T> = Result<T, Box<dyn Any + Send>>;

/// Hands the result of a piece of work to the task that waits for it.
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
            // The panic continues in the task that waits, as if it had done the work itself.
            Some(Err(panic)) => resume_unwind(panic),
            None => {
                shared.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Starts the work with `run`, which may carry it out at once.
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
    /// Runs `work` without holding up the core: on a thread of its own in the real world, at once in the simulated one,
    /// where calculation takes no time. Pieces of work run one after the other. If `work` panics, the caller panics.
    pub async fn offload<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        start(work, |work| self.run_offloaded(work)).await
    }

    /// Runs a call on a path without holding up the core or other such calls. A file system may never answer it.
    pub async fn blocking<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        start(call, |call| self.run_blocking(call)).await
    }
}
