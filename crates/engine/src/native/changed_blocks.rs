//! Blocks of a window that guests change while the window is copied.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Notes which blocks of one window were changed since the copy began. Every change of a disk notes its blocks after it
/// has locked them and before its first I/O. A record of another core, which has locked and written them there, notes
/// them before it changes the map.
#[derive(Default)]
pub(super) struct ChangedBlocks(RefCell<Option<Window>>);

struct Window {
    blocks: Range<u64>,
    changed: Vec<bool>,
}

/// The time in which changes of a window are noted; it ends with the drop.
pub(super) struct Watch(Rc<ChangedBlocks>);

impl ChangedBlocks {
    /// Notes that `blocks` are about to change.
    pub(super) fn note(&self, blocks: &Range<u64>) {
        if let Some(window) = &mut *self.0.borrow_mut() {
            let first = blocks.start.max(window.blocks.start);
            let end = blocks.end.min(window.blocks.end);
            for block in first..end.max(first) {
                window.changed[(block - window.blocks.start) as usize] = true;
            }
        }
    }

    /// Returns whether changes of some of `blocks` are noted: they must not be written without a note.
    pub(super) fn are_noted(&self, blocks: &Range<u64>) -> bool {
        let window = self.0.borrow();
        window
            .as_ref()
            .is_some_and(|window| window.blocks.start < blocks.end && blocks.start < window.blocks.end)
    }

    /// Begins to note the changes of `blocks`. The caller has locked them, so that no earlier change is under way.
    pub(super) fn watch(self: &Rc<Self>, blocks: Range<u64>) -> Watch {
        let changed = vec![false; (blocks.end - blocks.start) as usize];
        let before = self.0.borrow_mut().replace(Window { blocks, changed });
        assert!(before.is_none(), "one window is copied at a time");
        Watch(self.clone())
    }
}

impl Watch {
    /// Returns whether a block of the window was changed, or is about to be.
    pub(super) fn has(&self, block: u64) -> bool {
        let window = self.0.0.borrow();
        let window = window.as_ref().expect("the watch has not ended");
        window.changed[(block - window.blocks.start) as usize]
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.0.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_within_the_window_are_noted_until_the_watch_ends() {
        let changes: Rc<ChangedBlocks> = Rc::default();
        changes.note(&(0..100));
        let watch = changes.watch(10..20);
        assert!(changes.are_noted(&(0..11)) && !changes.are_noted(&(20..30)));
        changes.note(&(0..11));
        changes.note(&(19..30));
        changes.note(&(20..30));
        changes.note(&(0..5));
        let noted: Vec<u64> = (10..20).filter(|block| watch.has(*block)).collect();
        assert_eq!(noted, [10, 19]);
        drop(watch);
        assert!(!changes.watch(0..100).has(10));
    }
}
