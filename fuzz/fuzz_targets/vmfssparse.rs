//! A whole VMFSsparse delta: header, directory and tables.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| drop(vmdk::replay::vmfssparse(file)));
