//! Serves one raw file as a vhost-user-blk device, directly through `blk::File`: the front end without an engine, for
//! measurements and for testing clients.
//!
//!     cargo run --release -p export --example vhostfile -- FILE SOCKET
//!
//! The length of FILE is the disk's size (whole sectors). SOCKET is the path of a Unix socket. Ctrl-C ends it.

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::socket::{Listener, Peer};
use blk::uring::UringReactor;
use blk::volume::{Attachment, ExportEntry, Exports, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Error, Executor, File, Local, Result, SECTOR, Slice};
use export::Resources;
use export::vhost_user::{FrontEnd, Observer, serve};

struct RawDisk {
    file: File,
    info: VolumeInfo,
}

impl Volume for RawDisk {
    fn info(&self) -> VolumeInfo {
        self.info
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move { self.file.read(offset, buf).await })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move { self.file.write(offset, data).await })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move { self.file.flush().await })
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        Box::pin(async move { self.file.zero(range.start, range.end - range.start, true).await })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move { self.file.zero(range.start, range.end - range.start, !mode.no_hole).await })
    }
}

/// Memory of all connections and their requests.
const MEMORY_BYTES: u64 = 512 << 20;

struct Print;

impl Observer for Print {
    fn connection_failed(&self, failure: &export::ConnectionFailure) {
        eprintln!("{}: {}", failure.peer, failure.cause);
    }
}

struct OneExport(Rc<RawDisk>, String);

impl Exports for OneExport {
    fn list(&self) -> Vec<ExportEntry> {
        vec![ExportEntry { name: "disk".to_string(), description: self.1.clone() }]
    }

    fn attach<'a>(&'a self, name: &'a str, _client: &'a Peer) -> Local<'a, Result<Attachment>> {
        Box::pin(async move {
            if name != "disk" {
                return Err(Error::not_found(name, "the only export here is \"disk\""));
            }
            Ok(Attachment { volume: self.0.clone(), changes: None, token: Box::new(()) })
        })
    }
}

async fn open(env: &Env, path: &str) -> Result<RawDisk> {
    let path = Path::new(path);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let dir = env.open_root(&folder.display().to_string())?;
    let file = dir.open(name, OpenMode::Write).await?;
    let size_bytes = file.size().await? / SECTOR * SECTOR;
    let info = VolumeInfo { size_bytes, read_only: false, preferred_bytes: 4096, fast_zero: true };
    Ok(RawDisk { file, info })
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, socket] = &arguments[..] else {
        eprintln!("usage: vhostfile FILE SOCKET");
        std::process::exit(2);
    };
    if let Err(error) = run(file.clone(), socket) {
        eprintln!("vhostfile: {error}");
        std::process::exit(1);
    }
}

fn run(file: String, socket: &str) -> Result<()> {
    let reactor = Rc::new(UringReactor::new()?);
    let handle = reactor.listen_unix(socket)?;
    let executor = Executor::new(reactor);
    let env = executor.env();
    let listener = Listener::new(env.clone(), handle, socket.to_string());
    let outcome = executor.run(async move {
        let disk = open(&env, &file).await?;
        println!("serving {file}, {} bytes, as a vhost-user-blk device", disk.info.size_bytes);
        let front_end = FrontEnd::new(&Resources::new(MEMORY_BYTES), Rc::new(Print));
        let exports: Rc<dyn Exports> = Rc::new(OneExport(Rc::new(disk), file));
        let _serving = serve(&env, listener, &exports, ("disk", "vhostfile"), &front_end);
        std::future::pending::<()>().await;
        Ok(())
    });
    outcome.unwrap_or(Ok(()))
}
