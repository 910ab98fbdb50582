//! A whole hosted sparse extent: header, the descriptor inside, directories and tables.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| drop(vmdk::replay::hosted(file)));
