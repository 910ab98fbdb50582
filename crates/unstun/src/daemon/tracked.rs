//! Jobs of all VMs under one numbering, since each VM numbers its own.

use std::cell::Cell;
use std::rc::Rc;

use engine::Job;

use super::entry::Entry;
use super::site::Site;
use super::state::Daemon;

/// Job under the daemon's own number.
pub struct Tracked {
    pub id: u64,
    /// Datastore of the job; for a move, the source.
    pub site: Rc<Site>,
    /// VM of the job; None for work on the whole store.
    pub entry: Option<Rc<Entry>>,
    pub job: Rc<Job>,
    /// Time, bytes done and rate at the last measurement of the rate.
    pub seen: Cell<(u64, u64, u64)>,
}

impl Tracked {
    fn new(id: u64, site: &Rc<Site>, entry: Option<&Rc<Entry>>, job: &Rc<Job>) -> Tracked {
        let seen = Cell::new((job.started_ns, 0, 0));
        Tracked { id, site: site.clone(), entry: entry.cloned(), job: job.clone(), seen }
    }
}

impl Daemon {
    /// Returns all jobs, numbered in the order in which they were first seen.
    pub fn tracked<T>(&self, look: impl Fn(&Tracked) -> T) -> Vec<T> {
        let mut jobs = self.jobs.borrow_mut();
        for entry in self.entries() {
            for job in entry.vm.jobs() {
                if jobs.iter().any(|t| Rc::ptr_eq(&t.job, &job)) {
                    continue;
                }
                jobs.push(Tracked::new(self.number_job(), &entry.site, Some(&entry), &job));
            }
        }
        jobs.iter().map(look).collect()
    }

    /// Returns a number for a job of the daemon itself.
    pub fn next_job(&self) -> u64 {
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
    pub fn track(&self, site: &Rc<Site>, entry: Option<&Rc<Entry>>, job: &Rc<Job>) {
        self.jobs.borrow_mut().push(Tracked::new(job.id, site, entry, job));
    }
}
