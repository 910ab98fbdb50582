//! A vhost-user client's messages and a guest's ring of arbitrary bytes; decoding them twice gives the same result.
#![no_main]

use export::vhost_user::replay;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert_eq!(replay::messages(bytes), replay::messages(bytes));
    assert_eq!(replay::ring(bytes), replay::ring(bytes));
});
