//! A fence: the moment after which a file's operations are not started any more.
//!
//! A store that two machines can reach is written by the one that holds its lease, and only while its last heartbeat is
//! young. The engine could forget to look before one of its many writes; the file cannot. An operation passes when the
//! reactor hands it to the kernel: one that waits in a queue of this process while the process is stopped has not been
//! started, and is turned back.

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
    /// It waits until the fence is opened again or lost.
    Wait,
    Fail,
}

/// A deadline with those who wait for it. Closed when it is made.
pub struct Fence {
    env: Env,
    deadline: Arc<Deadline>,
    when_closed: WhenClosed,
    changed: Signal,
    lost: RefCell<Option<Error>>,
}

impl Fence {
    /// Makes a fence before which operations wait: a late heartbeat stops a guest and fails none of its requests.
    pub fn waiting(env: &Env) -> Rc<Fence> {
        Fence::new(env, WhenClosed::Wait)
    }

    /// Makes a fence at which operations fail with `LeaseLost`: for steps of a protocol that are worth nothing when late.
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

    /// Lets operations start until `boot_ns`. Ignored after `lose`.
    pub fn open_until(&self, boot_ns: u64) {
        if self.lost.borrow().is_none() {
            self.deadline.set(boot_ns);
            self.changed.notify();
        }
    }

    /// Closes the fence for good. Operations fail with `cause` from now on, those that wait first.
    pub fn lose(&self, cause: Error) {
        self.deadline.set(0);
        self.lost.borrow_mut().get_or_insert(cause);
        self.changed.notify();
    }

    /// Returns whether an operation may start now.
    pub fn is_open(&self) -> bool {
        self.deadline.is_open(self.env.boot_ns())
    }

    /// Returns why the fence was closed for good, if it was.
    pub fn lost(&self) -> Option<Error> {
        self.lost.borrow().clone()
    }

    /// Resolves with the cause once the fence is closed for good.
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
    /// `Errno::FENCED` where none ever may again, or where this fence does not wait.
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

    /// The error of an operation on `place` that was not started.
    pub(crate) fn refusal(&self, place: &str, doing: &str) -> Error {
        let cause = match &*self.lost.borrow() {
            Some(lost) => lost.cause.clone(),
            None => "its time to start was over".to_string(),
        };
        Error::new(ErrorKind::LeaseLost, place, format!("{doing}: not started: {cause}"))
    }
}
