//! The smallest NBD server the client can be tested against: memory, one export of any name, blocking threads.

use std::io::{Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Simple,
    Structured,
    /// Answers every hundredth read with the block before the one asked for.
    Misplacing,
    /// Fails every write with EIO.
    Failing,
    /// Sends garbage in place of the first reply.
    Garbage,
}

pub struct NbdServer {
    _folder: TempDir,
    socket: PathBuf,
    pub memory: Arc<Mutex<Vec<u8>>>,
}

impl NbdServer {
    /// The listening thread ends with the test process.
    pub fn start(size: usize, flavour: Flavour) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nbd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let memory = Arc::new(Mutex::new(vec![0; size]));
        let shared = Arc::clone(&memory);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, memory) = (stream.unwrap(), Arc::clone(&shared));
                // A client that hangs up ends its thread.
                std::thread::spawn(move || {
                    drop(Session { stream, memory, flavour, structured: false }.run())
                });
            }
        });
        Self { _folder: folder, socket, memory }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///demo/disk0?socket={}", self.socket.display())
    }
}

struct Session {
    stream: UnixStream,
    memory: Arc<Mutex<Vec<u8>>>,
    flavour: Flavour,
    structured: bool,
}

impl Session {
    fn run(mut self) -> Result<()> {
        self.stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
        self.take::<4>()?;
        while !self.option()? {}
        let mut reads = 0;
        while self.request(&mut reads)? {}
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// True once transmission begins.
    fn option(&mut self) -> Result<bool> {
        self.take::<8>()?;
        let option = u32::from_be_bytes(self.take()?);
        let length = u32::from_be_bytes(self.take()?) as usize;
        self.stream.read_exact(&mut vec![0; length])?;
        if option == 8 {
            self.structured = self.flavour != Flavour::Simple;
            self.answer(option, if self.structured { 1 } else { (1 << 31) + 1 }, &[])?;
            return Ok(false);
        }
        assert_eq!(option, 7, "the client should ask for GO");
        let size = self.memory.lock().unwrap().len() as u64;
        let mut info = vec![0, 0];
        info.extend_from_slice(&size.to_be_bytes());
        info.extend_from_slice(&5u16.to_be_bytes());
        self.answer(option, 3, &info)?;
        self.answer(option, 1, &[])?;
        Ok(true)
    }

    fn answer(&mut self, option: u32, kind: u32, data: &[u8]) -> Result<()> {
        let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes)
    }

    /// False when the client says goodbye.
    fn request(&mut self, reads: &mut u64) -> Result<bool> {
        let header: [u8; 28] = self.take()?;
        let kind = u16::from_be_bytes([header[6], header[7]]);
        let cookie = &header[8..16];
        let offset = u64::from_be_bytes(header[16..24].try_into().unwrap()) as usize;
        let length = u32::from_be_bytes(header[24..28].try_into().unwrap()) as usize;
        if self.flavour == Flavour::Garbage {
            self.stream.write_all(&[0xaa; 64])?;
            return Ok(true);
        }
        match kind {
            0 => {
                *reads += 1;
                let misplaced =
                    self.flavour == Flavour::Misplacing && reads.is_multiple_of(100) && offset >= length;
                let from = if misplaced { offset - length } else { offset };
                let data = self.memory.lock().unwrap()[from..from + length].to_vec();
                self.reply_read(cookie, offset as u64, &data)?;
            }
            1 => {
                let mut data = vec![0; length];
                self.stream.read_exact(&mut data)?;
                self.memory.lock().unwrap()[offset..offset + length].copy_from_slice(&data);
                self.reply(cookie, if self.flavour == Flavour::Failing { 5 } else { 0 })?;
            }
            2 => return Ok(false),
            _ => self.reply(cookie, 0)?,
        }
        Ok(true)
    }

    fn reply(&mut self, cookie: &[u8], errno: u32) -> Result<()> {
        let mut bytes = vec![0x67, 0x44, 0x66, 0x98];
        bytes.extend_from_slice(&errno.to_be_bytes());
        bytes.extend_from_slice(cookie);
        self.stream.write_all(&bytes)
    }

    /// Structured: the first half as data, a zero second half as a hole, then a chunk that ends it.
    fn reply_read(&mut self, cookie: &[u8], offset: u64, data: &[u8]) -> Result<()> {
        if !self.structured {
            self.reply(cookie, 0)?;
            return self.stream.write_all(data);
        }
        let (first, second) = data.split_at(data.len() / 2);
        let middle = offset + first.len() as u64;
        self.chunk(cookie, 0, 1, &[&offset.to_be_bytes(), first])?;
        if second.iter().all(|&byte| byte == 0) {
            self.chunk(cookie, 0, 2, &[&middle.to_be_bytes(), &(second.len() as u32).to_be_bytes()])?;
        } else {
            self.chunk(cookie, 0, 1, &[&middle.to_be_bytes(), second])?;
        }
        self.chunk(cookie, 1, 0, &[])
    }

    fn chunk(&mut self, cookie: &[u8], flags: u16, kind: u16, parts: &[&[u8]]) -> Result<()> {
        let payload = parts.concat();
        let mut bytes = vec![0x66, 0x8e, 0x33, 0xef];
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(cookie);
        bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&payload);
        self.stream.write_all(&bytes)
    }
}
