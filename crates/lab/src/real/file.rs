//! A plain file or a block device as a volume: the raw storage, or what somebody's stack shows as one.

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Error, File, Local, Result, Slice};

pub struct FileVolume {
    file: File,
    size_bytes: u64,
}

impl FileVolume {
    pub async fn open(env: &Env, path: &Path) -> Result<Rc<FileVolume>> {
        let place = path.display().to_string();
        let whole = std::path::absolute(path).map_err(|e| Error::invalid(&place, e.to_string()))?;
        let named =
            whole.parent().and_then(Path::to_str).zip(whole.file_name().and_then(|name| name.to_str()));
        let (folder, name) = named.ok_or_else(|| Error::invalid(&place, "not the path of a file"))?;
        let file = env.open_root(folder)?.open(name, OpenMode::Write).await?;
        let size_bytes = file.size().await?;
        Ok(Rc::new(FileVolume { file, size_bytes }))
    }
}

impl Volume for FileVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { size_bytes: self.size_bytes, read_only: false, preferred_bytes: 4096, fast_zero: false }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move { self.file.read(offset, buf).await })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move { self.file.write(offset, data).await })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move { self.file.flush().await })
    }

    /// A hint, and the load gives none.
    fn discard(self: Rc<Self>, _: Range<u64>) -> Local<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, _: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move { self.file.zero(range.start, range.end - range.start, false).await })
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        let whole = BlockStatus { len: range.end - range.start, hole: false, zero: false };
        Box::pin(async move { Ok(vec![whole]) })
    }
}
