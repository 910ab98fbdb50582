//! Clients of VMs: the gate that admits them, their exports, and the volumes that they see.

pub(super) mod client_gate;
pub(super) mod exports;
pub(super) mod front_end;
pub(super) mod switchable_volume;
pub(super) mod writers;
