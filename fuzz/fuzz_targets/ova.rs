//! A whole OVA: the headers of the tar, the OVF descriptor and the manifest.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| drop(vmdk::replay::ova(file)));
