//! A minimal NBD server in memory, with defects: one export of any name, simple replies, blocking threads.

use std::io::{Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    Sound,
    /// Answers every hundredth read with the block before the one asked for.
    Misplacing,
    /// Fails every write with EIO.
    Failing,
    /// Sends garbage in place of the first reply.
    Garbage,
}

pub(crate) struct NbdServer {
    _folder: TempDir,
    socket: PathBuf,
}

impl NbdServer {
    /// The listening thread ends with the test process.
    pub(crate) fn start(size: usize, flavour: Flavour) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nbd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let memory = Arc::new(Mutex::new(vec![0; size]));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, memory) = (stream.unwrap(), Arc::clone(&memory));
                // A client that hangs up ends its thread.
                std::thread::spawn(move || drop(Session { stream, memory, flavour }.run()));
            }
        });
        Self { _folder: folder, socket }
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///demo/disk0?socket={}", self.socket.display())
    }
}

struct Session {
    stream: UnixStream,
    memory: Arc<Mutex<Vec<u8>>>,
    flavour: Flavour,
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
        if option != 7 {
            // NBD_REP_ERR_UNSUP: the client should go on with GO.
            self.answer(option, (1 << 31) + 1, &[])?;
            return Ok(false);
        }
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
                self.reply(cookie, 0)?;
                self.stream.write_all(&data)?;
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
}
