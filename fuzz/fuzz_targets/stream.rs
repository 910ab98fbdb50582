//! A whole streamOptimized disk: header, footer, the descriptor inside, directories, tables and the first grains.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| drop(vmdk::replay::stream(file)));
