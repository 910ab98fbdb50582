//! The file with a guest's memory at a snapshot: a frame that readers of LZ4 skip, with what is known of the memory, and a
//! frame with QEMU's migration stream. `lz4 -dc` reads it too. `docs/formats/vmdk.md` describes it ("Memory of a guest").

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use api::Disk;
use api::listen::NbdListen;
use api::name::VmName;
use blk::dir::TEMPORARY_SUFFIX;
use lz4_flex::frame::{BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use serde::{Deserialize, Serialize};

/// First number of a frame that readers skip ("LZ4 Frame Format Description", "Skippable Frames").
const SKIPPED: u32 = 0x184D_2A50;
const PREFIX: &str = "memory-";
const SUFFIX: &str = ".lz4";
/// Maximum length of the text in the first frame. Linux's own limit on a command line is 2 MiB.
const HEADER_BYTES_MAX: u32 = 4 << 20;
const COPIED_BYTES: usize = 1 << 20;

/// The text in the first frame, JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryHeader {
    pub vm: VmName,
    /// Id of the snapshot, as the API shows it.
    pub snapshot: String,
    pub ram_bytes: u64,
    /// Version of the QEMU that wrote the stream.
    pub qemu: String,
    /// Whether the stream has the guest as one that is paused, so that QEMU loads it and does not run it.
    #[serde(default)]
    pub paused: bool,
    /// That QEMU's command line.
    #[serde(default)]
    pub command_line: Vec<String>,
    /// The VM's disks by the names that the command line may have.
    #[serde(default)]
    pub disks: Vec<SavedDisk>,
}

/// Names of a disk when the guest's memory was saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedDisk {
    pub number: u32,
    pub nbd_uri: String,
    pub vhost_user_socket: Option<PathBuf>,
}

impl SavedDisk {
    /// Returns whether the name of QEMU's for an open file, a URI or JSON, has the disk's export, in any generation.
    pub(super) fn is_named_in(&self, file: &str) -> bool {
        let is_nbd = file.starts_with("nbd") || (file.starts_with("json:") && file.contains("\"nbd\""));
        let Some((_, export)) = NbdListen::parse_uri(&self.nbd_uri).ok().filter(|_| is_nbd) else {
            return false;
        };
        let stem = export.rsplit_once(".g").map_or(export.as_str(), |(stem, _)| stem);
        file.match_indices(stem).any(|(at, _)| {
            let begins = file[..at].chars().next_back().is_none_or(|c| "/\"".contains(c));
            let behind = file[at + stem.len()..].chars().next();
            begins && behind.is_none_or(|c| ".?\"".contains(c))
        })
    }
}

impl From<&Disk> for SavedDisk {
    fn from(disk: &Disk) -> Self {
        SavedDisk {
            number: disk.number,
            nbd_uri: disk.nbd_uri.clone(),
            vhost_user_socket: disk.vhost_user_socket.clone(),
        }
    }
}

/// Lengths of the files of a VM, by the snapshot's id.
pub(crate) type MemoryFiles = BTreeMap<u128, u64>;

/// Where the memory at a snapshot is.
#[derive(Debug, Clone)]
pub(crate) struct MemoryFile {
    /// The `.unstun` folder of the VM's home.
    pub folder: PathBuf,
    pub snapshot: u128,
}

/// Lengths of a complete file and of the stream in it.
pub(super) struct Written {
    pub stream_bytes: u64,
    pub stored_bytes: u64,
}

impl MemoryFile {
    pub(crate) fn name(&self) -> String {
        format!("{PREFIX}{:032x}{SUFFIX}", self.snapshot)
    }

    /// Returns the snapshot of a file with this name; None for other files.
    pub(crate) fn snapshot_of(name: &str) -> Option<u128> {
        let id = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        (id.len() == 32).then(|| u128::from_str_radix(id, 16).ok())?
    }

    /// Returns whether a file of this name was being written when a daemon ended.
    pub(crate) fn is_unfinished(name: &str) -> bool {
        name.strip_suffix(TEMPORARY_SUFFIX).is_some_and(|name| MemoryFile::snapshot_of(name).is_some())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(self.name())
    }

    fn unfinished(&self) -> PathBuf {
        self.folder.join(self.name() + TEMPORARY_SUFFIX)
    }

    /// Writes the file from a stream, to its end. Only QEMU knows whether the stream is complete; then it is published.
    pub(super) fn write(
        &self,
        header: &MemoryHeader,
        stream: &mut impl Read,
        bytes_max: u64,
    ) -> io::Result<Written> {
        let path = self.unfinished();
        // A guest's memory has its secrets.
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let written = write_into(Limited { file: &file, stored_bytes: 0, bytes_max }, header, stream);
        if written.is_err() {
            self.remove();
        }
        written
    }

    /// Makes a complete file durable and gives it its name.
    pub(super) fn publish(&self) -> io::Result<()> {
        File::open(self.unfinished())?.sync_all()?;
        fs::rename(self.unfinished(), self.path())?;
        File::open(&self.folder)?.sync_all()
    }

    /// Removes what there is of the file.
    pub(crate) fn remove(&self) {
        for path in [self.unfinished(), self.path()] {
            // A file that stays is removed when the VM is opened.
            let _ = fs::remove_file(path);
        }
    }
}

