//! Detection of a `.vmdk` file's kind by its first bytes: descriptors, extents and change-tracking files have the same
//! ending.
//!
//! Facts: reference/vmware-formats 1.1 and 1.5.

use blk::reactor::OpenMode;
use blk::{Buf, Dir, Env, Error, File, Result, SECTOR};

use crate::descriptor::{Descriptor, ExtentKind};
use crate::hosted::{decode_header, stream_optimized};
use crate::kdmv::Header;
use crate::read::parse;
use crate::text::{TEXT_BYTES_MAX, shown, wrong};

/// Bytes that are enough to distinguish a descriptor from an extent.
pub(crate) const HEAD_BYTES: u64 = 1024;
/// Size of the first read: one block of the page cache. Descriptors of one or two extents are smaller than 1 KiB.
const START_BYTES: u64 = 4096;

/// Byte offset of the flags in a hosted sparse header, and the bit for compressed grains.
const HOSTED_FLAGS: usize = 8;
const HOSTED_COMPRESSED: u32 = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Content {
    /// A text descriptor.
    Descriptor,
    /// "KDMV": monolithicSparse, or an extent of a split disk.
    HostedSparse,
    /// "KDMV" with compressed grains.
    StreamOptimized,
    /// "COWD".
    VmfsSparse,
    SeSparse,
    /// A guest's data, change tracking, or an empty file.
    Other,
}

impl Content {
    /// Detects the kind. `head` are the first `HEAD_BYTES` of the file, or the whole file if it is shorter.
    pub(crate) fn of(head: &[u8]) -> Content {
        if head.starts_with(b"KDMV") {
            let flags = head.get(HOSTED_FLAGS..).and_then(|rest| rest.first_chunk()).copied();
            let compressed = u32::from_le_bytes(flags.unwrap_or_default()) & HOSTED_COMPRESSED != 0;
            return if compressed { Content::StreamOptimized } else { Content::HostedSparse };
        }
        if head.starts_with(b"COWD") {
            return Content::VmfsSparse;
        }
        if head.starts_with(&[0xBE, 0xBA, 0xFE, 0xCA, 0, 0, 0, 0]) {
            return Content::SeSparse;
        }
        if Descriptor::probe(head) { Content::Descriptor } else { Content::Other }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Content::Descriptor => "a text descriptor",
            Content::HostedSparse => "a hosted sparse disk (\"KDMV\")",
            Content::StreamOptimized => "a streamOptimized disk (\"KDMV\", compressed)",
            Content::VmfsSparse => "a VMFSsparse delta (\"COWD\")",
            Content::SeSparse => "an SEsparse delta",
            Content::Other => "neither a descriptor nor a delta",
        }
    }
}

/// Reads the first bytes of a file.
pub(crate) async fn head(file: &File) -> Result<Vec<u8>> {
    let size = file.size().await?;
    if size < HEAD_BYTES {
        return file.read_all(HEAD_BYTES).await;
    }
    let (buf, result) = file.read(0, Buf::alloc(HEAD_BYTES as usize)).await;
    result.map(|()| buf.to_vec())
}

/// Reads the descriptor `name`, or reports what else the file is.
pub(crate) async fn read_descriptor(dir: &Dir, name: &str) -> Result<Descriptor> {
    let file = dir.open(name, OpenMode::Read).await?;
    let size = file.size().await?;
    let start = start_of(&file, size).await?;
    if Content::of(&start) == Content::HostedSparse {
        let header = decode_header(file.name(), &start, size)?;
        let split = "an extent of a split disk, expected its descriptor: the small text file without -s001 and the like";
        let none = || Error::damaged(file.name(), format!("the content is {split}"));
        return read_embedded(dir.env(), &file, name, &header).await?.ok_or_else(none);
    }
    refuse_extent(file.name(), Content::of(&start))?;
    parse_from(dir.env(), &file, size, start).await
}

/// Reads the descriptor inside of the hosted sparse file `name`; None if it has none.
pub(crate) async fn read_embedded(
    env: &Env,
    file: &File,
    name: &str,
    header: &Header,
) -> Result<Option<Descriptor>> {
    let Some((start, sectors)) = header.descriptor else { return Ok(None) };
    if sectors > TEXT_BYTES_MAX as u64 / SECTOR {
        let expected = format!("at most {}", TEXT_BYTES_MAX as u64 / SECTOR);
        return Err(wrong(file.name(), "descriptorSize", sectors, &expected));
    }
    let (text, result) = file.read(start * SECTOR, Buf::alloc((sectors * SECTOR) as usize)).await;
    result?;
    // QEMU leaves the space for one in the parts of a split disk.
    if text.first().is_none_or(|byte| *byte == 0) {
        return Ok(None);
    }
    let link = parse(env, file.name().to_owned(), text.to_vec(), Descriptor::parse).await?;
    link.embed(name).map(Some)
}

/// Kind of a file that may be a descriptor.
pub(crate) enum Probed {
    Link(Descriptor),
    Other,
    /// An empty file, possibly not written yet.
    Empty,
}

/// Reads `name` if it is a text descriptor. One inside of a data file is not found: a guest could write it into a flat disk.
pub(crate) async fn find_descriptor(dir: &Dir, name: &str) -> Result<Probed> {
    let file = dir.open(name, OpenMode::Read).await?;
    let size = file.size().await?;
    if size == 0 || size > TEXT_BYTES_MAX as u64 {
        return Ok(if size == 0 { Probed::Empty } else { Probed::Other });
    }
    let start = start_of(&file, size).await?;
    match Descriptor::probe(&start) {
        true => parse_from(dir.env(), &file, size, start).await.map(Probed::Link),
        false => Ok(Probed::Other),
    }
}

