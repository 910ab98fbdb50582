//! The cores of the daemon as the control side reaches them. Its own core is called directly; another core receives
//! work and answers by messages.

mod core_change;
pub(super) mod core_thread;
pub(super) mod vm_handle;
mod vm_operations;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use api::error::{Error, Result};
use engine::native::{StoreEnd, StoreSide};
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::daemon::running::folders::SharedPending;
use crate::daemon::running::running_vms::{CoreTask, RunningVms};

/// One core.
pub(crate) struct CoreLink {
    pub number: usize,
    location: Location,
    /// Serves the native VMs of the control side's core to another core.
    store_side: Option<Rc<StoreSide>>,
}

enum Location {
    /// The control side's own core.
    Here(Rc<RunningVms>),
    Elsewhere(mpsc::UnboundedSender<CoreTask>),
}

impl CoreLink {
    pub(crate) fn here(running: Rc<RunningVms>) -> Rc<CoreLink> {
        let number = running.core.own;
        Rc::new(CoreLink { number, location: Location::Here(running), store_side: None })
    }

    /// Returns what the core runs if it is the control side's own core.
    pub(crate) fn own(&self) -> Option<&Rc<RunningVms>> {
        match &self.location {
            Location::Here(running) => Some(running),
            Location::Elsewhere(_) => None,
        }
    }

    /// Returns what serves the native VMs of the control side's core to this one; None for the control side's own core.
    pub(crate) fn store_side(&self) -> Option<&Rc<StoreSide>> {
        self.store_side.as_ref()
    }

    /// Sends work to the core without an answer. The control side's own core carries it out at once.
    pub(crate) fn tell(&self, work: impl FnOnce(&Rc<RunningVms>) + Send + 'static) {
        match &self.location {
            Location::Here(running) => work(running),
            // A core that has ended runs nothing.
            Location::Elsewhere(inbox) => drop(inbox.send(Box::new(work))),
        }
    }

    /// Runs `work` on the core, and returns its result. On another core it is a task of its own, which goes on if the
    /// caller stops waiting; every message that it has sent to the control side is carried out before this returns.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(Rc<RunningVms>) -> T + Send + 'static,
    ) -> T {
        self.run_on(|_| (), async move |running, ()| work(running).await).await
    }

    /// Does the same as `run` with an object of the core, which `find` returns before later messages are carried out.
    pub(crate) async fn run_on<On: 'static, T: Send + 'static>(
        &self,
        find: impl FnOnce(&RunningVms) -> On + Send + 'static,
        work: impl AsyncFnOnce(Rc<RunningVms>, On) -> T + Send + 'static,
    ) -> T {
        let inbox = match &self.location {
            Location::Here(running) => return work(running.clone(), find(running)).await,
            Location::Elsewhere(inbox) => inbox,
        };
        let (answer, answered) = oneshot::channel();
        let task: CoreTask = Box::new(move |running| {
            let (running, on) = (running.clone(), find(running));
            running.env.clone().spawn_detached(Box::pin(async move {
                let result = work(running.clone(), on).await;
                // The caller may have stopped waiting; the effect of the work stays.
                running.control.answer(move || drop(answer.send(result)));
            }));
        });
        // A core ends with the daemon, which answers no request any more.
        let _ = inbox.send(task);
        match answered.await {
            Ok(result) => result,
            Err(_) => std::future::pending().await,
        }
    }
}

/// A core whose thread carries out work.
pub(crate) struct StartedCore {
    pub inbox: mpsc::UnboundedSender<CoreTask>,
    pub thread: JoinHandle<()>,
    /// The end of the control side's core, where the stores are.
    pub store_end: StoreEnd,
}

/// All cores of the daemon in the order of their numbers, the control side's own first.
pub(crate) struct Cores {
    links: Vec<Rc<CoreLink>>,
    threads: RefCell<Vec<JoinHandle<()>>>,
}

