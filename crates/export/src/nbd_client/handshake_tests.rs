//! Negotiations with servers that are built field by field, right and wrong.

use super::*;
use crate::nbd_client::replay;

/// A server's side, built field by field.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn greeting(flags: u16) -> Bytes {
        let mut bytes = Vec::new();
        bytes.put_u64(GREETING_MAGIC);
        bytes.put_u64(OPTION_MAGIC);
        bytes.put_u16(flags);
        Bytes(bytes)
    }

    fn reply(mut self, option: u32, kind: u32, payload: &[u8]) -> Bytes {
        self.0.put_u64(OPTION_REPLY_MAGIC);
        self.0.put_u32(option);
        self.0.put_u32(kind);
        self.0.put_u32(payload.len() as u32);
        self.0.extend_from_slice(payload);
        self
    }

    fn context(self, id: u32, name: &str) -> Bytes {
        let payload = [&id.to_be_bytes()[..], name.as_bytes()].concat();
        self.reply(OPT_SET_META_CONTEXT, REP_META_CONTEXT, &payload)
    }

    fn size(self, size_bytes: u64, flags: u16) -> Bytes {
        let payload = [&INFO_EXPORT.to_be_bytes()[..], &size_bytes.to_be_bytes(), &flags.to_be_bytes()];
        self.reply(OPT_GO, REP_INFO, &payload.concat())
    }

    fn blocks(self, sizes: [u32; 3]) -> Bytes {
        let payload = [&INFO_BLOCK_SIZE.to_be_bytes()[..], &sizes.map(u32::to_be_bytes).concat()];
        self.reply(OPT_GO, REP_INFO, &payload.concat())
    }

    fn granted(self) -> Bytes {
        self.reply(OPT_GO, REP_ACK, &[])
    }

    fn result(&self) -> Result<(Export, Vec<u8>)> {
        replay::negotiation(&self.0)
    }

    fn cause(&self) -> String {
        self.result().unwrap_err().cause
    }
}

const BOTH: u16 = FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES;
const FLAGS: u16 = TRANSMIT_HAS_FLAGS | TRANSMIT_FLUSH;

/// A server without structured replies.
fn plain() -> Bytes {
    Bytes::greeting(BOTH).reply(OPT_STRUCTURED_REPLY, REP_ERR_UNSUP, b"no")
}

/// A server with structured replies, before it answers for its contexts.
fn structured() -> Bytes {
    Bytes::greeting(BOTH).reply(OPT_STRUCTURED_REPLY, REP_ACK, &[])
}

/// A server with everything, before the answer to GO.
fn modern() -> Bytes {
    let contexts = structured().context(7, BASE_ALLOCATION).context(9, "x:changes");
    contexts.reply(OPT_SET_META_CONTEXT, REP_ACK, &[])
}

#[test]
fn everything_is_negotiated_with_a_modern_server() {
    let server = modern().size(1 << 30, FLAGS | TRANSMIT_READ_ONLY).blocks([4096, 65536, 1 << 20]);
    let mut server = server.reply(OPT_GO, REP_INFO, b"\0\x02a disk").granted();
    server.0.extend_from_slice(b"next");
    let (export, rest) = server.result().unwrap();
    assert_eq!((export.size_bytes, export.is_read_only(), export.structured), (1 << 30, true, true));
    let sizes = (export.block_bytes_min, export.block_bytes_preferred, export.payload_bytes_max);
    assert_eq!(sizes, (4096, 65536, 1 << 20));
    assert!(export.context_id(BASE_ALLOCATION) == Some(7) && export.has_context("x:changes"));
    assert_eq!((&rest[..], &export.description[..]), (&b"next"[..], "a disk"));
}

#[test]
fn an_old_server_is_read_with_simple_replies_and_without_contexts() {
    let (export, _) = plain().size(4096, FLAGS).granted().result().unwrap();
    assert!(!export.structured && export.contexts.is_empty());
    assert_eq!((export.block_bytes_min, export.payload_bytes_max), (512, 32 << 20));
    let refused = structured().reply(OPT_SET_META_CONTEXT, REP_ERR_UNSUP, b"");
    let (export, _) = refused.size(4096, FLAGS).granted().result().unwrap();
    assert!(export.structured && export.contexts.is_empty());
}

#[test]
fn a_server_without_go_is_asked_by_export_name() {
    for (flags, padding) in [(BOTH, 0), (FLAG_FIXED_NEWSTYLE, EXPORT_NAME_PADDING)] {
        let server = Bytes::greeting(flags).reply(OPT_STRUCTURED_REPLY, REP_ERR_UNSUP, b"");
        let mut server = server.reply(OPT_GO, REP_ERR_UNSUP, b"");
        server.0.put_u64(8192);
        server.0.put_u16(FLAGS);
        server.0.resize(server.0.len() + padding, 0);
        assert_eq!(server.result().unwrap().0.size_bytes, 8192);
        server.0.pop();
        assert!(server.cause().contains("hung up"));
    }
}

#[test]
fn a_server_that_hangs_up_is_an_error_at_each_byte() {
    let whole = modern().size(1 << 20, FLAGS).blocks([512, 4096, 1 << 20]).granted();
    assert!(whole.result().is_ok());
    for len in 0..whole.0.len() {
        let cause = Bytes(whole.0[..len].to_vec()).cause();
        assert!(cause.contains("the server hung up"), "{len} bytes: {cause}");
    }
}

