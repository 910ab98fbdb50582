//! Builder of the guest's initramfs: this program as init with its libraries, and the kernel's modules.
//!
//! Format "newc": the magic, a header of 13 numbers of 8 hexadecimal digits, the name and the data, both padded to 4
//! bytes. The entry `TRAILER!!!` ends it (kernel documentation, driver-api/early-userspace/buffer-format).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufWriter, Result, Write};
use std::path::{Path, PathBuf};

use crate::programs::tool;

pub(crate) const INIT: &str = "/init";
/// Folder of files `NN-name.ko`, which are loaded in the order of their names.
pub(crate) const MODULES: &str = "/modules";
/// Folder of further ones, for a LUN of a SAN.
pub(crate) const SAN_MODULES: &str = "/san-modules";
pub(crate) const SHA256SUM: &str = "/bin/sha256sum";
/// An initiator of iSCSI that needs no service.
pub(crate) const INITIATOR: &str = "/bin/iscsistart";
/// QEMU's guest agent.
pub(crate) const AGENT: &str = "/bin/qemu-ga";
/// File that the agent's hook writes on each disk while it is frozen.
pub(crate) const HOOKED: &str = "hooked";

/// Modules beyond what is built in; their dependencies are added.
const WANTED: [&str; 5] = ["virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "xfs"];

/// Modules for a LUN and its hosts.
const WANTED_OF_SAN: [&str; 3] = ["sd_mod", "iscsi_target_mod", "iscsi_tcp"];

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;
/// Major and minor number of /dev/console, without which process 1 starts with no standard output.
const CONSOLE: (u32, u32) = (5, 1);

/// Returns the folder into which `scripts/setup.sh` unpacks a package.
fn unpacked(package: &str) -> PathBuf {
    let build = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder of the build");
    build.join(package)
}

/// Returns the only entry of a folder.
fn only_entry(folder: &Path) -> PathBuf {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}; run `make setup`", folder.display()));
    let found: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    assert_eq!(
        found.len(),
        1,
        "{}: one kernel expected; remove the folder and run `make setup`",
        folder.display()
    );
    found.into_iter().next().expect("one")
}

pub(crate) fn kernel() -> PathBuf {
    only_entry(&unpacked("guest-kernel").join("boot"))
}

pub(crate) fn write(path: &Path) {
    let out = BufWriter::new(fs::File::create(path).expect("a new file"));
    let mut archive = Archive { out, folders: BTreeSet::new(), entries: 0 };
    add_all(&mut archive).and_then(|()| archive.end()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn add_all(archive: &mut Archive) -> Result<()> {
    for folder in ["/dev", "/proc", "/sys", "/tmp"] {
        archive.folder(Path::new(folder))?;
    }
    archive.entry(Path::new("/dev/console"), CHARACTER_DEVICE, CONSOLE, &[])?;
    let this = std::env::current_exe()?;
    let sum = PathBuf::from(tool("sh", &["-c", "command -v sha256sum"]).trim());
    archive.file(Path::new(INIT), &this)?;
    archive.file(Path::new(SHA256SUM), &sum)?;
    let agent = unpacked("guest-agent").join("usr/sbin/qemu-ga");
    archive.file(Path::new(AGENT), &agent)?;
    let initiator = unpacked("guest-initiator");
    let own_libraries = initiator.join("usr/lib");
    let initiator = initiator.join("sbin/iscsistart");
    archive.file(Path::new(INITIATOR), &initiator)?;
    for library in libraries(&[&this, &sum, &agent, &initiator]) {
        archive.file(&library, &library)?;
    }
    let folder = only_entry(&own_libraries);
    for entry in fs::read_dir(&folder)? {
        let library = entry?.path();
        let name = library.file_name().expect("a library's file");
        archive.file(&Path::new("/usr/lib").join(name), &library)?;
    }
    let modules = modules();
    for (number, (folder, module)) in modules.iter().enumerate() {
        let name = module.file_name().expect("a module's file").to_string_lossy();
        archive.file(&Path::new(folder).join(format!("{number:02}-{name}")), module)?;
    }
    Ok(())
}

/// Returns the shared libraries and the loader, at the paths where the programs look for them.
fn libraries(programs: &[&Path]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for program in programs {
        let listed = tool("ldd", &[program.to_str().expect("UTF-8")]);
        // `name => /path (address)`, or `/path (address)` for the loader.
        found.extend(listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
    }
    found
}

/// Returns the wanted modules and their folders, each after all on which it depends.
fn modules() -> Vec<(&'static str, PathBuf)> {
    let mut by_name = BTreeMap::new();
    collect(&only_entry(&unpacked("guest-kernel").join("lib/modules")), &mut by_name);
    let mut order = Vec::new();
    WANTED.iter().for_each(|name| add_module(name, &by_name, &mut order));
    let always = order.len();
    WANTED_OF_SAN.iter().for_each(|name| add_module(name, &by_name, &mut order));
    let folder = |number| if number < always { MODULES } else { SAN_MODULES };
    order.into_iter().enumerate().map(|(number, module)| (folder(number), module)).collect()
}

fn collect(folder: &Path, by_name: &mut BTreeMap<String, PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of modules") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            collect(&path, by_name);
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            // A name has `_` where its file may have `-`.
            let name = path.file_stem().expect("a name").to_string_lossy().replace('-', "_");
            by_name.insert(name, path);
        }
    }
}

fn add_module(name: &str, by_name: &BTreeMap<String, PathBuf>, order: &mut Vec<PathBuf>) {
    let path = by_name.get(name).unwrap_or_else(|| panic!("no module {name} in the kernel's package"));
    if order.contains(path) {
        return;
    }
    for needed in depends(&fs::read(path).expect("readable")) {
        add_module(&needed, by_name, order);
    }
    order.push(path.clone());
}

/// Returns the dependencies from the module's own section of `key=value` strings, because the package has no
/// modules.dep.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let at = module.windows(KEY.len()).position(|window| window == KEY).expect("a module says what it needs");
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().expect("a string");
    let value = String::from_utf8_lossy(value);
    value.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

struct Archive {
    out: BufWriter<fs::File>,
    folders: BTreeSet<PathBuf>,
    entries: u32,
}

impl Archive {
    fn file(&mut self, path: &Path, from: &Path) -> Result<()> {
        self.folder(path.parent().expect("not the root"))?;
        self.entry(path, PROGRAM, (0, 0), &fs::read(from)?)
    }

    /// Adds a folder and those above it.
    fn folder(&mut self, path: &Path) -> Result<()> {
        if path == Path::new("/") || !self.folders.insert(path.to_owned()) {
            return Ok(());
        }
        self.folder(path.parent().expect("not the root"))?;
        self.entry(path, DIRECTORY, (0, 0), &[])
    }

    fn entry(&mut self, path: &Path, mode: u32, device: (u32, u32), data: &[u8]) -> Result<()> {
        let name = path.to_str().expect("UTF-8").trim_start_matches('/');
        self.entries += 1;
        let size = u32::try_from(data.len()).expect("no file of 4 GiB");
        let name_size = name.len() as u32 + 1;
        // inode, mode, uid, gid, links, mtime, size, device (2), device it is (2), name with its NUL, checksum
        let numbers = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0]
            .map(|n| format!("{n:08x}"));
        let header = format!("070701{}{name}\0", numbers.concat());
        self.padded(header.as_bytes())?;
        self.padded(data)
    }

    fn padded(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes)?;
        self.out.write_all(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])
    }

    fn end(mut self) -> Result<()> {
        self.entry(Path::new("TRAILER!!!"), 0, (0, 0), &[])?;
        self.out.flush()
    }
}
