//! Numbering of jobs: all VMs' jobs, and the daemon's own.

use std::rc::Rc;
use std::sync::Arc;

use engine::JobControl;

use crate::daemon::datastore::Datastore;
use crate::daemon::state::Daemon;
use crate::daemon::tracked::Tracked;
use crate::daemon::vm::vm_record::VmRecord;

impl Daemon {
    /// Returns all jobs, numbered in the order in which they were first seen.
    pub(super) fn tracked<T>(&self, look: impl Fn(&Tracked) -> T) -> Vec<T> {
        let mut jobs = self.jobs.borrow_mut();
        for entry in self.entries() {
            for job in entry.running.jobs() {
                if jobs.iter().any(|t| Arc::ptr_eq(&t.job, &job)) {
                    continue;
                }
                jobs.push(Tracked::new(self.number_job(), &entry.datastore, Some(&entry), &job));
            }
        }
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
