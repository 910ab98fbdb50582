//! All a client sends before transmission; how the stream is cut must not matter.
#![no_main]

use export::nbd::replay;

/// Odd, so that no field of the protocol ends where a piece does.
const PIECE: usize = 7;

libfuzzer_sys::fuzz_target!(|stream: &[u8]| {
    assert_eq!(replay::negotiate(stream, |left| left), replay::negotiate(stream, |_| PIECE));
});
