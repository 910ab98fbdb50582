//! The thread for long calculation, which would hold up the core: first come, first served.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::reactor::OffloadedWork;

pub(super) struct ComputeThread {
    /// None only while dropping.
    inbox: Option<Sender<OffloadedWork>>,
    thread: Option<JoinHandle<()>>,
}

impl ComputeThread {
    pub(super) fn start() -> std::io::Result<ComputeThread> {
        let (inbox, work) = channel();
        let run = |work: Receiver<OffloadedWork>| work.into_iter().for_each(|work| work());
        let builder = std::thread::Builder::new().name("unstun-compute".to_string());
        let thread = builder.spawn(move || run(work))?;
        Ok(ComputeThread { inbox: Some(inbox), thread: Some(thread) })
    }

    pub(super) fn run(&self, work: OffloadedWork) {
        let inbox = self.inbox.as_ref().expect("open until dropped");
        assert!(inbox.send(work).is_ok(), "the thread for calculation ended early");
    }
}

impl Drop for ComputeThread {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the work is reported to its task.
            let _ = thread.join();
        }
    }
}