fn write_into(mut file: Limited<'_>, header: &MemoryHeader, stream: &mut impl Read) -> io::Result<Written> {
    let text = serde_json::to_vec(header).expect("a header is JSON");
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= HEADER_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("a command line of more than 4 MiB"))?;
    file.write_all(&SKIPPED.to_le_bytes())?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(&text)?;
    let form = FrameInfo::new().block_size(BlockSize::Max1MB).block_checksums(true).content_checksum(true);
    let mut encoder = FrameEncoder::with_frame_info(form, file);
    let (mut bytes, mut stream_bytes) = (vec![0; COPIED_BYTES], 0);
    loop {
        let count = match stream.read(&mut bytes) {
            Ok(0) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        encoder.write_all(&bytes[..count])?;
        stream_bytes += count as u64;
    }
    let file = encoder.finish()?;
    Ok(Written { stream_bytes, stored_bytes: file.stored_bytes })
}

/// A file that takes no more than the datastore can spare: guests need the rest.
struct Limited<'a> {
    file: &'a File,
    stored_bytes: u64,
    bytes_max: u64,
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stored_bytes + bytes.len() as u64 > self.bytes_max {
            let cause = format!("the memory needs more than the {} bytes that are free", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::StorageFull, cause));
        }
        let count = self.file.write(bytes)?;
        self.stored_bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Opens a file, and returns its header and the rest of it.
fn open(path: &Path) -> Result<(MemoryHeader, BufReader<File>), String> {
    let at = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
    let mut file = BufReader::with_capacity(COPIED_BYTES, File::open(path).map_err(|e| at(&e))?);
    let mut start = [0; 8];
    file.read_exact(&mut start).map_err(|e| at(&e))?;
    let (first, last) = start.split_at(4);
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    if number(first) != SKIPPED || number(last) > HEADER_BYTES_MAX {
        return Err(at(&format!("found {start:02x?}, expected a file with a guest's memory")));
    }
    let mut text = vec![0; number(last) as usize];
    file.read_exact(&mut text).map_err(|e| at(&e))?;
    Ok((serde_json::from_slice(&text).map_err(|e| at(&e))?, file))
}

/// Reads what is known of the memory.
pub(crate) fn header_of(path: &Path) -> Result<MemoryHeader, String> {
    open(path).map(|(header, _)| header)
}

/// A frame has an end mark, behind which nothing is read. The decoder takes a file that ends between two blocks as complete.
struct Unended(BufReader<File>);

impl Read for Unended {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.0.read(bytes) {
            Ok(0) if !bytes.is_empty() => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the file ends before its end mark"))
            }
            read => read,
        }
    }
}

/// Writes QEMU's stream from a file to `output`, each block once it is checked.
pub(crate) fn stream_to(path: &Path, output: &mut impl Write) -> Result<(), String> {
    let (_, file) = open(path)?;
    let damaged =
        |e: io::Error| format!("{}: the guest's memory cannot be read, or is damaged: {e}", path.display());
    let gone = |e: io::Error| format!("writing the stream: {e}");
    let (mut decoder, mut bytes) = (FrameDecoder::new(Unended(file)), vec![0; COPIED_BYTES]);
    loop {
        match decoder.read(&mut bytes).map_err(damaged)? {
            0 => return output.flush().map_err(gone),
            count => output.write_all(&bytes[..count]).map_err(gone)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u128 = 0xabc;

    fn header() -> MemoryHeader {
        let command_line = vec!["qemu-system-x86_64".to_owned(), "-m".to_owned(), "512".to_owned()];
        let vm = "web".parse().unwrap();
        MemoryHeader {
            vm,
            snapshot: format!("{ID:032x}"),
            ram_bytes: 1 << 29,
            qemu: "7.2.22".into(),
            paused: true,
            command_line,
            disks: Vec::new(),
        }
    }

    fn stream() -> Vec<u8> {
        (0..300_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect()
    }

    #[test]
    fn a_file_reads_as_it_was_written_and_every_damage_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = MemoryFile { folder: folder.path().to_owned(), snapshot: ID };
        let written = file.write(&header(), &mut stream().as_slice(), u64::MAX).unwrap();
        assert!(!file.path().exists());
        file.publish().unwrap();
        assert_eq!(written.stream_bytes, stream().len() as u64);
        assert_eq!(written.stored_bytes, fs::metadata(file.path()).unwrap().len());
        assert!(written.stored_bytes < written.stream_bytes / 2);
        assert_eq!(header_of(&file.path()).unwrap(), header());
        let mut read = Vec::new();
        stream_to(&file.path(), &mut read).unwrap();
        assert!(read == stream());
        let whole = fs::read(file.path()).unwrap();
        for at in (0..whole.len()).step_by(whole.len() / 50) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(file.path(), &damaged).unwrap();
            let mut read = Vec::new();
            let found = stream_to(&file.path(), &mut read);
            assert!(found.is_err() || read == stream(), "byte {at}");
            // QEMU gets no damaged byte: it would start a guest with it before the end is checked.
            assert!(stream().starts_with(&read), "byte {at}");
            fs::write(file.path(), &whole[..at]).unwrap();
            assert!(stream_to(&file.path(), &mut Vec::new()).is_err(), "cut off at {at}");
        }
    }

    #[test]
    fn a_stream_that_is_too_long_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = MemoryFile { folder: folder.path().to_owned(), snapshot: ID };
        let error = file.write(&header(), &mut stream().as_slice(), 10_000).err().unwrap();
        assert!(error.to_string().contains("10000 bytes that are free"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_its_own_names_are_those_of_memory() {
        let file = MemoryFile { folder: "/x".into(), snapshot: ID };
        assert_eq!(MemoryFile::snapshot_of(&file.name()), Some(ID));
        assert!(MemoryFile::is_unfinished(&(file.name() + TEMPORARY_SUFFIX)));
        for name in ["labels", "memory-abc.lz4", "memory-.lz4", "memory-\u{e9}.lz4"] {
            assert_eq!(MemoryFile::snapshot_of(name), None, "{name}");
        }
    }
}
