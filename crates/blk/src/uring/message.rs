//! Headers of messages over sockets: gathered sends, and messages that carry descriptors.
//!
//! A header points into heap memory that its owner keeps, so moving the owner moves no byte that the kernel may use.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::buf::Slice;
use crate::passed::Descriptor;

/// IOV_MAX of Linux; more parts than that are sent by the next call.
const SEND_PARTS_MAX: usize = 1024;
/// Descriptors that one receive accepts. The kernel closes any further ones. The messages of known protocols carry at
/// most eight.
pub(super) const DESCRIPTORS_MAX: usize = 8;
/// Space for the header of a control message and its descriptors, in units of 8 bytes, which align it.
const CONTROL_WORDS: usize = 8;

const _: () = assert!(size_of::<libc::cmsghdr>() + DESCRIPTORS_MAX * size_of::<i32>() <= CONTROL_WORDS * 8);

/// Header, vectors and control data of one message.
pub(super) struct Message {
    header: libc::msghdr,
    vectors: Vec<libc::iovec>,
    control: [u64; CONTROL_WORDS],
}

impl Message {
    fn new(vectors: Vec<libc::iovec>) -> Box<Message> {
        // SAFETY: msghdr is plain C data of integers and pointers; all zeros is its empty value.
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        let mut message = Box::new(Message { header, vectors, control: [0; CONTROL_WORDS] });
        message.header.msg_iov = message.vectors.as_mut_ptr();
        message.header.msg_iovlen = message.vectors.len();
        message
    }

    /// Returns the message of a send. The parts must live as long as the message is used.
    pub(super) fn of_parts(parts: &[Slice]) -> Box<Message> {
        let vector = |p: &Slice| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() };
        Message::new(parts.iter().take(SEND_PARTS_MAX).map(vector).collect())
    }

    /// Returns the message of a send that carries one descriptor.
    pub(super) fn with_descriptor(parts: &[Slice], fd: &Descriptor) -> Box<Message> {
        let mut message = Message::of_parts(parts);
        message.header.msg_control = message.control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE and CMSG_LEN only calculate. The control data is aligned, zeroed, and larger than one
        // header with one descriptor, so CMSG_FIRSTHDR points into it, and so do the writes.
        unsafe {
            message.header.msg_controllen = libc::CMSG_SPACE(size_of::<i32>() as u32) as usize;
            let control = libc::CMSG_FIRSTHDR(&raw const message.header);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
            libc::CMSG_DATA(control).cast::<i32>().write_unaligned(fd.as_raw_fd());
        }
        message
    }

    /// Returns the message of a receive into `bytes`, which must live as long as the message is used.
    pub(super) fn receiving(bytes: &mut [u8]) -> Box<Message> {
        let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut message = Message::new(vec![vector]);
        message.header.msg_control = message.control.as_mut_ptr().cast();
        message.header.msg_controllen = size_of_val(&message.control);
        message
    }

    pub(super) fn header(&mut self) -> &mut libc::msghdr {
        &mut self.header
    }

    /// Takes ownership of the descriptors that a completed receive has brought. Called once for each receive.
    pub(super) fn take_descriptors(&mut self) -> Vec<Descriptor> {
        let mut found = Vec::new();
        // SAFETY: the kernel has filled the control data and set its length, so the macros stay inside it. Each
        // descriptor in an SCM_RIGHTS message was created for this process and is named once; the length is cleared
        // afterwards, so that none is taken twice.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(&raw const self.header);
            while !control.is_null() {
                let is_rights =
                    (*control).cmsg_level == libc::SOL_SOCKET && (*control).cmsg_type == libc::SCM_RIGHTS;
                if is_rights {
                    let bytes = (*control).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                    let data = libc::CMSG_DATA(control).cast::<i32>();
                    for at in 0..bytes / size_of::<i32>() {
                        let fd = OwnedFd::from_raw_fd(data.add(at).read_unaligned());
                        found.push(Descriptor::from(fd));
                    }
                }
                control = libc::CMSG_NXTHDR(&raw const self.header, control);
            }
        }
        self.header.msg_controllen = 0;
        found
    }
}
