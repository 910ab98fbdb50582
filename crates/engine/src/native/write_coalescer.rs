//! Coalescing of small writes to new places: writes to neighbouring blocks become one I/O.
//!
//! Redirects are placed one behind the other. Those that arrive while others are being written wait for one of these to
//! end, and then become one write. So many concurrent first writes cost the device less than the same overwrites would.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::sync::Signal;
use blk::{Buf, Env, File, Result, Slice};
use futures_util::future::join_all;

use super::layout::BLOCK;

/// Longest write that is gathered. A copy of a longer one beside others would cost more than a request of its own.
const GATHERED_BYTES_MAX: usize = 16 << 10;

/// Most batches under way at a time. Below this number no write waits for another.
const WRITERS_MAX: usize = 4;

/// Coalesces the writes of one store.
pub(super) struct WriteCoalescer {
    env: Env,
    file: File,
    /// The batch that the next writer takes.
    open: RefCell<Rc<Batch>>,
    writers: Cell<usize>,
}

#[derive(Default)]
struct Batch {
    /// Address and data of each part, whole blocks.
    parts: RefCell<Vec<(u64, Slice)>>,
    /// Outcome of all parts together.
    outcome: RefCell<Option<Result<()>>>,
    ended: Signal,
}

impl WriteCoalescer {
    pub(super) fn new(env: Env, file: File) -> Rc<WriteCoalescer> {
        Rc::new(WriteCoalescer { env, file, open: RefCell::default(), writers: Cell::new(0) })
    }

    /// Writes whole blocks at block `addr`, which no other write may touch meanwhile. An error may be that of another
    /// write in the same batch; no write of these blocks is under way when it is returned.
    pub(super) async fn write(self: &Rc<Self>, addr: u64, data: Slice) -> Result<()> {
        if data.len() > GATHERED_BYTES_MAX {
            return self.file.write(addr * BLOCK, data).await;
        }
        let batch = self.open.borrow().clone();
        let first = batch.parts.borrow().is_empty();
        batch.parts.borrow_mut().push((addr, data));
        if first && self.writers.get() < WRITERS_MAX {
            self.writers.update(|writers| writers + 1);
            let coalescer = self.clone();
            // The task runs after the requests that are ready by now, so that these join the batch.
            self.env.spawn_detached(Box::pin(async move { coalescer.write_open().await }));
        }
        loop {
            if let Some(outcome) = &*batch.outcome.borrow() {
                return outcome.clone();
            }
            batch.ended.wait().await;
        }
    }

    async fn write_open(&self) {
        loop {
            let batch = self.open.take();
            if batch.parts.borrow().is_empty() {
                break;
            }
            let outcome = self.write_batch(batch.parts.take()).await;
            *batch.outcome.borrow_mut() = Some(outcome);
            batch.ended.notify();
        }
        self.writers.update(|writers| writers - 1);
    }

    async fn write_batch(&self, mut parts: Vec<(u64, Slice)>) -> Result<()> {
        parts.sort_unstable_by_key(|(addr, _)| *addr);
        let runs = parts.chunk_by(|(addr, data), (next, _)| addr + data.len() as u64 / BLOCK == *next);
        if runs.clone().count() == 1 {
            return self.write_run(&parts).await;
        }
        // All of them end before an error is returned: their blocks may be placed again then.
        join_all(runs.map(|run| self.write_run(run))).await.into_iter().collect()
    }

    async fn write_run(&self, run: &[(u64, Slice)]) -> Result<()> {
        let (addr, data) = &run[0];
        if run.len() == 1 {
            return self.file.write(addr * BLOCK, data.clone()).await;
        }
        let mut whole = Buf::alloc(run.iter().map(|(_, data)| data.len()).sum());
        let mut at = 0;
        for (_, data) in run {
            whole[at..at + data.len()].copy_from_slice(data);
            at += data.len();
        }
        self.file.write(addr * BLOCK, whole).await
    }
}

#[cfg(test)]
mod tests {
    use blk::Errno;
    use sim::{Action, Fault, OpKind, Options, SimWorld};

    use super::*;

    async fn coalescer(env: &Env) -> Rc<WriteCoalescer> {
        let file = env.open_root("/").unwrap().create_new("store").await.unwrap();
        WriteCoalescer::new(env.clone(), file)
    }

    /// Writes blocks 0 to 3 and 9; the bytes of each block are its number.
    async fn write_five(coalescer: &Rc<WriteCoalescer>) -> Vec<Result<()>> {
        let writes = [3u64, 0, 9, 2, 1]
            .map(|addr| coalescer.write(addr, Buf::copy_of(&[addr as u8; BLOCK as usize]).freeze()));
        join_all(writes).await
    }

    #[test]
    fn adjacent_concurrent_writes_are_coalesced() {
        let world = SimWorld::new(1, Options::default());
        let done = world.run(async |env| {
            let coalescer = coalescer(&env).await;
            assert!(write_five(&coalescer).await.iter().all(Result::is_ok));
            assert_eq!(coalescer.file.counters().writes, 2);
            for addr in [0, 1, 2, 3, 9] {
                let (block, result) = coalescer.file.read(addr * BLOCK, Buf::alloc(BLOCK as usize)).await;
                assert!(result.is_ok() && block.iter().all(|byte| u64::from(*byte) == addr), "{addr}");
            }
            coalescer.write(20, Buf::zeroed(GATHERED_BYTES_MAX + BLOCK as usize).freeze()).await.unwrap();
            assert_eq!((coalescer.file.counters().writes, coalescer.writers.get()), (3, 0));
        });
        assert!(done.is_some());
    }

    #[test]
    fn an_error_is_returned_to_a_whole_batch_after_its_last_write_ended() {
        let world = SimWorld::new(1, Options::default());
        world.add_fault(Fault::nth(1, Action::Fail(Errno::ENOSPC)).of(OpKind::Write));
        world.add_fault(Fault::nth(2, Action::Delay { ns: 1 << 30 }).of(OpKind::Write));
        let done = world.run(async |env| {
            let coalescer = coalescer(&env).await;
            let outcomes = write_five(&coalescer).await;
            assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|e| e.is_no_space())));
            assert!(env.now_ns() >= 1 << 30, "the other write of the batch has ended");
            assert!(write_five(&coalescer).await.iter().all(Result::is_ok));
        });
        assert!(done.is_some());
    }
}
