//! Memory that this process shares with another one: a guest's memory, and the records that outlive a server.
//!
//! The other process may change any byte at any time. No reference to the memory is therefore ever made: bytes are
//! copied, and fields that both sides use are accessed atomically. A file that its owner could shorten would end this
//! process by SIGBUS, so only files that are sealed against that are mapped; those that can be sealed are sealed here. Huge
//! pages are refused: a seal does not keep their owner from punching one out, which nothing replaces when the pool is
//! empty.
//!
//! A mapping is removed on another thread: the last user of a guest's memory frees all of it.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::closing::close_elsewhere;
use crate::error::{Errno, Error, Result};
use crate::passed::Descriptor;

/// Length of a page, at which mappings begin.
const MAP_ALIGN: u64 = 4096;

/// Longest sum of all mappings of this process: a quarter of the addresses that a process has on x86-64, 2^47. A client
/// may pass a file of any length, which takes no memory.
const MAPPED_MAX: u64 = 1 << 45;
/// Most mappings of this process: a quarter of what the kernel allows a process by default (vm.max_map_count, 65530).
/// The rest is for its threads and its own memory.
const MAPPINGS_MAX: u64 = 16_384;

/// What this process has mapped.
static MAPPED: Mapped = Mapped::nothing();

/// Sums of mappings.
#[derive(Debug)]
struct Mapped {
    bytes: AtomicU64,
    mappings: AtomicU64,
}

/// Place of one mapping in the sums, until it is dropped.
#[derive(Debug)]
struct Admitted {
    sums: &'static Mapped,
    bytes: u64,
}

impl Mapped {
    const fn nothing() -> Mapped {
        Mapped { bytes: AtomicU64::new(0), mappings: AtomicU64::new(0) }
    }

    fn admit(&'static self, len: u64) -> Result<Admitted> {
        let bytes = self.bytes.fetch_add(len, Ordering::Relaxed);
        let mappings = self.mappings.fetch_add(1, Ordering::Relaxed);
        // Dropped, and given back, if it is refused.
        let admitted = Admitted { sums: self, bytes: len };
        let cause = if bytes.saturating_add(len) > MAPPED_MAX {
            format!("{len} bytes are to be mapped beside {bytes}, expected at most {MAPPED_MAX} in all")
        } else if mappings >= MAPPINGS_MAX {
            format!("{mappings} parts of memory are mapped, expected at most {MAPPINGS_MAX} in all")
        } else {
            return Ok(admitted);
        };
        Err(Error::refused("shared memory", format!("{cause}; end other clients first")))
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.sums.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.sums.mappings.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A mapped part of a memfd.
#[derive(Debug)]
pub struct SharedMemory {
    /// First byte of the mapping, which is at or before the part.
    base: NonNull<u8>,
    mapped: usize,
    /// First byte of the part in the mapping, and the length of the part.
    start: usize,
    len: usize,
    /// Given back after the mapping is removed; None only while that happens.
    admitted: Option<Admitted>,
}

impl SharedMemory {
    /// Maps `len` bytes from `offset` of a passed file.
    ///
    /// # Errors
    /// `Refused` for a file that can be shortened; `Invalid` for a part that the file does not have; `Io` if it cannot
    /// be mapped.
    pub fn map(descriptor: &Descriptor, offset: u64, len: u64) -> Result<SharedMemory> {
        let failed = |e: rustix::io::Errno| Errno::from(e).at("shared memory", "mapping it");
        let fd = descriptor.as_fd();
        seal(fd)?;
        let size = u64::try_from(rustix::fs::fstat(fd).map_err(failed)?.st_size).unwrap_or(0);
        let end = offset.checked_add(len).filter(|end| *end <= size && len > 0).ok_or_else(|| {
            Error::invalid("shared memory", format!("{len} bytes at {offset} of a file of {size} bytes"))
        })?;
        let from = offset / MAP_ALIGN * MAP_ALIGN;
        let (mapped, start) = ((end - from) as usize, (offset - from) as usize);
        let admitted = Some(MAPPED.admit(end - from)?);
        // SAFETY: the kernel chooses an unused place, so no memory of this process changes.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), mapped, access, MapFlags::SHARED, fd, from)
        };
        let base = NonNull::new(base.map_err(failed)?.cast()).expect("the kernel maps nothing at zero");
        Ok(SharedMemory { base, mapped, start, len: len as usize, admitted })
    }

    /// Creates zeroed memory that a peer can map, and that nobody can shorten.
    ///
    /// # Errors
    /// `NoDescriptors` or `Io` if the system has no descriptor or memory.
    pub fn create(name: &str, len: u64) -> Result<(SharedMemory, Descriptor)> {
        let failed = |e: rustix::io::Errno| Errno::from(e).at(name, "creating shared memory");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(failed)?;
        rustix::fs::ftruncate(&fd, len).map_err(failed)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(failed)?;
        let descriptor = Descriptor::from(fd);
        Ok((SharedMemory::map(&descriptor, 0, len)?, descriptor))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether there are no bytes, which no mapping is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of `len` bytes at `at`; None if they are not all inside.
    fn place(&self, at: u64, len: usize) -> Option<*mut u8> {
        let end = at.checked_add(len as u64)?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: the part is inside the mapping, and the offset is inside the part.
        Some(unsafe { self.base.as_ptr().add(self.start + at as usize) })
    }

    /// Returns the address of a field; None if it is not inside or not aligned.
    fn field<T>(&self, at: u64) -> Option<*mut T> {
        self.place(at, size_of::<T>()).map(<*mut u8>::cast::<T>).filter(|place| place.is_aligned())
    }

    /// Copies bytes from `at` on. Returns None, and copies nothing, if they are not all inside.
    #[must_use = "nothing is copied from outside"]
    pub fn read(&self, at: u64, to: &mut [u8]) -> Option<()> {
        let from = self.place(at, to.len())?;
        // SAFETY: `from` is mapped for this length as long as `self` lives, and `to` is memory of this process, which
        // does not overlap. The other process may write meanwhile: any bytes are valid, and nothing here trusts them.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), to.len()) };
        Some(())
    }

    /// Copies bytes to `at` on. Returns None, and copies nothing, if they are not all inside.
    #[must_use = "nothing is copied to the outside"]
    pub fn write(&self, at: u64, from: &[u8]) -> Option<()> {
        let to = self.place(at, from.len())?;
        // SAFETY: as in `read`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Some(())
    }

    /// Reads a field that the other side writes; what it wrote before is visible afterwards.
    pub fn load_u16(&self, at: u64) -> Option<u16> {
        let field = self.field::<u16>(at)?;
        // SAFETY: the field is mapped and aligned as long as `self` lives, and is only accessed atomically here.
        Some(u16::from_le(unsafe { AtomicU16::from_ptr(field) }.load(Ordering::Acquire)))
    }

    /// Writes a field that the other side reads; what was written before is visible to it by then.
    #[must_use = "nothing is written outside"]
    pub fn store_u16(&self, at: u64, value: u16) -> Option<()> {
        let field = self.field::<u16>(at)?;
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU16::from_ptr(field) }.store(value.to_le(), Ordering::Release);
        Some(())
    }

    /// Like [`SharedMemory::store_u16`], for one byte.
    #[must_use = "nothing is written outside"]
    pub fn store_u8(&self, at: u64, value: u8) -> Option<()> {
        let field = self.field::<u8>(at)?;
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU8::from_ptr(field) }.store(value, Ordering::Release);
        Some(())
    }

