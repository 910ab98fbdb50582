//! A whole SEsparse delta: headers, directory and tables.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| drop(vmdk::replay::sesparse(file)));
