//! Users of a VM: writable clients of its running disks, readers of its sealed states; and changes of the content generation.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use blk::Result;
use blk::manifest::ContentGeneration;

/// A writable client on a running disk; counted until it is dropped.
pub struct Client {
    pub disk: u32,
    /// The name that the front end gives it.
    pub name: String,
}

/// A hold on a sealed state; the layers under it may not change while it lives.
pub struct View {
    pub snapshot: u128,
    pub client: String,
    /// For work outside of the engine, with layers opened there: nothing under it may be folded meanwhile.
    pub still: bool,
}

/// A change of the content generation that is not part of another change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationChange {
    /// The user says that the clients of before are dead: plain names are served again.
    Open,
    /// The VM goes to the bin: should it come back, its name may have been another VM's meanwhile, and clients of either
    /// are refused until the user says that they are dead.
    Raise,
    /// The same as `Open`, where others may have written the disks since: clients of before are refused for ever.
    RaiseAndOpen,
    /// The VM becomes the other side of a move, with the same content.
    Adopt(ContentGeneration),
}

impl GenerationChange {
    pub(crate) fn apply(self, now: ContentGeneration, vm: &str) -> Result<ContentGeneration> {
        let next = match self {
            GenerationChange::Open => now,
            GenerationChange::Raise => return now.raised(vm),
            GenerationChange::RaiseAndOpen => now.raised(vm)?,
            GenerationChange::Adopt(of) => return Ok(of),
        };
        Ok(ContentGeneration { opened: next.present, ..next })
    }
}

/// Users of either kind that have not gone yet.
pub(crate) struct Present<T>(RefCell<Vec<Weak<T>>>);

impl<T> Default for Present<T> {
    fn default() -> Self {
        Present(RefCell::default())
    }
}

impl<T> Present<T> {
    pub(crate) fn enter(&self, user: T) -> Rc<T> {
        let user = Rc::new(user);
        let mut all = self.0.borrow_mut();
        all.retain(|known| known.strong_count() > 0);
        all.push(Rc::downgrade(&user));
        user
    }

    pub(crate) fn all(&self) -> Vec<Rc<T>> {
        self.0.borrow().iter().filter_map(Weak::upgrade).collect()
    }
}
