//! Damages a folder of VMware's files as a stranger or a failing disk would. The damage is a function of the random
//! numbers.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::random::Random;

/// Files that are longer, as `grown` makes them, are not read and damaged again.
const LONG_BYTES: u64 = 32 << 20;
/// Maximum number of changes of one folder.
const BENDS_MAX: u64 = 4;
/// Numbers at which sums and products overflow, and limits of the formats.
const NUMBERS: [&str; 10] = [
    "0",
    "1",
    "-1",
    "255",
    "2147483648",
    "4294967295",
    "18014398509481984",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999999999",
];
/// Names that lead to files that are no data, or that belong to others.
const PATHS: [&str; 9] = [
    "/dev/zero",
    "/dev/null",
    "/proc/self/mem",
    "../../../../etc/passwd",
    "..",
    "",
    "esx.vmdk",
    "esx-000001.vmdk",
    "/nowhere/esx.vmdk",
];

type Bend = fn(&Path, &mut Random) -> String;

const BENDS: [(&str, Bend); 14] = [
    ("bytes", bytes),
    ("number", number),
    ("path", path),
    ("cut", cut),
    ("lines twice", lines_twice),
    ("word of an extent", word),
    ("circle", circle),
    ("other kind of file", other_kind),
    ("grown", grown),
    ("slots", slots),
    ("many lines", many_lines),
    ("shared extent", shared_extent),
    ("private folder", private_folder),
    ("many files", many_files),
];
/// The first of the slow changes, which are chosen less often.
const LARGE: u64 = 10;

/// Damages the folder, and returns a description of each change.
pub(crate) fn bend(folder: &Path, random: &mut Random) -> Vec<String> {
    let count = 1 + random.below(BENDS_MAX);
    let one = |_| {
        let kinds = if random.below(4) == 0 { BENDS.len() as u64 } else { LARGE };
        let (name, bend) = BENDS[random.below(kinds) as usize];
        format!("{name}: {}", bend(folder, random))
    };
    (0..count).map(one).collect()
}

/// Returns the regular files that are not long, sorted by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let short = |entry: &fs::DirEntry| entry.metadata().unwrap().len() <= LONG_BYTES;
    let regular = entries.filter(|entry| entry.file_type().unwrap().is_file() && short(entry));
    let mut files: Vec<PathBuf> = regular.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn any(folder: &Path, random: &mut Random, wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let name = |file: &PathBuf| wanted(file.file_name().unwrap().to_str().unwrap());
    let files: Vec<PathBuf> = files(folder).into_iter().filter(name).collect();
    (!files.is_empty()).then(|| files[random.below(files.len() as u64) as usize].clone())
}

fn is_extent(name: &str) -> bool {
    name.ends_with("-flat.vmdk") || name.ends_with("-delta.vmdk")
}

fn is_descriptor(name: &str) -> bool {
    name.ends_with(".vmdk") && !is_extent(name)
}

fn is_text(name: &str) -> bool {
    !is_extent(name)
}

fn named(file: Option<PathBuf>) -> String {
    file.and_then(|file| Some(file.file_name()?.to_str()?.to_owned())).unwrap_or("nothing".into())
}

/// Changes the content of a matching file, if there is one.
fn change(
    folder: &Path,
    random: &mut Random,
    wanted: fn(&str) -> bool,
    how: impl FnOnce(&mut Vec<u8>, &mut Random),
) -> String {
    let file = any(folder, random, wanted);
    if let Some(file) = &file {
        let mut content = fs::read(file).unwrap();
        how(&mut content, random);
        fs::write(file, content).unwrap();
    }
    named(file)
}

fn at(content: &[u8], random: &mut Random) -> usize {
    random.below(content.len().max(1) as u64) as usize
}

fn bytes(folder: &Path, random: &mut Random) -> String {
    change(
        folder,
        random,
        |_| true,
        |content, random| {
            for _ in 0..=random.below(8) {
                let place = at(content, random);
                content.splice(place..(place + 1).min(content.len()), [random.next() as u8]);
            }
        },
    )
}

/// Replaces the value after the `=` of a line, or a word of an extent line.
fn value(content: &mut Vec<u8>, random: &mut Random, by: &str) {
    let text = String::from_utf8_lossy(content).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return;
    }
    let chosen = random.below(lines.len() as u64) as usize;
    let changed = match lines[chosen].split_once('=') {
        Some((key, _)) => format!("{key}= \"{by}\""),
        None => lines[chosen]
            .split(' ')
            .enumerate()
            .map(|(n, w)| if n == 1 { by } else { w })
            .collect::<Vec<_>>()
            .join(" "),
    };
    let line = |(n, line): (usize, &&str)| if n == chosen { changed.clone() } else { (*line).to_owned() };
    *content = (lines.iter().enumerate().map(line).collect::<Vec<_>>().join("\n") + "\n").into_bytes();
}

fn number(folder: &Path, random: &mut Random) -> String {
    let by = NUMBERS[random.below(NUMBERS.len() as u64) as usize];
    change(folder, random, is_text, |content, random| value(content, random, by)) + " " + by
}

fn path(folder: &Path, random: &mut Random) -> String {
    let by = PATHS[random.below(PATHS.len() as u64) as usize];
    change(folder, random, is_text, |content, random| {
        let text = String::from_utf8_lossy(content).into_owned();
        let names: Vec<&str> =
            text.split('"').skip(1).step_by(2).filter(|name| name.contains(".vmdk")).collect();
        if !names.is_empty() {
            let name = names[random.below(names.len() as u64) as usize];
            *content = text.replacen(name, by, 1).into_bytes();
        }
    }) + " "
        + by
}

