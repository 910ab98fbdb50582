//! Exports that continue after an interruption: raw content, and a record beside it with a hash of each part that was
//! written. A part counts only if the file still has its hash, so a power cut needs no special care.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use api::error::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::file::{MODE, OutputFile, failed, record_path};
use crate::command::exported_snapshot::{SNAPSHOT_MARK, SnapshotId};
use crate::command::pieces::{self, PIECE_BYTES, Piece, Pieces};
use crate::hex::hex;
use crate::sparse::runs;

const VERSION: u32 = 1;
/// Bytes of a part: what an interruption makes the next export read again at most, beside what was not written.
const PART_BYTES: u64 = 16 << 20;
/// Line of a part without data.
const ZEROS: &str = "zeros";
const _: () = assert!(PART_BYTES.is_multiple_of(PIECE_BYTES));

/// First line of the record: what is exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subject {
    version: u32,
    /// Name of the disk's export.
    export: String,
    snapshot: SnapshotId,
    size_bytes: u64,
    part_bytes: u64,
}

/// The record, locked: its lines are the hashes of the parts from the begin of the disk.
struct Record {
    file: File,
    path: PathBuf,
    subject: Subject,
    parts: Vec<String>,
}

/// Raw content of a disk that was written, and how much of it was there before.
pub(super) struct Written {
    pub size_bytes: u64,
    pub resumed_bytes: u64,
}

