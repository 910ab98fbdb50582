//! Writes a streamOptimized disk ("KDMV", compressed), the form in OVAs: from its first to its last byte, without going back.
//!
//! Facts: reference/vmware-formats section 2.4; docs/formats/stream.md. The header says that the directory is at the end
//! (DIRECTORY_AT_END). Grains follow it in the order of the disk, those of a table and then the table; then the directory, the
//! footer, and the mark of the end. A grain of zeros is left out.

use std::io::Write;

use blk::{Error, Result, SECTOR};
use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::grain::MARKER_BYTES;
use super::header::{
    DEFLATE, DIRECTORY_AT_END, DIRECTORY_MARKER_TYPE, END_MARKER_TYPE, FOOTER_MARKER_TYPE, TABLE_MARKER_TYPE,
};
use crate::descriptor::{ContentId, DISK_SECTORS_MAX, Descriptor, NewStream};
use crate::kdmv::{MAGIC, NEWLINES, field, flag};

/// Bytes of a grain.
pub const GRAIN_BYTES: usize = 64 << 10;
const GRAIN_SECTORS: u64 = GRAIN_BYTES as u64 / SECTOR;
const TABLE_ENTRIES: u64 = 512;
const TABLE_SECTORS: u64 = TABLE_ENTRIES * 4 / SECTOR;
/// Sectors for the descriptor, after the header.
const DESCRIPTOR_SECTORS: u64 = 20;
/// First sector after the metadata at the begin: a whole grain, as VMware's writers have it.
const OVERHEAD_SECTORS: u64 = 128;
/// Version of VMware's writers of streams.
const VERSION: u32 = 3;
const FLAGS: u32 = flag::NEWLINES | flag::COMPRESSED | flag::MARKERS;
const DISK_BYTES_MAX: u64 = DISK_SECTORS_MAX * SECTOR;

/// Compresses a grain, which may be shorter at the end of the disk. None for zeros. Calls for several grains may run side
/// by side.
pub fn compress(grain: &[u8]) -> Option<Vec<u8>> {
    assert!(grain.len() <= GRAIN_BYTES, "{} bytes of a grain", grain.len());
    if grain.iter().all(|byte| *byte == 0) {
        return None;
    }
    let mut out = ZlibEncoder::new(Vec::with_capacity(GRAIN_BYTES / 2), Compression::default());
    let padding = [0; 512];
    let mut rest = GRAIN_BYTES - grain.len();
    out.write_all(grain).expect("memory takes all");
    while rest > 0 {
        let some = rest.min(padding.len());
        out.write_all(&padding[..some]).expect("memory takes all");
        rest -= some;
    }
    Some(out.finish().expect("memory takes all"))
}

/// A disk that is being written. Each call appends its bytes to `out`, which the caller writes to the file in this order.
pub struct StreamWriter {
    file: String,
    capacity_sectors: u64,
    /// Sectors written.
    at: u64,
    /// The table of the present region, and whether it has an entry.
    table: Vec<u32>,
    has_entries: bool,
    /// Number of the next grain; all before it were written or are zeros.
    next: u64,
    directory: Vec<u32>,
}

impl StreamWriter {
    /// Begins a disk of `size_bytes` bytes, a multiple of 512. `file` is its name, for the descriptor and for messages.
    pub fn begin(
        file: &str,
        size_bytes: u64,
        content_id: ContentId,
        out: &mut Vec<u8>,
    ) -> Result<StreamWriter> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR) || size_bytes > DISK_BYTES_MAX {
            let expected = format!("a multiple of {SECTOR} up to {DISK_BYTES_MAX}");
            return Err(Error::invalid(file, format!("a disk of {size_bytes} bytes, expected {expected}")));
        }
        let capacity_sectors = size_bytes / SECTOR;
        let descriptor = NewStream { extent_file: file, capacity_sectors, content_id }.descriptor(file)?;
        out.extend_from_slice(&header(capacity_sectors, DIRECTORY_AT_END));
        append_descriptor(file, &descriptor, out)?;
        out.resize(out.len() + ((OVERHEAD_SECTORS - 1 - DESCRIPTOR_SECTORS) * SECTOR) as usize, 0);
        Ok(StreamWriter {
            file: file.to_owned(),
            capacity_sectors,
            at: OVERHEAD_SECTORS,
            table: vec![0; TABLE_ENTRIES as usize],
            has_entries: false,
            next: 0,
            directory: Vec::new(),
        })
    }

    fn grains(&self) -> u64 {
        self.capacity_sectors.div_ceil(GRAIN_SECTORS)
    }

    /// Appends the next grain, as `compress` has returned it.
    ///
    /// # Errors
    /// `Unsupported`: the file would be larger than its pointers can say.
    pub fn grain(&mut self, compressed: Option<&[u8]>, out: &mut Vec<u8>) -> Result<()> {
        assert!(self.next < self.grains(), "{}: grain {} of {}", self.file, self.next, self.grains());
        if let Some(data) = compressed {
            let place = self.place()?;
            self.table[(self.next % TABLE_ENTRIES) as usize] = place;
            self.has_entries = true;
            out.extend_from_slice(&(self.next * GRAIN_SECTORS).to_le_bytes());
            out.extend_from_slice(&(data.len() as u32).to_le_bytes());
            out.extend_from_slice(data);
            self.pad(MARKER_BYTES + data.len() as u64, out);
        }
        self.next += 1;
        if self.next.is_multiple_of(TABLE_ENTRIES) || self.next == self.grains() {
            self.end_table(out)?;
        }
        Ok(())
    }

    /// Returns the present sector as a pointer.
    fn place(&self) -> Result<u32> {
        u32::try_from(self.at).map_err(|_| {
            let cause = "the compressed disk has more than 2 TiB, which its pointers cannot reach; export it in another format";
            Error::unsupported(&self.file, cause)
        })
    }

    /// Pads what was appended to whole sectors, and counts them.
    fn pad(&mut self, appended: u64, out: &mut Vec<u8>) {
        let whole = appended.next_multiple_of(SECTOR);
        out.resize(out.len() + (whole - appended) as usize, 0);
        self.at += whole / SECTOR;
    }

    fn marker(&mut self, kind: u32, sectors: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&sectors.to_le_bytes());
        out.extend_from_slice(&0_u32.to_le_bytes());
        out.extend_from_slice(&kind.to_le_bytes());
        self.pad(16, out);
    }

    fn end_table(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if !self.has_entries {
            self.directory.push(0);
            return Ok(());
        }
        self.marker(TABLE_MARKER_TYPE, TABLE_SECTORS, out);
        self.directory.push(self.place()?);
        let table = std::mem::replace(&mut self.table, vec![0; TABLE_ENTRIES as usize]);
        self.append(&table, out);
        self.has_entries = false;
        Ok(())
    }

    fn append(&mut self, words: &[u32], out: &mut Vec<u8>) {
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        self.pad(words.len() as u64 * 4, out);
    }

    /// Appends the end of the file. All grains were written.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<()> {
        assert_eq!(self.next, self.grains(), "{}: all grains are written", self.file);
        let directory = std::mem::take(&mut self.directory);
        self.marker(DIRECTORY_MARKER_TYPE, (directory.len() as u64 * 4).div_ceil(SECTOR), out);
        let at = u64::from(self.place()?);
        self.append(&directory, out);
        self.marker(FOOTER_MARKER_TYPE, 1, out);
        out.extend_from_slice(&header(self.capacity_sectors, at));
        self.marker(END_MARKER_TYPE, 0, out);
        Ok(())
    }
}

