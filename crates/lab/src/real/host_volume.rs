//! Volumes of this machine's own stacks over a loop device: a zvol of ZFS, a thin volume of LVM, a file on btrfs.
//!
//! Every command is a list of words. No shell interprets a name or a path.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use blk::{Errno, Error, ErrorKind, Result};

use super::needs::{Need, check};
use super::operations::{OperationState, Operations, SnapshotDisk};
use super::program;
use super::undo::Undo;
use crate::subject::CommitEnd;

/// Longest time for one command. The removal of a snapshot frees what it alone had.
const LIMIT: Duration = Duration::from_secs(600);
/// Longest time until udev has made the file of a new device.
const DEVICE_LIMIT: Duration = Duration::from_secs(30);
/// Interval of the checks for it.
const LOOK: Duration = Duration::from_millis(20);
/// What pools, file systems and metadata take at least: btrfs needs 109 MiB, ZFS 64 MiB, and both keep reserves.
const OWN_BYTES: u64 = 512 << 20;
/// Begin of the scripts that take a stack down. Their arguments are the file, the name or the mount point of what is
/// over its loop device, and further options.
const NAMES: &str = "file=$1 over=$2
shift 2
devices=$(losetup --noheadings --output NAME --associated \"$file\")";
/// Their end: the loop device and the file.
const DETACH: &str = "\
for device in $devices; do try losetup --detach \"$device\"; done
rm -f -- \"$file\"";
/// Options of LVM where no udev makes the files of devices.
const NO_UDEV: [&str; 2] = ["--config", "activation{udev_sync=0 udev_rules=0}"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeKind {
    /// A zvol. A snapshot is one of ZFS.
    Zfs,
    /// A thin volume. A snapshot is another one that shares its blocks.
    LvmThin,
    /// A file in a subvolume. A snapshot is one of the subvolume.
    Btrfs,
}

/// A program and its arguments.
type Line = Vec<String>;

fn line(words: &[&str]) -> Line {
    words.iter().map(|word| (*word).to_string()).collect()
}

impl VolumeKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            VolumeKind::Zfs => "zfs",
            VolumeKind::LvmThin => "lvm-thin",
            VolumeKind::Btrfs => "btrfs",
        }
    }

    fn needs(self) -> Vec<Need> {
        const LOOP: Need = Need::Device("/dev/loop-control", "loop devices (`modprobe loop`)");
        let own: &[Need] = match self {
            VolumeKind::Zfs => &[
                Need::Program("zpool", "zfsutils-linux"),
                Need::Program("zfs", "zfsutils-linux"),
                Need::Device("/dev/zfs", "the kernel module zfs (package zfs-dkms, `modprobe zfs`)"),
            ],
            VolumeKind::LvmThin => &[
                Need::Program("lvcreate", "lvm2"),
                Need::Program("thin_check", "thin-provisioning-tools"),
                Need::Device("/dev/mapper/control", "the device mapper (`modprobe dm-thin-pool`)"),
            ],
            VolumeKind::Btrfs => &[
                Need::Program("mkfs.btrfs", "btrfs-progs"),
                Need::Program("btrfs", "btrfs-progs"),
                Need::FileSystem("btrfs"),
            ],
        };
        own.iter().copied().chain([Need::Program("losetup", "mount"), LOOP, Need::Administration]).collect()
    }

    /// Refuses a machine that cannot run this stack. Errors: `Unsupported`, with what is missing and how to get it.
    pub(super) fn check(self) -> Result<()> {
        check(self.name(), &self.needs())
    }

    /// Returns the script that removes everything.
    fn undo(self) -> String {
        let own = match self {
            VolumeKind::Zfs => {
                "if zpool list \"$over\" >/dev/null 2>&1; then try zpool destroy -f \"$over\"; fi"
            }
            VolumeKind::LvmThin => {
                "for device in $devices; do
    if vgs --devices \"$device\" \"$over\" >/dev/null 2>&1; then
        try vgremove -qq --yes --force --devices \"$device\" \"$@\" \"$over\"
    fi
done"
            }
            VolumeKind::Btrfs => "if mountpoint -q \"$over\"; then try umount \"$over\"; fi",
        };
        format!("{NAMES}\n{own}\n{DETACH}")
    }
}

