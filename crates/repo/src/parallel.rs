//! Work on many contents in several threads.

use std::thread;

/// Threads that hash, compress, encrypt and their opposites.
const THREADS_MAX: usize = 8;
/// Items that a thread gets at least: one is some 100 us of work, and a thread costs some 30 us.
const ITEMS_MIN: usize = 4;

/// Applies `action` to all `items`, and returns its results in their order.
pub(crate) fn in_parallel<'a, T: Sync, R: Send>(
    items: &'a [T],
    action: impl Fn(&'a T) -> R + Sync,
) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let threads = threads.min(items.len() / ITEMS_MIN);
    if threads <= 1 {
        return items.iter().map(action).collect();
    }
    let action = &action;
    thread::scope(|scope| {
        let parts = items.chunks(items.len().div_ceil(threads));
        let running: Vec<_> =
            parts.map(|part| scope.spawn(move || part.iter().map(action).collect::<Vec<_>>())).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("the action does not panic")).collect()
    })
}
