//! Clients of VMs: the gate that admits them, their exports, and the volumes that they see.

pub mod client_gate;
pub mod exports;
pub mod front_end;
pub mod switchable_volume;
pub mod writers;
