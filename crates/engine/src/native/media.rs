//! Reads of metadata without which a store cannot be opened.

use blk::{Buf, ErrorKind, File, Result};

/// Tries before a sector counts as unreadable: an error of the path to the device is often gone at the next read.
const TRIES: usize = 3;

/// Reads `len` bytes from `offset`, and repeats the read if the device fails.
pub(super) async fn read_hard(file: &File, offset: u64, len: u64) -> (Buf, Result<()>) {
    let mut read = file.read(offset, Buf::alloc(len as usize)).await;
    for _ in 1..TRIES {
        if !read.1.as_ref().is_err_and(|e| e.kind == ErrorKind::Io) {
            break;
        }
        read = file.read(offset, read.0).await;
    }
    read
}
