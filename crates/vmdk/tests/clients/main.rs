//! Chains of VMware's formats, read and written by QEMU and by unstun.

mod chains;
mod hosted_images;
#[path = "../../src/sesparse/testing.rs"]
#[allow(dead_code)]
mod sesparse;
mod sesparse_images;
mod stream_images;
#[path = "../../src/stream/testing.rs"]
#[allow(dead_code)]
mod stream_writer;
#[path = "../integration/support/mod.rs"]
mod support;
mod written_streams;
