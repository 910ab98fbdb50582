//! Volumes of the stores' core for clients that another core serves: every request goes there as a message.
//!
//! A VM may change its core while it has clients. Their connections stay where they are, and reach the VM this way. The
//! volume may be any: one with files, or one that a move replaces.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{Attachment, BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, ErrorKind, Local, Result, Slice};

use super::link::{Answer, Work};
use super::store_side::StoreSide;
use super::vm_side::VmSide;

/// A client's volume on its way to the core of the client's connection.
pub struct RelayTicket {
    number: u64,
    info: VolumeInfo,
}

/// A client's volume that is on the stores' core. Its drop ends the attachment there.
pub struct RelayedVolume {
    side: Rc<VmSide>,
    number: u64,
    /// As of the attachment: a client sees a larger size when it attaches again.
    info: VolumeInfo,
    /// Name for messages.
    name: String,
}

impl StoreSide {
    /// Lets the other core send requests to an attached volume.
    pub fn relay(&self, attachment: Attachment) -> RelayTicket {
        let (number, info) = (self.new_number(), attachment.volume.info());
        self.relayed.borrow_mut().insert(number, attachment);
        RelayTicket { number, info }
    }

    /// Begins a request to an attached volume. Returns the request if there is no such volume.
    pub(super) fn begin_relayed(self: &Rc<Self>, number: u64, id: u32, work: Work) -> Option<Work> {
        let Some(volume) = self.relayed.borrow().get(&number).map(|relayed| relayed.volume.clone()) else {
            return Some(work);
        };
        match work {
            Work::Close => {
                let ended = self.relayed.borrow_mut().remove(&number);
                drop(ended);
            }
            Work::Abandon => volume.abandon(),
            Work::EndWaits => volume.end_waits(),
            work => {
                let side = self.clone();
                self.env.spawn_detached(Box::pin(async move {
                    let answer = carry_out(volume, work).await;
                    side.answer(number, id, answer);
                }));
            }
        }
        None
    }
}

async fn carry_out(volume: Rc<dyn Volume>, work: Work) -> Answer {
    match work {
        Work::Read { offset, buf } => {
            let (buf, result) = volume.read(offset, buf).await;
            Answer::Buf(Some(buf), result)
        }
        Work::Write { offset, data } => {
            let data = data.freeze();
            let result = volume.write(offset, data.clone()).await;
            Answer::Buf(data.try_into_buf(), result)
        }
        Work::Flush => Answer::Done(volume.flush().await),
        Work::Discard(range) => Answer::Done(volume.discard(range).await),
        Work::Zero(range, mode) => Answer::Done(volume.write_zeroes(range, mode).await),
        Work::Status(range) => Answer::Status(volume.status(range).await),
        Work::Publish(_) | Work::Close | Work::Recall | Work::Vm(_) | Work::Abandon | Work::EndWaits => {
            unreachable!("no request to a relayed volume, or carried out at once")
        }
    }
}

impl VmSide {
    /// Sends the requests of a client of this core to its volume on the stores' core. `name` is for messages.
    pub fn open_relayed(self: &Rc<Self>, ticket: RelayTicket, name: &str) -> Rc<RelayedVolume> {
        let RelayTicket { number, info } = ticket;
        Rc::new(RelayedVolume { side: self.clone(), number, info, name: name.to_owned() })
    }
}

impl RelayedVolume {
    async fn done(self: Rc<Self>, work: Work) -> Result<()> {
        match self.side.request(self.number, work, None).await {
            Answer::Done(result) | Answer::Buf(_, result) => result,
            _ => Err(self.confused()),
        }
    }

    fn confused(&self) -> Error {
        Error::new(ErrorKind::Io, &self.name, "the stores' core answered another request")
    }
}

impl Drop for RelayedVolume {
    fn drop(&mut self) {
        self.side.send(self.number, Work::Close);
    }
}

impl Volume for RelayedVolume {
    fn info(&self) -> VolumeInfo {
        self.info
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            let len = buf.len();
            match self.side.request(self.number, Work::Read { offset, buf }, None).await {
                Answer::Buf(Some(buf), result) => (buf, result),
                Answer::Done(Err(e)) => (Buf::with_headroom(len), Err(e)),
                _ => (Buf::with_headroom(len), Err(self.confused())),
            }
        })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(self.done(Work::Write { offset, data: data.into_buf() }))
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(self.done(Work::Flush))
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        Box::pin(self.done(Work::Discard(range)))
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(self.done(Work::Zero(range, mode)))
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move {
            match self.side.request(self.number, Work::Status(range), None).await {
                Answer::Status(result) => result,
                Answer::Done(Err(e)) => Err(e),
                _ => Err(self.confused()),
            }
        })
    }

    fn abandon(&self) {
        self.side.send(self.number, Work::Abandon);
    }

    fn end_waits(&self) {
        self.side.send(self.number, Work::EndWaits);
    }
}
