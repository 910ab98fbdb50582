//! All a client sends in the transmission phase; how the stream is cut must not matter.
#![no_main]

use export::nbd::replay;

/// Odd, so that no field of the protocol ends where a piece does.
const PIECE: usize = 7;

libfuzzer_sys::fuzz_target!(|stream: &[u8]| {
    let whole = replay::transmit(replay::terms(), stream, |left| left);
    assert_eq!(whole, replay::transmit(replay::terms(), stream, |_| PIECE));
});
