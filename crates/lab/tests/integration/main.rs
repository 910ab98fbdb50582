//! The lab's model of VMware, the honesty of its figures, and one contract for every disk and every home.

mod contracts;
mod esx;
mod honesty;
mod nbd;
mod nbd_server;
