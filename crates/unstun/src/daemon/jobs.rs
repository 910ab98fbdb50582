//! Numbering of jobs: all VMs' jobs, and the daemon's own.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use engine::JobControl;

use crate::daemon::datastore::Datastore;
use crate::daemon::state::Daemon;
use crate::daemon::tracked::Tracked;
use crate::daemon::vm::vm_record::VmRecord;

/// Maximum number of jobs that have ended and that no VM lists any more. A VM lists its last hundred.
const ENDED_MAX: usize = 1000;

impl Daemon {
    /// Returns the jobs, numbered in the order in which they were first seen: those that are open, those that their VMs still
    /// list, and the last of the others.
    pub(super) fn tracked<T>(&self, look: impl Fn(&Tracked) -> T) -> Vec<T> {
        let mut jobs = self.jobs.borrow_mut();
        let known: HashSet<_> = jobs.iter().map(|tracked| Arc::as_ptr(&tracked.job)).collect();
        let mut listed = HashSet::new();
        for entry in self.entries() {
            for job in entry.running.jobs() {
                if !known.contains(&Arc::as_ptr(&job)) {
                    jobs.push(Tracked::new(self.number_job(), &entry.datastore, Some(&entry), &job));
                }
                listed.insert(Arc::as_ptr(&job));
            }
        }
        let may_go =
            |tracked: &Tracked| tracked.job.state().is_over() && !listed.contains(&Arc::as_ptr(&tracked.job));
        let mut surplus = jobs.iter().filter(|job| may_go(job)).count().saturating_sub(ENDED_MAX);
        jobs.retain(|job| {
            let goes = surplus > 0 && may_go(job);
            surplus -= usize::from(goes);
            !goes
        });
        jobs.iter().map(look).collect()
    }

    /// Returns a number for a job of the daemon itself.
    pub(super) fn next_job(&self) -> u64 {
        // Jobs of the VMs that were not seen yet get their numbers first.
        self.tracked(|_| ());
        self.number_job()
    }

    /// Returns a number that is used only once: the number of a forgotten job never refers to another one.
    fn number_job(&self) -> u64 {
        self.jobs_numbered.update(|n| n + 1);
        self.jobs_numbered.get()
    }

    /// Registers a job of the daemon itself, under the number from `next_job`.
    pub(super) fn track(
        &self,
        datastore: &Rc<Datastore>,
        entry: Option<&Rc<VmRecord>>,
        job: &Arc<JobControl>,
    ) {
        self.jobs.borrow_mut().push(Tracked::new(job.id, datastore, entry, job));
    }
}