impl Cores {
    /// `others` are the cores beside the control side's own, in the order of their numbers.
    pub(crate) fn new(running: Rc<RunningVms>, others: Vec<StartedCore>) -> Cores {
        let env = running.env.clone();
        let mut links = vec![CoreLink::here(running)];
        let mut threads = Vec::new();
        for StartedCore { inbox, thread, store_end } in others {
            let store_side = Some(StoreSide::start(&env, store_end));
            let location = Location::Elsewhere(inbox);
            links.push(Rc::new(CoreLink { number: links.len(), location, store_side }));
            threads.push(thread);
        }
        Cores { links, threads: RefCell::new(threads) }
    }

    pub(crate) fn all(&self) -> &[Rc<CoreLink>] {
        &self.links
    }

    /// Returns the control side's own core. It has all stores, and runs the targets of moves.
    pub(crate) fn own(&self) -> &Rc<CoreLink> {
        &self.links[0]
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Rc<CoreLink>> {
        self.links.get(number)
    }

    /// Returns the core for one more VM: the first of those that have the fewest. `vms` are the cores of the open VMs.
    pub(crate) fn least_used(&self, vms: impl Iterator<Item = usize>) -> &Rc<CoreLink> {
        &self.links[least(self.links.len(), vms)]
    }

    /// Opens the folder of a datastore on all other cores.
    pub(crate) async fn open_folder(&self, path: &Path) -> blk::Result<Vec<Arc<SharedPending>>> {
        let mut all = Vec::new();
        for link in self.links.iter().filter(|link| link.own().is_none()) {
            let (path, pending) = (path.to_path_buf(), Arc::<SharedPending>::default());
            all.push(pending.clone());
            link.run(async move |running| running.folders.open(&running.env, &path, pending).await).await?;
        }
        Ok(all)
    }

    /// Closes the folder of a datastore on all cores.
    pub(crate) fn close_folder(&self, path: &Path) {
        for link in &self.links {
            let path = path.to_path_buf();
            link.tell(move |running| running.folders.remove(&path));
        }
    }

    /// Gives the running disks of all cores their sockets for vhost-user clients in `folder`.
    pub(crate) async fn serve_vhost_user(&self, folder: &Path) {
        let serve = |link: &Rc<CoreLink>| {
            let (link, folder) = (link.clone(), folder.to_path_buf());
            async move { link.run(async move |running| running.serve_vhost_user(folder).await).await }
        };
        join_all(self.links.iter().map(serve)).await;
    }

    /// Admits no further clients on any core.
    pub(crate) fn stop_clients(&self) {
        for link in &self.links {
            link.tell(|running| {
                running.front_end.stop();
                running.vhost.stop();
            });
        }
    }

    /// Returns when the other cores have no connections any more, at the latest some seconds after they were stopped.
    pub(crate) async fn end_connections(&self) {
        let others = self.links.iter().filter(|link| link.own().is_none());
        join_all(others.map(|link| link.run(async |running| running.end_connections().await))).await;
    }

    /// Ends the threads of the other cores. Nothing is sent to them afterwards.
    pub(crate) fn end(&self) -> Result<()> {
        for (thread, link) in self.threads.take().into_iter().zip(&self.links[1..]) {
            let Location::Elsewhere(inbox) = &link.location else { continue };
            drop(inbox.send(Box::new(|running| running.end())));
            // The thread ends right after this message, so joining it does not wait for I/O.
            if thread.join().is_err() {
                warn!("core{} panicked; the next start recovers", link.number);
                return Err(Error::failed(format!("core{} panicked; the next start recovers", link.number)));
            }
        }
        Ok(())
    }
}

/// Returns the first of the cores that have the fewest of `vms`.
fn least(count: usize, vms: impl Iterator<Item = usize>) -> usize {
    let mut numbers = vec![0_usize; count];
    vms.for_each(|core| numbers[core] += 1);
    (0..count).min_by_key(|core| numbers[*core]).expect("the control side has a core")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_goes_to_the_first_core_with_the_fewest() {
        assert_eq!(least(1, [0, 0].into_iter()), 0);
        assert_eq!(least(3, [].into_iter()), 0);
        assert_eq!(least(3, [0].into_iter()), 1);
        assert_eq!(least(3, [0, 1, 2, 0].into_iter()), 1);
        assert_eq!(least(2, [0, 0, 1].into_iter()), 1);
    }
}
