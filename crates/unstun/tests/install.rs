//! `make install` into folders of the test: what is there, and whether those who read it are content.

use std::path::Path;
use std::process::{Command, Output};

const UNSTUN: &str = env!("CARGO_BIN_EXE_unstun");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Output of a program, or None where it is not installed.
fn present(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            println!("{program} is not here: not asked");
            None
        }
        output => Some(output.unwrap_or_else(|e| panic!("{program}: {e}"))),
    }
}

/// Without a compiler: the binary is there already.
fn install(variables: &[(&str, &str)]) {
    let mut command = Command::new(format!("{ROOT}/scripts/install.sh"));
    for name in ["DESTDIR", "PREFIX", "BINDIR", "UNITDIR"] {
        command.env_remove(name);
    }
    let output = command.env("BINARY", UNSTUN).envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_package_has_everything_under_its_destdir() {
    let folder = tempfile::tempdir().unwrap();
    install(&[("DESTDIR", folder.path().to_str().unwrap()), ("PREFIX", "/usr")]);
    let usr = folder.path().join("usr");
    assert_eq!(names(folder.path()), ["usr"]);
    assert_eq!(std::fs::read(usr.join("bin/unstun")).unwrap(), std::fs::read(UNSTUN).unwrap());
    for file in [
        "share/bash-completion/completions/unstun",
        "share/zsh/site-functions/_unstun",
        "share/fish/vendor_completions.d/unstun.fish",
    ] {
        let text = std::fs::read_to_string(usr.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(text.contains("consolidate"), "{file}");
    }
    // The path in it is where the package will be, not where it was made.
    let unit = std::fs::read_to_string(usr.join("lib/systemd/system/unstun.service")).unwrap();
    assert!(unit.contains("\nExecStart=/usr/bin/unstun --datastore /var/lib/unstun up\n"), "{unit}");
}

#[test]
fn every_command_has_a_man_page_that_man_can_show() {
    let folder = tempfile::tempdir().unwrap();
    install(&[("PREFIX", folder.path().to_str().unwrap())]);
    let pages = folder.path().join("share/man/man1");
    let names = names(&pages);
    for page in [
        "unstun.1",
        "unstun-vm-import.1",
        "unstun-vm-disk-grow.1",
        "unstun-snapshot-revert.1",
        "unstun-check.1",
    ] {
        assert!(names.iter().any(|name| name == page), "{page}: {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("generate")), "{names:?}");
    for page in ["unstun.1", "unstun-vm-create.1"] {
        let path = pages.join(page);
        let Some(shown) = present("man", &["-l", path.to_str().unwrap()]) else { return };
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.status.success() && text.contains("datastore"), "{page}: {shown:?}");
    }
}

#[test]
fn systemd_and_the_shells_accept_what_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    install(&[("PREFIX", folder.path().to_str().unwrap())]);
    let unit = folder.path().join("lib/systemd/system/unstun.service");
    if let Some(verified) = present("systemd-analyze", &["verify", "--man=no", unit.to_str().unwrap()]) {
        assert!(verified.status.success() && verified.stderr.is_empty(), "{verified:?}");
    }
    for (shell, file) in [
        ("bash", "share/bash-completion/completions/unstun"),
        ("zsh", "share/zsh/site-functions/_unstun"),
        ("fish", "share/fish/vendor_completions.d/unstun.fish"),
    ] {
        let path = folder.path().join(file);
        let Some(parsed) = present(shell, &["-n", path.to_str().unwrap()]) else { continue };
        assert!(parsed.status.success(), "{parsed:?}");
    }
}