/// Where a volume is. Its commands follow from it.
#[derive(Debug)]
struct Place {
    kind: VolumeKind,
    /// Name of the pool or of the volume group, which no other has.
    name: String,
    /// The loop device.
    device: String,
    /// Where btrfs is mounted.
    mount: String,
    /// Further options of LVM.
    options: &'static [&'static str],
}

impl Place {
    /// Returns the commands that make a disk of this size, in their order.
    fn create(&self, bytes: u64) -> Vec<Line> {
        let Place { kind, name, device, mount, .. } = self;
        let size = bytes.to_string();
        match kind {
            // Content that compresses well would make it faster than with a guest's.
            VolumeKind::Zfs => vec![
                line(&[
                    "zpool",
                    "create",
                    "-o",
                    "cachefile=none",
                    "-o",
                    "ashift=12",
                    "-O",
                    "compression=off",
                ])
                .into_iter()
                .chain(line(&["-m", "none", name, device]))
                .collect(),
                line(&["zfs", "create", "-s", "-o", "snapdev=visible", "-V", &size, &format!("{name}/disk")]),
            ],
            VolumeKind::LvmThin => vec![
                self.lvm("pvcreate", &[device]),
                self.lvm("vgcreate", &[name, device]),
                self.lvm(
                    "lvcreate",
                    &["--type", "thin-pool", "--extents", "90%FREE", "--name", "pool", name],
                ),
                self.lvm(
                    "lvcreate",
                    &["--type", "thin", "--virtualsize", &format!("{size}b"), "--name", "disk"],
                )
                .into_iter()
                .chain(line(&["--thinpool", "pool", name]))
                .collect(),
            ],
            VolumeKind::Btrfs => vec![
                line(&["mkfs.btrfs", "--quiet", device]),
                line(&["mkdir", mount]),
                line(&["mount", "-t", "btrfs", "-o", "noatime", device, mount]),
                line(&["btrfs", "subvolume", "create", &format!("{mount}/disk")]),
                line(&["truncate", "--size", &size, &self.disk()]),
            ],
        }
    }

    /// Returns a command of LVM that sees no device but ours.
    fn lvm(&self, command: &str, words: &[&str]) -> Line {
        line(&[&[command, "-qq", "--yes", "--devices", &self.device], self.options, words].concat())
    }

    fn disk(&self) -> String {
        let Place { kind, name, mount, .. } = self;
        match kind {
            VolumeKind::Zfs => format!("/dev/zvol/{name}/disk"),
            VolumeKind::LvmThin => format!("/dev/mapper/{name}-disk"),
            VolumeKind::Btrfs => format!("{mount}/disk/disk.raw"),
        }
    }

    fn take(&self, snapshot: &str) -> Vec<Line> {
        let Place { kind, name, mount, .. } = self;
        match kind {
            VolumeKind::Zfs => vec![line(&["zfs", "snapshot", &format!("{name}/disk@{snapshot}")])],
            VolumeKind::LvmThin => {
                let origin = format!("{name}/disk");
                let words =
                    ["--type", "thin", "--setactivationskip", "n", "--name", &thin(snapshot), &origin];
                vec![self.lvm("lvcreate", &words)]
            }
            VolumeKind::Btrfs => {
                let (disk, copy) = (format!("{mount}/disk"), format!("{mount}/{}", thin(snapshot)));
                vec![line(&["btrfs", "subvolume", "snapshot", "-r", &disk, &copy])]
            }
        }
    }

