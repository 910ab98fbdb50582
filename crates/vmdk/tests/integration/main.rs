//! VMware's formats against QEMU's tools, and against bytes that do not follow a format.

mod hostile_bytes;
mod qemu;
mod qemu_repair;
mod support;
