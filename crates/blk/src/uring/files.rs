//! The files threads. They run calls without a ring operation that may block in the kernel for milliseconds, or for as
//! long as a file server is away. There is one thread for each file system, first come, first served. Operations on one
//! file system therefore run in order of submission, and a file system that does not answer holds up no other.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use super::clock::{DROP_WAIT, boot_ns, now_ns};
use super::descriptor::{Device, Fd};
use super::freeing::Freeing;
use super::task::{Answer, Task};
use super::wake::EventWaker;
use crate::fence::Deadline;
use crate::offload::lock;
use crate::reactor::Pending;

/// What the threads have answered, and the core has not taken in: operations by their index.
pub(super) type Outbox = Arc<Mutex<Vec<(u32, Answer)>>>;

enum Job {
    /// Index of the operation, what to do, and the deadline for its start.
    Do(u32, Task, Option<Arc<Deadline>>),
    /// Closing the last handle of a file can free all its blocks, and can wait for a file server.
    Close(Fd),
}

/// Where the threads put their answers.
#[derive(Clone)]
pub(super) struct Answers {
    pub outbox: Outbox,
    pub waker: Arc<EventWaker>,
}

impl Answers {
    pub(super) fn send(&self, index: u32, answer: Answer) {
        lock(&self.outbox).push((index, answer));
        self.waker.rouse();
    }
}

/// All files threads of a core. Each is started with the first operation on its file system, and is kept.
pub(super) struct FilesThreads {
    threads: BTreeMap<Device, FilesThread>,
    answers: Answers,
}

impl FilesThreads {
    pub(super) fn new(waker: Arc<EventWaker>) -> FilesThreads {
        FilesThreads { threads: BTreeMap::new(), answers: Answers { outbox: Outbox::default(), waker } }
    }

    pub(super) fn answers(&self) -> Answers {
        self.answers.clone()
    }

    fn thread(&mut self, device: Device) -> &FilesThread {
        let answers = &self.answers;
        self.threads.entry(device).or_insert_with(|| FilesThread::start(answers.clone()))
    }

    pub(super) fn submit(&mut self, device: Device, index: u32, task: Task, deadline: Option<Arc<Deadline>>) {
        self.thread(device).send(Job::Do(index, task, deadline));
    }

    pub(super) fn close(&mut self, device: Device, fd: Fd) {
        self.thread(device).send(Job::Close(fd));
    }

    pub(super) fn take_answers(&self) -> Vec<(u32, Answer)> {
        std::mem::take(&mut *lock(&self.answers.outbox))
    }

    /// Returns the call that the file system's thread is executing.
    pub(super) fn present(&self, device: Device) -> Option<Pending> {
        *lock(&self.threads.get(&device)?.present)
    }
}

impl Drop for FilesThreads {
    fn drop(&mut self) {
        for thread in self.threads.values_mut() {
            thread.inbox = None;
        }
        // One limit for all threads: if a file system does not answer, the process ends without its thread.
        let deadline = Instant::now() + DROP_WAIT;
        for thread in std::mem::take(&mut self.threads).into_values() {
            thread.join_until(deadline);
        }
    }
}

struct FilesThread {
    /// None only while dropping.
    inbox: Option<Sender<Job>>,
    present: Arc<Mutex<Option<Pending>>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    thread: JoinHandle<()>,
}

impl FilesThread {
    fn start(answers: Answers) -> FilesThread {
        let (inbox, jobs) = channel();
        let (ends, ended) = channel();
        let present = Arc::<Mutex<Option<Pending>>>::default();
        let shown = present.clone();
        let builder = std::thread::Builder::new().name("unstun-files".to_string());
        let work = move || {
            work_off(&jobs, &answers, &shown);
            drop::<Sender<()>>(ends);
        };
        // As with memory: a process that may not start threads cannot serve anything.
        let thread = builder.spawn(work).expect("a thread for a file system");
        FilesThread { inbox: Some(inbox), present, ended, thread }
    }

    fn send(&self, job: Job) {
        let inbox = self.inbox.as_ref().expect("open until dropped");
        assert!(inbox.send(job).is_ok(), "a files thread ended early");
    }

    fn join_until(self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
            // A panic of the thread has been printed already.
            let _ = self.thread.join();
        }
    }
}

fn work_off(jobs: &Receiver<Job>, answers: &Answers, present: &Mutex<Option<Pending>>) {
    let mut freeing = Freeing::default();
    let begin = |doing| *lock(present) = Some(Pending { since_ns: now_ns(), doing });
    for job in jobs {
        match job {
            Job::Close(fd) => {
                begin("closing a file");
                freeing.close(fd);
            }
            Job::Do(index, task, deadline) => {
                begin(task.doing());
                let late = deadline.is_some_and(|deadline| !deadline.is_open(boot_ns()));
                let answer = if late { task.refused() } else { task.perform(&mut freeing) };
                answers.send(index, answer);
            }
        }
        *lock(present) = None;
    }
}
