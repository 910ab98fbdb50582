//! What one core owns: the open VMs, their exports, and the clients of those.
//!
//! Nothing here uses the control side of the daemon (datastores, names, homes, jobs, the bin). What the core needs from
//! it, the core requests by a message (`messages.rs`). The control side reaches a VM only through a handle
//! (`cores/vm_handle.rs`).

pub(super) mod client;
pub(super) mod core_change;
pub(super) mod descriptors;
pub(super) mod figures;
pub(super) mod folders;
pub(super) mod home_files;
pub(super) mod kept;
pub(super) mod messages;
pub(super) mod running_vms;
pub(super) mod slow;
pub(super) mod vm;
