//! The files threads: calls that may block in the kernel for milliseconds, or for as long as a file server is away, and have no
//! ring operation. One thread for each file system, first come first served, so that the order of the operations on a file
//! system is the order of submission, and a file system that does not answer holds up no other.

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
use crate::reactor::{Pending, Waker};

/// What the threads have answered, and the core has not taken in: operations by their index.
pub(super) type Outbox = Arc<Mutex<Vec<(u32, Answer)>>>;

enum Job {
    /// The operation's index, what to do, and when it may not begin any more.
    Do(u32, Task, Option<Arc<Deadline>>),
    /// The last close of a file can free all its blocks, and on a file server it can wait for the server.
    Close(Fd),
}

/// Where the threads answer.
#[derive(Clone)]
pub(super) struct Answers {
    pub outbox: Outbox,
    pub waker: Arc<EventWaker>,
}

impl Answers {
    pub(super) fn send(&self, index: u32, answer: Answer) {
        lock(&self.outbox).push((index, answer));
        self.waker.wake();
    }
}

/// All files threads of a core. Each is started with the first operation on its file system, and stays.
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

    /// Returns what the file system's thread is doing now.
    pub(super) fn present(&self, device: Device) -> Option<Pending> {
        *lock(&self.threads.get(&device)?.present)
    }
}

impl Drop for FilesThreads {
    fn drop(&mut self) {
        for thread in self.threads.values_mut() {
            thread.inbox = None;
        }
        // One bound for all: a file system that does not answer keeps its thread, and the process ends without it.
        let deadline = Instant::now() + DROP_WAIT;
        for thread in std::mem::take(&mut self.threads).into_values() {
            thread.join_until(deadline);
        }
    }
}

struct FilesThread {
    /// Absent only while dropping.
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
        // As with memory: nothing can be served by a process that may have no thread.
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
            // A panic over there has been printed; there is nothing to add while dropping.
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
