//! Group commit: callers that arrive before a round begins share it; those that arrive later share the next one.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use blk::Result;

use super::Journal;

/// Rounds are counted from 1 and run one at a time.
#[derive(Default)]
pub(super) struct Rounds {
    wanted: u64,
    begun: u64,
    ended: u64,
}

impl Journal {
    /// Makes everything that was written to the file and appended before this call durable, with one device flush.
    /// Concurrent callers share rounds. After a failed write or flush every call returns its error: the content of the
    /// medium is unknown until the store is opened again.
    pub(crate) async fn flush(self: &Rc<Self>) -> Result<()> {
        let wanted = self.want_round();
        loop {
            {
                let state = self.state.borrow();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if state.rounds.ended >= wanted {
                    return Ok(());
                }
            }
            self.rounds.wait().await;
        }
    }

    /// Requests a round that begins after this call, and starts the task if none runs. Returns the round's number.
    fn want_round(self: &Rc<Self>) -> u64 {
        let rounds = &mut self.state.borrow_mut().rounds;
        let idle = rounds.ended == rounds.wanted;
        rounds.wanted = rounds.begun + 1;
        if idle {
            let journal = self.clone();
            self.env.spawn_detached(Box::pin(async move { journal.run_rounds().await }));
        }
        rounds.wanted
    }

    /// Runs rounds in a task of its own, so that a caller that is dropped does not take its round from the others.
    async fn run_rounds(self: Rc<Self>) {
        loop {
            self.state.borrow_mut().rounds.begun += 1;
            if let Err(error) = self.round().await {
                self.fail(error);
            }
            let all_served = {
                let rounds = &mut self.state.borrow_mut().rounds;
                rounds.ended = rounds.begun;
                rounds.ended == rounds.wanted
            };
            self.rounds.notify();
            if all_served {
                return;
            }
        }
    }

    async fn round(self: &Rc<Self>) -> Result<()> {
        let covered = self.begin_round();
        self.batches_written(covered.end).await?;
        self.file.flush().await?;
        self.advance(&covered);
        Ok(())
    }

    /// Closes the batch that the round covers. A batch without records is written only if the newest batch does not
    /// carry `flushed_lsn` or the checkpoint yet: a guest that only overwrites costs nothing but its device flushes.
    fn begin_round(self: &Rc<Self>) -> Covered {
        let unconfirmed = {
            let state = self.state.borrow();
            let carried = state.carried == state.flushed && state.named == state.checkpoint;
            state.draft.is_none() && !carried
        };
        if unconfirmed {
            self.open_empty();
        }
        self.close();
        self.memory_tail.switch();
        let mut state = self.state.borrow_mut();
        state.unflushed_bytes = 0;
        Covered {
            end: state.next.seq,
            last_lsn: state.next.lsn - 1,
            carried: state.carried,
            named: state.named,
        }
    }

    /// Waits until no write of a batch before page `end` is under way.
    async fn batches_written(&self, end: u64) -> Result<()> {
        loop {
            {
                let state = self.state.borrow();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if state.writing.first().is_none_or(|&first| first >= end) {
                    return Ok(());
                }
            }
            self.written.wait().await;
        }
    }

    fn advance(&self, covered: &Covered) {
        {
            let mut state = self.state.borrow_mut();
            state.flushed = covered.last_lsn;
            state.durable = covered.carried;
            state.durably_named = covered.named;
            if covered.named == state.checkpoint {
                state.tail = state.checkpoint_tail;
            }
        }
        self.shared_flushed_lsn.store(covered.carried, Ordering::Release);
        self.memory_tail.settle();
    }
}

/// The state that a round makes durable.
struct Covered {
    end: u64,
    last_lsn: u64,
    /// The `flushed_lsn` in the newest batch before `end`.
    carried: u64,
    /// The checkpoint in that batch.
    named: u64,
}