    /// Returns the commands that remove a snapshot and wait until its space is free: the running disk keeps its state.
    fn commit(&self, snapshot: &str) -> Vec<Line> {
        let Place { kind, name, mount, .. } = self;
        match kind {
            VolumeKind::Zfs => vec![
                line(&["zfs", "destroy", &format!("{name}/disk@{snapshot}")]),
                line(&["zpool", "wait", "-t", "free", name]),
            ],
            VolumeKind::LvmThin => vec![self.lvm("lvremove", &[&format!("{name}/{}", thin(snapshot))])],
            VolumeKind::Btrfs => vec![
                line(&["btrfs", "subvolume", "delete", &format!("{mount}/{}", thin(snapshot))]),
                // Wakes the kernel's cleaner, which otherwise begins up to 30 s later.
                line(&["btrfs", "filesystem", "sync", mount]),
                line(&["btrfs", "subvolume", "sync", mount]),
            ],
        }
    }

    fn frozen(&self, snapshot: &str) -> String {
        let Place { kind, name, mount, .. } = self;
        match kind {
            VolumeKind::Zfs => format!("/dev/zvol/{name}/disk@{snapshot}"),
            // The device mapper doubles the hyphens of a name.
            VolumeKind::LvmThin => format!("/dev/mapper/{name}-{}", thin(snapshot).replace('-', "--")),
            VolumeKind::Btrfs => format!("{mount}/{}/disk.raw", thin(snapshot)),
        }
    }
}

/// Returns the name of a snapshot's volume. LVM reserves some names, and the folder has others.
fn thin(snapshot: &str) -> String {
    format!("snap_{snapshot}")
}

/// A volume of this machine with its stack, which ends with it.
pub(super) struct HostVolume {
    place: Place,
    undo: Undo,
}

impl HostVolume {
    /// Makes the stack with a disk of `bytes` in the folder, in a sparse file.
    pub(super) fn create(kind: VolumeKind, folder: &Path, bytes: u64) -> Result<HostVolume> {
        let file = folder.join("pool.img");
        let mount = folder.join("mount").to_string_lossy().into_owned();
        let name = format!("unstunlab{}", unique()?);
        let made = File::create_new(&file).and_then(|made| made.set_len(file_bytes(bytes)));
        made.map_err(|e| Errno::from(e).at(file.display().to_string(), "making the file of the pool"))?;
        let over = if kind == VolumeKind::Btrfs { &mount } else { &name };
        let options: &[&str] = if Path::new("/run/udev/control").exists() { &[] } else { &NO_UDEV };
        let arguments = [file.as_os_str(), OsStr::new(over)].into_iter();
        let arguments: Vec<&OsStr> = arguments.chain(options.iter().map(OsStr::new)).collect();
        let undo = Undo::start(&kind.undo(), &arguments, folder)?;
        // The page cache of the file would hide what the stack costs.
        let attach = line(&["losetup", "--find", "--show", "--direct-io=on", &file.to_string_lossy()]);
        let device = run(&attach)?.trim().to_string();
        let volume = HostVolume { place: Place { kind, name, device, mount, options }, undo };
        run_all(&volume.place.create(bytes))?;
        wait_for(&volume.place.disk())?;
        Ok(volume)
    }

    pub(super) fn disk(&self) -> String {
        self.place.disk()
    }
}

/// Returns the size of the file below: the disk, all of it written again after a snapshot, a quarter for tables and
/// blocks that are partly used, and what the stack takes itself.
fn file_bytes(disk_bytes: u64) -> u64 {
    disk_bytes.saturating_mul(2).saturating_add(disk_bytes / 4).saturating_add(OWN_BYTES)
}

/// Returns a part of a name that no other run has.
pub(super) fn unique() -> Result<String> {
    const SOURCE: &str = "/proc/sys/kernel/random/uuid";
    let uuid = std::fs::read_to_string(SOURCE).map_err(|e| Errno::from(e).at(SOURCE, "reading it"))?;
    Ok(uuid.chars().filter(char::is_ascii_hexdigit).take(12).collect())
}

/// Refuses names that one of the stacks would not take, or take for something else.
pub(super) fn check_name(snapshot: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if !snapshot.is_empty() && snapshot.chars().all(is_plain) && !snapshot.starts_with(['-', '.']) {
        return Ok(());
    }
    let cause =
        "this stack's snapshots have names of letters, digits, _, - and . alone, a letter or digit first";
    Err(Error::invalid(snapshot, cause))
}

