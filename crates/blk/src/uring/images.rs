//! Requests to images of RBD under way. The library answers on threads of its own, which only enqueue the result and wake
//! the core.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::DROP_WAIT;
use super::files::{Answers, FilesThreads};
use super::open::{Kind, Opened};
use super::task::Answer;
use crate::error::Errno;
use crate::rbd::{Image, Request, Transfer};
use crate::reactor::Outcome;

/// Major number of the devices that images count as: no device of Linux has it.
const MAJOR: u32 = u32::MAX;
/// Answer for a client that the cluster has blocklisted: `ESHUTDOWN`.
const BLOCKLISTED: i64 = -(rustix::io::Errno::SHUTDOWN.raw_os_error() as i64);

/// Interval between two looks for answers at the end of a core.
const LOOK: Duration = Duration::from_millis(1);

/// Requests by the slots of their operations. The image of a request is open, and its buffer stays, until the answer.
#[derive(Default)]
pub(super) struct Images(BTreeMap<u32, (Arc<Image>, Request)>);

impl Images {
    pub(super) fn start(&mut self, index: u32, image: Arc<Image>, request: Request, answers: Answers) {
        // In place before the library sees its buffer.
        let (image, request) = self.0.entry(index).or_insert((image, request));
        image.start(request, Box::new(move |result| answers.send(index, Answer::Image(result))));
    }

    pub(super) fn end(&mut self, index: u32) -> Option<Request> {
        self.0.remove(&index).map(|(_, request)| request)
    }

    pub(super) fn doing(&self, index: u32) -> Option<&'static str> {
        self.0.get(&index).map(|(_, request)| request.transfer.doing())
    }

    /// Waits for the answers at the end of a core. Memory that the library may still write is left behind.
    pub(super) fn wait(&mut self, files: &FilesThreads) {
        let deadline = Instant::now() + DROP_WAIT;
        while !self.0.is_empty() && Instant::now() < deadline {
            for (index, _) in files.take_answers() {
                self.0.remove(&index);
            }
            std::thread::park_timeout(LOOK);
        }
        std::mem::forget(std::mem::take(&mut self.0));
    }
}

/// Returns an image as an opened file, and as a device of its own.
pub(super) fn opened(image: Arc<Image>) -> Result<Opened, Errno> {
    let device = Some((MAJOR, image.number()));
    // Every handle has a descriptor; no operation uses this one.
    let fd = File::open("/dev/null")?.into();
    Ok(Opened { fd, kind: Kind::Image(image), notice: None, shared: None, device })
}

impl Request {
    /// Returns the outcome for an answer of the library.
    pub(super) fn outcome(self, result: i64) -> Outcome {
        match result {
            BLOCKLISTED => self.failed(Errno::BLOCKLISTED),
            ..0 => self.failed(Errno(i32::try_from(-result).unwrap_or(Errno::EIO.0))),
            count => match self.transfer {
                Transfer::Read(buf) => Outcome::Read(buf, Ok(count as usize)),
                Transfer::Write(data) => Outcome::Count(Ok(data.len() as u64)),
                _ => Outcome::Unit(Ok(())),
            },
        }
    }

    /// Returns the outcome of a request that failed, or was not begun.
    pub(super) fn failed(self, e: Errno) -> Outcome {
        match self.transfer {
            Transfer::Read(buf) => Outcome::Read(buf, Err(e)),
            Transfer::Write(_) => Outcome::Count(Err(e)),
            _ => Outcome::Unit(Err(e)),
        }
    }
}
