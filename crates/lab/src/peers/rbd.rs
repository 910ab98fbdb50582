//! Ceph's RBD: a disk of objects, each of which BlueStore clones in its metadata at the first write after a snapshot.
//!
//! One device stands for that of each replica: the replicas work at the same time, and so equally fast.

mod kv;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use blk::sync::RangeLock;
use blk::{Buf, File, Local, Result, Slice};
use futures_util::future::join_all;

use super::source::{declared, known};
use super::versions::Versions;
use super::vm::{Disk, Vm};
use crate::run::Constant;
use crate::vmware::host::Purpose;
use kv::Kv;

/// What the model leaves out, one sentence each.
pub(super) const LEFT_OUT: [&str; 7] = [
    "processor time of client and OSDs, and the load of other clients",
    "deferred small writes, which BlueStore uses on disks with heads: the model is that of an SSD",
    "RocksDB's compactions, and reads of metadata: all of it is in BlueStore's cache",
    "placement groups on several devices: all objects are on one device",
    "checksums and compression",
    "the client's cache and its journal of mirroring",
    "the exact length of BlueStore's records, which is not documented",
];

/// BlueStore's unit of allocation. Source: Ceph documentation, bluestore_min_alloc_size_ssd and _hdd (since Pacific).
const UNIT_BYTES: u64 = 4096;
/// Length of an object. Source: rbd(8), --object-size.
const OBJECT_BYTES: u64 = 4 << 20;
/// Space of the device, in disks.
const SPACE: u64 = 2;
/// One message to another machine and its answer, microseconds.
const CALL_US: u64 = 100;
/// Messages of a write: the client to the primary OSD, and the primary to its replicas at the same time. Source: Ceph
/// documentation, architecture.
const WRITE_CALLS: u64 = 2;
/// Length of the records of a write in the key-value store.
const RECORD_BYTES: u64 = 1024;
/// Length of the record of one stretch of an object, of which a clone writes all.
const EXTENT_BYTES: u64 = 32;
/// Operations of `rbd snap create` while writes are held back: a snapshot ID of the monitors, the header, the object map.
/// Source: librbd `operation/SnapshotCreateRequest.h`.
const TAKE_OPERATIONS: u64 = 3;
/// Clones that an OSD removes at a time. Source: Ceph documentation, osd_pg_max_concurrent_snap_trims.
const TRIMS: usize = 2;

pub(super) fn constants() -> Vec<Constant> {
    let architecture = "Ceph documentation, architecture: client to primary, primary to replicas";
    let guess = "not documented: of the order of a metadata record";
    vec![
        known("unit of allocation", UNIT_BYTES, "bytes", "Ceph documentation, bluestore_min_alloc_size"),
        known("object", OBJECT_BYTES, "bytes", "rbd(8), --object-size"),
        declared("space", SPACE, "disks", "freed space is used once the device was written once"),
        declared(
            "message and answer",
            CALL_US,
            "us",
            "a datacentre's network with the software of both ends",
        ),
        known("messages of a write", WRITE_CALLS, "", architecture),
        declared("records of a write", RECORD_BYTES, "bytes", guess),
        declared("record of a stretch in a clone", EXTENT_BYTES, "bytes", guess),
        known("operations of a take", TAKE_OPERATIONS, "", "librbd operation/SnapshotCreateRequest.h"),
        known(
            "clones removed at a time",
            TRIMS as u64,
            "",
            "Ceph documentation, osd_pg_max_concurrent_snap_trims",
        ),
    ]
}

pub(super) async fn create(vm: &Rc<Vm>, number: usize, size_bytes: u64) -> Result<Rc<dyn Disk>> {
    let data = vm.create_file(&format!("disk{number}.bluestore")).await?;
    let kv = Kv::create(vm, &format!("disk{number}.rocksdb")).await?;
    Ok(Rc::new(Rbd {
        vm: vm.clone(),
        size_bytes,
        data,
        kv,
        versions: Versions::new(size_bytes / UNIT_BYTES * SPACE),
        writing: RangeLock::default(),
        clones: RefCell::default(),
    }))
}

struct Rbd {
    vm: Rc<Vm>,
    size_bytes: u64,
    data: File,
    kv: Kv,
    versions: Versions,
    /// Units that are read or written: an OSD carries out the requests to an object in order.
    writing: RangeLock,
    /// For each snapshot, the objects that were cloned since it was taken.
    clones: RefCell<Vec<BTreeSet<u64>>>,
}

fn units(range: &Range<u64>) -> Range<u64> {
    range.start / UNIT_BYTES..range.end.div_ceil(UNIT_BYTES)
}

