//! A part of a file that holds an object of its own: a disk in an OVA, or the whole file.

use std::ops::Range;

use blk::{Buf, Error, File, Result, SECTOR};

/// A range of a file. Offsets of its reads count from its start.
#[derive(Clone)]
pub(crate) struct FileRange {
    file: File,
    at: Range<u64>,
    /// Name for messages: that of the file, with the member's if it is one.
    name: String,
}

impl FileRange {
    /// Creates the range `at`. `member` is its name inside of the file, if it has one.
    ///
    /// # Errors
    /// `Damaged` if the file ends before the range does, `Invalid` if the range begins inside of a sector.
    pub(crate) async fn new(file: File, at: Range<u64>, member: Option<&str>) -> Result<FileRange> {
        let name = match member {
            Some(member) => format!("{} (member {member})", file.name()),
            None => file.name().to_owned(),
        };
        let file_bytes = file.size().await?;
        if at.start > at.end || !at.start.is_multiple_of(SECTOR) {
            let cause = format!("bytes {} to {} are not a range that begins with a sector", at.start, at.end);
            return Err(Error::invalid(name, cause));
        }
        if at.end > file_bytes {
            let cause =
                format!("its end is byte {}, expected at most {file_bytes}, the end of the file", at.end);
            return Err(Error::damaged(name, format!("{cause}: was the file cut? Copy it again")));
        }
        Ok(FileRange { file, at, name })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.at.end - self.at.start
    }

    /// Reads `len` bytes at `offset`. The caller has compared both with the length: `offset + len` is at most that.
    pub(crate) async fn read(&self, offset: u64, len: u64) -> Result<Buf> {
        Self::read_of(&self.file, &self.at, offset, len).await
    }

    /// Reads like `read`, and counts the transfer as one of metadata.
    pub(crate) async fn read_table(&self, offset: u64, len: u64) -> Result<Buf> {
        Self::read_of(&self.file.tables(), &self.at, offset, len).await
    }

    async fn read_of(file: &File, at: &Range<u64>, offset: u64, len: u64) -> Result<Buf> {
        let bytes = at.end - at.start;
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= bytes), "{len} bytes at {offset} of a range of {bytes} bytes");
        let (buf, result) = file.read(at.start + offset, Buf::alloc(len as usize)).await;
        result.map(|()| buf)
    }
}
