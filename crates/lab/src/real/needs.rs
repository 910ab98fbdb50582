//! What a stack needs of this machine: programs, parts of the kernel, rights. What is missing is named with a remedy.

use std::fs::File;
use std::path::Path;

use blk::{Error, Result};

/// Something that a stack needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A program, and Debian's package with it.
    Program(&'static str, &'static str),
    /// A device file that opens if the kernel has what it stands for, and how to get that.
    Device(&'static str, &'static str),
    FileSystem(&'static str),
    /// The right to mount and to set up devices.
    Administration,
}

impl Need {
    /// Returns what is missing and how to get it; None if nothing is.
    fn missing(self) -> Option<String> {
        let (is_there, words) = match self {
            Need::Program(name, package) => {
                (has_program(name), format!("the program {name} (package {package})"))
            }
            Need::Device(path, remedy) => (File::open(path).is_ok(), format!("{path}, {remedy}")),
            Need::FileSystem(name) => {
                (has_file_system(name), format!("{name} in the kernel (`modprobe {name}`)"))
            }
            Need::Administration => {
                (may_administer(), "the right to mount and to set up devices (run it as root)".into())
            }
        };
        (!is_there).then_some(words)
    }
}

/// Refuses a stack whose needs are not met. Errors: `Unsupported`, with all that is missing.
pub(super) fn check(stack: &str, needs: &[Need]) -> Result<()> {
    let missing: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::unsupported(stack, format!("this machine lacks {}", missing.join("; ")))),
    }
}

/// Returns whether a program can be started by its name.
fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Returns whether the kernel can mount a file system without loading a module (proc(5): filesystems).
fn has_file_system(name: &str) -> bool {
    let known = std::fs::read_to_string(Path::new("/proc/filesystems")).unwrap_or_default();
    known.lines().any(|line| line.split_whitespace().last() == Some(name))
}

/// Returns whether this process has CAP_SYS_ADMIN (proc(5): status, capabilities(7)).
fn may_administer() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    effective & (1 << CAP_SYS_ADMIN) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_missing_is_named_with_its_remedy() {
        let needs = [
            Need::Program("sh", "dash"),
            Need::Program("no-such-program", "its-package"),
            Need::Device("/dev/null", "which is everywhere"),
            Need::Device("/dev/no-such-device", "`modprobe none` makes it"),
            Need::FileSystem("proc"),
            Need::FileSystem("no-such-fs"),
        ];
        let error = check("zfs", &needs).unwrap_err();
        let expected = "this machine lacks the program no-such-program (package its-package); /dev/no-such-device, \
                        `modprobe none` makes it; no-such-fs in the kernel (`modprobe no-such-fs`)";
        assert_eq!((error.place.as_str(), error.cause.as_str()), ("zfs", expected));
        check("any", &needs[..1]).unwrap();
    }
}
