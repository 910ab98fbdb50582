//! Independent pieces of work on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{JobObserver, Progress, is_interrupted};

/// Calls `work` for each number below `count`, in any order. Returns the results in the order of the numbers; None for
/// work that had not begun when the user interrupted. A panic of a worker thread is propagated.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    name: impl Fn(usize) -> String + Sync,
    observer: JobObserver<'_>,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<Option<T>> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let answers: Mutex<Vec<Option<T>>> = Mutex::new((0..count).map(|_| None).collect());
    let one_thread = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count || is_interrupted(observer) {
                return;
            }
            let answer = work(number);
            answers.lock().expect("no holder panics")[number] = Some(answer);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            (observer.progress)(Progress { done, of: count, name: name(number) });
        }
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(count.max(1));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(one_thread);
        }
    });
    answers.into_inner().expect("no holder panics")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn answers_come_in_order_and_an_interruption_leaves_holes() {
        let interrupted = Arc::default();
        let observer = JobObserver { progress: &|_| {}, interrupted: &interrupted };
        let all = in_parallel(100, |n| n.to_string(), observer, |n| n * n);
        assert!(all.iter().enumerate().all(|(n, answer)| *answer == Some(n * n)));
        let some = in_parallel(
            100,
            |n| n.to_string(),
            observer,
            |n| {
                interrupted.store(n >= 10, Ordering::Relaxed);
                n
            },
        );
        assert!(some[0].is_some() && some[99].is_none());
    }
}