    /// Sets bits of one byte, while others may set bits of the same byte.
    #[must_use = "nothing is written outside"]
    pub fn set_bits(&self, at: u64, bits: u8) -> Option<()> {
        let field = self.field::<u8>(at)?;
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU8::from_ptr(field) }.fetch_or(bits, Ordering::AcqRel);
        Some(())
    }

    /// Like [`SharedMemory::store_u16`], for 64 bits.
    #[must_use = "nothing is written outside"]
    pub fn store_u64(&self, at: u64, value: u64) -> Option<()> {
        let field = self.field::<u64>(at)?;
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU64::from_ptr(field) }.store(value.to_le(), Ordering::Release);
        Some(())
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let (base, mapped, admitted) =
            (self.base.as_ptr().expose_provenance(), self.mapped, self.admitted.take());
        close_elsewhere(move || {
            let base = std::ptr::with_exposed_provenance_mut(base);
            // SAFETY: nothing refers to the mapping any more: all accesses borrow the memory, which is dropped. This
            // call is the only one with its address.
            let unmapped = unsafe { rustix::mm::munmap(base, mapped) };
            unmapped.expect("the whole of a mapping can be unmapped");
            drop(admitted);
        });
    }
}

/// File system of memory in huge pages (linux/magic.h).
const HUGETLBFS_MAGIC: u64 = 0x9584_58F6;

