//! A minimal NBD client: fixed newstyle, simple replies, one connection. It shares no code with the server.

use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const CLIENT_FLAGS: u32 = 3;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_IS_ERROR: u32 = 1 << 31;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

#[derive(Clone, Copy)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Flush = 3,
}

pub(crate) struct Nbd {
    socket: UnixStream,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Nbd {
    /// Attaches to an export. Panics if refused, because a test names only exports that exist.
    pub(crate) fn attach(path: &Path, export: &str) -> Result<Nbd> {
        let mut nbd = Nbd { socket: UnixStream::connect(path)? };
        nbd.take::<18>()?;
        let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPT_GO.to_be_bytes());
        hello.extend((export.len() as u32 + 6).to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.bytes());
        hello.extend([0, 0]);
        nbd.socket.write_all(&hello)?;
        loop {
            let header = nbd.take::<20>()?;
            nbd.take_exactly(u32_at(&header, 16) as usize)?;
            match u32_at(&header, 12) {
                REP_ACK => return Ok(nbd),
                error if error & REP_IS_ERROR != 0 => panic!("{export}: refused with {error:#x}"),
                _ => {}
            }
        }
    }

    pub(crate) fn send(
        &mut self,
        command: Command,
        cookie: u64,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Result<()> {
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend((command as u32).to_be_bytes());
        request.extend(cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(data);
        self.socket.write_all(&request)
    }

    /// Returns (cookie, error) of the next reply; a read's data follow.
    pub(crate) fn reply(&mut self) -> Result<(u64, u32)> {
        let header = self.take::<16>()?;
        assert_eq!(u32_at(&header, 0), REPLY_MAGIC, "not a simple reply");
        Ok((u64::from_be_bytes(header[8..].try_into().unwrap()), u32_at(&header, 4)))
    }

    /// Returns the data of the next reply, which is that of a read.
    pub(crate) fn read_reply(&mut self, length: u32) -> Result<Vec<u8>> {
        let (cookie, error) = self.reply()?;
        assert_eq!(error, 0, "read {cookie}");
        self.take_exactly(length as usize)
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>> {
        self.send(Command::Read, 0, offset, length, &[])?;
        self.read_reply(length)
    }

    /// Returns the error of the reply.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<u32> {
        self.send(Command::Write, 0, offset, data.len() as u32, data)?;
        Ok(self.reply()?.1)
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.send(Command::Flush, 0, 0, 0, &[])?;
        let (_, error) = self.reply()?;
        assert_eq!(error, 0, "flush");
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn take_exactly(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
