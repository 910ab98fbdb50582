//! Defragmentation of a VM's running disks as a job.

use std::rc::Rc;

use blk::manifest::{JOB_NUMBER_MAX, next_number};
use blk::sync::RangeGuard;
use blk::{Error, Result};

use super::super::defragment::{DefragmentJob, DefragmentScope};
use super::super::disk::NativeDisk;
use super::NativeVm;
use crate::event::{Event, EventKind};
use crate::job::{DEFRAGMENT, Job, JobState};
use crate::operations::{DefragmentOutcome, DefragmentRequest};

impl NativeVm {
    /// Starts a job that lays running disks out in order, one after the other. It ends when the VM is closed, and
    /// another one goes on from there: what is in order is skipped.
    pub async fn defragment(self: &Rc<Self>, request: DefragmentRequest) -> Result<Rc<Job>> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let disks = match request.disk {
            Some(number) => vec![self.disk(number)?],
            None => self.disks(),
        };
        let under_way = |job: &Rc<Job>| job.operation == DEFRAGMENT && !job.state().is_over();
        if let Some(job) = self.activity.jobs().iter().find(|job| under_way(job)) {
            let cause = format!("job {} is defragmenting it already; wait for it or cancel it", job.id);
            return Err(Error::refused(&self.name, cause));
        }
        let mut head = self.head();
        head.last_job = next_number(&self.name, "numbers of jobs", head.last_job, JOB_NUMBER_MAX)?;
        let id = head.last_job;
        self.change(head, Vec::new())?;
        self.store.flush().await?;
        let names: Vec<_> = disks.iter().map(|disk| format!("disk{}", disk.number)).collect();
        let job = Job::new(self.env.clone(), id, DEFRAGMENT, names.join(", "));
        self.activity.add_job(job.clone());
        let scope = if request.copy_shared { DefragmentScope::SharedToo } else { DefragmentScope::Exclusive };
        let (vm, worker, turn) = (self.clone(), job.clone(), self.defragmentation.lock().await);
        self.env
            .spawn_detached(Box::pin(async move { vm.defragment_disks(&worker, disks, scope, turn).await }));
        Ok(job)
    }

    /// Defragments disks and ends the job. A close of the VM waits for `_turn`.
    async fn defragment_disks(
        self: Rc<Self>,
        job: &Job,
        disks: Vec<Rc<NativeDisk>>,
        scope: DefragmentScope,
        _turn: RangeGuard,
    ) {
        let began_ns = self.env.now_ns();
        let result = defragment_each(job, &disks, scope).await;
        let done = described(&job.defragmented());
        let message = match &result {
            _ if job.is_cancelled() || job.is_stopped_for_close() => format!("cancelled; {done}"),
            Ok(()) => done,
            Err(e) => format!("failed: {e}; {done}"),
        };
        let event = self.activity.event(EventKind::Defragment, &job.subject, &message);
        self.activity.report(Event { total_us: (self.env.now_ns() - began_ns) / 1000, ..event });
        match job.is_stopped_for_close() {
            true => job.set_state(JobState::Cancelled),
            false => job.end(result),
        }
    }
}

async fn defragment_each(job: &Job, disks: &[Rc<NativeDisk>], scope: DefragmentScope) -> Result<()> {
    let bytes = |disks: &[Rc<NativeDisk>]| disks.iter().map(|disk| disk.size_bytes()).sum();
    for (n, disk) in disks.iter().enumerate() {
        let part = DefragmentJob { job, before: bytes(&disks[..n]), after: bytes(&disks[n + 1..]) };
        if let Err(e) = disk.defragment(scope, part).await {
            let is_unwanted = job.is_cancelled() || job.is_stopped_for_close();
            return match disk.is_replaced.get() && !is_unwanted {
                true => {
                    let cause = "a revert has replaced the disk, or it was removed; start again";
                    Err(Error::refused(&disk.name, cause))
                }
                false => Err(e),
            };
        }
    }
    Ok(())
}

/// Returns what was done, in words.
fn described(done: &DefragmentOutcome) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let mut text = format!("{} MiB moved", mib(done.moved_bytes));
    let stayed = [
        (done.shared_bytes, "snapshots or clones show blocks of them too (`--copy-shared` copies these)"),
        (done.no_room_bytes, "the datastore has no contiguous free space for them"),
        (done.changed_bytes, "the guest changed them all the time"),
    ];
    for (bytes, cause) in stayed.into_iter().filter(|(bytes, _)| *bytes > 0) {
        text += &format!(", {} MiB stayed because {cause}", mib(bytes));
    }
    text
}
