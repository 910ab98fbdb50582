//! Persistent reservations of a block device (SCSI-3, NVMe): the device itself refuses writes of hosts that are not
//! registered.
//!
//! All reservations here are of the type "write exclusive, registrants only": who is registered writes, everybody reads.
//! A host is what the device takes for one: the initiator of SCSI at a port, the host identifier of NVMe. Keys are not
//! zero.

/// A step of the protocol, by the key of the host that takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// Registers this host with `key` in place of the key `instead`; 0 is no registration, on either side. Declined if
    /// another key is registered.
    Register {
        /// The key that is registered until then.
        instead: u64,
        /// The key from then on.
        key: u64,
    },
    /// Registers this host with `key`, whatever key is registered.
    RegisterAnyway {
        /// The key from then on.
        key: u64,
    },
    /// Reserves the device. Declined if it is reserved by another host.
    Reserve {
        /// The key of this host.
        key: u64,
    },
    /// Removes the registrations with the key `other`, takes over a reservation of such a host, and aborts its I/O that
    /// is under way. Declined if `other` is not registered.
    Preempt {
        /// The key of this host.
        key: u64,
        /// The key of the hosts that lose the device.
        other: u64,
    },
    /// Removes all registrations, this host's too, and the reservation.
    Clear {
        /// The key of this host.
        key: u64,
    },
}

impl Reservation {
    /// Returns a verb phrase for messages.
    pub(crate) fn doing(self) -> &'static str {
        match self {
            Reservation::Register { key: 0, .. } => "giving up the registration with the device",
            Reservation::Register { .. } | Reservation::RegisterAnyway { .. } => {
                "registering with the device"
            }
            Reservation::Reserve { .. } => "reserving the device",
            Reservation::Preempt { .. } => "taking over the reservation of the device",
            Reservation::Clear { .. } => "clearing the reservations of the device",
        }
    }
}
