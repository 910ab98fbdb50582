//! A list of snapshots: read, written back, read again with one more.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| drop(vmdk::replay::vmsd(file)));