/// Returns the parts of the range that are in one object each.
fn by_object(range: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let (start, end) = (range.start, range.end);
    (start / OBJECT_BYTES..end.div_ceil(OBJECT_BYTES)).map(move |object| {
        let (first, next) = (object * OBJECT_BYTES, (object + 1) * OBJECT_BYTES);
        (object, start.max(first)..end.min(next))
    })
}

impl Rbd {
    /// Reads the units of a range, found by `find`, in as few requests as their places allow.
    async fn read_units(
        &self,
        offset: u64,
        mut buf: Buf,
        find: impl Fn(u64) -> Option<u64>,
    ) -> (Buf, Result<()>) {
        let range = offset..offset + buf.len() as u64;
        let _unchanged = self.writing.lock(units(&range)).await;
        let (mut reads, mut places, mut start) = (Vec::new(), Vec::new(), offset);
        while start < range.end {
            let (unit, first) = (start / UNIT_BYTES, find(start / UNIT_BYTES));
            let object_end = (start / OBJECT_BYTES + 1) * OBJECT_BYTES / UNIT_BYTES;
            let last = units(&range).end.min(object_end);
            let follows = |next: &u64| find(*next) == first.map(|place| place + (next - unit));
            let end = (unit + 1 + (unit + 1..last).take_while(follows).count() as u64) * UNIT_BYTES;
            let end = end.min(range.end);
            let inside = (start - offset) as usize..(end - offset) as usize;
            match first {
                Some(place) => {
                    let (at, part) = (place * UNIT_BYTES + start % UNIT_BYTES, Buf::alloc(inside.len()));
                    reads.push(self.vm.host.read(&self.data, at, part, Purpose::Guest));
                    places.push(inside);
                }
                None => buf[inside].fill(0),
            }
            start = end;
        }
        self.vm.env.sleep_us(CALL_US).await;
        for (inside, (part, result)) in places.into_iter().zip(join_all(reads).await) {
            if result.is_err() {
                return (buf, result);
            }
            buf[inside].copy_from_slice(&part);
        }
        (buf, Ok(()))
    }

    async fn write_object(&self, object: u64, offset: u64, data: Slice) -> Result<()> {
        let range = offset..offset + data.len() as u64;
        let _alone = self.writing.lock(units(&range)).await;
        let mut record_bytes = RECORD_BYTES;
        if self.clones.borrow_mut().last_mut().is_some_and(|clones| clones.insert(object)) {
            // The object map says first that the object changes, then the primary clones it.
            self.vm.env.sleep_us(CALL_US * WRITE_CALLS).await;
            self.kv.commit(&self.vm, &self.data, RECORD_BYTES).await?;
            record_bytes += self.stretches(object) * EXTENT_BYTES;
        }
        self.vm.env.sleep_us(CALL_US * WRITE_CALLS).await;
        let (start, whole) = self.whole_units(&range, data).await?;
        let new: Vec<(u64, u64)> = units(&range).map(|unit| (unit, self.versions.allocate())).collect();
        let writes = runs(&new).map(|run| {
            let at = (new[run.start].0 * UNIT_BYTES - start) as usize;
            let part = whole.slice(at..at + run.len() * UNIT_BYTES as usize);
            self.vm.host.write(&self.data, new[run.start].1 * UNIT_BYTES, part, Purpose::Guest)
        });
        join_all(writes).await.into_iter().collect::<Result<()>>()?;
        self.kv.commit(&self.vm, &self.data, record_bytes).await?;
        for (unit, place) in new {
            self.versions.release(self.versions.replace(unit, place));
        }
        Ok(())
    }

    /// Completes a write to whole units: the rest of the first and of the last one is read.
    async fn whole_units(&self, range: &Range<u64>, data: Slice) -> Result<(u64, Slice)> {
        let (start, end) = (units(range).start * UNIT_BYTES, units(range).end * UNIT_BYTES);
        if (start, end) == (range.start, range.end) {
            return Ok((start, data));
        }
        let mut whole = Buf::zeroed((end - start) as usize);
        let mut edges = vec![start, end - UNIT_BYTES];
        edges.dedup();
        for edge in edges {
            let Some(place) = self.versions.find(edge / UNIT_BYTES) else { continue };
            let (unit, at) = (Buf::alloc(UNIT_BYTES as usize), place * UNIT_BYTES);
            let (unit, result) = self.vm.host.read(&self.data, at, unit, Purpose::Guest).await;
            result?;
            whole[(edge - start) as usize..][..unit.len()].copy_from_slice(&unit);
        }
        whole[(range.start - start) as usize..][..data.len()].copy_from_slice(&data);
        Ok((start, whole.freeze()))
    }

