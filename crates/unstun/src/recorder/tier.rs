//! The files of one tier of a series: its intervals, the finest or coarser ones, in segments of which the oldest are removed.
//!
//! A segment that is full is compressed. Nothing decides by these files, so that blocks lost in a crash are a gap in a chart.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use super::encoding::Block;

/// First bytes of a segment.
const MAGIC: &[u8; 8] = b"UNSTREC1";
/// Parts of a tier's time and space that one segment has.
const PARTS: i64 = 4;
/// Maximum number of full segments. It bounds the files of an idle disk, whose segments are small.
const FULL_MAX: usize = 8;
/// Maximum size of a segment when it is read, in bytes.
const SEGMENT_BYTES_MAX: u64 = 256 << 20;
/// Ending of a full segment.
const FULL: &str = "z";

/// Resolution of a tier, and what is kept of it.
pub(super) struct Spec {
    pub name: &'static str,
    pub interval_s: i64,
    /// Time that is kept of a disk.
    pub kept_s: i64,
    /// Maximum number of bytes of each disk.
    pub bytes: u64,
    /// Slots of a block that is written.
    pub block_slots: u32,
}

/// A segment on file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Segment {
    /// Counts up from 1.
    number: u64,
    /// Its first slot.
    begin: i64,
    is_full: bool,
}

/// The segment that blocks are appended to.
struct Open {
    segment: Segment,
    file: File,
    bytes: u64,
}

/// The files of a tier.
pub(super) struct Tier {
    pub spec: &'static Spec,
    folder: PathBuf,
    open: Option<Open>,
}

impl Segment {
    fn name(&self, spec: &Spec) -> String {
        let name = format!("{}.{:06}.{}", spec.name, self.number, self.begin);
        if self.is_full { format!("{name}.{FULL}") } else { name }
    }

    fn parse(name: &str, spec: &Spec) -> Option<Segment> {
        let mut parts = name.split('.');
        if parts.next() != Some(spec.name) {
            return None;
        }
        let (number, begin) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let is_full = match parts.next() {
            None => false,
            Some(FULL) => true,
            Some(_) => return None,
        };
        parts.next().is_none().then_some(Segment { number, begin, is_full })
    }
}

impl Tier {
    pub(super) fn new(spec: &'static Spec, folder: &Path) -> Tier {
        Tier { spec, folder: folder.to_path_buf(), open: None }
    }

    /// Appends a block of a series with so many disks.
    ///
    /// # Errors
    /// Those of the file system. The block is lost then; the next one is tried again.
    pub(super) fn append(&mut self, block: &Block, disks: u64) -> std::io::Result<()> {
        let appended = self.try_append(block, disks);
        if appended.is_err() {
            // The next call cuts off what was written in part.
            self.open = None;
        }
        appended
    }

