//! Collection of a lookup's runs.

use blk::layer::{Run, Where};

/// Collects runs, and merges neighbouring ones.
#[derive(Default)]
pub(crate) struct Runs(pub Vec<Run>);

impl Runs {
    pub(crate) fn push(&mut self, start: u64, len: u64, place: Where) {
        if let Some(last) = self.0.last_mut() {
            let follows = match (last.place, place) {
                (Where::Data { offset: a, .. }, Where::Data { offset: b, .. }) => a + last.len == b,
                (a, b) => a == b,
            };
            if follows {
                last.len += len;
                return;
            }
        }
        self.0.push(Run { start, len, place });
    }
}
