//! Persistent reservations of a simulated device, of the type "write exclusive, registrants only". They outlast a loss of
//! power, as a registration with APTPL does.

use std::collections::BTreeMap;

use blk::Errno;
use blk::reactor::{Op, Reservation};

use crate::dir::NodeId;

/// The number of a machine; 0 is the only one of a world that has one.
pub(crate) type HostNumber = u64;

/// Registrations with one device.
#[derive(Debug, Default)]
struct Device {
    keys: BTreeMap<HostNumber, u64>,
    holder: Option<HostNumber>,
}

impl Device {
    /// Returns the hosts whose I/O the device aborts.
    fn take(&mut self, host: HostNumber, step: Reservation) -> Result<Vec<HostNumber>, Errno> {
        let own = self.keys.get(&host).copied().unwrap_or(0);
        match step {
            Reservation::Register { instead, .. } if instead != own => Err(Errno::EBADE),
            Reservation::Register { key, .. } | Reservation::RegisterAnyway { key } => {
                self.register(host, key);
                Ok(Vec::new())
            }
            Reservation::Reserve { key } | Reservation::Preempt { key, .. } | Reservation::Clear { key }
                if key == 0 || key != own =>
            {
                Err(Errno::EBADE)
            }
            Reservation::Reserve { .. } => match *self.holder.get_or_insert(host) == host {
                true => Ok(Vec::new()),
                false => Err(Errno::EBADE),
            },
            Reservation::Preempt { other, .. } => self.preempt(host, other),
            Reservation::Clear { .. } => {
                *self = Device::default();
                Ok(Vec::new())
            }
        }
    }

    fn register(&mut self, host: HostNumber, key: u64) {
        match key {
            0 => {
                self.keys.remove(&host);
                self.holder.take_if(|holder| *holder == host);
            }
            key => _ = self.keys.insert(host, key),
        }
    }

    fn preempt(&mut self, host: HostNumber, other: u64) -> Result<Vec<HostNumber>, Errno> {
        let is_other = |(at, key): &(&HostNumber, &u64)| **at != host && **key == other;
        let lose: Vec<HostNumber> = self.keys.iter().filter(is_other).map(|(at, _)| *at).collect();
        if lose.is_empty() {
            return Err(Errno::EBADE);
        }
        self.keys.retain(|at, _| !lose.contains(at));
        if self.holder.is_some_and(|holder| lose.contains(&holder)) {
            self.holder = Some(host);
        }
        Ok(lose)
    }

    fn admits(&self, host: HostNumber) -> bool {
        self.holder.is_none() || self.keys.contains_key(&host)
    }
}

/// Registrations with all devices of a world, which are its files.
#[derive(Debug, Default)]
pub(crate) struct Reservations(BTreeMap<NodeId, Device>);

impl Reservations {
    /// Takes a step. Returns the hosts whose I/O on the device is aborted.
    pub(crate) fn take(
        &mut self,
        node: NodeId,
        host: HostNumber,
        step: Reservation,
    ) -> Result<Vec<HostNumber>, Errno> {
        self.0.entry(node).or_default().take(host, step)
    }

    /// Returns whether the device carries out the operation of this host.
    pub(crate) fn admits(&self, node: NodeId, host: HostNumber, op: &Op) -> bool {
        let changes = matches!(
            op,
            Op::Write { .. }
                | Op::Allocate { .. }
                | Op::Zero { .. }
                | Op::GiveBack { .. }
                | Op::SetLen { .. }
        );
        !changes || self.0.get(&node).is_none_or(|device| device.admits(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registrants_write_and_a_preempted_host_does_not() {
        let mut device = Device::default();
        assert!(device.admits(1) && device.admits(2));
        assert_eq!(device.take(1, Reservation::Reserve { key: 5 }), Err(Errno::EBADE), "not registered");
        device.take(1, Reservation::Register { instead: 0, key: 5 }).unwrap();
        device.take(1, Reservation::Reserve { key: 5 }).unwrap();
        assert!(device.admits(1) && !device.admits(2));
        assert_eq!(device.take(1, Reservation::Register { instead: 0, key: 6 }), Err(Errno::EBADE));
        device.take(2, Reservation::Register { instead: 0, key: 7 }).unwrap();
        assert!(device.admits(2), "a registrant writes");
        assert_eq!(device.take(2, Reservation::Reserve { key: 7 }), Err(Errno::EBADE));
        assert_eq!(device.take(2, Reservation::Preempt { key: 7, other: 9 }), Err(Errno::EBADE));
        assert_eq!(device.take(2, Reservation::Preempt { key: 7, other: 5 }), Ok(vec![1]));
        assert!(!device.admits(1) && device.admits(2));
        device.take(2, Reservation::Register { instead: 7, key: 0 }).unwrap();
        assert!(device.admits(1), "the reservation ended with its holder's registration");
    }

    #[test]
    fn who_clears_the_device_opens_it_for_all() {
        let mut device = Device::default();
        for (host, key) in [(1, 5), (2, 7)] {
            device.take(host, Reservation::RegisterAnyway { key }).unwrap();
        }
        device.take(1, Reservation::Reserve { key: 5 }).unwrap();
        device.take(2, Reservation::Clear { key: 7 }).unwrap();
        assert!(device.admits(1) && device.admits(2) && device.keys.is_empty());
    }
}
