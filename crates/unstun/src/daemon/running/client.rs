//! Clients of VMs: the gate that admits them, their exports, and the volumes that they see.

pub(crate) mod changes;
pub(crate) mod client_gate;
pub(crate) mod client_volume;
pub(crate) mod export_name;
pub(crate) mod exports;
pub(crate) mod front_end;
pub(crate) mod switchable_volume;
pub(crate) mod vhost_sockets;
pub(crate) mod writers;
