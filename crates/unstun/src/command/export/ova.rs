//! An OVA: a tar archive with the description, the manifest of hashes, and the disks, in this order (DSP0243). Sizes and
//! hashes are known last: the description and the manifest have their room from the start.

use api::error::Result;
use sha2::{Digest, Sha256};
use vmdk::ova::{NewDisk, NewVm, member_header};

use super::file::OutputFile;
use super::stream;
use crate::command::pieces;
use crate::hex::hex;

const BLOCK: u64 = 512;
/// Digits of a size in the room for the description.
const DIGITS_ROOM: usize = 20;

/// A disk to put into the archive.
pub(super) struct Member {
    /// Address of its export.
    pub uri: String,
    /// Name of its file in the archive.
    pub file: String,
    pub capacity_bytes: u64,
}

/// Writes the archive. Returns the names of the files, with their hashes.
pub(super) fn write(
    name: &str,
    (cpus, memory_bytes): (u32, u64),
    members: &[Member],
    file: &mut OutputFile,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<(String, String)>> {
    let of = |sizes: &[u64]| {
        let disk = |(member, bytes): (&Member, &u64)| NewDisk {
            file: member.file.clone(),
            file_bytes: *bytes,
            capacity_bytes: member.capacity_bytes,
        };
        let disks: Vec<_> = members.iter().zip(sizes).map(disk).collect();
        NewVm { name, cpus, memory_bytes, disks: &disks }.descriptor()
    };
    let (description, manifest) = (format!("{name}.ovf"), format!("{name}.mf"));
    let room = of(&vec![0; members.len()]).len() + members.len() * DIGITS_ROOM;
    let names: Vec<&str> =
        [description.as_str()].into_iter().chain(members.iter().map(|m| m.file.as_str())).collect();
    let manifest_bytes: usize = names.iter().map(|name| line(name, &"0".repeat(64)).len()).sum();
    let description_at = reserve(&description, room, file)?;
    let manifest_at = reserve(&manifest, manifest_bytes, file)?;
    let (mut sizes, mut hashes) = (Vec::new(), Vec::new());
    for member in members {
        let header_at = file.end();
        file.append(&[0; BLOCK as usize])?;
        let hash = stream::write(&member.file, &pieces::read(&member.uri)?, file, progress)?;
        let bytes = file.end() - header_at - BLOCK;
        file.write_at(header_at, &member_header(&member.file, bytes)?)?;
        pad(bytes, file)?;
        sizes.push(bytes);
        hashes.push((member.file.clone(), hash));
    }
    // Two blocks of zeros are the end.
    file.append(&[0; 2 * BLOCK as usize])?;
    let mut text = of(&sizes);
    assert!(text.len() <= room, "{} bytes of a description, room for {room}", text.len());
    // Blanks after the last element are no part of the document.
    text.push_str(&" ".repeat(room - text.len()));
    file.write_at(description_at, text.as_bytes())?;
    hashes.insert(0, (description.clone(), hex(&Sha256::digest(text.as_bytes()))));
    let lines: String = hashes.iter().map(|(name, hash)| line(name, hash)).collect();
    file.write_at(manifest_at, lines.as_bytes())?;
    Ok(hashes)
}

fn line(name: &str, hash: &str) -> String {
    format!("SHA256({name})= {hash}\n")
}

/// Makes room for a member. Returns the place of its content.
fn reserve(name: &str, bytes: usize, file: &mut OutputFile) -> Result<u64> {
    file.append(&member_header(name, bytes as u64)?)?;
    let at = file.end();
    file.append(&vec![0; bytes])?;
    pad(bytes as u64, file)?;
    Ok(at)
}

fn pad(bytes: u64, file: &mut OutputFile) -> Result<()> {
    file.append(&vec![0; (bytes.next_multiple_of(BLOCK) - bytes) as usize])
}
