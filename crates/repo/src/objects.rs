//! The contract of a store of objects: what a repository needs of a folder or a bucket.

use std::ops::Range;
use std::sync::Arc;

use blk::{Error, Result};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

/// A request under way. Dropping it may leave the request to be carried out.
pub type Pending<T> = BoxFuture<'static, Result<T>>;

/// Result of a creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The object did not exist, and is durable now.
    Created,
    /// An object of this name exists. It may be the one of this call, whose answer was lost.
    Exists,
}

/// An object as a list names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Name below the repository's prefix.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// Creates an object of which the caller alone can have made one of this name, and makes sure that it has this content: an
/// answer may have been lost, and a store that was rolled back may have an object of a session that the log has lost.
pub(crate) fn put_own(objects: &Arc<dyn Objects>, name: &str, body: Bytes) -> Pending<()> {
    let (objects, name) = (objects.clone(), name.to_owned());
    async move {
        if objects.put_new(&name, body.clone()).await? == Put::Created || objects.get(&name).await? == body {
            return Ok(());
        }
        let cause = "the object is of another session of the same number, so the log has lost entries; restore the repository as it \
                     was, or make a new one";
        Err(Error::damaged(format!("{}/{name}", objects.place()), cause))
    }
    .boxed()
}

/// A store of objects that are created once and never changed. Requests that fail in passing are repeated below this
/// trait; an error is final for its request, which may nevertheless have been carried out.
pub trait Objects: Send + Sync {
    /// Returns where the store is, without credentials; for messages.
    fn place(&self) -> &str;

    /// Returns a whole object.
    ///
    /// # Errors
    /// `NotFound`: no object has this name. A store must not answer that once a creation has succeeded.
    fn get(&self, name: &str) -> Pending<Bytes>;

    /// Returns a part of an object, which must lie within it.
    fn get_range(&self, name: &str, range: Range<u64>) -> Pending<Bytes>;

    /// Creates an object unless one has this name: the store decides, as one step.
    fn put_new(&self, name: &str, body: Bytes) -> Pending<Put>;

    /// Returns the objects whose names begin with `prefix`, which ends with `/`, in order. A list may be old: it may lack
    /// new objects and have removed ones.
    fn list(&self, prefix: &str) -> Pending<Vec<Listed>>;

    /// Returns the size of an object in bytes.
    fn size(&self, name: &str) -> Pending<u64>;

    /// Removes an object. One that does not exist counts as removed.
    fn delete(&self, name: &str) -> Pending<()>;
}
