//! Users of a VM: writable clients of its running disks and readers of its sealed states. Also changes of the content
//! generation.

use std::any::Any;
use std::cell::RefCell;
use std::rc::{Rc, Weak};

use blk::Result;
use blk::manifest::ContentGeneration;

/// A writable client of a running disk. It counts as attached until it is dropped.
pub struct Client {
    /// Number of the disk, see [`blk::manifest::DiskState::number`].
    pub disk: u32,
    /// The name that the front end gives it.
    pub name: String,
    /// Keeps the client counted on the core of the VM's store too.
    pub(crate) _held: Option<Box<dyn Any>>,
}

/// A guard on a sealed state. The layers under the state may not change while the guard exists.
pub struct View {
    /// The id of the sealed state.
    pub snapshot: u128,
    /// The name that the front end gives to the reader.
    pub client: String,
    /// Set for work outside of the engine that opens the layers itself: nothing under the state may be folded
    /// meanwhile.
    pub still: bool,
    /// Keeps the reader counted on the core of the VM's store too.
    pub(crate) _held: Option<Box<dyn Any>>,
}

/// A change of the content generation alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationChange {
    /// The user has confirmed that the earlier clients are dead: plain names are served again.
    Open,
    /// The VM goes to the bin. Should it be restored, its name may have been another VM's meanwhile. Clients of either
    /// are refused until the user confirms that they are dead.
    Raise,
    /// Like `Open`, where others may have written the disks since: the earlier clients are refused for ever.
    RaiseAndOpen,
    /// The VM becomes the target of a move, with the same content.
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

/// Set of the users of one kind that still exist.
pub(crate) struct ActiveSet<T>(RefCell<Vec<Weak<T>>>);

impl<T> Default for ActiveSet<T> {
    fn default() -> Self {
        ActiveSet(RefCell::default())
    }
}

impl<T> ActiveSet<T> {
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
