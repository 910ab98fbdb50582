//! An open OVA: its members, the VM that they describe, and the verification of hashes.

use std::rc::Rc;

use blk::{Buf, Error, File, Result};

use super::hardware::Attachment;
use super::manifest::{Hash, Hasher, Manifest};
use super::ovf::{self, Disk, FileEntry, Package};
use super::tar::{Member, Walk};
use super::xml::OVF_BYTES_MAX;
use crate::file_range::FileRange;
use crate::probe::{Content, HEAD_BYTES};
use crate::read::parse;
use crate::stream::{Stream, open_member};
use crate::text::{TEXT_BYTES_MAX, shown, wrong};

/// Bytes of a member that are read and hashed at a time: SHA-256 takes 2 to 5 ms for them.
const HASHED_PIECE_BYTES: u64 = 1 << 20;

/// A disk of the VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OvaDisk {
    /// The id in the descriptor; untrusted.
    pub id: String,
    /// The file with the content; None for an empty disk.
    pub file: Option<Member>,
    /// Size of the disk as the descriptor says, in bytes.
    pub capacity_bytes: u64,
    /// URI of the format as written; may be empty. The content decides how the file is read.
    pub format: String,
    /// Where the disk is attached, if it is.
    pub attachment: Option<Attachment>,
    unit_bytes: u64,
}

/// An open OVA.
pub struct Ova {
    file: File,
    /// Name of the VM as written; untrusted, may be empty.
    pub name: String,
    /// Disks in the order of controllers and units.
    pub disks: Vec<OvaDisk>,
    /// Hashes of the members, if the OVA has a manifest.
    pub manifest: Option<Manifest>,
    /// All files, in the order of the archive.
    pub members: Vec<Member>,
    /// Name of the OVF descriptor's member.
    pub descriptor: String,
}

/// The texts of an OVA.
pub(crate) struct Texts {
    pub descriptor: Member,
    pub manifest: Option<Member>,
}

impl Ova {
    /// Opens an OVA: lists its members, and reads its descriptor and its manifest. No hash is verified.
    ///
    /// # Errors
    /// `Damaged` for a file that was cut, for a member that is missing, and for what the formats do not allow; `Unsupported`
    /// for several VMs, and for files that are compressed as a whole.
    pub async fn open(file: File) -> Result<Ova> {
        let members = read_members(&file).await?;
        let texts = Texts::of(file.name(), &members)?;
        let (name, bytes) = read_text(&file, &texts.descriptor, OVF_BYTES_MAX).await?;
        let package = parse(file.env(), name, bytes, ovf::parse).await?;
        let manifest = match &texts.manifest {
            None => None,
            Some(member) => {
                let (name, bytes) = read_text(&file, member, TEXT_BYTES_MAX as u64).await?;
                Some(parse(file.env(), name, bytes, Manifest::parse).await?)
            }
        };
        let (name, disks) = assemble(file.name(), package, &members)?;
        Ok(Ova { file, name, disks, manifest, members, descriptor: texts.descriptor.name })
    }

    /// Returns the member `name`.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Opens the content of a disk.
    ///
    /// # Errors
    /// Those of [`crate::stream::open`]; `Unsupported` for a file of another format, and for a disk without a file;
    /// `Damaged` if its size is not the one in the descriptor.
    pub async fn open_disk(&self, disk: &OvaDisk) -> Result<Rc<Stream>> {
        let Some(member) = &disk.file else {
            let cause = format!("the disk {} is empty, expected one with a file", shown(&disk.id));
            return Err(Error::unsupported(self.file.name(), format!("{cause}: create it without content")));
        };
        let source = FileRange::new(self.file.clone(), member.at.clone(), Some(&member.name)).await?;
        let head = source.read(0, source.bytes().min(HEAD_BYTES)).await?;
        let content = Content::of(&head);
        if content != Content::StreamOptimized {
            let found = format!("the content is {}, expected a streamOptimized disk", content.name());
            let remedy = "unpack the OVA (`tar -xf`), and import the disk on its own or convert it (`qemu-img convert -O vmdk \
                          -o subformat=streamOptimized`)";
            return Err(Error::unsupported(source.name(), format!("{found}; {remedy}")));
        }
        let stream = open_member(self.file.clone(), member.at.clone(), &member.name).await?;
        disk.check_size(&stream)?;
        Ok(stream)
    }

    /// Returns whether the manifest has a hash of the member `name`.
    pub fn has_hash_of(&self, name: &str) -> bool {
        self.member_and_hash(name).is_ok()
    }

    /// Reads a member, and compares its hash with that of the manifest. `progress` is called with the bytes that were read
    /// so far, after each piece of 1 MiB, and the next piece is read when it has resolved. To cancel, drop the future.
    ///
    /// # Errors
    /// `NotFound` without a manifest, a hash or a member of that name; `Damaged` if the hash is another one; the errors of
    /// `progress`.
    pub async fn verify(&self, name: &str, mut progress: impl AsyncFnMut(u64) -> Result<()>) -> Result<()> {
        let (member, hash) = self.member_and_hash(name)?;
        let source = FileRange::new(self.file.clone(), member.at.clone(), Some(name)).await?;
        let (mut hasher, mut at) = (Hasher::new(hash.algorithm), 0);
        while at < source.bytes() {
            let piece: Buf = source.read(at, (source.bytes() - at).min(HASHED_PIECE_BYTES)).await?;
            at += piece.len() as u64;
            let hash = move || {
                hasher.add(&piece);
                hasher
            };
            hasher = self.file.env().offload(hash).await;
            progress(at).await?;
        }
        hasher.check(source.name(), hash)
    }

