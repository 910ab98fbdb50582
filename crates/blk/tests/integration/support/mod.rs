//! What the tests of the real reactor share.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;

use blk::socket::{Listener, Socket};
use blk::uring::UringReactor;
use blk::{Dir, Env, Executor};

/// A directory of its own on the file system of the build, gone with the test.
pub(crate) struct Scratch(pub PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn join(&self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn core() -> (Rc<UringReactor>, Executor) {
    let reactor = Rc::new(UringReactor::new().unwrap());
    let executor = Executor::new(reactor.clone());
    (reactor, executor)
}

/// Runs `test` on a fresh core with a fresh directory.
pub(crate) fn with_dir<F: Future<Output = ()> + 'static>(name: &str, test: impl FnOnce(Env, Dir) -> F) {
    let scratch = Scratch::new(name);
    let (_, executor) = core();
    let env = executor.env();
    let dir = env.open_root(scratch.path()).unwrap();
    executor.run(test(env, dir)).unwrap();
}

/// A connected pair: ours on the reactor, theirs plain.
pub(crate) async fn connected(
    reactor: &UringReactor,
    env: &Env,
    path: &str,
) -> (Listener, Socket, UnixStream) {
    let listener = Listener::new(env.clone(), reactor.listen_unix(path).unwrap(), path.to_string());
    let theirs = UnixStream::connect(path).unwrap();
    let ours = listener.accept().await.unwrap();
    (listener, ours, theirs)
}

/// The smallest channel from a thread to a task.
pub(crate) fn channel() -> (Sender, Receiver) {
    let shared = std::sync::Arc::<std::sync::Mutex<Channel>>::default();
    (Sender(shared.clone()), Receiver(shared))
}

#[derive(Default)]
struct Channel {
    values: std::collections::VecDeque<u64>,
    waker: Option<std::task::Waker>,
}

pub(crate) struct Sender(std::sync::Arc<std::sync::Mutex<Channel>>);

pub(crate) struct Receiver(std::sync::Arc<std::sync::Mutex<Channel>>);

impl Sender {
    pub(crate) fn send(&self, value: u64) {
        let mut channel = self.0.lock().unwrap();
        channel.values.push_back(value);
        if let Some(waker) = channel.waker.take() {
            waker.wake();
        }
    }
}

impl Receiver {
    pub(crate) async fn next(&mut self) -> u64 {
        std::future::poll_fn(|cx| {
            let mut channel = self.0.lock().unwrap();
            match channel.values.pop_front() {
                Some(value) => std::task::Poll::Ready(value),
                None => {
                    channel.waker = Some(cx.waker().clone());
                    std::task::Poll::Pending
                }
            }
        })
        .await
    }
}
