//! Opens the disks under load and the disks of a snapshot: NBD exports, files and block devices.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Env, Error, Result};
use export::nbd_client;

use super::uring_executor::UringExecutor;
use crate::plain::Plain;

/// Opens an NBD URI, a file or a block device.
pub fn open_disk(executor: &UringExecutor, target: &str) -> Result<Rc<dyn Volume>> {
    if nbd_client::is_uri(target) {
        return Ok(nbd_client::connect(target)?.serve(&executor.env())?);
    }
    let (env, path) = (executor.env(), PathBuf::from(target));
    Ok(Rc::new(executor.run(async move { open_file(&env, &path, OpenMode::Write).await })?))
}

pub(super) async fn open_file(env: &Env, path: &Path, mode: OpenMode) -> Result<Plain> {
    let place = path.display().to_string();
    let whole = std::path::absolute(path).map_err(|e| Error::invalid(&place, e.to_string()))?;
    let named = whole.parent().and_then(Path::to_str).zip(whole.file_name().and_then(|name| name.to_str()));
    let (folder, name) = named.ok_or_else(|| Error::invalid(&place, "not the path of a file"))?;
    let file = env.open_root(folder)?.open(name, mode).await?;
    let size_bytes = file.size().await?;
    Ok(Plain::new(file, size_bytes))
}
