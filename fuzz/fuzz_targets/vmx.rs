//! A configuration: read, written back, read again with its disks on other links.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| drop(vmdk::replay::vmx(file)));
