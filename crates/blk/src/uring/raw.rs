//! The plainest loop over a ring that does random I/O on one file: what the machine gives, without futures, tables or
//! owners. The figure everything above is compared with; not part of the serving path.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, opcode, squeue, types};

use super::now_ns;
use super::open::{open_root, size_of};
use super::work::Fd;
use crate::buf::Buf;
use crate::error::{Errno, Error, Result};
use crate::reactor::OpenMode;

/// 4 KiB random transfers, kept at a constant depth.
#[derive(Debug, Clone, Copy)]
pub struct RandomLoad {
    /// Transfers under way at any time.
    pub depth: u32,
    /// Share of reads among the transfers, 0 to 100; the rest are writes.
    pub read_percent: u32,
    /// Time after which no transfer is started.
    pub duration_ns: u64,
    /// Start of the [`Rng`] that offsets and directions come from.
    pub seed: u64,
}

/// The size of every transfer of a [`RandomLoad`].
pub const BLOCK: u64 = 4096;

/// A small generator (splitmix64), the same for every loop that is compared.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl RandomLoad {
    /// The next transfer on a file of `blocks` blocks: (offset in bytes, is it a read).
    pub fn next(&self, rng: &mut Rng, blocks: u64) -> (u64, bool) {
        let offset = rng.next_u64() % blocks * BLOCK;
        (offset, rng.next_u64() % 100 < u64::from(self.read_percent))
    }
}

/// Runs `load` on the file `name` in `folder`, opened for direct I/O; returns the number of transfers. Overwrites it.
pub fn run_raw(folder: &str, name: &str, load: RandomLoad) -> Result<u64> {
    let place = format!("{folder}/{name}");
    let failed = |e: Errno| e.at(&place, "raw I/O");
    let folder = open_root(folder).map_err(failed)?.fd;
    let file: Fd = Fd::new(open_for_load(&folder, name).map_err(failed)?);
    let blocks = size_of(&file).map_err(failed)? / BLOCK;
    if blocks == 0 {
        return Err(Error::invalid(place, "shorter than one block of 4096 bytes"));
    }
    let mut ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .build(load.depth.next_power_of_two())
        .map_err(|e| failed(e.into()))?;
    let mut bufs: Vec<Buf> = (0..load.depth).map(|_| Buf::zeroed(BLOCK as usize)).collect();
    let done = pump(&mut ring, &mut bufs, &file, blocks, load);
    // The ring goes first: after an error the device may still be writing to the buffers.
    let drained = drain(&mut ring, load.depth);
    if drained.is_err() {
        std::mem::forget(bufs);
    }
    done.map_err(failed)
}

fn open_for_load(folder: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsFd;
    Ok(super::open::open_file(folder.as_fd(), name, OpenMode::Write)?.fd)
}

fn entry(file: &Fd, buf: &mut Buf, (offset, read): (u64, bool)) -> squeue::Entry {
    let fd = types::Fd(file.as_raw_fd());
    match read {
        true => opcode::Read::new(fd, buf.as_mut_ptr(), BLOCK as u32).offset(offset).build(),
        false => opcode::Write::new(fd, buf.as_ptr(), BLOCK as u32).offset(offset).build(),
    }
}

fn pump(
    ring: &mut IoUring,
    bufs: &mut [Buf],
    file: &Fd,
    blocks: u64,
    load: RandomLoad,
) -> Result<u64, Errno> {
    let mut rng = Rng(load.seed);
    let end = now_ns() + load.duration_ns;
    let mut free: Vec<u64> = (0..u64::from(load.depth)).collect();
    let mut done = 0;
    while now_ns() < end {
        for index in free.drain(..) {
            let entry = entry(file, &mut bufs[index as usize], load.next(&mut rng, blocks)).user_data(index);
            // SAFETY: each buffer has one transfer at a time, the buffers outlive the drain that follows, and there
            // are as many entries as the queue has room for.
            let pushed = unsafe { ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "room for the depth");
        }
        ring.submit_and_wait(1)?;
        for completion in ring.completion() {
            if completion.result() != BLOCK as i32 {
                return Err(Errno(-completion.result()));
            }
            free.push(completion.user_data());
            done += 1;
        }
    }
    Ok(done)
}

/// Waits for whatever is under way: a no-op that drains orders it after everything before.
fn drain(ring: &mut IoUring, depth: u32) -> std::io::Result<()> {
    const LAST: u64 = u64::MAX;
    let last = opcode::Nop::new().build().flags(squeue::Flags::IO_DRAIN).user_data(LAST);
    // SAFETY: a no-op uses no memory.
    unsafe { ring.submission().push(&last) }.map_err(|_| std::io::ErrorKind::Other)?;
    for _ in 0..=depth {
        ring.submit_and_wait(1)?;
        if ring.completion().any(|c| c.user_data() == LAST) {
            return Ok(());
        }
    }
    Err(std::io::ErrorKind::Other.into())
}
