//! A fence: a deadline after which operations on a file are not started any more.
//!
//! If two machines can reach a store, only the holder of its lease may write it, and only while its last heartbeat is
//! recent. The file enforces this, because the engine could omit the check before one of its many writes. The check is
//! made when the reactor passes the operation to the kernel: an operation that waits in a queue of a stopped process
//! has not been started, and is refused.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

pub use crate::deadline::Deadline;
use crate::error::{Errno, Error, ErrorKind};
use crate::exec::Env;
use crate::sync::Signal;

/// What happens to an operation that meets a closed fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhenClosed {
    /// It waits until the fence opens, or is closed permanently.
    Wait,
    Fail,
}

/// A deadline, and the tasks that wait for it. A new fence is closed.
pub struct Fence {
    env: Env,
    deadline: Arc<Deadline>,
    when_closed: WhenClosed,
    changed: Signal,
    lost: RefCell<Option<Error>>,
}

impl Fence {
    /// Creates a fence at which operations wait. A late heartbeat then delays a guest's requests and fails none of
    /// them.
    pub fn waiting(env: &Env) -> Rc<Fence> {
        Fence::new(env, WhenClosed::Wait)
    }

    /// Creates a fence at which operations fail with `LeaseLost`, for steps of a protocol that are useless when late.
    pub fn failing(env: &Env) -> Rc<Fence> {
        Fence::new(env, WhenClosed::Fail)
    }

    fn new(env: &Env, when_closed: WhenClosed) -> Rc<Fence> {
        Rc::new(Fence {
            env: env.clone(),
            deadline: Arc::default(),
            when_closed,
            changed: Signal::default(),
            lost: RefCell::default(),
        })
    }

    pub(crate) fn deadline(&self) -> Arc<Deadline> {
        self.deadline.clone()
    }

    /// Lets operations start until `boot_ns`. Has no effect after `lose`.
    pub fn open_until(&self, boot_ns: u64) {
        if self.lost.borrow().is_none() {
            self.deadline.set(boot_ns);
            self.changed.notify();
        }
    }

    /// Closes the fence permanently. Operations, including those that wait, fail with `cause`.
    pub fn lose(&self, cause: Error) {
        self.deadline.set(0);
        self.lost.borrow_mut().get_or_insert(cause);
        self.changed.notify();
    }

    /// Returns whether an operation may start now.
    pub fn is_open(&self) -> bool {
        self.deadline.is_open(self.env.boot_ns())
    }

    /// Returns the cause if the fence was closed permanently.
    pub fn lost(&self) -> Option<Error> {
        self.lost.borrow().clone()
    }

    /// Resolves with the cause when the fence is closed permanently.
    pub async fn until_lost(&self) -> Error {
        loop {
            if let Some(cause) = self.lost() {
                return cause;
            }
            self.changed.wait().await;
        }
    }

    /// Resolves when an operation may start.
    ///
    /// # Errors
    /// `Errno::FENCED` if the fence is closed permanently, or is closed and does not wait.
    pub async fn pass(&self) -> Result<(), Errno> {
        loop {
            if self.lost.borrow().is_some() {
                return Err(Errno::FENCED);
            }
            if self.is_open() {
                return Ok(());
            }
            if self.when_closed == WhenClosed::Fail {
                return Err(Errno::FENCED);
            }
            self.changed.wait().await;
        }
    }

    /// Returns the error of an operation on `place` that was not started.
    pub(crate) fn refusal(&self, place: &str, doing: &str) -> Error {
        let cause = match &*self.lost.borrow() {
            Some(lost) => lost.cause.clone(),
            None => "its time to start was over".to_string(),
        };
        Error::new(ErrorKind::LeaseLost, place, format!("{doing}: not started: {cause}"))
    }
}
