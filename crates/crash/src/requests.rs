//! Requests of guests: the shares of their kinds, and the execution of one request whose answer the model checks.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{Volume, ZeroMode};
use blk::{Buf, SECTOR};
use sim::Rng;
use sim::oracle::DiskModel;

use crate::run::draw_share;
use crate::watch::{print, print_range};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Write,
    Read,
    Flush,
    Zero(ZeroMode),
    Discard,
}

/// Shares of a guest's requests, in parts of their sum.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    pub write: u64,
    pub read: u64,
    pub flush: u64,
    pub zero: u64,
    pub discard: u64,
}

impl Mix {
    pub fn draw(rng: &mut Rng, flush_min: u64) -> Mix {
        Mix {
            write: rng.between(4, 12),
            read: rng.between(1, 6),
            flush: rng.between(flush_min, 4),
            zero: rng.below(2),
            discard: rng.below(2),
        }
    }

    pub fn request(&self, rng: &mut Rng) -> Request {
        use Request::{Discard, Flush, Read, Write, Zero};
        let shares = [self.write, self.read, self.flush, self.zero, self.discard];
        [Write, Read, Flush, Zero(ZeroMode::default()), Discard][draw_share(rng, &shares)]
    }
}

/// Range of a disk that a request goes to, and the disk's model.
pub struct Target {
    pub volume: Rc<dyn Volume>,
    pub model: Rc<DiskModel>,
    /// First sector of the range, as the model numbers sectors.
    pub first: u64,
    pub count: u64,
    /// Start of the range on the disk, in bytes.
    pub offset: u64,
}

impl Target {
    /// Returns the target of sectors that the model numbers as the disk does.
    pub fn plain(volume: Rc<dyn Volume>, model: Rc<DiskModel>, first: u64, count: u64) -> Target {
        Target { volume, model, first, count, offset: first * SECTOR }
    }

    /// Makes a request. Returns false if it found no space: the range then shows the old or the new data.
    pub async fn carry_out(&self, request: Request) -> Result<bool, String> {
        match request {
            Request::Write => self.write().await,
            Request::Read => self.read().await.map(|()| true),
            Request::Flush => self.flush().await.map(|()| true).map_err(|e| format!("flush: {e}")),
            Request::Zero(mode) => self.zero(mode).await,
            Request::Discard => self.discard().await,
        }
    }

    pub async fn write(&self) -> Result<bool, String> {
        let open = self.model.begin(self.first, self.count);
        let data = Buf::copy_of(&self.model.data(&open)).freeze();
        self.print(|| format!("write {} begins", open.sequence));
        let done = self.volume.clone().write(self.offset, data).await;
        if done.is_ok() {
            self.model.end(&open);
        }
        self.answered(&format!("write {}", open.sequence), done)
    }

    async fn zero(&self, mode: ZeroMode) -> Result<bool, String> {
        let open = self.model.begin_zero(self.first, self.count, false);
        self.print(|| "zeroing begins".into());
        let done = self.volume.clone().write_zeroes(self.range(), mode).await;
        if done.is_ok() {
            self.model.end(&open);
        }
        self.answered("zeroing", done)
    }

    /// Discards the range: a hint, which has happened or not by its end, whatever it answers.
    async fn discard(&self) -> Result<bool, String> {
        let open = self.model.begin_zero(self.first, self.count, true);
        self.print(|| "discard begins".into());
        let done = self.volume.clone().discard(self.range()).await;
        self.model.end(&open);
        self.answered("discard", done)
    }

    async fn read(&self) -> Result<(), String> {
        let began = self.model.now();
        let buf = Buf::alloc((self.count * SECTOR) as usize);
        let (buf, read) = self.volume.clone().read(self.offset, buf).await;
        read.map_err(|e| self.failed("read", e))?;
        let checked = self.model.check_read(self.first, &buf, began);
        self.print(|| format!("read from tick {began}: {checked:?}"));
        checked
    }

    pub async fn flush(&self) -> blk::Result<()> {
        let began = self.model.flush_begins();
        self.volume.clone().flush().await?;
        print(|| format!("  disk {} flushed (from tick {began})", self.model.disk));
        self.model.flushed(began);
        Ok(())
    }

    fn answered(&self, what: &str, done: blk::Result<()>) -> Result<bool, String> {
        self.print(|| format!("{what} ends {done:?}"));
        match done {
            Ok(()) => Ok(true),
            Err(e) if e.is_no_space() => Ok(false),
            Err(e) => Err(self.failed(what, e)),
        }
    }

    fn failed(&self, what: &str, e: blk::Error) -> String {
        format!("{what} of {} sectors at {}: {e}", self.count, self.first)
    }

    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.count * SECTOR
    }

    fn print(&self, what: impl FnOnce() -> String) {
        print_range(self.model.disk as usize, self.first, self.count, what);
    }
}
