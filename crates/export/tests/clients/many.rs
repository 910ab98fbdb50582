//! More connections than the limit: a refused client gets the reason, and the others are not held up.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::raw::Raw;
use crate::support::{MIB, Server};
use export::nbd::Limits;
use export::nbd::proto::*;

const LIMITS: Limits = Limits { memory_bytes: 64 * MIB, connections_max: 100, uncharged: false };
const EXPORTS: [(&str, u64, bool); 2] = [("busy", MIB, false), ("disk", MIB, false)];

#[test]
fn one_listener_leaves_connections_for_the_other() {
    let server = Server::with_limits(&EXPORTS, LIMITS);
    let mut over_tcp: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(server.tcp()).unwrap()).collect();
    // At most 50 of 100 may be TCP connections; each is greeted, or later refused.
    over_tcp.iter_mut().for_each(|stream| {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
    });
    let listed = server.with(|_, front_end| front_end.sessions().len());
    assert_eq!(listed, 50);
    let mut unix = Raw::attach(&server, "disk");
    unix.request(CMD_FLUSH, 0, 1, 0, 0);
    assert_eq!(unix.answer(), (0, 1));
}

#[test]
fn a_refused_client_receives_the_reason() {
    let server = Server::with_limits(&EXPORTS, LIMITS);
    let kept: Vec<Raw> = (0..50).map(|_| Raw::attach(&server, "disk")).collect();
    let mut refused = Raw::connect(&server);
    refused.give(&u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    let (kind, text) = refused.go("busy");
    assert_eq!(kind, REP_ERR_POLICY);
    assert!(text.contains("too many connections: 50 over this listener"), "{text}");
    let causes = server.with(|_, front_end| front_end.failures());
    assert!(
        causes.iter().any(|connection_failure| connection_failure.cause.contains("of at most 100 in all")),
        "{causes:?}"
    );
    drop(kept);
    server.until("they leave", |_, front_end| front_end.sessions().is_empty());
    drop(Raw::attach(&server, "busy"));
}

#[test]
fn one_export_leaves_connections_for_the_others() {
    let server = Server::with_limits(&EXPORTS, LIMITS);
    // Over both listeners, so that the limit of the export applies.
    let _unix: Vec<Raw> = (0..30).map(|_| Raw::attach(&server, "busy")).collect();
    let mut over_tcp = Vec::new();
    while server.with(|_, front_end| front_end.sessions().len()) < 50 {
        let mut stream = TcpStream::connect(server.tcp()).unwrap();
        stream.write_all(&u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes()).unwrap();
        let option =
            [&OPTION_MAGIC.to_be_bytes()[..], &OPT_EXPORT_NAME.to_be_bytes(), &[0, 0, 0, 4], b"busy"];
        stream.write_all(&option.concat()).unwrap();
        stream.read_exact(&mut [0; 28]).unwrap();
        over_tcp.push(stream);
    }
    let mut refused = Raw::connect(&server);
    refused.give(&u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    let (kind, text) = refused.go("busy");
    assert_eq!(kind, REP_ERR_POLICY);
    assert!(text.contains("50 to this export"), "{text}");
    assert_eq!(refused.go("disk").0, REP_ACK);
}
