//! Pairs of commands that freeze and thaw a guest: those of libvirt, and those of the administrator.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::fault::NotFrozen;
use crate::etc;

/// Bytes of the output that are read.
const OUTPUT_BYTES_MAX: u64 = 4096;
/// Characters of the output that an error repeats.
const SHOWN_CHARS_MAX: usize = 200;
/// Time for a command to end after its process group was killed.
const END_MAX: Duration = Duration::from_secs(1);
/// Libvirt's connection to the domains of the host.
const LIBVIRT_URI: &str = "qemu:///system";

/// A file `NAME.toml` in `/etc/unstun/guests`: programs with their arguments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    freeze: Vec<String>,
    thaw: Vec<String>,
}

pub(super) struct Commands {
    freeze: Vec<String>,
    thaw: Vec<String>,
    /// In the environment of both, as `UNSTUN_VM`.
    vm: String,
    /// Whether the output says the number of file systems, as `virsh` does.
    counts: bool,
}

impl Commands {
    pub(super) fn of_libvirt(domain: &str) -> Commands {
        let words = |verb: &str| ["virsh", "-c", LIBVIRT_URI, verb, domain].map(str::to_owned).to_vec();
        Commands { freeze: words("domfsfreeze"), thaw: words("domfsthaw"), vm: String::new(), counts: true }
    }

    pub(super) fn read(path: &Path, vm: &str) -> Result<Commands, String> {
        let at = |cause: String| format!("{}: {cause}", path.display());
        let (text, _) = etc::read(path).map_err(at)?;
        let File { freeze, thaw } = toml::from_str(&text).map_err(|e| at(e.message().to_owned()))?;
        for (field, words) in [("freeze", &freeze), ("thaw", &thaw)] {
            if !words.first().is_some_and(|program| program.starts_with('/')) {
                let expected =
                    "expected a program with its absolute path, such as [\"/usr/local/sbin/freeze\"]";
                return Err(at(format!("{field}: {expected}")));
            }
        }
        Ok(Commands { freeze, thaw, vm: vm.to_owned(), counts: false })
    }

    pub(super) fn freeze(&mut self, until: Instant) -> Result<Option<u64>, NotFrozen> {
        let said = run(&self.freeze, &self.vm, until);
        let said = said.map_err(|fault| NotFrozen { cause: fault.cause, may_be: fault.has_begun })?;
        Ok(self.counts.then(|| number(&said)))
    }

    pub(super) fn thaw(&mut self, until: Instant) -> Result<Option<u64>, String> {
        let said = run(&self.thaw, &self.vm, until).map_err(|fault| fault.cause)?;
        Ok(self.counts.then(|| number(&said)))
    }
}

/// Returns the first number in a text such as `Froze 2 filesystem(s)`; 0 without one.
fn number(text: &str) -> u64 {
    let digits = text.split(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty());
    digits.and_then(|word| word.parse().ok()).unwrap_or(0)
}

struct Fault {
    cause: String,
    /// Whether the program was started.
    has_begun: bool,
}