/// Reads as much as one read returns; that is the whole of most descriptors.
async fn start_of(file: &File, size: u64) -> Result<Vec<u8>> {
    let (buf, result) = file.read(0, Buf::alloc(size.min(START_BYTES) as usize)).await;
    result.map(|()| buf.to_vec())
}

async fn parse_from(env: &Env, file: &File, size: u64, start: Vec<u8>) -> Result<Descriptor> {
    let whole = if size <= START_BYTES { start } else { file.read_all(TEXT_BYTES_MAX as u64).await? };
    parse(env, file.name().to_owned(), whole, Descriptor::parse).await
}

/// Refuses an extent where a descriptor is needed. The parser reports other content that is not text.
fn refuse_extent(file: &str, content: Content) -> Result<()> {
    match content {
        Content::StreamOptimized => Err(stream_optimized(file)),
        Content::VmfsSparse | Content::SeSparse => {
            let expected = "its descriptor: the small text file of the same name without -delta or -sesparse";
            Err(wrong(file, "the content", content.name(), expected))
        }
        Content::Descriptor | Content::HostedSparse | Content::Other => Ok(()),
    }
}

/// Returns why the extents of a descriptor cannot be opened; None if their format is supported.
pub(crate) fn unreadable(link: &Descriptor) -> Option<Error> {
    let extents = link.extents();
    let plain = |kind: ExtentKind| kind.is_flat() || kind == ExtentKind::Zero;
    let delta = |kind: ExtentKind| matches!(kind, ExtentKind::VmfsSparse | ExtentKind::SeSparse);
    let hosted = |kind: ExtentKind| matches!(kind, ExtentKind::Sparse | ExtentKind::Zero);
    let all = |of: &dyn Fn(ExtentKind) -> bool| extents.iter().all(|extent| of(extent.kind));
    if all(&plain) || all(&hosted) || (extents.len() == 1 && delta(extents[0].kind)) {
        return None;
    }
    let odd = extents.iter().find(|extent| !plain(extent.kind))?;
    let what =
        format!("createType {}, with the extent {}", shown(link.create_type()), shown(&odd.to_string()));
    Some(match odd.kind {
        ExtentKind::VmfsRdm | ExtentKind::VmfsRaw => {
            let cause = format!("the content is a raw device mapping: {what}, expected data in files");
            let remedy = "its data is on a device: copy that into a file where the device is";
            Error::unsupported(link.file(), format!("{cause}; {remedy}"))
        }
        _ => {
            let cause = format!("the content is {} extents of different formats: {what}", extents.len());
            let expected = "expected one VMFSSPARSE or SESPARSE, any number of SPARSE and ZERO, or any of FLAT, VMFS and ZERO";
            Error::unsupported(link.file(), format!("{cause}, {expected}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_detected_by_its_first_bytes() {
        let table: [(&[u8], Content); 8] = [
            (b"# Disk DescriptorFile\nversion=1\n", Content::Descriptor),
            (b"KDMV\x01\0\0\0\x03\0\0\0", Content::HostedSparse),
            (b"KDMV\x03\0\0\0\x01\0\x03\0", Content::StreamOptimized),
            (b"KDMV", Content::HostedSparse),
            (b"COWD\x01", Content::VmfsSparse),
            (b"\xBE\xBA\xFE\xCA\0\0\0\0\x01", Content::SeSparse),
            (b"\xBE\xBA\xFE\xCA", Content::Other),
            (b"", Content::Other),
        ];
        for (head, content) in table {
            assert_eq!(Content::of(head), content, "{}", head.escape_ascii());
        }
    }

    #[test]
    fn unsupported_extents_are_refused_by_name() {
        let link = |kind: &str, extents: &str| {
            let text = format!("version=1\nCID=1\ncreateType=\"{kind}\"\n{extents}\n");
            unreadable(&Descriptor::parse("x.vmdk", text.as_bytes()).unwrap())
        };
        for (kind, extents) in [
            ("vmfs", "RW 8 VMFS \"a\""),
            ("custom", "RW 8 FLAT \"a\" 0\nRW 8 ZERO"),
            ("seSparse", "RW 8 SESPARSE \"a\""),
            ("vmfsSeSparse", "RW 8 VMFSSPARSE \"a\""),
            ("monolithicSparse", "RW 8 SPARSE \"a\""),
            ("twoGbMaxExtentSparse", "RW 8 SPARSE \"a\"\nRW 8 ZERO\nRW 8 SPARSE \"b\""),
        ] {
            assert_eq!(link(kind, extents), None, "{kind}");
        }
        for (kind, extents, message) in [
            ("custom", "RW 8 SPARSE \"a\"\nRW 8 FLAT \"b\" 0", "2 extents of different formats"),
            ("vmfsRawDeviceMap", "RW 8 VMFSRDM \"a\"", "a raw device mapping"),
            ("custom", "RW 8 FLAT \"a\" 0\nRW 8 SESPARSE \"b\"", "2 extents of different formats"),
        ] {
            let error = link(kind, extents).unwrap();
            assert!(error.cause.contains(message), "{error}");
            assert_eq!(error.kind, blk::ErrorKind::Unsupported);
        }
    }
}
