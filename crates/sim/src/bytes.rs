//! Bytes of a file, in the representation that the world's content mode needs.

use std::ops::Range;

use crate::content::Content;
use crate::interval::IntervalSet;
use crate::options::ContentMode;
use crate::volatile_content::VolatileContent;

pub(crate) enum Bytes {
    Durable(Content),
    Applied(VolatileContent),
    Absent,
}

impl Bytes {
    pub(crate) fn new(mode: ContentMode) -> Bytes {
        match mode {
            ContentMode::Durable => Bytes::Durable(Content::default()),
            ContentMode::Applied => Bytes::Applied(VolatileContent::default()),
            ContentMode::Absent => Bytes::Absent,
        }
    }

    /// Returns the content that a power cut can change, if the world has one.
    pub(crate) fn durable(&mut self) -> Option<&mut Content> {
        match self {
            Bytes::Durable(content) => Some(content),
            _ => None,
        }
    }

    /// Reads the present content.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        match self {
            Bytes::Durable(content) => content.read(offset, out),
            Bytes::Applied(volatile) => volatile.read(offset, out),
            Bytes::Absent => out.fill(0),
        }
    }

    /// Reads what would remain if every pending write were lost.
    pub(crate) fn read_durable(&self, offset: u64, out: &mut [u8]) {
        match self {
            Bytes::Durable(content) => content.read_durable(offset, out),
            _ => self.read(offset, out),
        }
    }

    /// Applies a write or zeros permanently. Not for `Durable`, whose writes complete one by one.
    pub(crate) fn apply(&mut self, range: Range<u64>, data: Option<&[u8]>) {
        match (self, data) {
            (Bytes::Applied(volatile), Some(data)) => volatile.write(range.start, data),
            (Bytes::Applied(volatile), None) => volatile.zero(range),
            (Bytes::Absent, _) => {}
            (Bytes::Durable(_), _) => unreachable!("a durable write is exposed, and completes"),
        }
    }

    /// Stores bytes as durable, for fixtures and decay.
    pub(crate) fn put(&mut self, offset: u64, bytes: &[u8]) {
        match self {
            Bytes::Durable(content) => content.put_durable(offset, bytes),
            _ => {
                let range = offset..offset + bytes.len() as u64;
                self.apply(range, Some(bytes));
            }
        }
    }

    /// Returns the pages in `range` that may contain something other than zeros; if no content is kept, those with
    /// space.
    pub(crate) fn data_pages<'a>(
        &'a self,
        range: Range<u64>,
        allocated: &'a IntervalSet,
    ) -> Box<dyn Iterator<Item = u64> + 'a> {
        match self {
            Bytes::Durable(content) => Box::new(content.data_pages(range)),
            Bytes::Applied(volatile) => Box::new(volatile.data_pages(range)),
            Bytes::Absent => Box::new(allocated.within(range)),
        }
    }
}
