//! Owned, page-aligned buffers for data on its way between sockets and disks.
//!
//! Memory is a boxed run of 4 KiB pages, so every buffer starts aligned for direct I/O on any device. A buffer may have
//! headroom in front of its data: a protocol header is then prepended without a copy, and a reply is one iovec. Freed
//! slabs return to a per-thread pool by power-of-two size. They are not cleared, so the content of a buffer is
//! undefined until it has been filled. `zeroed` returns a cleared one.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};
use std::rc::Rc;

use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a page: the alignment of every buffer's memory.
pub const PAGE: usize = 4096;

/// Free slabs kept per size class: 64, but no more than 16 MiB of them, and no more than [`POOL_BYTES_MAX`] over all
/// classes. The rest is returned to the system at once.
const POOL_SLABS_MAX: usize = 64;
const POOL_CLASS_BYTES_MAX: usize = 16 << 20;
/// Bytes of free slabs that a thread keeps, unless [`keep_free`] says otherwise.
pub const POOL_BYTES_MAX: usize = 32 << 20;
/// Classes 0 to 13 have 1 to 8192 pages. From class 2 on, each has a spare page for headroom: a buffer of a power of
/// two with headroom (the usual read) then does not take twice its size. Class 13 holds 32 MiB, the largest NBD
/// request.
const POOL_CLASSES: usize = 14;
const FIRST_CLASS_WITH_SPARE: usize = 2;

#[derive(Clone, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

struct Slab {
    pages: Box<[Page]>,
    /// The memory comes from the system and has not been used: every byte is zero.
    clear: bool,
}

struct Pool {
    classes: [Vec<Box<[Page]>>; POOL_CLASSES],
    bytes: usize,
    bytes_max: usize,
}

thread_local! {
    static POOL: RefCell<Pool> =
        const { RefCell::new(Pool::EMPTY) };
}

/// Sets how many bytes of free slabs this thread keeps: a part of [`POOL_BYTES_MAX`] where several cores share it.
pub fn keep_free(bytes: usize) {
    POOL.with_borrow_mut(|pool| pool.bytes_max = bytes);
}

/// Returns the bytes of memory that [`Buf::with_headroom`] takes for `len` bytes; [`Buf::alloc`] takes no more.
pub fn slab_bytes(len: usize) -> usize {
    pages_of(class_of(1 + len.div_ceil(PAGE))) * PAGE
}

fn pages_of(class: usize) -> usize {
    (1 << class) + usize::from(class >= FIRST_CLASS_WITH_SPARE)
}

fn class_of(pages: usize) -> usize {
    let class = pages.next_power_of_two().trailing_zeros() as usize;
    let smaller = class.saturating_sub(1);
    if pages <= pages_of(smaller) { smaller } else { class }
}

fn pooled_max(class: usize) -> usize {
    POOL_SLABS_MAX.min(POOL_CLASS_BYTES_MAX / (pages_of(class) * PAGE))
}

impl Pool {
    const EMPTY: Pool =
        Pool { classes: [const { Vec::new() }; POOL_CLASSES], bytes: 0, bytes_max: POOL_BYTES_MAX };

    fn take(&mut self, class: usize) -> Option<Box<[Page]>> {
        let pages = self.classes.get_mut(class)?.pop()?;
        self.bytes -= pages.len() * PAGE;
        Some(pages)
    }

    fn give(&mut self, pages: Box<[Page]>) {
        let class = class_of(pages.len().max(1));
        let bytes = pages.len() * PAGE;
        if let Some(list) = self.classes.get_mut(class)
            && list.len() < pooled_max(class)
            && pages.len() == pages_of(class)
            && self.bytes + bytes <= self.bytes_max
        {
            self.bytes += bytes;
            list.push(pages);
        }
    }
}

impl Slab {
    fn take(pages: usize) -> Slab {
        let class = class_of(pages.max(1));
        match POOL.try_with(|pool| pool.borrow_mut().take(class)).ok().flatten() {
            Some(pages) => Slab { pages, clear: false },
            None => {
                let pages = <[Page]>::new_box_zeroed_with_elems(pages_of(class));
                Slab { pages: pages.expect("out of memory for an I/O buffer"), clear: true }
            }
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        // The pool is gone if a thread ends while buffers exist; they are then freed.
        let _ = POOL.try_with(|pool| pool.borrow_mut().give(pages));
    }
}

/// An owned run of bytes inside a slab. Dereferences to its bytes.
pub struct Buf {
    slab: Slab,
    start: usize,
    len: usize,
}

impl Buf {
    /// Allocates `len` bytes of undefined content that start on a page.
    pub fn alloc(len: usize) -> Buf {
        Buf { slab: Slab::take(len.div_ceil(PAGE)), start: 0, len }
    }

    /// Returns `len` zero bytes, starting on a page. Memory that is fresh from the system is not cleared
    /// again.
    pub fn zeroed(len: usize) -> Buf {
        let mut buf = Buf::alloc(len);
        if !buf.slab.clear {
            buf.fill(0);
        }
        buf
    }