fn run(words: &Line) -> Result<String> {
    program::run(Command::new(&words[0]).args(&words[1..]), LIMIT)
}

fn run_all(lines: &[Line]) -> Result<()> {
    lines.iter().try_for_each(|words| run(words).map(drop))
}

fn wait_for(path: &str) -> Result<()> {
    for _ in 0..DEVICE_LIMIT.as_millis() / LOOK.as_millis() {
        if Path::new(path).exists() {
            return Ok(());
        }
        std::thread::park_timeout(LOOK);
    }
    let cause = format!("it was made, but is not there after {} s", DEVICE_LIMIT.as_secs());
    Err(Error::new(ErrorKind::NotFound, path, cause))
}

/// The I/O below these stacks is not counted.
impl Operations for HostVolume {
    fn take(&mut self, name: &str, _: &OperationState) -> Result<()> {
        check_name(name)?;
        run_all(&self.place.take(name))
    }

    fn commit(&mut self, name: &str, state: &OperationState) -> Result<CommitEnd> {
        check_name(name)?;
        for words in self.place.commit(name) {
            let mut command = Command::new(&words[0]);
            program::run_while(command.args(&words[1..]), LIMIT, || state.check_cancelled(&words[0]))?;
        }
        Ok(CommitEnd::Done)
    }

    fn frozen(&mut self, name: &str) -> Result<Vec<SnapshotDisk>> {
        check_name(name)?;
        let path = self.place.frozen(name);
        wait_for(&path)?;
        Ok(vec![SnapshotDisk::File(PathBuf::from(path))])
    }

    fn close(&mut self) -> Result<()> {
        self.undo.run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(kind: VolumeKind) -> Place {
        let (name, device, mount) = ("lab1".into(), "/dev/loop7".into(), "/d ir/mount".into());
        Place { kind, name, device, mount, options: &[] }
    }

    fn text(lines: Vec<Line>) -> Vec<String> {
        lines.into_iter().map(|line| line.join(" ")).collect()
    }

    #[test]
    fn each_stack_takes_and_removes_by_its_own_means() {
        let zfs = place(VolumeKind::Zfs);
        assert_eq!(text(zfs.take("a-b")), ["zfs snapshot lab1/disk@a-b"]);
        assert_eq!(text(zfs.commit("a-b")), ["zfs destroy lab1/disk@a-b", "zpool wait -t free lab1"]);
        assert_eq!(zfs.frozen("a-b"), "/dev/zvol/lab1/disk@a-b");

        let thin = place(VolumeKind::LvmThin);
        let lvm = "-qq --yes --devices /dev/loop7";
        assert_eq!(
            text(thin.take("a-b")),
            [format!("lvcreate {lvm} --type thin --setactivationskip n --name snap_a-b lab1/disk")]
        );
        assert_eq!(text(thin.commit("a-b")), [format!("lvremove {lvm} lab1/snap_a-b")]);
        assert_eq!(thin.frozen("a-b"), "/dev/mapper/lab1-snap_a--b");

        let btrfs = place(VolumeKind::Btrfs);
        let take = &btrfs.take("a")[0];
        assert_eq!(take[4..], ["/d ir/mount/disk", "/d ir/mount/snap_a"], "a path is one word");
        assert_eq!(btrfs.commit("a")[2], ["btrfs", "subvolume", "sync", "/d ir/mount"], "it is waited for");
    }

    #[test]
    fn names_that_a_stack_would_misread_are_refused() {
        ["a", "before-2", "x_1.y"].into_iter().for_each(|name| check_name(name).unwrap());
        for name in ["", "-rf", ".", "a/b", "a@b", "a b", "$(x)", "a;b", "\u{e9}"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn every_stack_names_the_package_of_each_program() {
        for kind in [VolumeKind::Zfs, VolumeKind::LvmThin, VolumeKind::Btrfs] {
            let programs = kind.needs().into_iter().filter(|need| matches!(need, Need::Program(..)));
            assert!(programs.count() >= 3 && kind.needs().contains(&Need::Administration), "{kind:?}");
            assert!(kind.undo().ends_with(DETACH));
        }
    }
}
