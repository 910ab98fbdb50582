//! Datastores that hang: a file system or a device that does not answer a call. An operation that needs such a
//! datastore is answered in time with that reason, and the other datastores are served.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::DatastoreName;
use blk::reactor::Pending;
use blk::{Dir, Env, File};
use futures_util::future::{Either, select};
use tracing::{error, info, warn};

/// Time in nanoseconds without an answer after which a datastore hangs, until it answers. Working disks answer a call
/// of any kind within a second or two. The limit is half of the ten seconds in which every verb has an answer.
const HUNG_AFTER_NS: u64 = 5_000_000_000;
/// Interval in microseconds between two checks of what an operation waits for.
const LOOK_US: u64 = 250_000;

/// A datastore that hangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hang {
    pub datastore: DatastoreName,
    pub for_s: u64,
    pub doing: &'static str,
}

impl Hang {
    /// Returns a hang if the oldest pending call is old enough.
    pub(crate) fn of(datastore: &DatastoreName, env: &Env, pending: Option<Pending>) -> Option<Hang> {
        let pending = pending?;
        let age_ns = env.now_ns().saturating_sub(pending.since_ns);
        let hang =
            || Hang { datastore: datastore.clone(), for_s: age_ns / 1_000_000_000, doing: pending.doing };
        (age_ns >= HUNG_AFTER_NS).then(hang)
    }

    pub(crate) fn found(&self) -> String {
        format!("datastore {} has not answered for {} s ({})", self.datastore, self.for_s, self.doing)
    }

    fn error(&self, what: &str) -> Error {
        self.error_of(ErrorKind::Unavailable, what)
    }

    fn error_of(&self, kind: ErrorKind, what: &str) -> Error {
        Error::new(kind, format!("{}; {what}", self.found()))
    }

    /// Returns the error for an operation that was not begun.
    pub(crate) fn refusal(&self) -> Error {
        self.error(
            "the operation was not started; try again when the datastore answers (see `unstun status`)",
        )
    }

    /// Returns the error of a daemon that ends.
    pub(crate) fn not_closed(&self) -> Error {
        self.error("its VMs were not closed, and the next start recovers them")
    }

    /// Returns the error for a datastore that does not answer when it is opened.
    pub(crate) fn refusal_to_serve(&self) -> Error {
        self.error("the daemon serves it as soon as it answers")
    }

    /// Returns the error for an operation that continues without its caller.
    pub(crate) fn left_under_way(&self) -> Error {
        let what = "the operation continues, and ends when the datastore answers (see `unstun status`)";
        self.error_of(ErrorKind::UnderWay, what)
    }

    pub(crate) fn shown(&self) -> api::Hung {
        api::Hung { for_s: self.for_s, doing: self.doing.to_owned() }
    }
}

/// Datastore that is being opened, and its folders and files that are open so far.
pub(crate) struct Opening {
    name: DatastoreName,
    env: Env,
    began_ns: u64,
    dirs: RefCell<Vec<Dir>>,
    files: RefCell<Vec<File>>,
}

impl Opening {
    pub(crate) fn new(env: &Env, name: &DatastoreName) -> Rc<Opening> {
        Rc::new(Opening {
            name: name.clone(),
            env: env.clone(),
            began_ns: env.now_ns(),
            dirs: RefCell::default(),
            files: RefCell::default(),
        })
    }

    pub(crate) fn has_dir(&self, dir: &Dir) {
        self.dirs.borrow_mut().push(dir.clone());
    }

    pub(crate) fn has_file(&self, file: &File) {
        self.files.borrow_mut().push(file.clone());
    }

    pub(crate) fn hang(&self) -> Option<Hang> {
        let (dirs, files) = (self.dirs.borrow(), self.files.borrow());
        let pending = match dirs.is_empty() && files.is_empty() {
            true => Some(Pending { since_ns: self.began_ns, doing: "opening the datastore" }),
            false => {
                let all = dirs.iter().filter_map(Dir::pending).chain(files.iter().filter_map(File::pending));
                all.min_by_key(|pending| pending.since_ns)
            }
        };
        Hang::of(&self.name, &self.env, pending)
    }
}

/// Runs `work` to its end, or until `look` finds that something it waits for hangs.
pub(crate) async fn until_hung<F: Future + Unpin>(
    env: &Env,
    look: impl Fn() -> Option<Hang>,
    work: &mut F,
) -> Result<F::Output, Hang> {
    if !env.can_hang() {
        return Ok(work.await);
    }
    // The age of a transfer is counted from the first check on.
    look();
    loop {
        match select(&mut *work, pin!(env.sleep_us(LOOK_US))).await {
            Either::Left((done, _)) => return Ok(done),
            Either::Right(_) => {}
        }
        if let Some(hang) = look() {
            return Err(hang);
        }
    }
}

/// Runs `work`. If something it waits for hangs, the rest of `work` becomes a task of its own. `what` is for the log.
pub(crate) async fn or_go_on<T: 'static>(
    env: &Env,
    what: String,
    look: impl Fn() -> Option<Hang>,
    work: impl Future<Output = Result<T>> + 'static,
) -> Result<Result<T>, Hang> {
    let mut work: Pin<Box<dyn Future<Output = Result<T>>>> = Box::pin(work);
    let ended = until_hung(env, look, &mut work).await;
    if let Err(hang) = &ended {
        warn!("{what}: {}; the operation continues without its caller", hang.found());
        env.spawn_detached(Box::pin(async move {
            match work.await {
                Ok(_) => info!("{what}: the operation that waited for a datastore has ended"),
                Err(e) => error!("{what}: the operation that waited for a datastore failed: {e}"),
            }
        }));
    }
    ended
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use blk::Executor;
    use blk::sync::Signal;
    use blk::uring::UringReactor;

    use super::*;

    #[test]
    fn what_waits_for_a_datastore_that_hangs_is_answered_and_goes_on() {
        let executor = Executor::new(Rc::new(UringReactor::new().unwrap()));
        let env = executor.env();
        let hang = Hang { datastore: "odd".parse().unwrap(), for_s: 5, doing: "renaming a file" };
        let (answers, ended) = (Rc::new(Signal::default()), Rc::new(Signal::default()));
        let is_over = Rc::new(Cell::new(false));
        let (answer, end, over) = (answers.clone(), ended.clone(), is_over.clone());
        let answer = executor.run(async move {
            let work = async move {
                answer.wait().await;
                over.set(true);
                end.notify();
                Ok(())
            };
            let looks = Cell::new(0);
            let look = || (looks.replace(looks.get() + 1) > 1).then(|| hang.clone());
            let answer = or_go_on(&env, "a test".to_owned(), look, work).await;
            assert!(!is_over.get());
            answers.notify();
            while !is_over.get() {
                ended.wait().await;
            }
            answer
        });
        let error = answer.unwrap().unwrap_err().left_under_way();
        assert_eq!(error.kind, ErrorKind::UnderWay);
        assert!(
            error.message.starts_with("datastore odd has not answered for 5 s (renaming a file)"),
            "{error}"
        );
    }
}
