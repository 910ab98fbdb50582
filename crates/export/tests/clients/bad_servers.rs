//! The client against servers that hang up, keep silent, or accept nothing.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

use blk::ErrorKind;
use export::nbd::proto::*;
use export::nbd_client;

use crate::client::{read, run, serve};

fn uri(path: &Path) -> String {
    format!("nbd+unix:///disk?socket={}", path.display())
}

/// Bytes of a server without structured replies, up to the transmission phase.
fn negotiation() -> Vec<u8> {
    let reply = |option: u32, kind: u32, payload: &[u8]| {
        let words = [option, kind, payload.len() as u32].map(u32::to_be_bytes).concat();
        [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &words, payload].concat()
    };
    let flags = TRANSMIT_HAS_FLAGS | TRANSMIT_READ_ONLY;
    let info = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &flags.to_be_bytes()].concat();
    [
        &GREETING_MAGIC.to_be_bytes()[..],
        &OPTION_MAGIC.to_be_bytes(),
        &(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes(),
        &reply(OPT_STRUCTURED_REPLY, REP_ERR_UNSUP, &[]),
        &reply(OPT_GO, REP_INFO, &info),
        &reply(OPT_GO, REP_ACK, &[]),
    ]
    .concat()
}

/// Sends each part to one client after the other, and closes the connection when the client has sent `await_bytes`.
fn play(listener: UnixListener, parts: Vec<Vec<u8>>, await_bytes: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for part in parts {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(&part);
            let _ = stream.read_exact(&mut vec![0; await_bytes]);
        }
    })
}

#[test]
fn a_server_may_hang_up_at_each_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let whole = negotiation();
    let parts = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    let server = play(UnixListener::bind(&path).unwrap(), parts, 0);
    for len in 0..whole.len() {
        let error = nbd_client::connect(&uri(&path)).unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.place == uri(&path), "{len} bytes: {error}");
    }
    server.join().unwrap();
}

#[test]
fn garbage_in_the_transmission_phase_breaks_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut bytes = negotiation();
    bytes.extend(b"garbage instead of a reply");
    // Client flags, STRUCTURED_REPLY, GO for "disk" with two kinds of information, and the first request.
    let sent = 4 + 16 + 16 + 4 + 4 + 6 + REQUEST_BYTES;
    let server = play(UnixListener::bind(&path).unwrap(), vec![bytes], sent);
    let uri = uri(&path);
    run(async move |env| {
        let volume = serve(&env, &uri);
        let error = read(&volume, 0, 4096).await.unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.place == uri, "{error}");
        assert!(error.cause.contains("begins with 0x67617262"), "{error}");
        assert_eq!(volume.broken(), Some(error));
    });
    server.join().unwrap();
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let error = nbd_client::connect(&uri(&path)).unwrap_err();
    assert!(error.to_string().contains("connecting: No such file"), "{error}");
    drop(UnixListener::bind(&path).unwrap());
    assert!(nbd_client::connect(&uri(&path)).unwrap_err().cause.contains("refused"));
    assert!(nbd_client::connect("nbd://127.0.0.1:1/x").unwrap_err().cause.contains("refused"));
}