/// Writes the raw content of the export at `uri` to `path`, or what is missing of it. The record stays for the case that
/// another file of the same export fails; [`forget`] removes it.
///
/// # Errors
/// `Refused`: the file has parts of something else, or another export writes it.
pub(super) fn write(path: &Path, uri: &str, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<Written> {
    let (export, snapshot, size_bytes) = pieces::look(uri)?;
    let subject = Subject { version: VERSION, export, snapshot, size_bytes, part_bytes: PART_BYTES };
    let mut record = Record::open(path, subject)?;
    if path.symlink_metadata().is_ok() {
        // An earlier run has finished this file, and failed with another one.
        let whole = File::open(path).map_err(|e| failed(path, &e))?;
        if record.sound_bytes(&whole, progress)? == size_bytes {
            return Ok(Written { size_bytes, resumed_bytes: size_bytes });
        }
        let (path, record) = (path.display(), record.path.display());
        let cause = format!("{path} exists already, and has another content than {record} says");
        return Err(Error::new(ErrorKind::Exists, format!("{cause}; choose another name, or remove both")));
    }
    let mut file = OutputFile::resume(path)?;
    let resumed_bytes = record.sound_bytes(file.content(), progress)?;
    record.cut(resumed_bytes)?;
    file.cut(resumed_bytes)?;
    let pieces = pieces::read_from(uri, &record.subject.snapshot, resumed_bytes)?;
    copy(&pieces, &mut file, &mut record, progress)?;
    file.finish()?;
    Ok(Written { size_bytes, resumed_bytes })
}

/// Removes the record of a file.
pub(super) fn forget(path: &Path) -> Result<()> {
    let record = record_path(path);
    fs::remove_file(&record).map_err(|e| failed(&record, &e))
}

fn copy(
    pieces: &Pieces,
    file: &mut OutputFile,
    record: &mut Record,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let mut part = PartHash::default();
    while file.end() < pieces.size_bytes {
        let piece = pieces.next()?;
        write_raw(&piece, file)?;
        part.add(&piece);
        if file.end().is_multiple_of(PART_BYTES) || file.end() == pieces.size_bytes {
            record.add(std::mem::take(&mut part).line())?;
        }
        progress(piece.bytes)?;
    }
    Ok(())
}

/// Writes a piece of a raw file, without its zeros.
pub(in crate::command) fn write_raw(piece: &Piece, file: &mut OutputFile) -> Result<()> {
    let begin = file.end();
    if let Some(data) = &piece.data {
        for (run, _) in runs(data).into_iter().filter(|(_, has_data)| *has_data) {
            file.write_at(begin + run.start as u64, &data[run])?;
        }
    }
    file.skip(piece.bytes);
    Ok(())
}

/// The hash of a part under way. Zeros before the first data are hashed when there is data.
#[derive(Default)]
struct PartHash {
    hash: Option<Sha256>,
    zeros: u64,
}

impl PartHash {
    fn add(&mut self, piece: &Piece) {
        self.zeros += if piece.data.is_none() { piece.bytes } else { 0 };
        if let Some(data) = &piece.data {
            self.add_data(data);
        }
    }

    fn add_data(&mut self, data: &[u8]) {
        let hash = self.hash.get_or_insert_default();
        let zeros = vec![0; PIECE_BYTES.min(self.zeros) as usize];
        while self.zeros > 0 {
            let some = self.zeros.min(PIECE_BYTES);
            hash.update(&zeros[..some as usize]);
            self.zeros -= some;
        }
        hash.update(data);
    }

    fn line(mut self) -> String {
        if self.hash.is_some() {
            self.add_data(&[]);
        }
        self.hash.map_or(ZEROS.to_owned(), |hash| hex(&hash.finalize()))
    }
}

impl Record {
    /// Opens the record beside a file, or begins one.
    fn open(of: &Path, subject: Subject) -> Result<Record> {
        let path = record_path(of);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).mode(MODE).open(&path);
        let file = file.map_err(|e| failed(&path, &e))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::new(ErrorKind::Locked, format!("{}: another export is writing this file", of.display()))
        })?;
        // A line that an interruption cut has no end.
        let mut lines = Vec::new();
        let mut reader = BufReader::new(&file);
        let mut line = String::new();
        while reader.read_line(&mut line).map_err(|e| failed(&path, &e))? > 0 && line.ends_with('\n') {
            lines.push(line.trim_end().to_owned());
            line.clear();
        }
        let found = lines.first().map(|first| serde_json::from_str::<Subject>(first));
        match found {
            Some(Ok(found)) if found.is(&subject) => {
                Ok(Record { file, path, subject, parts: lines.split_off(1) })
            }
            Some(found) => Err(refusal(of, &subject, found.ok())),
            None => Ok(Record { file, path, subject, parts: Vec::new() }),
        }
    }

    /// Returns the bytes from the begin of the file that have the hashes of the record.
    fn sound_bytes(&self, file: &File, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<u64> {
        let size_bytes = self.subject.size_bytes;
        let there = file.metadata().map_err(|e| failed(&self.path, &e))?.len().min(size_bytes);
        let mut at = 0;
        for line in &self.parts {
            let end = size_bytes.min(at + PART_BYTES);
            if at == size_bytes {
                break;
            }
            let mut part = PartHash::default();
            for start in (at..end).step_by(PIECE_BYTES as usize) {
                let bytes = PIECE_BYTES.min(end - start);
                let data = read(file, start, bytes, there).map_err(|e| failed(&self.path, &e))?;
                let data =
                    if line == ZEROS { data.filter(|data| data.iter().any(|byte| *byte != 0)) } else { data };
                part.add(&Piece { bytes, is_same: false, data });
            }
            if part.line() != *line {
                break;
            }
            progress(end - at)?;
            at = end;
        }
        Ok(at)
    }

    /// Removes the lines of all parts behind `bytes`.
    fn cut(&mut self, bytes: u64) -> Result<()> {
        self.parts.truncate(bytes.div_ceil(PART_BYTES) as usize);
        let subject =
            serde_json::to_string(&self.subject).map_err(|e| Error::failed(format!("JSON: {e}")))?;
        let mut text = format!("{subject}\n");
        self.parts.iter().for_each(|part| text.push_str(&format!("{part}\n")));
        let written = self.file.set_len(0).and_then(|()| self.file.write_all_at(text.as_bytes(), 0));
        written.map_err(|e| failed(&self.path, &e))
    }

    fn add(&mut self, line: String) -> Result<()> {
        let end = self.file.metadata().map_err(|e| failed(&self.path, &e))?.len();
        let written = self.file.write_all_at(format!("{line}\n").as_bytes(), end);
        self.parts.push(line);
        written.and_then(|()| self.file.flush()).map_err(|e| failed(&self.path, &e))
    }
}

/// Reads a piece of a file of `there` bytes; None behind its end, where a hole is to be.
fn read(file: &File, start: u64, bytes: u64, there: u64) -> std::io::Result<Option<Vec<u8>>> {
    if start >= there {
        return Ok(None);
    }
    let mut data = vec![0; bytes as usize];
    let held = bytes.min(there - start) as usize;
    file.read_exact_at(&mut data[..held], start)?;
    Ok(Some(data))
}