    /// Allocates like `alloc`, with one page in front for `prepend`. The data still starts on a page.
    pub fn with_headroom(len: usize) -> Buf {
        Buf { slab: Slab::take(1 + len.div_ceil(PAGE)), start: PAGE, len }
    }

    /// Copies `bytes` into a buffer of the same length, starting on a page.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::alloc(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Puts `header` directly before the data. Panics if the headroom is too small, because the caller determines both
    /// sizes.
    pub fn prepend(&mut self, header: &[u8]) {
        assert!(header.len() <= self.start, "{} bytes of headroom, {} wanted", self.start, header.len());
        self.start -= header.len();
        self.len += header.len();
        self[..header.len()].copy_from_slice(header);
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Turns the buffer into a shareable slice, without a copy.
    pub fn freeze(self) -> Slice {
        let len = self.len;
        Slice { buf: Rc::new(self), start: 0, len }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.slab.pages.as_bytes()[self.start..self.start + self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.slab.pages.as_mut_bytes()[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// Length of [`zeros`].
pub const ZEROS_BYTES: usize = 1 << 20;

thread_local! {
    static ZEROS: Slice = Buf::zeroed(ZEROS_BYTES).freeze();
}

/// Returns [`ZEROS_BYTES`] zeros to write. All requests of a thread share them.
pub fn zeros() -> Slice {
    ZEROS.with(Slice::clone)
}

/// A shared, immutable part of a buffer. Writes carry slices, so that one guest write can be split over several ranges
/// of files, or written to two files, without a copy.
#[derive(Clone)]
pub struct Slice {
    buf: Rc<Buf>,
    start: usize,
    len: usize,
}

impl Slice {
    /// Returns a part of this slice without a copy; `range` counts from the start of this slice, in bytes.
    /// Panics if the range exceeds the slice.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of {} bytes", self.len);
        Slice { buf: self.buf.clone(), start: self.start + range.start, len: range.end - range.start }
    }

    /// Returns the buffer if this is its only slice.
    pub fn try_into_buf(self) -> Option<Buf> {
        let buf = Rc::try_unwrap(self.buf).ok()?;
        Some(Buf { start: buf.start + self.start, len: self.len, slab: buf.slab })
    }

    /// Returns the bytes as a buffer of its own, which may go to another core. Copies them if other slices of the buffer
    /// exist.
    pub fn into_buf(self) -> Buf {
        match Rc::try_unwrap(self.buf) {
            Ok(buf) => Buf { start: buf.start + self.start, len: self.len, slab: buf.slab },
            Err(shared) => Buf::copy_of(&shared[self.start..self.start + self.len]),
        }
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf[self.start..self.start + self.len]
    }
}

impl From<Buf> for Slice {
    fn from(buf: Buf) -> Slice {
        buf.freeze()
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_starts_on_a_page_and_headers_are_directly_before_it() {
        let mut buf = Buf::with_headroom(8192);
        assert_eq!(buf.as_ptr() as usize % PAGE, 0);
        buf.fill(7);
        buf.prepend(b"header");
        assert_eq!(&buf[..7], b"header\x07");
        assert_eq!(buf.len(), 8198);
    }

    #[test]
    fn slices_share_the_buffer() {
        let whole = Buf::copy_of(&[1, 2, 3, 4]).freeze();
        let part = whole.slice(1..3);
        assert_eq!(&part[..], &[2, 3]);
        assert_eq!(&part.clone().into_buf()[..], &[2, 3]);
        drop(whole);
        let at = part.as_ptr();
        let own = part.into_buf();
        assert_eq!((&own[..], own.as_ptr()), (&[2, 3][..], at));
    }

    #[test]
    fn headroom_does_not_double_a_power_of_two() {
        for len in [16 << 10, 64 << 10, 1 << 20, 32 << 20] {
            assert_eq!(Buf::with_headroom(len).slab.pages.len(), len / PAGE + 1);
        }
        for pages in 1..5000 {
            assert!((pages..=2 * pages).contains(&pages_of(class_of(pages))), "{pages} pages");
        }
    }

    #[test]
    fn the_pool_is_bounded_over_all_classes() {
        let sizes = [PAGE, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 8 << 20];
        for len in sizes {
            let slabs: Vec<Buf> = (0..(24 << 20) / len).map(|_| Buf::alloc(len)).collect();
            drop(slabs);
            let pooled = POOL.with_borrow(|pool| {
                assert_eq!(pool.bytes, pool.classes.iter().flatten().map(|slab| slab.len() * PAGE).sum());
                pool.bytes
            });
            assert!(pooled <= POOL_BYTES_MAX, "{pooled} bytes are kept");
        }
    }

    #[test]
    fn zeroed_is_zero_whether_fresh_or_used() {
        for _ in 0..2 {
            let mut buf = Buf::zeroed(3 * PAGE);
            assert!(buf.iter().all(|byte| *byte == 0));
            buf.fill(0xff);
        }
    }

    #[test]
    fn a_pooled_slab_is_reused() {
        let first = Buf::alloc(PAGE);
        let at = first.as_ptr();
        drop(first);
        assert_eq!(Buf::alloc(100).as_ptr(), at);
    }
}
