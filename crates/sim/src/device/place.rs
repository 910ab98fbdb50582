//! Placement of files on the devices.
//!
//! Space is allocated in extents, in the order of their first use: by a read, a write, a reservation, or a change of
//! length. A file keeps an extent until it is removed. Only distances between addresses matter: if a device is smaller
//! than its content, addresses wrap around to its start.

use std::collections::BTreeSet;

/// Places files and folders whose name contains `part` on a unit, from an address on. The content of such a folder is
/// placed with it, unless a rule of its own applies. The first matching rule applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub part: String,
    /// Number in `Storage::units`.
    pub unit: u32,
    /// First byte of its extents: the distance to other files.
    pub from_bytes: u64,
}

/// Where a file's extents are allocated. 0: unit 0 from its start, for files without a rule.
pub(crate) type ZoneId = u16;

/// Larger reservations are placed at the first use: 4 Mi extents of 1 MiB take 16 MiB to record.
const RESERVED_BYTES_MAX: u64 = 4 << 40;

/// An extent of a file that was not used yet.
const NOWHERE: u32 = u32::MAX;

/// Extents of a file: the n-th number is the address of its n-th extent.
#[derive(Default)]
pub(crate) struct Layout(Vec<u32>);

struct Zone {
    unit: u32,
    next: u32,
    /// Freed extents, lowest first.
    free: BTreeSet<u32>,
}

/// A contiguous range of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub unit: u32,
    pub at: u64,
    pub len: u64,
}

pub(crate) struct Placement {
    extent_bytes: u64,
    places: Vec<Place>,
    zones: Vec<Zone>,
}

impl Placement {
    pub(crate) fn new(extent_bytes: u64, places: &[Place]) -> Placement {
        assert!(extent_bytes > 0, "an extent has bytes");
        let zone = |unit, from_bytes: u64| Zone {
            unit,
            next: u32::try_from(from_bytes / extent_bytes).expect("fewer than 2^32 extents on a unit"),
            free: BTreeSet::new(),
        };
        let named = places.iter().map(|place| zone(place.unit, place.from_bytes));
        Placement {
            extent_bytes,
            places: places.to_vec(),
            zones: [zone(0, 0)].into_iter().chain(named).collect(),
        }
    }

    /// Returns the zone of a new file or folder in a folder of zone `parent`.
    pub(crate) fn zone(&self, name: &str, parent: ZoneId) -> ZoneId {
        let named = self.places.iter().position(|place| name.contains(place.part.as_str()));
        named.map_or(parent, |rule| rule as ZoneId + 1)
    }

    pub(crate) fn unit(&self, zone: ZoneId) -> u32 {
        self.zones[zone as usize].unit
    }

    /// Returns the location of a file's range, in order. Contiguous ranges are merged.
    pub(crate) fn locate(
        &mut self,
        zone: ZoneId,
        layout: &mut Layout,
        offset: u64,
        len: u64,
        out: &mut Vec<Piece>,
    ) {
        let zone = &mut self.zones[zone as usize];
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (number, skip) = ((at / self.extent_bytes) as usize, at % self.extent_bytes);
            let part = (self.extent_bytes - skip).min(end - at);
            let place = u64::from(layout.touch(number, zone)) * self.extent_bytes + skip;
            match out.last_mut() {
                Some(last) if last.at + last.len == place => last.len += part,
                _ => out.push(Piece { unit: zone.unit, at: place, len: part }),
            }
            at += part;
        }
    }

    /// Places the extents of a range before its first read or write.
    pub(crate) fn reserve(&mut self, zone: ZoneId, layout: &mut Layout, offset: u64, len: u64) {
        let zone = &mut self.zones[zone as usize];
        let end = offset.saturating_add(len).min(RESERVED_BYTES_MAX);
        for number in offset / self.extent_bytes..end.div_ceil(self.extent_bytes) {
            layout.touch(number as usize, zone);
        }
    }

    pub(crate) fn give_back(&mut self, zone: ZoneId, layout: &Layout) {
        self.zones[zone as usize].free.extend(layout.0.iter().filter(|&&extent| extent != NOWHERE));
    }
}

impl Layout {
    fn touch(&mut self, number: usize, zone: &mut Zone) -> u32 {
        if let Some(&extent) = self.0.get(number)
            && extent != NOWHERE
        {
            return extent;
        }
        if self.0.len() <= number {
            self.0.resize(number + 1, NOWHERE);
        }
        self.0[number] = zone.free.pop_first().unwrap_or_else(|| {
            let next = zone.next;
            zone.next = next.checked_add(1).filter(|&n| n != NOWHERE).unwrap_or(0);
            next
        });
        self.0[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn located(
        placement: &mut Placement,
        zone: ZoneId,
        layout: &mut Layout,
        at: u64,
        len: u64,
    ) -> Vec<Piece> {
        let mut out = Vec::new();
        placement.locate(zone, layout, at, len, &mut out);
        out
    }

    #[test]
    fn extents_are_in_order_of_first_use() {
        let mut placement = Placement::new(MIB, &[]);
        let (mut a, mut b) = (Layout::default(), Layout::default());
        let unit = 0;
        assert_eq!(located(&mut placement, 0, &mut a, 5 * MIB, 10), [Piece { unit, at: 0, len: 10 }]);
        assert_eq!(located(&mut placement, 0, &mut b, 0, 10), [Piece { unit, at: MIB, len: 10 }]);
        let split = located(&mut placement, 0, &mut a, 4 * MIB - 6, MIB + 12);
        let at = |at, len| Piece { unit, at, len };
        assert_eq!(split, [at(3 * MIB - 6, 6 + MIB), at(0, 6)]);
        placement.give_back(0, &b);
        assert_eq!(located(&mut placement, 0, &mut a, 9 * MIB, 1), [at(MIB, 1)]);
    }

    #[test]
    fn a_reserved_file_is_one_stretch() {
        let mut placement = Placement::new(MIB, &[]);
        let mut layout = Layout::default();
        placement.reserve(0, &mut layout, 0, 64 * MIB);
        assert_eq!(located(&mut placement, 0, &mut layout, 0, 64 * MIB).len(), 1);
    }

    #[test]
    fn rules_select_unit_and_address_and_apply_to_folders() {
        let rule = |part: &str, unit, from_bytes| Place { part: part.into(), unit, from_bytes };
        let mut placement = Placement::new(MIB, &[rule("-delta", 0, 90 << 30), rule("snapshots", 1, 0)]);
        let folder = placement.zone("snapshots", 0);
        assert_eq!(placement.unit(placement.zone("web.vmdk", folder)), 1);
        assert_eq!(placement.unit(placement.zone("web.vmdk", 0)), 0);
        let delta = placement.zone("web-000001-delta.vmdk", 0);
        let found = located(&mut placement, delta, &mut Layout::default(), 0, 512);
        assert_eq!(found, [Piece { unit: 0, at: 90 << 30, len: 512 }]);
    }
}
