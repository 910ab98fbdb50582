//! A text descriptor: read, written back, edited, read again.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| drop(vmdk::replay::descriptor(file)));
