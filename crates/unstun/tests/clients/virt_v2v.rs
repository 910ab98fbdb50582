//! Exported OVAs as `virt-v2v` reads them: the description, the hashes, and the guest in a disk.
//!
//! A whole conversion needs an installed guest. The second test has what virt-v2v's inspection needs of one, and expects
//! the conversion to end where it would write the guest's boot loader.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::daemon::Datastore;
use crate::programs::{tool, try_tool};
use crate::skip::skip;

/// What the inspection shows as the guest's version.
const VERSION: &str = "unstun-guest-47";
const SIZE: u64 = 64 << 20;

/// Returns whether `virt-v2v` is installed; says so if it is not.
fn has_virt_v2v() -> bool {
    let has = Command::new("virt-v2v").arg("--version").output().is_ok();
    if !has {
        skip("no virt-v2v; `make test-all` installs it");
    }
    has
}

fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn virt_v2v_reads_the_description_and_compares_the_hashes() {
    if !has_virt_v2v() {
        return;
    }
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M --disk 32M");
    tool("qemu-io", &["-f", "raw", "-c", "write -q -P 7 0 8M", &datastore.uri("web/disk0")]);
    let ova = datastore.beside("web.ova");
    datastore.json(&format!("export web {} --cpus 3 --memory 512M", ova.display()));
    daemon.stop();
    let read = || try_tool("virt-v2v", &["-i", "ova", ova.to_str().unwrap(), "--print-source"]);
    let (output, said) = (read(), both(&read()));
    assert!(output.status.success(), "{said}");
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in
        ["source name: web", "memory: 536870912 (bytes)", "nr vCPUs: 3", "disks: 0 [scsi] 1 [scsi]"]
    {
        assert!(words.contains(expected), "{expected}: {said}");
    }
    let mut bytes = fs::read(&ova).unwrap();
    let header = bytes.windows(4).position(|part| part == b"KDMV").unwrap();
    bytes[header + 400] ^= 1;
    fs::write(&ova, &bytes).unwrap();
    let (output, said) = (read(), both(&read()));
    assert!(!output.status.success() && said.contains("checksum of disk web-disk0.vmdk"), "{said}");
}

/// Kernel and modules for the small guest in which virt-v2v looks at disks.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
    version: String,
}

impl Kernel {
    /// Copies the kernel that the set-up has unpacked for guests, and lists its modules.
    fn in_folder(folder: &Path) -> Kernel {
        let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest-kernel");
        let to = folder.to_str().unwrap();
        tool("cp", &["-r", unpacked.to_str().unwrap(), to]);
        let folder = folder.join("guest-kernel");
        let versions = fs::read_dir(folder.join("lib/modules")).unwrap();
        let modules = versions.map(|entry| entry.unwrap().path()).next().expect("a kernel's modules");
        let version = modules.file_name().unwrap().to_str().unwrap().to_owned();
        tool("depmod", &["-b", folder.to_str().unwrap(), &version]);
        Kernel { image: folder.join(format!("boot/vmlinuz-{version}")), modules, version }
    }

    /// Runs virt-v2v on an OVA, without hardware virtualisation.
    fn convert(&self, ova: &Path, folder: &Path) -> Output {
        let mut command = Command::new("virt-v2v");
        command.args(["-i", "ova"]).arg(ova).args(["-o", "null"]).stdin(Stdio::null());
        command.env("SUPERMIN_KERNEL", &self.image).env("SUPERMIN_MODULES", &self.modules);
        command.env("SUPERMIN_KERNEL_VERSION", &self.version).env("LIBGUESTFS_CACHEDIR", folder);
        command.env("LIBGUESTFS_BACKEND", "direct").env("LIBGUESTFS_BACKEND_SETTINGS", "force_tcg");
        command.output().unwrap()
    }
}

/// Makes a file system with what the inspection looks for.
fn guest(folder: &Path) -> PathBuf {
    let (root, image) = (folder.join("root"), folder.join("guest.raw"));
    for name in ["etc", "bin", "boot", "var/lib/dpkg", "root", "home", "tmp"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    for (name, text) in [
        ("etc/os-release", "ID=debian\nNAME=Debian\nVERSION_ID=\"12\"\n"),
        ("etc/debian_version", &format!("{VERSION}\n")),
        ("etc/fstab", "/dev/sda / ext4 defaults 0 1\n"),
        ("etc/hostname", "guest\n"),
        (
            "var/lib/dpkg/status",
            "Package: base-files\nStatus: install ok installed\nVersion: 12\nArchitecture: amd64\n\n",
        ),
    ] {
        fs::write(root.join(name), text).unwrap();
    }
    // A program, which says the architecture.
    fs::copy("/bin/echo", root.join("bin/echo")).unwrap();
    fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
    tool("mke2fs", &["-q", "-t", "ext4", "-d", root.to_str().unwrap(), image.to_str().unwrap()]);
    image
}

#[test]
fn virt_v2v_finds_the_guest_in_an_exported_disk() {
    if std::env::var_os("VIRT_V2V_INSPECTS").is_none() {
        return skip("it takes minutes; `make test-all` runs it");
    }
    if !has_virt_v2v() {
        return;
    }
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let folder = datastore.beside("v2v");
    fs::create_dir(&folder).unwrap();
    let (kernel, image) = (Kernel::in_folder(&folder), guest(&folder));
    datastore.json(&format!("vm create web --disk {SIZE}"));
    let (from, to) = (image.to_str().unwrap(), datastore.uri("web/disk0"));
    tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", from, &to]);
    let ova = datastore.beside("web.ova");
    datastore.json(&format!("export web {}", ova.display()));
    daemon.stop();
    let said = both(&kernel.convert(&ova, &folder));
    assert!(said.contains(&format!("Converting {VERSION} to run on KVM")), "{said}");
    assert!(said.contains("no bootloader detected"), "the end that was expected: {said}");
}
