//! Flat disks as a layer: data at its own position, in one or several files.

use std::collections::BTreeMap;
use std::ops::Range;

use blk::layer::{Layer, Placement, Run, Shape, Usage, Where};
use blk::{Error, File, Local, Result, SECTOR};

use crate::descriptor::{Access, Descriptor, ExtentKind};
use crate::text::wrong;

/// A flat layer has no tables; this is only the unit in which its users process it.
const REGION_BYTES: u64 = 2 << 20;

/// Maximum number of files of one flat disk: `Where::Data` counts them in 16 bits.
const FILES_MAX: usize = u16::MAX as usize;

/// An open flat disk.
pub(crate) struct Flat {
    name: String,
    files: Vec<File>,
    /// Pieces by position on the disk, without gaps.
    pieces: Vec<Piece>,
    shape: Shape,
}

struct Piece {
    start: u64,
    end: u64,
    /// File and the offset in it; None reads as zeros.
    place: Option<(u16, u64)>,
}

impl Flat {
    /// Opens a flat disk. `files` are the files of the descriptor's extents, by name. Compares their lengths with the
    /// required ones.
    pub(crate) async fn open(
        name: &str,
        descriptor: &Descriptor,
        files: BTreeMap<String, File>,
        writable: bool,
    ) -> Result<Self> {
        if files.len() > FILES_MAX {
            let cause = format!("{} extent files, expected at most {FILES_MAX}", files.len());
            return Err(Error::unsupported(descriptor.file(), cause));
        }
        let pieces = pieces(descriptor, &files, writable)?;
        let flat = Self {
            name: name.into(),
            files: files.into_values().collect(),
            shape: shape(descriptor, writable),
            pieces,
        };
        match flat.faults().await?.into_iter().next() {
            Some(fault) => Err(fault),
            None => Ok(flat),
        }
    }

    /// Returns an error for each file that is shorter than the disk needs.
    async fn faults(&self) -> Result<Vec<Error>> {
        let mut faults = Vec::new();
        for (index, file) in self.files.iter().enumerate() {
            let ends = self.pieces.iter().filter_map(|piece| match piece.place {
                Some((at, offset)) if usize::from(at) == index => Some(offset + (piece.end - piece.start)),
                _ => None,
            });
            let needed = ends.max().unwrap_or(0);
            let size = file.size().await?;
            if size < needed {
                let expected = format!("at least {needed}, as {} says: the file was cut", self.name);
                faults.push(wrong(file.name(), "the length", format!("{size} bytes"), &expected));
            }
        }
        Ok(faults)
    }

    fn runs(&self, range: Range<u64>) -> Vec<Run> {
        assert!(
            range.start < range.end && range.end <= self.shape.size_bytes,
            "{}: range {range:?}",
            self.name
        );
        let first = self.pieces.partition_point(|piece| piece.end <= range.start);
        let pieces = self.pieces[first..].iter().take_while(|piece| piece.start < range.end);
        pieces
            .map(|piece| {
                let (start, end) = (piece.start.max(range.start), piece.end.min(range.end));
                let place = match piece.place {
                    None => Where::Zero,
                    Some((file, offset)) => Where::Data { file, offset: offset + (start - piece.start) },
                };
                Run { start, len: end - start, place }
            })
            .collect()
    }
}

fn shape(descriptor: &Descriptor, writable: bool) -> Shape {
    Shape {
        size_bytes: descriptor.capacity_sectors() * SECTOR,
        grain_bytes: SECTOR,
        region_bytes: REGION_BYTES,
        flat: true,
        writable,
        punches: writable,
    }
}

fn pieces(descriptor: &Descriptor, files: &BTreeMap<String, File>, writable: bool) -> Result<Vec<Piece>> {
    let mut start = 0;
    let mut pieces = Vec::new();
    for extent in descriptor.extents() {
        let zeros = extent.kind == ExtentKind::Zero || extent.access == Access::NoAccess;
        if writable && (zeros || extent.access == Access::ReadOnly) {
            let cause = format!(
                "the extent \"{extent}\" cannot be written, and the disk was to be opened for writing"
            );
            return Err(Error::unsupported(descriptor.file(), cause));
        }
        if !zeros && !extent.kind.is_flat() {
            let cause = format!("the extent \"{extent}\" is not flat, and others of this disk are");
            return Err(Error::unsupported(descriptor.file(), cause));
        }
        let place = match files.keys().position(|name| *name == extent.file) {
            _ if zeros => None,
            Some(index) => Some((index as u16, extent.offset_sectors * SECTOR)),
            None => {
                return Err(Error::not_found(descriptor.file(), format!("the extent file of \"{extent}\"")));
            }
        };
        let end = start + extent.sectors * SECTOR;
        pieces.push(Piece { start, end, place });
        start = end;
    }
    Ok(pieces)
}

impl Layer for Flat {
    fn name(&self) -> &str {
        &self.name
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn files(&self) -> &[File] {
        &self.files
    }

    fn lookup(&self, range: Range<u64>) -> Local<'_, Result<Vec<Run>>> {
        let runs = self.runs(range);
        Box::pin(async move { Ok(runs) })
    }

    fn populated(&self, _region: u64) -> bool {
        true
    }

    fn place(&self, range: Range<u64>) -> Local<'_, Result<Placement>> {
        let cause = format!("space for {range:?} was asked for; a flat disk has a place for everything");
        let error = Error::refused(&self.name, cause);
        Box::pin(async move { Err(error) })
    }

    fn seal(&self) -> Local<'_, Result<()>> {
        Box::pin(async {
            if self.shape.writable {
                for file in &self.files {
                    file.flush().await?;
                }
            }
            Ok(())
        })
    }

    fn usage(&self) -> Usage {
        Usage { held_bytes: self.shape.size_bytes, file_bytes: self.shape.size_bytes }
    }

    fn check(&self) -> Local<'_, Result<Vec<String>>> {
        Box::pin(async { Ok(self.faults().await?.iter().map(ToString::to_string).collect()) })
    }
}
