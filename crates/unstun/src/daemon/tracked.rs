//! Jobs of all VMs under one numbering, since each VM numbers its own.

use std::cell::Cell;
use std::rc::Rc;

use engine::Job;

use crate::daemon::datastore::Datastore;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::VmRecord;

/// Job under the daemon's own number.
pub(super) struct Tracked {
    pub id: u64,
    /// Datastore of the job; for a move, the source.
    pub datastore: Rc<Datastore>,
    /// VM of the job; None for work on the whole store.
    pub entry: Option<Rc<VmRecord>>,
    pub job: Rc<Job>,
    /// Time, bytes done and rate at the last measurement of the rate.
    pub seen: Cell<(u64, u64, u64)>,
}

impl Tracked {
    fn new(id: u64, datastore: &Rc<Datastore>, entry: Option<&Rc<VmRecord>>, job: &Rc<Job>) -> Tracked {
        let seen = Cell::new((job.started_ns, 0, 0));
        Tracked { id, datastore: datastore.clone(), entry: entry.cloned(), job: job.clone(), seen }
    }
}

impl Daemon {
    /// Returns all jobs, numbered in the order in which they were first seen.
    pub(super) fn tracked<T>(&self, look: impl Fn(&Tracked) -> T) -> Vec<T> {
        let mut jobs = self.jobs.borrow_mut();
        for entry in self.entries() {
            for job in entry.vm.jobs() {
                if jobs.iter().any(|t| Rc::ptr_eq(&t.job, &job)) {
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
    pub(super) fn track(&self, datastore: &Rc<Datastore>, entry: Option<&Rc<VmRecord>>, job: &Rc<Job>) {
        self.jobs.borrow_mut().push(Tracked::new(job.id, datastore, entry, job));
    }
}
