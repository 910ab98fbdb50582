//! Waiting for several operations at once.

use blk::Result;
use futures_util::future::join_all;

/// Waits for every future, then returns the first error. A return at the first error would let the other writes land
/// after their range has been released.
pub(crate) async fn all(work: impl IntoIterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    join_all(work).await.into_iter().collect()
}