    fn member_and_hash(&self, name: &str) -> Result<(&Member, &Hash)> {
        let missing = |what: &str| Error::not_found(self.file.name(), format!("{what} of {}", shown(name)));
        let Some(member) = self.member(name) else { return Err(missing("the member")) };
        let hash = self.manifest.as_ref().and_then(|manifest| manifest.hash_of(name));
        hash.map(|hash| (member, hash)).ok_or_else(|| missing("a manifest (.mf) with the hash"))
    }
}

impl OvaDisk {
    /// Compares the size of the content with the capacity, which may be rounded up to its unit.
    fn check_size(&self, stream: &Stream) -> Result<()> {
        let found = stream.size_bytes();
        if found <= self.capacity_bytes && self.capacity_bytes - found < self.unit_bytes.max(blk::SECTOR) {
            return Ok(());
        }
        let expected = format!("{} bytes, as the OVF descriptor says", self.capacity_bytes);
        Err(wrong(stream.name(), "the size of the disk", format!("{found} bytes"), &expected))
    }
}

async fn read_members(file: &File) -> Result<Vec<Member>> {
    let file_bytes = file.size().await?;
    let source = FileRange::new(file.clone(), 0..file_bytes, None).await?;
    let mut walk = Walk::new(file.name(), file_bytes);
    while let Some(part) = walk.wanted() {
        let bytes = source.read_table(part.start, part.end - part.start).await?;
        walk.feed(&bytes)?;
    }
    walk.finish()
}

/// Reads a text. Returns its name for messages, too.
async fn read_text(file: &File, member: &Member, bytes_max: u64) -> Result<(String, Vec<u8>)> {
    let source = FileRange::new(file.clone(), member.at.clone(), Some(&member.name)).await?;
    if source.bytes() > bytes_max {
        return Err(wrong(
            source.name(),
            "the length in bytes",
            source.bytes(),
            &format!("at most {bytes_max}"),
        ));
    }
    let text = source.read(0, source.bytes()).await?;
    Ok((source.name().to_owned(), text.to_vec()))
}

impl Texts {
    /// Returns the descriptor, of which there is one, and the manifest of the same name.
    pub(crate) fn of(file: &str, members: &[Member]) -> Result<Texts> {
        let ending = |member: &&Member, ending: &str| {
            let name = member.name.as_bytes();
            name.len() > ending.len()
                && name[name.len() - ending.len()..].eq_ignore_ascii_case(ending.as_bytes())
        };
        let mut descriptors = members.iter().filter(|member| ending(member, ".ovf"));
        let Some(descriptor) = descriptors.next() else {
            let found = format!("0 among {} members", members.len());
            let expected = "1: is this an OVA, and was it copied whole?";
            return Err(wrong(file, "the number of OVF descriptors (.ovf)", found, expected));
        };
        if let Some(other) = descriptors.next() {
            let found = format!("{} beside {}", shown(&other.name), shown(&descriptor.name));
            return Err(wrong(file, "another OVF descriptor", found, "one .ovf in an OVA"));
        }
        let stem = &descriptor.name[..descriptor.name.len() - ".ovf".len()];
        let own = |member: &&Member| ending(member, ".mf") && member.name[..member.name.len() - 3] == *stem;
        let manifest =
            members.iter().find(own).or_else(|| members.iter().find(|member| ending(member, ".mf")));
        Ok(Texts { descriptor: descriptor.clone(), manifest: manifest.cloned() })
    }
}

/// Joins the descriptor with the members. Returns the VM's name and its disks.
pub(crate) fn assemble(file: &str, package: Package, members: &[Member]) -> Result<(String, Vec<OvaDisk>)> {
    let disk = |disk: Disk| {
        let member = disk.file.as_ref().map(|entry| member_of(file, entry, members)).transpose()?;
        Ok(OvaDisk {
            id: disk.id,
            file: member.cloned(),
            capacity_bytes: disk.capacity_bytes,
            format: disk.format,
            attachment: disk.attachment,
            unit_bytes: disk.unit_bytes,
        })
    };
    let disks = package.disks.into_iter().map(disk).collect::<Result<_>>()?;
    Ok((package.name, disks))
}

fn member_of<'a>(file: &str, entry: &FileEntry, members: &'a [Member]) -> Result<&'a Member> {
    let decoded = percent_decoded(&entry.href);
    let named = |name: &str| members.iter().find(|member| member.name == name.trim_start_matches("./"));
    let Some(member) = named(&entry.href).or_else(|| named(&decoded?)) else {
        let cause = format!("the file {} of the OVF descriptor is not in the archive", shown(&entry.href));
        let remedy = "was the OVA cut? Copy, download or export it again";
        return Err(Error::damaged(file, format!("{cause}, expected a member of that name: {remedy}")));
    };
    match entry.bytes {
        Some(bytes) if bytes != member.bytes() => {
            let field = format!("the length of the member {}", shown(&member.name));
            let expected = format!("{bytes} bytes, as the OVF descriptor says");
            Err(wrong(file, &field, format!("{} bytes", member.bytes()), &expected))
        }
        _ => Ok(member),
    }
}

/// Decodes the `%20` and the like of a URI; None if what comes out is not UTF-8.
fn percent_decoded(href: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(href.len()), href.as_bytes());
    while let Some((first, others)) = rest.split_first() {
        let hex = others.get(..2).filter(|digits| *first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let code = hex.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &others[2..] } else { others };
    }
    String::from_utf8(bytes).ok()
}