#[test]
fn any_changed_byte_is_an_error_or_another_export() {
    let whole = modern().size(1 << 20, FLAGS).blocks([512, 4096, 1 << 20]).granted();
    for at in 0..whole.0.len() {
        for flip in [1, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed.0[at] ^= flip;
            if let Ok((export, _)) = changed.result() {
                assert!(
                    i64::try_from(export.size_bytes).is_ok() && export.payload_bytes_max > 0,
                    "byte {at}"
                );
            }
        }
    }
}

#[test]
fn refusals_have_their_kinds() {
    for (kind, expected, said) in [
        (REP_ERR_UNKNOWN, ErrorKind::NotFound, "no such export: because"),
        (REP_ERR_POLICY, ErrorKind::Refused, "refuses the export: because"),
        (REP_ERR_TLS_REQD, ErrorKind::Unsupported, "TLS"),
        (REP_ERR_SHUTDOWN, ErrorKind::Io, "shutting down"),
        (REP_ERR_BLOCK_SIZE_REQD, ErrorKind::Io, "0x80000008"),
        (REP_META_CONTEXT, ErrorKind::Io, "GO with 0x4"),
    ] {
        let error = modern().reply(OPT_GO, kind, b"because").result().unwrap_err();
        assert!(error.kind == expected && error.cause.contains(said), "{error:?}");
        assert_eq!(error.place, "replay");
    }
    let early = Bytes::greeting(BOTH).reply(OPT_STRUCTURED_REPLY, REP_ERR_TLS_REQD, b"");
    assert_eq!(early.result().unwrap_err().kind, ErrorKind::Unsupported);
}

#[test]
fn a_server_of_another_protocol_is_named() {
    assert!(Bytes(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()).cause().contains("does not speak NBD"));
    let mut old = Vec::new();
    old.put_u64(GREETING_MAGIC);
    old.put_u64(OLDSTYLE_MAGIC);
    assert!(Bytes(old).cause().contains("oldstyle"));
    assert!(Bytes::greeting(0).cause().contains("fixed newstyle"));
}

#[test]
fn wrong_fields_of_replies_are_errors() {
    let acknowledged = |payload| modern().size(4096, FLAGS).reply(OPT_GO, REP_ACK, payload);
    let twice = structured().context(7, BASE_ALLOCATION).context(8, BASE_ALLOCATION);
    let same_id = structured().context(7, BASE_ALLOCATION).context(7, "x:changes");
    let large = |len: u32| {
        let mut server = modern().reply(OPT_GO, REP_INFO, &[]);
        let end = server.0.len();
        server.0[end - 4..].copy_from_slice(&len.to_be_bytes());
        server
    };
    for (server, said) in [
        (modern().granted(), "without a size"),
        (modern().size(1 << 63, FLAGS).granted(), "2^63-1"),
        (modern().size(4096, TRANSMIT_FLUSH).granted(), "without the first bit"),
        (acknowledged(b"x"), "acknowledgement with 1 bytes"),
        (modern().reply(OPT_GO, REP_INFO, &[0, 0, 1]), "expected 12"),
        (modern().reply(OPT_GO, REP_INFO, &[0, 3, 1]), "expected 14"),
        (modern().reply(OPT_GO, REP_INFO, &[0]), "without a type"),
        (modern().reply(OPT_LIST, REP_ACK, &[]), "a reply to option 3"),
        (twice, "there twice"),
        (same_id, "there twice"),
        (structured().context(1, "qemu:other"), "of its own accord"),
        (structured().reply(OPT_SET_META_CONTEXT, REP_META_CONTEXT, &[0]), "without an ID"),
        (structured().reply(OPT_SET_META_CONTEXT, REP_SERVER, &[]), "SET_META_CONTEXT was answered with 0x2"),
        (Bytes::greeting(BOTH).reply(OPT_STRUCTURED_REPLY, REP_INFO, &[]), "STRUCTURED_REPLY was answered"),
        (large(u32::MAX), "4294967295 bytes"),
        (large(REPLY_BYTES_MAX + 1), "65536 are the most"),
        (large(REPLY_BYTES_MAX), "hung up"),
    ] {
        let cause = server.cause();
        assert!(cause.contains(said), "{cause:?} lacks {said:?}");
    }
}

#[test]
fn replies_to_go_are_counted() {
    let server = (0..=REPLIES_MAX).fold(modern(), |server, _| server.size(4096, FLAGS));
    assert!(server.granted().cause().contains("more than 64 replies"));
}

#[test]
fn block_sizes_are_checked_and_clipped() {
    let sizes = |sizes| {
        let (export, _) = modern().size(1 << 30, FLAGS).blocks(sizes).granted().result()?;
        Ok::<_, Error>((export.block_bytes_min, export.block_bytes_preferred, export.payload_bytes_max))
    };
    assert_eq!(sizes([1, 4096, u32::MAX]).unwrap(), (1, 4096, 32 << 20));
    assert_eq!(sizes([1, 1, 1000]).unwrap(), (1, 4096, 512));
    assert_eq!(sizes([4096, 3, 10_000]).unwrap(), (4096, 4096, 8192));
    assert_eq!(sizes([65536, 65536, 65536]).unwrap(), (65536, 65536, 65536));
    for wrong in
        [[0, 512, 4096], [3, 512, 4096], [131_072, 131_072, 1 << 20], [512, 512, 511], [4096, 4096, 0]]
    {
        assert!(sizes(wrong).is_err(), "{wrong:?}");
    }
}
