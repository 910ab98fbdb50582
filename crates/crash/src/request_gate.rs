//! Gate that holds back the guests' requests while they are powered off: a revert needs a VM without clients.

use std::cell::Cell;
use std::rc::Rc;

use blk::sync::{Admission, Admitted, Signal};

#[derive(Default)]
pub struct RequestGate {
    stopped: Cell<bool>,
    requests: Rc<Admission>,
    started: Signal,
}

impl RequestGate {
    /// Admits one request of a guest; waits while the guests are stopped.
    pub async fn enter(&self) -> Admitted {
        while self.stopped.get() {
            self.started.wait().await;
        }
        self.requests.enter()
    }

    /// Holds back new requests and waits until those under way have ended.
    pub async fn stop(&self) {
        self.stopped.set(true);
        self.requests.drain().await;
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    pub fn start(&self) {
        self.stopped.set(false);
        self.started.notify();
    }
}
