//! The client against servers of other projects: qemu-nbd and nbdkit.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use blk::volume::{BlockStatus, Volume};
use blk::{Buf, ErrorKind};
use export::nbd_client;

use crate::client::{read, run, serve};
use crate::support::MIB;

/// A server in a process of its own, on a Unix socket.
struct Other {
    child: Child,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Other {
    /// Starts a server and waits until it listens. `arguments` gets the folder and the socket.
    #[expect(clippy::disallowed_methods, reason = "a test's patience is in real time")]
    fn start(program: &str, arguments: impl FnOnce(&Path, &str) -> Vec<String>) -> Other {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nbd.sock");
        let arguments = arguments(folder.path(), socket.to_str().unwrap());
        let child = Command::new(program).args(&arguments).stdin(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|e| panic!("{program} is needed for this test (apt package): {e}"));
        let mut other = Other { child, socket, _folder: folder };
        let patience = std::time::Instant::now();
        while std::os::unix::net::UnixStream::connect(&other.socket).is_err() {
            assert!(other.child.try_wait().unwrap().is_none(), "{program} {arguments:?} ended");
            assert!(patience.elapsed().as_secs() < 60, "{program} does not listen");
            std::thread::yield_now();
        }
        other
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }
}

fn words(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

fn client(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).status();
    assert!(status.unwrap().success(), "{program} {arguments:?}");
}

/// A qcow2 image of 8 MiB with data in its second and sixth MiB.
fn image(folder: &Path) -> String {
    let path = folder.join("disk.qcow2").to_str().unwrap().to_owned();
    client("qemu-img", &["create", "-q", "-f", "qcow2", &path, "8M"]);
    client("qemu-io", &["-f", "qcow2", "-c", "write -P 0x11 1M 1M", "-c", "write -P 0x55 5M 1M", &path]);
    path
}

fn qemu_nbd() -> Other {
    Other::start("qemu-nbd", |folder, socket| {
        let image = image(folder);
        words(&[
            "--persistent",
            "--read-only",
            "-f",
            "qcow2",
            "-x",
            "web",
            "--shared=0",
            "-k",
            socket,
            &image,
        ])
    })
}

async fn all_of(volume: &std::rc::Rc<nbd_client::NbdVolume>) -> Vec<BlockStatus> {
    let (mut at, mut all) = (0, Vec::<BlockStatus>::new());
    let size = volume.info().size_bytes;
    while at < size {
        for piece in volume.clone().status(at..size).await.unwrap() {
            at += piece.len;
            match all.last_mut() {
                Some(last) if last.zero == piece.zero => last.len += piece.len,
                _ => all.push(piece),
            }
        }
    }
    all
}

#[test]
fn an_image_of_qemu_nbd_is_read_with_its_holes() {
    let server = qemu_nbd();
    let (uri, unknown) = (server.uri("web"), server.uri("other"));
    run(async move |env| {
        let volume = serve(&env, &uri);
        assert!(volume.export().structured && volume.info().read_only);
        assert_eq!(volume.info().size_bytes, 8 * MIB);
        let zero: Vec<(u64, bool)> =
            all_of(&volume).await.iter().map(|piece| (piece.len / MIB, piece.zero)).collect();
        assert_eq!(zero, [(1, true), (1, false), (3, true), (1, false), (2, true)]);
        assert!(read(&volume, MIB, 1 << 20).await.unwrap() == [0x11; 1 << 20]);
        let whole = read(&volume, 0, 8 << 20).await.unwrap();
        assert!(whole[5 << 20..6 << 20] == [0x55; 1 << 20] && whole[..1 << 20] == [0; 1 << 20]);
        let data = Buf::copy_of(&[0; 512]).freeze();
        assert_eq!(volume.clone().write(0, data).await.unwrap_err().kind, ErrorKind::Refused);
        assert_eq!(nbd_client::connect(&unknown).unwrap_err().kind, ErrorKind::NotFound);
    });
}

#[test]
fn a_writable_image_of_qemu_nbd_takes_every_command() {
    let server = Other::start("qemu-nbd", |folder, socket| {
        words(&["--persistent", "-f", "qcow2", "-k", socket, &image(folder)])
    });
    let uri = server.uri("");
    run(async move |env| {
        let volume = serve(&env, &uri);
        volume.clone().write(512, Buf::copy_of(&[9; 1024]).freeze()).await.unwrap();
        volume.clone().write_zeroes(MIB..2 * MIB, blk::volume::ZeroMode::default()).await.unwrap();
        volume.clone().discard(5 * MIB..6 * MIB).await.unwrap();
        volume.clone().flush().await.unwrap();
        assert!(read(&volume, 0, 1536).await.unwrap() == [[0; 512], [9; 512], [9; 512]].concat());
        assert!(read(&volume, MIB, 4096).await.unwrap() == [0; 4096]);
    });
}

fn nbdkit(arguments: &'static [&'static str]) -> Other {
    Other::start("nbdkit", |_, socket| words(&[&["--foreground", "--unix", socket], arguments].concat()))
}

#[test]
fn nbdkit_is_read_in_blocks_of_its_size() {
    let filter = ["--filter=blocksize-policy", "pattern", "8196K", "blocksize-minimum=4096"];
    let sizes = ["blocksize-maximum=64K", "blocksize-preferred=64K", "blocksize-error-policy=error"];
    let arguments: &'static [&'static str] = [filter.as_slice(), &sizes].concat().leak();
    let server = nbdkit(arguments);
    let uri = server.uri("");
    run(async move |env| {
        let volume = serve(&env, &uri);
        assert_eq!((volume.export().block_bytes_min, volume.export().payload_bytes_max), (4096, 64 << 10));
        // The pattern is each word's offset.
        for (offset, len) in [(512, 512), (3584, 1024), (512, 1 << 20), (8388608 + 512, 512)] {
            let content = read(&volume, offset, len).await.unwrap();
            let words = content.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
            assert!(words.eq((offset..offset + len as u64).step_by(8)), "{len} bytes at {offset}");
        }
        let status = volume.clone().status(512..1024).await.unwrap();
        assert_eq!(status.iter().map(|piece| piece.len).sum::<u64>(), 512);
    });
}

#[test]
fn nbdkit_writes_only_whole_blocks_and_knows_old_protocols() {
    let server = nbdkit(&["--filter=blocksize-policy", "memory", "1M", "blocksize-minimum=4096"]);
    let uri = server.uri("");
    run(async move |env| {
        let volume = serve(&env, &uri);
        let error = volume.clone().write(512, Buf::copy_of(&[1; 512]).freeze()).await.unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.cause.contains("multiples of 4096"), "{error}");
        volume.clone().write(4096, Buf::copy_of(&[1; 4096]).freeze()).await.unwrap();
        assert_eq!(read(&volume, 4608, 512).await.unwrap(), [1; 512]);
    });
    let plain = nbdkit(&["--no-sr", "pattern", "1000"]);
    let uri = plain.uri("");
    run(async move |env| {
        let volume = serve(&env, &uri);
        assert!(!volume.export().structured && volume.info().size_bytes == 512);
        assert_eq!(read(&volume, 0, 512).await.unwrap()[504..], 504_u64.to_be_bytes());
        assert_eq!(volume.clone().status(0..512).await.unwrap().len(), 1);
    });
    let old = nbdkit(&["--oldstyle", "null", "1M"]);
    let error = nbd_client::connect(&old.uri("")).unwrap_err();
    assert!(error.kind == ErrorKind::Unsupported && error.cause.contains("oldstyle"), "{error}");
}