fn cut(folder: &Path, random: &mut Random) -> String {
    change(folder, random, |_| true, |content, random| content.truncate(at(content, random)))
}

fn lines_twice(folder: &Path, random: &mut Random) -> String {
    change(folder, random, is_text, |content, random| {
        let mut copy = content.clone();
        value(&mut copy, random, "other");
        content.extend(copy);
    })
}

fn word(folder: &Path, random: &mut Random) -> String {
    change(folder, random, is_extent, |content, random| {
        // The header and the directory are in the first sectors.
        let words = content.len().min(4096) as u64 / 4;
        for _ in 0..(1 + random.below(3)).min(words) {
            let place = random.below(words) as usize * 4;
            let small = [0, 1, 2, 0x7fff_ffff, 0x8000_0000, u32::MAX, random.next() as u32 % 4096];
            let word = small[random.below(small.len() as u64) as usize];
            content[place..place + 4].copy_from_slice(&word.to_le_bytes());
        }
    })
}

/// Makes a link its own ancestor.
fn circle(folder: &Path, random: &mut Random) -> String {
    change(folder, random, is_descriptor, |content, random| {
        let names = ["esx.vmdk", "esx-000001.vmdk", "esx-000002.vmdk"];
        let parent = names[random.below(3) as usize];
        let text = String::from_utf8_lossy(content);
        let lines = text.lines().filter(|line| !line.starts_with("parent"));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        let place = lines.len().min(3);
        lines.insert(place, format!("parentCID=00000001\nparentFileNameHint=\"{parent}\""));
        *content = (lines.join("\n") + "\n").into_bytes();
    })
}

/// Replaces a file by a link, a pipe, a folder, a device's name, or nothing.
fn other_kind(folder: &Path, random: &mut Random) -> String {
    let Some(file) = any(folder, random, |_| true) else { return "nothing".into() };
    fs::remove_file(&file).unwrap();
    let kind = random.below(7);
    match kind {
        0 => assert!(Command::new("mkfifo").arg(&file).status().unwrap().success()),
        1 => symlink(&file, &file).unwrap(),
        2 => symlink(PATHS[random.below(PATHS.len() as u64 - 4) as usize], &file).unwrap(),
        3 => fs::create_dir(&file).unwrap(),
        4 => drop(File::create(&file).unwrap()),
        5 => {
            if let Some(other) = any(folder, random, |_| true) {
                fs::hard_link(other, &file).unwrap();
            }
        }
        _ => {}
    }
    format!("{} kind {kind}", named(Some(file)))
}

/// Sets a file's length to a power of two from 1 MiB to 512 GiB.
fn grown(folder: &Path, random: &mut Random) -> String {
    let file = any(folder, random, |_| true);
    if let Some(file) = &file {
        File::options().write(true).open(file).unwrap().set_len(1 << (20 + random.below(20))).unwrap();
    }
    named(file)
}

/// Adds a disk at every slot, all with one descriptor.
fn slots(folder: &Path, random: &mut Random) -> String {
    change(
        folder,
        random,
        |name| name.ends_with(".vmx"),
        |content, _| {
            let buses = [("scsi", 4, 64), ("sata", 4, 30), ("nvme", 4, 64), ("ide", 2, 2)];
            for (bus, controllers, units) in buses {
                for controller in 0..controllers {
                    content.extend(format!("{bus}{controller}.present = \"TRUE\"\n").bytes());
                    for unit in 0..units {
                        let slot = format!("{bus}{controller}:{unit}");
                        let lines =
                            format!("{slot}.present = \"TRUE\"\n{slot}.fileName = \"esx-000002.vmdk\"\n");
                        content.extend(lines.bytes());
                    }
                }
            }
        },
    )
}

/// Appends about as many lines or bytes as a text may have, or more: newlines, one long line, or many keys.
fn many_lines(folder: &Path, random: &mut Random) -> String {
    let count = 1 << (12 + random.below(12));
    let kind = random.below(3);
    change(folder, random, is_text, |content, _| match kind {
        0 => content.extend(vec![b'\n'; count]),
        1 => content.extend(vec![b'x'; count]),
        _ => {
            content.extend((0..count / 32).flat_map(|n| format!("snapshot{n}.uid = \"{n}\"\n").into_bytes()));
        }
    }) + &format!(" kind {kind}, {count} bytes")
}

fn shared_extent(folder: &Path, random: &mut Random) -> String {
    let Some(file) = any(folder, random, is_descriptor) else { return "nothing".into() };
    let copies = 1 << random.below(10);
    for copy in 0..copies {
        fs::copy(&file, folder.join(format!("copy-{copy:06}.vmdk"))).unwrap();
    }
    format!("{} {copies} times", named(Some(file)))
}

/// Adds a private file of our own homes to the folder, as another user could.
fn private_folder(folder: &Path, random: &mut Random) -> String {
    let private = folder.join(".unstun");
    if fs::create_dir(&private).is_err() {
        return "there already".into();
    }
    let names = ["events", "native", "move", "roots", "intent", "lock"];
    let name = names[random.below(names.len() as u64) as usize];
    let file = private.join(name);
    match random.below(4) {
        0 => assert!(Command::new("mkfifo").arg(&file).status().unwrap().success()),
        1 => symlink("/dev/zero", &file).unwrap(),
        2 => fs::write(&file, "own /nowhere\n").unwrap(),
        _ => fs::write(&file, random.bytes(4096)).unwrap(),
    }
    name.into()
}

fn many_files(folder: &Path, random: &mut Random) -> String {
    let count = 1 << random.below(12);
    for number in 0..count {
        File::create(folder.join(format!("many-{number:06}.vmdk"))).unwrap();
    }
    count.to_string()
}
