//! All a server sends to the NBD client; how the stream is cut must not matter.
#![no_main]

use export::nbd_client::replay;

/// Odd, so that no field of the protocol ends where a piece does.
const PIECE: usize = 7;

libfuzzer_sys::fuzz_target!(|stream: &[u8]| {
    if let Ok((export, rest)) = replay::negotiation(stream) {
        let whole = replay::transmission(&export, &rest, usize::MAX);
        assert_eq!(whole, replay::transmission(&export, &rest, PIECE));
    }
});
