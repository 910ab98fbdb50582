//! The host: counts every I/O that reaches the storage, as its own counters would, and spends its own time.

use std::cell::Cell;

use blk::{Buf, Env, File, Result, Slice};

use crate::run::Counters;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Guest,
    /// Grain tables, directories, and the file system's own records.
    Table,
    Commit,
}

pub(crate) struct Host {
    env: Env,
    counters: Cell<Counters>,
}

/// Returns the handle of the file that counts the I/O as table or data in the file's own counters.
fn seen_as(file: &File, purpose: Purpose) -> File {
    if purpose == Purpose::Table { file.tables() } else { file.clone() }
}

impl Host {
    pub(crate) fn new(env: Env) -> Host {
        Host { env, counters: Cell::default() }
    }

    /// Passes time in which the host works without the storage.
    pub(crate) async fn spend_us(&self, us: u64) {
        self.env.sleep_us(us).await;
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters.get()
    }

    pub(crate) async fn read(
        &self,
        file: &File,
        offset: u64,
        buf: Buf,
        purpose: Purpose,
    ) -> (Buf, Result<()>) {
        let bytes = buf.len() as u64;
        let mut counters = self.counters.get();
        counters.reads += 1;
        counters.read_bytes += bytes;
        match purpose {
            Purpose::Guest => {}
            Purpose::Table => counters.table_reads += 1,
            Purpose::Commit => counters.commit_read_bytes += bytes,
        }
        self.counters.set(counters);
        seen_as(file, purpose).read(offset, buf).await
    }

    pub(crate) async fn write(&self, file: &File, offset: u64, data: Slice, purpose: Purpose) -> Result<()> {
        let bytes = data.len() as u64;
        let mut counters = self.counters.get();
        counters.writes += 1;
        counters.written_bytes += bytes;
        match purpose {
            Purpose::Guest => {}
            Purpose::Table => counters.table_writes += 1,
            Purpose::Commit => counters.commit_written_bytes += bytes,
        }
        self.counters.set(counters);
        seen_as(file, purpose).write(offset, data).await
    }

    pub(crate) async fn flush(&self, file: &File) -> Result<()> {
        let mut counters = self.counters.get();
        counters.flushes += 1;
        self.counters.set(counters);
        file.flush().await
    }
}
