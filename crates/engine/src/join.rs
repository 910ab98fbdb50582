//! Waiting for several operations at once.

use blk::Result;
use futures_util::future::join_all;

/// Waits for every one, then answers the first error. Leaving at the first error would let the others' writes land
/// after the range they hold has been given up.
pub(crate) async fn all(work: impl IntoIterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    join_all(work).await.into_iter().collect()
}