    fn try_append(&mut self, block: &Block, disks: u64) -> std::io::Result<()> {
        if self.open.is_none() {
            self.open = self.reopen()?;
        }
        let bytes = block.to_bytes();
        let segment_slots = self.spec.kept_s / self.spec.interval_s / PARTS;
        let segment_bytes = self.spec.bytes * disks.max(1) / PARTS.unsigned_abs();
        let fits = |open: &Open| {
            // A clock that went back begins another segment.
            let age = block.begin.saturating_sub(open.segment.begin);
            (0..segment_slots).contains(&age) && open.bytes + bytes.len() as u64 <= segment_bytes
        };
        if !self.open.as_ref().is_some_and(fits) {
            self.begin_segment(block.begin)?;
            self.remove_oldest(self.spec.bytes * disks.max(1))?;
        }
        let open = self.open.as_mut().expect("it was begun");
        open.file.write_all(&bytes)?;
        open.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Opens the last segment again, and cuts off what follows its last whole block.
    fn reopen(&self) -> std::io::Result<Option<Open>> {
        let Some(segment) = self.segments()?.pop().filter(|last| !last.is_full) else { return Ok(None) };
        let bytes = blocks(&self.content(&segment)?, |_| ());
        let path = self.folder.join(segment.name(self.spec));
        if bytes == 0 {
            std::fs::remove_file(path)?;
            return Ok(None);
        }
        let file = OpenOptions::new().append(true).open(path)?;
        file.set_len(bytes)?;
        Ok(Some(Open { segment, file, bytes }))
    }

    fn begin_segment(&mut self, begin: i64) -> std::io::Result<()> {
        let all = self.segments()?;
        for full in all.iter().filter(|segment| !segment.is_full) {
            self.compress(full)?;
        }
        std::fs::create_dir_all(&self.folder)?;
        let segment = Segment { number: all.last().map_or(0, |last| last.number) + 1, begin, is_full: false };
        let path = self.folder.join(segment.name(self.spec));
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(MAGIC)?;
        self.open = Some(Open { segment, file, bytes: MAGIC.len() as u64 });
        Ok(())
    }

    fn compress(&self, segment: &Segment) -> std::io::Result<()> {
        let content = self.content(segment)?;
        let valid = usize::try_from(blocks(&content, |_| ())).expect("it was read into memory");
        let full = Segment { is_full: true, ..segment.clone() };
        let (path, temporary) = (self.folder.join(full.name(self.spec)), self.folder.join("compressing"));
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let mut encoder = DeflateEncoder::new(file, Compression::default());
        encoder.write_all(&content[..valid])?;
        let file = encoder.finish()?;
        // A coarse segment has days: it must not be lost with the power. One of the finest tier is minutes.
        if self.spec.interval_s > 1 {
            file.sync_data()?;
        }
        std::fs::rename(temporary, path)?;
        std::fs::remove_file(self.folder.join(segment.name(self.spec)))
    }

    /// Removes the oldest full segments: beside the open one, three quarters of the space are theirs.
    fn remove_oldest(&self, bytes_max: u64) -> std::io::Result<()> {
        let (mut kept, mut bytes) = (0, 0);
        for segment in self.segments()?.iter().rev().filter(|segment| segment.is_full) {
            let path = self.folder.join(segment.name(self.spec));
            bytes += path.metadata()?.len();
            kept += 1;
            if kept > FULL_MAX || bytes > bytes_max / PARTS.unsigned_abs() * (PARTS.unsigned_abs() - 1) {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Returns the segments, the oldest first. Of a segment that was being compressed at a crash, the whole one counts.
    fn segments(&self) -> std::io::Result<Vec<Segment>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut all = Vec::new();
        for entry in entries {
            all.extend(entry?.file_name().to_str().and_then(|name| Segment::parse(name, self.spec)));
        }
        all.sort();
        all.dedup_by_key(|segment| segment.number);
        Ok(all)
    }

    fn content(&self, segment: &Segment) -> std::io::Result<Vec<u8>> {
        let file = File::open(self.folder.join(segment.name(self.spec)))?;
        let mut content = Vec::new();
        let read = match segment.is_full {
            true => DeflateDecoder::new(file).take(SEGMENT_BYTES_MAX).read_to_end(&mut content),
            false => file.take(SEGMENT_BYTES_MAX).read_to_end(&mut content),
        };
        match read {
            // Of damaged bytes, what comes before the damage is valid.
            Err(e) if !matches!(e.kind(), InvalidInput | InvalidData | UnexpectedEof) => Err(e),
            _ => Ok(content),
        }
    }

    /// Calls `found` with each block that has slots from `from` to before `until`, in the order in which they were written.
    ///
    /// # Errors
    /// Those of the file system. A damaged segment is read up to its damage.
    pub(super) fn read(&self, from: i64, until: i64, mut found: impl FnMut(&Block)) -> std::io::Result<()> {
        let all = self.segments()?;
        for (at, segment) in all.iter().enumerate() {
            // Where the clock went back, a segment may reach further than to the begin of the next.
            let end = all.get(at + 1).map(|next| next.begin).filter(|&next| next >= segment.begin);
            if segment.begin >= until || end.is_some_and(|end| end <= from) {
                continue;
            }
            blocks(&self.content(segment)?, |block| {
                if block.begin < until && block.begin.saturating_add(i64::from(block.slots)) > from {
                    found(block);
                }
            });
        }
        Ok(())
    }
}

/// Calls `found` with the blocks of a segment. Returns the bytes up to the end of the last one; 0 if this is no segment.
fn blocks(content: &[u8], mut found: impl FnMut(&Block)) -> u64 {
    if !content.starts_with(MAGIC) {
        return 0;
    }
    let mut at = MAGIC.len();
    while let Some((block, length)) = Block::parse(&content[at..]) {
        found(&block);
        at += length;
    }
    at as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::activity::Activity;

    const SPEC: Spec = Spec { name: "10s", interval_s: 10, kept_s: 4000, bytes: 40_000, block_slots: 6 };

    fn block(begin: i64, slots: i64) -> Block {
        let mut block = Block::new(begin);
        for slot in begin..begin + slots {
            let activity = Activity { flushes: slot.unsigned_abs() + 1, ..Activity::default() };
            block.add(slot, [(0, &activity)].into_iter());
        }
        block
    }

    /// Returns the first slots of the blocks within a span.
    fn read(tier: &Tier, from: i64, until: i64) -> Vec<i64> {
        let mut found = Vec::new();
        tier.read(from, until, |block| found.push(block.begin)).unwrap();
        found
    }

    fn files(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_time_to_keep_is_kept_and_what_is_older_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut tier = Tier::new(&SPEC, folder.path());
        for begin in (0..10_000).step_by(10) {
            tier.append(&block(begin, 10), 1).unwrap();
            let kept = read(&tier, begin + 10 - 400, begin + 10);
            assert_eq!(kept, (0..=begin).step_by(10).filter(|at| at + 10 > begin - 390).collect::<Vec<_>>());
        }
        let names = files(folder.path());
        assert_eq!(names.len(), FULL_MAX + 1, "{names:?}");
        assert_eq!(names[0], "10s.000092.9100.z");
        assert_eq!(read(&tier, 9150, 9170), [9150, 9160]);
    }

    #[test]
    fn more_space_than_a_disk_has_is_never_used() {
        let folder = tempfile::tempdir().unwrap();
        let spec: &'static Spec = Box::leak(Box::new(Spec { bytes: 4000, ..SPEC }));
        let mut tier = Tier::new(spec, folder.path());
        for begin in (0..4000).step_by(10) {
            tier.append(&block(begin, 10), 1).unwrap();
            let bytes: u64 = files(folder.path())
                .iter()
                .map(|name| folder.path().join(name).metadata().unwrap().len())
                .sum();
            assert!(bytes <= 4000, "{bytes} bytes: {:?}", files(folder.path()));
        }
        assert!(read(&tier, 0, 4000).len() > 10);
    }

    #[test]
    fn a_clock_that_jumps_removes_nothing_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut tier = Tier::new(&SPEC, folder.path());
        for begin in [1000, 50_000_000, 1010, -7, 1020] {
            tier.append(&block(begin, 10), 1).unwrap();
        }
        assert_eq!(read(&tier, i64::MIN, i64::MAX), [1000, 50_000_000, 1010, -7, 1020]);
        assert_eq!(read(&tier, 1000, 1030), [1000, 1010, 1020]);
    }

    #[test]
    fn a_block_that_a_crash_cut_off_is_replaced_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        Tier::new(&SPEC, folder.path()).append(&block(0, 10), 1).unwrap();
        Tier::new(&SPEC, folder.path()).append(&block(10, 10), 1).unwrap();
        let path = folder.path().join("10s.000001.0");
        let whole = path.metadata().unwrap().len();
        OpenOptions::new().append(true).open(&path).unwrap().set_len(whole - 3).unwrap();
        let mut tier = Tier::new(&SPEC, folder.path());
        assert_eq!(read(&tier, 0, 100), [0]);
        tier.append(&block(20, 10), 1).unwrap();
        assert_eq!(read(&tier, 0, 100), [0, 20]);

        // A segment that has no block, and one that was being compressed.
        std::fs::write(folder.path().join("10s.000002.30"), b"UNST").unwrap();
        std::fs::write(folder.path().join("10s.000001.0.z"), b"cut off").unwrap();
        let mut tier = Tier::new(&SPEC, folder.path());
        tier.append(&block(200, 10), 1).unwrap();
        assert_eq!(read(&tier, 0, 300), [0, 20, 200]);
        tier.append(&block(400, 10), 1).unwrap();
        assert_eq!(files(folder.path())[0], "10s.000001.0.z");
        assert_eq!(read(&tier, 0, 500), [0, 20, 200, 400]);
    }
}