/// Runs a command, and returns what it writes. It is killed with its children if it does not end in time.
fn run(words: &[String], vm: &str, until: Instant) -> Result<String, Fault> {
    let (program, arguments) = words.split_first().expect("a program, as checked");
    let fault = |has_begun: bool, cause: String| Fault { cause: format!("{program}: {cause}"), has_begun };
    let not_begun = |e: std::io::Error| fault(false, e.to_string());
    let (mut reader, writer) = std::io::pipe().map_err(not_begun)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("LC_ALL", "C").env("UNSTUN_VM", vm).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(not_begun)?).stderr(writer);
    let mut child = command.spawn().map_err(not_begun)?;
    // It has the pipe's ends for writing.
    drop(command);
    let group = Pid::from_child(&child);
    let (ended, end) = channel();
    thread::spawn(move || {
        let mut said = Vec::new();
        let _ = reader.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut said);
        // A command whose output nobody reads would be ended by a signal.
        let _ = io::copy(&mut reader, &mut io::sink());
        drop(reader);
        // The caller has stopped waiting if the command took too long.
        let _ = ended.send((child.wait(), said));
    });
    let Ok((status, said)) = end.recv_timeout(until.saturating_duration_since(Instant::now())) else {
        let _ = kill_process_group(group, Signal::KILL);
        let _ = end.recv_timeout(END_MAX);
        return Err(fault(true, "it did not end in time".to_owned()));
    };
    let status = status.map_err(|e| fault(true, e.to_string()))?;
    let said = String::from_utf8_lossy(&said).trim().replace(char::is_control, " ");
    if status.success() {
        return Ok(said);
    }
    let shown: String = said.chars().take(SHOWN_CHARS_MAX).collect();
    Err(fault(true, if shown.is_empty() { status.to_string() } else { format!("{status}: {shown}") }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    fn commands(freeze: &str, thaw: &str) -> Commands {
        let words = |text: &str| ["/bin/sh", "-c", text].map(str::to_owned).to_vec();
        Commands { freeze: words(freeze), thaw: words(thaw), vm: "web".to_owned(), counts: false }
    }

    #[test]
    fn a_pair_of_commands_gets_the_name_of_the_vm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("said");
        let to = path.display();
        let mut pair = commands(&format!("echo freeze $UNSTUN_VM > {to}"), &format!("echo thaw >> {to}"));
        assert_eq!(pair.freeze(soon()).unwrap(), None);
        assert_eq!(pair.thaw(soon()).unwrap(), None);
        assert_eq!(fs::read_to_string(&path).unwrap(), "freeze web\nthaw\n");
    }

    #[test]
    fn a_command_that_fails_or_hangs_may_have_frozen_something() {
        let failed = commands("echo no database >&2; exit 3", "true").freeze(soon()).unwrap_err();
        assert!(failed.may_be && failed.cause.contains("exit status: 3: no database"), "{failed:?}");
        let until = Instant::now() + Duration::from_millis(200);
        let hung = commands("sleep 600 & wait", "true").freeze(until).unwrap_err();
        assert!(hung.may_be && hung.cause.contains("did not end in time"), "{hung:?}");
        let mut absent = commands("", "");
        absent.freeze = vec!["/nowhere/freeze".to_owned()];
        assert!(!absent.freeze(soon()).unwrap_err().may_be);
    }

    #[test]
    fn a_command_may_say_more_than_is_kept() {
        let long = "i=0; while [ $i -lt 5000 ]; do echo thawing file system $i; i=$((i + 1)); done";
        commands("true", long).thaw(soon()).unwrap();
    }

    #[test]
    fn what_virsh_says_is_counted() {
        let mut virsh = commands("echo 'Froze 2 filesystem(s)'", "echo 'Thawed 0 filesystem(s)'");
        virsh.counts = true;
        assert_eq!(virsh.freeze(soon()).unwrap(), Some(2));
        assert_eq!(virsh.thaw(soon()).unwrap(), Some(0));
        let words = Commands::of_libvirt("web server").freeze;
        assert_eq!(words.join("|"), "virsh|-c|qemu:///system|domfsfreeze|web server");
    }

    #[test]
    fn a_file_names_both_commands_and_only_root_may_write_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db.toml");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Commands::read(&path, "web").map(drop)
        };
        assert!(read("freeze = ['/bin/true']\nthaw = ['/bin/true', 'x']\n", 0o644).is_ok());
        for (text, mode, expected) in [
            ("freeze = ['/bin/true']\n", 0o644, "missing field `thaw`"),
            ("freeze = ['true']\nthaw = ['/bin/true']\n", 0o644, "freeze: expected a program"),
            ("freeze = ['/bin/true']\nthaw = []\n", 0o644, "thaw: expected a program"),
            ("freeze = ['/bin/true']\nthaw = ['/bin/true']\nuser = 'x'\n", 0o644, "unknown field `user`"),
            ("freeze = ['/bin/true']\nthaw = ['/bin/true']\n", 0o666, "others may write it"),
        ] {
            let error = read(text, mode).unwrap_err();
            assert!(error.contains("db.toml: ") && error.contains(expected), "{text}: {error}");
        }
        fs::remove_file(&path).unwrap();
        assert!(Commands::read(&path, "web").is_err());
    }
}