    /// Returns the number of stretches of an object that are contiguous on the device.
    fn stretches(&self, object: u64) -> u64 {
        let all = units(&(object * OBJECT_BYTES..(object + 1) * OBJECT_BYTES));
        let mut follows = None;
        let new = all.filter_map(|unit| self.versions.find(unit)).filter(|place| {
            let is_new = follows != Some(*place);
            follows = Some(place + 1);
            is_new
        });
        new.count() as u64
    }

    /// Removes the clones of a removed snapshot, some at a time.
    async fn trim(&self, clones: BTreeSet<u64>, places: Vec<u64>) -> Result<()> {
        let clones: Vec<u64> = clones.into_iter().collect();
        for some in clones.chunks(TRIMS) {
            self.vm.check_stopping()?;
            self.vm.env.sleep_us(CALL_US).await;
            let trims = some.iter().map(|_| self.kv.commit(&self.vm, &self.data, RECORD_BYTES));
            join_all(trims).await.into_iter().collect::<Result<()>>()?;
        }
        self.versions.release(places);
        Ok(())
    }
}

/// Returns the ranges of `new` whose places follow each other.
fn runs(new: &[(u64, u64)]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let first = new.get(start)?.1;
        let len = (0..).zip(&new[start..]).take_while(|(n, (_, place))| *place == first + n).count();
        start += len;
        Some(start - len..start)
    })
}

impl Disk for Rbd {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)> {
        Box::pin(self.read_units(offset, buf, |unit| self.versions.find(unit)))
    }

    fn write(&self, offset: u64, data: Slice) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let range = offset..offset + data.len() as u64;
            let writes = by_object(&range).map(|(object, part)| {
                let inside = (part.start - offset) as usize..(part.end - offset) as usize;
                self.write_object(object, part.start, data.slice(inside))
            });
            join_all(writes).await.into_iter().collect()
        })
    }

    /// Every write is durable when it ends.
    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn take(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            for _ in 0..TAKE_OPERATIONS {
                self.vm.env.sleep_us(CALL_US * WRITE_CALLS).await;
                self.kv.commit(&self.vm, &self.data, RECORD_BYTES).await?;
            }
            self.versions.take();
            self.clones.borrow_mut().push(BTreeSet::new());
            Ok(())
        })
    }

    /// Removes the snapshot, and waits until its clones are removed as well. `rbd snap rm` does not wait for that.
    fn commit(&self, number: usize) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.vm.env.sleep_us(CALL_US * WRITE_CALLS).await;
            self.kv.commit(&self.vm, &self.data, RECORD_BYTES).await?;
            let clones = self.clones.borrow_mut().remove(number);
            let places = self.versions.remove(number);
            self.trim(clones, places).await
        })
    }

    fn read_frozen(&self, number: usize, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)> {
        Box::pin(self.read_units(offset, buf, move |unit| self.versions.find_in(number, unit)))
    }
}

#[cfg(test)]
mod tests {
    use super::{OBJECT_BYTES, runs};
    use crate::peers::Kind;
    use crate::peers::tests::{commit, counted, read, write};

    #[test]
    fn a_first_write_clones_the_metadata_of_its_object_only() {
        counted(Kind::Rbd, |vm| async move {
            write(&vm, 0, 1 << 20).await;
            let plain = write(&vm, 0, 4096).await;
            assert_eq!((plain.reads, plain.writes, plain.table_writes), (0, 2, 1));
            vm.take("s").await.unwrap();
            let first = write(&vm, 8192, 4096).await;
            assert_eq!(
                (first.reads, first.writes, first.table_writes),
                (0, 3, 2),
                "the object map, the write"
            );
            assert_eq!(write(&vm, 16384, 4096).await.writes, 2, "the object was cloned");
            assert_eq!(write(&vm, OBJECT_BYTES, 4096).await.writes, 3, "another object");
            assert_eq!(read(&vm, 0, 64 << 10).await.reads, 6, "the disk is in pieces now");
            let removed = commit(&vm, "s").await;
            assert_eq!((removed.read_bytes, removed.table_writes), (0, 3), "the header, and two clones");
        });
    }

    #[test]
    fn runs_are_places_in_a_row() {
        let all: Vec<_> = runs(&[(1, 5), (2, 6), (3, 9), (4, 10), (5, 2)]).collect();
        assert_eq!(all, [0..2, 2..4, 4..5]);
    }
}