fn header(capacity_sectors: u64, directory: u64) -> [u8; SECTOR as usize] {
    let mut header = [0; SECTOR as usize];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, MAGIC);
    put(field::VERSION, &VERSION.to_le_bytes());
    put(field::FLAGS, &FLAGS.to_le_bytes());
    put(field::CAPACITY, &capacity_sectors.to_le_bytes());
    put(field::GRAIN, &GRAIN_SECTORS.to_le_bytes());
    put(field::DESCRIPTOR, &1_u64.to_le_bytes());
    put(field::DESCRIPTOR_SECTORS, &DESCRIPTOR_SECTORS.to_le_bytes());
    put(field::TABLE_ENTRIES, &(TABLE_ENTRIES as u32).to_le_bytes());
    put(field::DIRECTORY, &directory.to_le_bytes());
    put(field::OVERHEAD, &OVERHEAD_SECTORS.to_le_bytes());
    put(field::NEWLINES, NEWLINES);
    put(field::COMPRESSION, &DEFLATE.to_le_bytes());
    header
}

fn append_descriptor(file: &str, descriptor: &Descriptor, out: &mut Vec<u8>) -> Result<()> {
    let text = descriptor.to_bytes();
    let room = (DESCRIPTOR_SECTORS * SECTOR) as usize;
    if text.len() >= room {
        let cause =
            format!("a descriptor of {} bytes, expected less than {room}: choose a shorter name", text.len());
        return Err(Error::invalid(file, cause));
    }
    out.extend_from_slice(&text);
    out.resize(out.len() + room - text.len(), 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(size_bytes: u64, byte: impl Fn(u64) -> u8) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer =
            StreamWriter::begin("a.vmdk", size_bytes, ContentId::from_random(7), &mut out).unwrap();
        let mut at = 0;
        while at < size_bytes {
            let len = (size_bytes - at).min(GRAIN_BYTES as u64);
            let grain = vec![byte(at / GRAIN_BYTES as u64); len as usize];
            writer.grain(compress(&grain).as_deref(), &mut out).unwrap();
            at += len;
        }
        writer.finish(&mut out).unwrap();
        out
    }

    #[test]
    fn the_end_has_the_footer_where_readers_look_for_it() {
        let out = written(100 << 20, |grain| if grain % 3 == 0 { 5 } else { 0 });
        assert!(out.len().is_multiple_of(SECTOR as usize));
        let footer = &out[out.len() - 1024..out.len() - 512];
        assert_eq!(&footer[..4], b"KDMV");
        let directory = u64::from_le_bytes(footer[56..64].try_into().unwrap()) as usize * 512;
        let first = u32::from_le_bytes(out[directory..directory + 4].try_into().unwrap()) as usize * 512;
        let grain = u32::from_le_bytes(out[first + 12..first + 16].try_into().unwrap()) as usize * 512;
        assert_eq!(u64::from_le_bytes(out[grain..grain + 8].try_into().unwrap()), 3 * GRAIN_SECTORS);
        assert!(out[out.len() - 512..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_disk_of_zeros_has_no_table_and_wrong_sizes_are_refused() {
        let out = written((40 << 20) + 512, |_| 0);
        assert_eq!(out.len() as u64, (OVERHEAD_SECTORS + 1 + 1 + 1 + 1 + 1) * SECTOR);
        for size in [0, 511, DISK_BYTES_MAX + 512] {
            let begun = StreamWriter::begin("a.vmdk", size, ContentId::from_random(7), &mut Vec::new());
            assert!(begun.is_err_and(|e| e.cause.contains("multiple of 512")), "{size}");
        }
    }
}