impl Subject {
    /// Returns whether both are the same content, in the same parts. A snapshot may have been renamed meanwhile.
    fn is(&self, other: &Subject) -> bool {
        let shape = |of: &Subject| (of.version, of.size_bytes, of.part_bytes);
        let disk = |of: &Subject| of.export.split_once(SNAPSHOT_MARK).map(|(disk, _)| disk.to_owned());
        (shape(self), disk(self)) == (shape(other), disk(other)) && self.snapshot.is(&other.snapshot)
    }
}

fn refusal(of: &Path, wanted: &Subject, found: Option<Subject>) -> Error {
    let holds = found.map_or("what this version cannot read".to_owned(), |found| {
        let id = found.snapshot.id.unwrap_or_default();
        format!("parts of {} (snapshot ID {id}, {} bytes)", found.export, found.size_bytes)
    });
    let (of, record) = (of.display(), record_path(of));
    let id = wanted.snapshot.id.clone().unwrap_or_default();
    let expected = format!("{} (snapshot ID {id}, {} bytes)", wanted.export, wanted.size_bytes);
    let remedy = format!("choose another name, or remove {} and what is beside it", record.display());
    Error::refused(format!(
        "{of}: an interrupted export has left {holds}, expected those of {expected}; {remedy}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: u64, data: Option<Vec<u8>>) -> Piece {
        Piece { bytes, is_same: false, data }
    }

    fn hash(pieces: &[Piece]) -> String {
        let mut part = PartHash::default();
        pieces.iter().for_each(|piece| part.add(piece));
        part.line()
    }

    #[test]
    fn holes_and_zeros_have_the_same_hash_beside_data() {
        let data = || piece(4096, Some(vec![7; 4096]));
        let zeros = || piece(8192, Some(vec![0; 8192]));
        assert_eq!(hash(&[piece(8192, None), data()]), hash(&[zeros(), data()]));
        assert_eq!(hash(&[data(), piece(8192, None)]), hash(&[data(), zeros()]));
        assert_eq!(hash(&[piece(8192, None)]), ZEROS);
        assert_ne!(hash(&[data(), piece(4096, None)]), hash(&[data()]));
    }

    #[test]
    fn parts_count_as_far_as_the_file_has_their_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.raw");
        let subject = |id: &str| Subject {
            version: VERSION,
            export: "web/disk0@a".into(),
            snapshot: SnapshotId { name: "a".into(), id: Some(id.into()) },
            size_bytes: 3 * PART_BYTES + 4096,
            part_bytes: PART_BYTES,
        };
        let mut content = vec![7; PART_BYTES as usize];
        content.resize(2 * PART_BYTES as usize, 0);
        content.extend(vec![9; PART_BYTES as usize]);
        fs::write(&path, &content).unwrap();
        let mut record = Record::open(&path, subject("1")).unwrap();
        record.cut(0).unwrap();
        for part in [Some(7), None, Some(9)] {
            let data = part.map(|byte| vec![byte; PART_BYTES as usize]);
            record.add(hash(&[piece(PART_BYTES, data)])).unwrap();
        }
        let busy = Record::open(&path, subject("1")).err().unwrap();
        assert!(busy.kind == ErrorKind::Locked && busy.message.contains("another export"), "{busy}");
        drop(record);
        let sound = |path: &Path| {
            let record = Record::open(path, subject("1")).unwrap();
            record.sound_bytes(&File::open(path).unwrap(), &mut |_| Ok(())).unwrap() / PART_BYTES
        };
        assert_eq!(sound(&path), 3);
        // A line that was cut, a byte that is another one, data where zeros were, and a file that is shorter.
        let record_file = File::options().append(true).open(record_path(&path)).unwrap();
        (&record_file).write_all(b"abc").unwrap();
        assert_eq!(sound(&path), 3);
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[1], 2 * PART_BYTES + 5).unwrap();
        assert_eq!(sound(&path), 2);
        file.write_all_at(&[1], 2 * PART_BYTES - 1).unwrap();
        assert_eq!(sound(&path), 1);
        file.set_len(PART_BYTES - 1).unwrap();
        assert_eq!(sound(&path), 0);
        let other = Record::open(&path, subject("2")).err().unwrap();
        for expected in ["snapshot ID 1", "snapshot ID 2", "unstun-resume"] {
            assert!(other.kind == ErrorKind::Refused && other.message.contains(expected), "{other}");
        }
    }
}