/// Seals a file against being shortened, unless it is sealed already.
///
/// # Errors
/// `Refused` for a file that cannot be sealed.
fn seal(fd: BorrowedFd<'_>) -> Result<()> {
    let refused = |cause| Err(Error::refused("shared memory", cause));
    // Asked first: of any other file it is an error, without a question to the file system, which may not answer.
    let Ok(seals) = rustix::fs::fcntl_get_seals(fd) else {
        return refused(
            "the memory is a file, which could be shortened while it is in use; use a memfd: in QEMU -object \
             memory-backend-memfd,share=on, in libvirt <source type='memfd'/>",
        );
    };
    if rustix::fs::fstatfs(fd).is_ok_and(|found| found.f_type as u64 == HUGETLBFS_MAGIC) {
        return refused(
            "the memory has huge pages, which can be removed while they are in use; use a memfd without \
             hugetlb=on (in libvirt, without <hugepages/>)",
        );
    }
    if seals.contains(SealFlags::SHRINK) || rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK).is_ok() {
        return Ok(());
    }
    refused(
        "the memory can be shortened while it is in use, and was created so that it cannot be sealed against that \
         (without MFD_ALLOW_SEALING, as cloud-hypervisor does); serve this client over NBD, or use QEMU with -object \
         memory-backend-memfd,share=on",
    )
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn both_mappings_show_the_same_bytes_and_nothing_outside() {
        let (ours, descriptor) = SharedMemory::create("test", 8192).unwrap();
        let theirs = SharedMemory::map(&descriptor, 4096, 4096).unwrap();
        ours.write(4096, b"hello").unwrap();
        let mut bytes = [0; 5];
        theirs.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        theirs.store_u16(4094, 7).unwrap();
        assert_eq!(ours.load_u16(8190), Some(7));
        for at in [4092, 4096, u64::MAX, u64::MAX - 3] {
            assert!(theirs.read(at, &mut bytes).is_none(), "{at}");
            assert!(theirs.write(at, &bytes).is_none(), "{at}");
        }
        assert!(theirs.load_u16(1).is_none() && theirs.load_u16(4095).is_none());
        assert!(theirs.store_u64(4, 0).is_none() && theirs.store_u64(u64::MAX, 0).is_none());
    }

    #[test]
    fn a_part_that_the_file_does_not_have_is_not_mapped() {
        let (_ours, descriptor) = SharedMemory::create("test", 8192).unwrap();
        for (offset, len) in [(0, 8193), (8192, 1), (0, 0), (u64::MAX, 2), (4096, u64::MAX)] {
            let error = SharedMemory::map(&descriptor, offset, len).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{offset} {len}");
        }
    }

    fn memfd(flags: MemfdFlags, len: u64) -> Descriptor {
        let memfd = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&memfd, len).unwrap();
        Descriptor::from(memfd)
    }

    #[test]
    fn memory_that_can_be_shortened_is_refused_or_sealed() {
        let error = SharedMemory::map(&tempfile_of(8192).into(), 0, 4096).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused);
        let error = SharedMemory::map(&memfd(MemfdFlags::empty(), 4096), 0, 4096).unwrap_err();
        assert!(error.cause.contains("cannot be sealed"), "{error}");
        let sealed = memfd(MemfdFlags::ALLOW_SEALING, 8192);
        assert!(rustix::fs::ftruncate(&sealed, 8191).is_ok(), "it can be shortened before");
        let _mapped = SharedMemory::map(&sealed, 0, 4096).unwrap();
        assert!(rustix::fs::ftruncate(&sealed, 4096).is_err(), "and not afterwards");
    }

    #[test]
    fn more_than_the_process_can_map_is_refused() {
        static SUMS: Mapped = Mapped::nothing();
        let half = SUMS.admit(MAPPED_MAX / 2).unwrap();
        let error = SUMS.admit(MAPPED_MAX / 2 + 4096).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused, "{error}");
        drop(half);
        drop(SUMS.admit(MAPPED_MAX / 2 + 4096).unwrap());
        let mut mappings: Vec<_> = (0..MAPPINGS_MAX).map(|_| SUMS.admit(4096).unwrap()).collect();
        let error = SUMS.admit(4096).unwrap_err();
        assert!(error.cause.contains("16384 parts"), "{error}");
        mappings.pop();
        mappings.push(SUMS.admit(4096).unwrap());
        let descriptor = memfd(MemfdFlags::ALLOW_SEALING, MAPPED_MAX + 4096);
        let error = SharedMemory::map(&descriptor, 0, MAPPED_MAX + 4096).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused, "a mapping is counted: {error}");
    }

    #[test]
    fn a_dropped_mapping_is_removed() {
        let name = "unstun-dropped-mapping";
        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(name);
        let (memory, descriptor) = SharedMemory::create(name, 4096).unwrap();
        assert!(is_mapped());
        drop((memory, descriptor));
        while is_mapped() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn memory_in_huge_pages_is_refused() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // A kernel without huge pages has no such memory.
        let Ok(memfd) = rustix::fs::memfd_create("huge", flags) else { return };
        rustix::fs::ftruncate(&memfd, 1 << 30).unwrap();
        let error = SharedMemory::map(&memfd.into(), 0, 4096).unwrap_err();
        assert!(error.cause.contains("huge pages"), "{error}");
    }

    fn tempfile_of(len: u64) -> OwnedFd {
        let path = std::env::temp_dir().join(format!("unstun-shared-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(len).unwrap();
        file.into()
    }
}
