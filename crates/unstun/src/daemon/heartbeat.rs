//! Heartbeat of a core: a task of its executor stamps a clock. The stamps stop when the core hangs in one poll, or when
//! its reactor delivers no more events. The watchdog then detects the hang.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blk::Env;

/// Time between two stamps.
const BEAT: Duration = Duration::from_millis(500);
/// Environment variable for tests of what ends and supervises the daemon; it names a file. If the file exists, the
/// daemon removes it and causes the fault in its content: `panic` of the core, `hang` of the core, `thread` for a panic
/// of another thread.
const FAULT_VARIABLE: &str = "UNSTUN_TEST_FAULT";

/// The last stamp of one core, readable from other threads.
pub(crate) struct Heartbeat {
    began: Instant,
    stamp_ms: AtomicU64,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { began: Instant::now(), stamp_ms: AtomicU64::new(0) }
    }
}

impl Heartbeat {
    fn stamp(&self) {
        self.stamp_ms.store(self.since_begin_ms(), Ordering::Relaxed);
    }

    fn since_begin_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the time since the last stamp.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(self.since_begin_ms().saturating_sub(self.stamp_ms.load(Ordering::Relaxed)))
    }
}

/// Stamps `heartbeat` until the executor ends.
pub(super) async fn beat(env: Env, heartbeat: Arc<Heartbeat>) {
    let fault = std::env::var_os(FAULT_VARIABLE).map(PathBuf::from);
    loop {
        heartbeat.stamp();
        if let Some(path) = &fault {
            fail_as_asked(path);
        }
        env.sleep_us(BEAT.as_micros() as u64).await;
    }
}

fn fail_as_asked(path: &Path) {
    let Ok(kind) = std::fs::read_to_string(path) else { return };
    let _ = std::fs::remove_file(path);
    let panic = || panic!("a fault that {FAULT_VARIABLE} asks for");
    match kind.trim() {
        "panic" => panic(),
        "thread" => drop(std::thread::Builder::new().name("fault".into()).spawn(panic)),
        "hang" => loop {
            std::thread::park();
        },
        _ => {}
    }
}
