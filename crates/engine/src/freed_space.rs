//! Work that uses space which was freed a moment ago.

use blk::{Env, Error, Result};

/// Number of tries: a file system can take some time to free the blocks of a file, and other writers may take them
/// first.
const TRIES: usize = 5;
/// Pause between two tries.
const RETRY_US: u64 = 20_000;

/// Runs `work`, and runs it again for 80 ms while it finds no space. `work` must be repeatable.
pub async fn with_freed_space<T>(env: &Env, work: impl AsyncFn() -> Result<T>) -> Result<T> {
    let mut done = work().await;
    for _ in 1..TRIES {
        if !done.as_ref().is_err_and(Error::is_no_space) {
            break;
        }
        env.sleep_us(RETRY_US).await;
        done = work().await;
    }
    done
}
