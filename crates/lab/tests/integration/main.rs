//! The lab's model of VMware, the honesty of its figures, and one contract for every disk and every home.

mod audit;
mod contracts;
mod esx;
mod frozen;
mod honesty;
mod nbd;
mod nbd_server;
