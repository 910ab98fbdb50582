//! Unwritten tables of all layers of a core. Their size is bounded, because they cannot leave memory before they are
//! written.
//!
//! A first write dirties a table of 16 KiB at worst, and only a flush cleans it. So the engine flushes by itself. From
//! half of the cap on, a layer with many of them is flushed in the background; at the cap, its first writes wait for
//! that. No first write waits for the flush of another layer, whose device may hang: another layer that holds much is
//! flushed in the background, and each layer may have [`LAYER_BYTES`] regardless of the others. The total is therefore
//! at most the cap, that much for each layer, and what is being placed.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use blk::Env;

use super::link::Link;

/// Bytes that each layer may have: 64 tables of 16 KiB, or half of a cap that is smaller.
pub(super) const LAYER_BYTES: u64 = 1 << 20;
/// Most flushes that one first write waits for: other writes may place meanwhile.
const FLUSHES_MAX: usize = 8;

thread_local! {
    static BYTES: Cell<u64> = const { Cell::new(0) };
    /// Links with unwritten tables.
    static LINKS: RefCell<Vec<Weak<Link>>> = const { RefCell::new(Vec::new()) };
}

/// Returns the unwritten tables of all layers of this core, in bytes.
pub fn unwritten_bytes() -> u64 {
    BYTES.get()
}

/// Unwritten tables of one link.
#[derive(Default)]
pub(crate) struct UnwrittenTables {
    bytes: Cell<u64>,
    /// A flush in the background is under way.
    flushing: Cell<bool>,
}

impl UnwrittenTables {
    fn set(&self, bytes: u64) -> u64 {
        let before = self.bytes.replace(bytes);
        BYTES.set(BYTES.get() - before + bytes);
        before
    }
}

impl Drop for UnwrittenTables {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Link {
    /// Counts the layer's unwritten tables after they have changed.
    pub(crate) fn count_unwritten(&self) {
        let bytes = self.layer.unwritten_bytes();
        let before = self.unwritten.set(bytes);
        if (before == 0) == (bytes == 0) {
            return;
        }
        LINKS.with_borrow_mut(|links| {
            links.retain(|link| link.strong_count() > 0 && !link.ptr_eq(&self.this));
            if bytes > 0 {
                links.push(self.this.clone());
            }
        });
    }

    fn is_over(&self, limit: u64) -> bool {
        BYTES.get() >= limit && self.unwritten.bytes.get() >= LAYER_BYTES.min(limit / 2)
    }

    /// Counts a first write that was published, and flushes the layer in the background if it holds too much.
    pub(crate) fn placed(&self, env: &Env, cap_bytes: u64) {
        self.count_unwritten();
        if self.is_over(cap_bytes / 2) {
            self.flush_in_background(env);
        }
    }

    /// Waits until a first write may be placed in this layer.
    pub(crate) async fn admit_first_write(&self, env: &Env, cap_bytes: u64) {
        if BYTES.get() < cap_bytes {
            return;
        }
        if let Some(other) = largest() {
            other.flush_in_background(env);
        }
        for _ in 0..FLUSHES_MAX {
            // If the flush fails, the file is latched, and the first write itself fails.
            if !self.is_over(cap_bytes) || self.flush().await.is_err() {
                return;
            }
            self.count_unwritten();
        }
    }

    fn flush_in_background(&self, env: &Env) {
        let Some(link) = self.this.upgrade() else { return };
        if self.unwritten.flushing.replace(true) {
            return;
        }
        env.spawn_detached(Box::pin(async move {
            // The guest's own flush reports a failure: the file is latched.
            let _ = link.flush().await;
            link.count_unwritten();
            link.unwritten.flushing.set(false);
        }));
    }
}

fn largest() -> Option<Rc<Link>> {
    let links: Vec<Rc<Link>> = LINKS.with_borrow(|links| links.iter().filter_map(Weak::upgrade).collect());
    links
        .into_iter()
        .filter(|link| !link.unwritten.flushing.get())
        .max_by_key(|link| link.unwritten.bytes.get())
}
