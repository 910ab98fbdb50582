//! Settings of a home in VMware's format: the folders that it may use, and how it is opened.

use api::WhenFull;
use blk::{Dir, Result};
use vmdk::home::{format_roots, parse_roots};

use crate::daemon::running::home_files::{ROOTS_NAME, Roots};
use crate::daemon::vm::settings::write_when_full;

/// File that exists if the user wants wrong content IDs to be ignored.
const IGNORE_CONTENT_IDS_NAME: &str = "ignore-content-ids";
/// File that exists if the user admits writes to SEsparse deltas of other programs.
const WRITE_SESPARSE_NAME: &str = "write-sesparse";
/// Maximum size in bytes of the file with the folders: 256 folders, with paths of up to 4096 bytes.
const ROOTS_BYTES_MAX: u64 = 2 << 20;

/// Settings in a home's `.unstun` folder that say how to open the home.
pub(crate) struct Terms {
    pub roots: Roots,
    pub ignore_content_ids: bool,
    pub write_sesparse: bool,
}

impl Terms {
    pub(crate) async fn read(own: &Dir) -> Result<Terms> {
        let roots = match own.read_file(ROOTS_NAME, ROOTS_BYTES_MAX).await {
            Ok(bytes) => parse_roots(&own.path_of(ROOTS_NAME), &bytes)?,
            Err(e) if e.kind == blk::ErrorKind::NotFound => Roots::new(),
            Err(e) => return Err(e),
        };
        let names = own.list().await?;
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        let (ignore_content_ids, write_sesparse) = (has(IGNORE_CONTENT_IDS_NAME), has(WRITE_SESPARSE_NAME));
        Ok(Terms { roots, ignore_content_ids, write_sesparse })
    }

    pub(crate) async fn write(&self, own: &Dir, when_full: WhenFull) -> Result<()> {
        write_when_full(own, when_full).await?;
        if self.ignore_content_ids {
            own.replace_file(IGNORE_CONTENT_IDS_NAME, b"by the user's word\n").await?;
        }
        if self.write_sesparse {
            own.replace_file(WRITE_SESPARSE_NAME, b"by the user's word\n").await?;
        }
        own.replace_file(ROOTS_NAME, &format_roots(&self.roots)?).await
    }
}
