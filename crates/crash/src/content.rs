//! Contents of whole disks: reads them from volumes, and compares them.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, ErrorKind};
use engine::Machine;
use sim::oracle::sequence_of;

use crate::watch::print;

/// Content of a whole disk. It is shared, because copies took a third of a campaign's time.
pub type Image = Rc<Vec<u8>>;

/// Longest single read of a whole disk, in bytes.
const READ_BYTES: u64 = 1 << 20;

/// Reads a range in pieces of at most `longest` bytes, one after the other, and passes their offsets and bytes on.
pub async fn read_pieces<V: Volume + ?Sized>(
    volume: &Rc<V>,
    range: Range<u64>,
    longest: u64,
    mut each: impl FnMut(usize, &[u8]),
) -> Result<(), String> {
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(longest);
        let (buf, result) = volume.clone().read(at, Buf::alloc(len as usize)).await;
        result.map_err(|e| format!("reading {len} bytes at {at}: {e}"))?;
        each(at as usize, &buf);
        at += len;
    }
    Ok(())
}

pub async fn read_all<V: Volume + ?Sized>(volume: &Rc<V>) -> Result<Image, String> {
    read_like(volume, None).await
}

/// Reads disks whole, one after the other.
pub async fn contents_of<V: Volume>(disks: &[Rc<V>]) -> Result<Vec<Image>, String> {
    let mut contents = Vec::new();
    for (n, disk) in disks.iter().enumerate() {
        contents.push(read_all(disk).await.map_err(|e| format!("disk {n}: {e}"))?);
    }
    Ok(contents)
}

/// Reads a whole disk. Returns the image `known` itself if the disk has that content.
async fn read_like<V: Volume + ?Sized>(volume: &Rc<V>, known: Option<&Image>) -> Result<Image, String> {
    let size_bytes = volume.info().size_bytes;
    let mut same = known.filter(|known| known.len() as u64 == size_bytes);
    let mut bytes = Vec::with_capacity(if same.is_some() { 0 } else { size_bytes as usize });
    read_pieces(volume, 0..size_bytes, READ_BYTES, |at, piece| {
        if let Some(known) = same.filter(|known| known[at..][..piece.len()] != *piece) {
            bytes.extend_from_slice(&known[..at]);
            same = None;
        }
        if same.is_none() {
            bytes.extend_from_slice(piece);
        }
    })
    .await?;
    Ok(same.cloned().unwrap_or_else(|| Rc::new(bytes)))
}

/// Reads the disks of a snapshot; `known` is what they showed before, in the same order. Returns None if the snapshot
/// cannot be opened, because it is not there or a commit of it is under way.
pub async fn look(
    vm: &dyn Machine,
    snapshot: &str,
    numbers: &[u32],
    known: Option<&[Image]>,
) -> Result<Option<Vec<Image>>, String> {
    let mut seen = Vec::new();
    for (n, number) in numbers.iter().enumerate() {
        let fail = |e: String| format!("snapshot {snapshot} disk{number}: {e}");
        let (disk, _view) = match vm.open_view(snapshot, *number, "oracle").await {
            Ok(opened) => opened,
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::Refused) => {
                print(|| format!("no look at snapshot {snapshot}: {e}"));
                return Ok(None);
            }
            Err(e) => return Err(fail(e.to_string())),
        };
        seen.push(read_like(&disk, known.map(|known| &known[n])).await.map_err(fail)?);
    }
    Ok(Some(seen))
}

/// Describes the first sector that differs.
pub fn difference(first: &[Image], seen: &[Image]) -> String {
    for (disk, (a, b)) in first.iter().zip(seen).enumerate() {
        let at = a.chunks(512).zip(b.chunks(512)).position(|(a, b)| a != b);
        if let Some(sector) = at {
            let of = |bytes: &[u8]| sequence_of(&bytes[sector * 512..][..512], disk as u32, sector as u64);
            return format!("disk {disk} sector {sector} showed {:?} and shows {:?}", of(a), of(b));
        }
    }
    "sizes differ".into()
}
