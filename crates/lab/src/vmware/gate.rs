//! A gate that holds back guest I/O while the VM is stopped.

use std::cell::Cell;

use blk::sync::Signal;

#[derive(Default)]
pub(crate) struct Gate {
    closed: Cell<bool>,
    inside: Cell<u64>,
    changed: Signal,
}

/// One guest I/O under way.
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    pub(crate) async fn enter(&self) -> Inside<'_> {
        while self.closed.get() {
            self.changed.wait().await;
        }
        self.inside.set(self.inside.get() + 1);
        Inside(self)
    }

    /// Closes the gate: new I/O waits from now on. Resolves when the I/O under way has ended.
    pub(crate) async fn close(&self) {
        self.closed.set(true);
        while self.inside.get() > 0 {
            self.changed.wait().await;
        }
    }

    pub(crate) fn open(&self) {
        self.closed.set(false);
        self.changed.notify();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let gate = self.0;
        gate.inside.set(gate.inside.get() - 1);
        if gate.closed.get() && gate.inside.get() == 0 {
            gate.changed.notify();
        }
    }
}
