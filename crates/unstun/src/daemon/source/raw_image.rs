//! A raw file as a volume that is only read.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{BlockStatus, STATUS_PIECES_MAX, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, File, Local, Result, Slice};

/// Bytes that are looked at in one step: at most 4096 pieces, if each block of 4 KiB is one.
const STATUS_STEP_BYTES: u64 = 16 << 20;
/// Size in which requests are best made.
const PREFERRED_BYTES: u32 = 4096;

pub(super) struct RawImage {
    pub file: File,
    pub size_bytes: u64,
}

fn refuse(file: &File) -> Local<'static, Result<()>> {
    let error = Error::refused(file.name(), "the image below a disk is never written");
    Box::pin(async { Err(error) })
}

impl Volume for RawImage {
    fn info(&self) -> VolumeInfo {
        let size_bytes = self.size_bytes;
        VolumeInfo { size_bytes, read_only: true, preferred_bytes: PREFERRED_BYTES, fast_zero: false }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move { self.file.read(offset, buf).await })
    }

    fn write(self: Rc<Self>, _offset: u64, _data: Slice) -> Local<'static, Result<()>> {
        refuse(&self.file)
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(self: Rc<Self>, _range: Range<u64>, _mode: ZeroMode) -> Local<'static, Result<()>> {
        refuse(&self.file)
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move {
            let (mut found, mut at) = (Vec::new(), range.start);
            while at < range.end && found.len() < STATUS_PIECES_MAX {
                let end = range.end.min(at + STATUS_STEP_BYTES);
                for extent in self.file.extents(at, end - at).await? {
                    push(&mut found, extent.offset - at, true);
                    push(&mut found, extent.len, false);
                    at = extent.offset + extent.len;
                }
                push(&mut found, end - at, true);
                at = end;
            }
            Ok(found)
        })
    }
}

/// Appends a piece, which goes on with the one before it if both are alike.
fn push(found: &mut Vec<BlockStatus>, len: u64, zero: bool) {
    match found.last_mut() {
        Some(last) if last.zero == zero => last.len += len,
        _ if len > 0 => found.push(BlockStatus { len, hole: zero, zero }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use blk::reactor::OpenMode;
    use sim::SimWorld;

    use super::*;

    #[test]
    fn holes_are_told_in_few_pieces_and_many_pieces_end_the_answer() {
        let world = SimWorld::new(1, sim::Options::default());
        let done = world.run(|env| async move {
            let dir = env.open_root("/").unwrap();
            let file = dir.create_new("a.raw").await.unwrap();
            let size_bytes = 1 << 30;
            file.set_len(size_bytes).await.unwrap();
            file.write(3 << 20, Buf::zeroed(4096).freeze()).await.unwrap();
            file.write(900 << 20, Buf::zeroed(4096).freeze()).await.unwrap();
            drop(file);
            let file = dir.open("a.raw", OpenMode::Read).await.unwrap();
            let image = Rc::new(RawImage { file, size_bytes });
            let found = image.clone().status(0..size_bytes).await.unwrap();
            let ends: u64 = found.iter().map(|piece| piece.len).sum();
            assert_eq!(ends, size_bytes);
            let data: Vec<u64> = found.iter().filter(|piece| !piece.zero).map(|piece| piece.len).collect();
            assert_eq!((data, found.len()), (vec![4096, 4096], 5));
            let inside = image.clone().status((3 << 20)..(3 << 20) + 4096).await.unwrap();
            assert_eq!(inside, [BlockStatus { len: 4096, hole: false, zero: false }]);
            assert!(image.write(0, Buf::zeroed(512).freeze()).await.is_err());
        });
        done.expect("nothing cuts the power");
    }
}
