//! The thread for calculation: work that would hold up the core, first come first served.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::apart::Apart;

pub(super) struct ApartThread {
    /// Absent only while dropping.
    inbox: Option<Sender<Apart>>,
    thread: Option<JoinHandle<()>>,
}

impl ApartThread {
    pub(super) fn start() -> std::io::Result<ApartThread> {
        let (inbox, work) = channel();
        let run = |work: Receiver<Apart>| work.into_iter().for_each(|work| work());
        let builder = std::thread::Builder::new().name("unstun-apart".to_string());
        let thread = builder.spawn(move || run(work))?;
        Ok(ApartThread { inbox: Some(inbox), thread: Some(thread) })
    }

    pub(super) fn run(&self, work: Apart) {
        let inbox = self.inbox.as_ref().expect("open until dropped");
        assert!(inbox.send(work).is_ok(), "the thread for calculation ended early");
    }
}

impl Drop for ApartThread {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            // Panics of the work are its tasks'.
            let _ = thread.join();
        }
    }
}
