//! The body of a request to the REST API; the first byte chooses the route.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(unstun::rest::body::replay(input)));
