//! A tree with every kind of file that a file system stores differently, its changes, and its exact listing.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Result;
use crate::initramfs::SHA256SUM;
use crate::random::Random;

const FOLDERS: [&str; 4] = ["files", "files/a", "files/a/b", "files/c"];
const FILES: u64 = 60;
const SIZE_MAX: u64 = 128 << 10;
/// Size beyond one extent of any allocator's first guess.
const LARGE_BYTES: u64 = 3 << 20;

fn name(place: &Path, number: u64) -> PathBuf {
    place.join(FOLDERS[number as usize % FOLDERS.len()]).join(format!("file{number}"))
}

pub(super) fn fill(place: &Path, generation: u64) -> Result<()> {
    for folder in FOLDERS {
        fs::create_dir(place.join(folder))?;
    }
    fs::create_dir(place.join("files/empty"))?;
    symlink("a/b", place.join("files/link"))?;
    for number in 0..FILES {
        let mut random = Random(generation << 32 | number);
        let length = match number % 20 {
            0 => 0,
            1 => LARGE_BYTES,
            _ => random.below(SIZE_MAX),
        };
        let path = name(place, number);
        fs::write(&path, random.bytes(length))?;
        if number % 7 == 0 {
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        }
    }
    Ok(())
}

/// Changes every file except each fifth, and flushes, so that the changes are on the disk.
pub(super) fn change(place: &Path) -> Result<()> {
    for number in 0..FILES {
        let path = name(place, number);
        let length = fs::metadata(&path)?.len();
        match number % 5 {
            0 => fs::remove_file(&path)?,
            1 => File::options().write(true).open(&path)?.write_all_at(b"changed", length / 2)?,
            2 => File::options().write(true).open(&path)?.set_len(length / 3)?,
            3 => fs::rename(&path, path.with_extension("moved"))?,
            _ => {}
        }
    }
    fs::remove_file(place.join("files/link"))?;
    fs::create_dir(place.join("files/later"))?;
    for number in 0..FILES {
        fs::write(place.join(format!("files/later/{number}")), Random(number).bytes(SIZE_MAX))?;
    }
    rustix::fs::sync();
    Ok(())
}

/// Writes a file and flushes it, in pieces small enough for the guest's memory.
pub(super) fn weigh(place: &Path, bytes: u64) -> Result<()> {
    const PIECE: u64 = 1 << 20;
    let piece = Random(bytes).bytes(PIECE);
    let mut file = File::create(place.join("weight"))?;
    for _ in 0..bytes / PIECE {
        file.write_all(&piece)?;
    }
    Ok(file.sync_all()?)
}

/// Returns a line for every entry, in order of the paths, with the checksum of every file.
pub(super) fn list(place: &Path) -> Result<String> {
    let (mut lines, mut files) = (String::new(), Vec::new());
    visit(place, place, &mut lines, &mut files)?;
    if !files.is_empty() {
        let summed = Command::new(SHA256SUM).current_dir(place).args(&files).output()?;
        if !summed.status.success() {
            return Err(format!("sha256sum: {}", String::from_utf8_lossy(&summed.stderr)).into());
        }
        lines.push_str(&String::from_utf8(summed.stdout)?);
    }
    Ok(lines)
}

fn visit(folder: &Path, place: &Path, lines: &mut String, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let found = fs::symlink_metadata(&path)?;
        let shown = path.strip_prefix(place)?.to_owned();
        write!(lines, "{:o} {} {}.{:09} ", found.mode(), found.len(), found.mtime(), found.mtime_nsec())?;
        writeln!(lines, "{}", shown.display())?;
        if found.is_symlink() {
            writeln!(lines, "-> {}", fs::read_link(&path)?.display())?;
        } else if found.is_dir() {
            visit(&path, place, lines, files)?;
        } else {
            files.push(shown);
        }
    }
    Ok(())
}
