//! VMware's formats against QEMU's tools, and against bytes that are no format at all.

mod hostile_bytes;
mod qemu;
mod qemu_repair;
mod support;
