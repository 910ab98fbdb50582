//! `make install` into folders of the test: what is there, and whether those who read it are content.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::skip::skip;

const UNSTUN: &str = env!("CARGO_BIN_EXE_unstun");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// No user of this machine.
const OWN_USER: u32 = 61_234;

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
    // As installed, the one finds the other beside itself.
    let listed = Command::new(usr.join("bin/unstun")).args(["lab", "list"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    for file in [
        "share/bash-completion/completions/unstun",
        "share/zsh/site-functions/_unstun",
        "share/fish/vendor_completions.d/unstun.fish",
    ] {
        let text = std::fs::read_to_string(usr.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(text.contains("consolidate"), "{file}");
    }
    for (file, text) in [
        ("lib/sysusers.d/unstun.conf", "\nu unstun "),
        ("share/doc/unstun/own-user.conf", "\nUser=unstun\n"),
        ("share/doc/unstun/guides/quiesce.md", "\n$ unstun "),
    ] {
        let installed = std::fs::read_to_string(usr.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(installed.contains(text), "{file}: {installed}");
    }
    // The path in it is where the package will be, not where it was made.
    let unit = std::fs::read_to_string(usr.join("lib/systemd/system/unstun.service")).unwrap();
    assert!(
        unit.contains("\nExecStart=/usr/bin/unstun --datastore /var/lib/unstun up $UNSTUN_OPTIONS\n"),
        "{unit}"
    );
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
    for (page, section) in [("unstun.1", "FILES"), ("unstun-vm-create.1", "EXAMPLES")] {
        let path = pages.join(page);
        let Some(shown) = present("man", &["-l", path.to_str().unwrap()]) else { return };
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.status.success() && text.contains("datastore"), "{page}: {shown:?}");
        assert!(text.contains(section) && text.contains("SEE ALSO"), "{page}: {text}");
    }
    // What a page refers to is there.
    for page in &names {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        let see = text.lines().filter_map(|line| line.strip_prefix(".BR ")?.split_once(" (1)"));
        for (name, _) in see {
            let name = format!("{}.1", name.replace("\\-", "-"));
            assert!(names.contains(&name), "{page} refers to {name}");
        }
    }
}

/// Kills the daemon where the test fails.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that has ended is not killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `own-user.conf` asks for: all verbs of both stores, without root and without a capability.
#[test]
fn a_user_of_its_own_can_serve_a_datastore() {
    if !rustix::process::geteuid().is_root() {
        skip("not root: cannot become another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (binary, datastore) = (folder.path().join("unstun"), folder.path().join("datastore"));
    std::fs::copy(UNSTUN, &binary).unwrap();
    std::fs::create_dir(&datastore).unwrap();
    for path in [folder.path(), &datastore] {
        std::os::unix::fs::chown(path, Some(OWN_USER), Some(OWN_USER)).unwrap();
    }
    let own = |line: &str| {
        let mut command = Command::new(&binary);
        command.uid(OWN_USER).gid(OWN_USER).current_dir(folder.path());
        command.arg("--datastore").arg(&datastore).args(line.split(' '));
        command
    };
    let mut daemon = Daemon(own("up").stdout(Stdio::piped()).spawn().unwrap());
    // Held to the end: the daemon goes on printing.
    let mut said = BufReader::new(daemon.0.stdout.take().unwrap());
    assert!(said.by_ref().lines().any(|line| line.unwrap().starts_with("ready")), "it ended");
    for store in ["native", "redo"] {
        for line in [
            format!("vm create {store} --disk 16M --store {store}"),
            format!("snapshot take {store} a"),
            format!("vm clone {store}@a {store}-copy"),
            format!("vm remove {store}-copy --delete-disks --yes"),
            "bin empty --yes".to_owned(),
            format!("snapshot commit {store} --all --yes"),
            format!("vm close {store}"),
            "check".to_owned(),
        ] {
            let output = own(&line).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
        }
    }
}

#[test]
fn systemd_and_the_shells_accept_what_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    install(&[("PREFIX", folder.path().to_str().unwrap())]);
    let unit = folder.path().join("lib/systemd/system/unstun.service");
    let verified = || present("systemd-analyze", &["verify", "--man=no", unit.to_str().unwrap()]);
    let drop_in = folder.path().join("lib/systemd/system/unstun.service.d");
    for own_user in [false, true] {
        if own_user {
            std::fs::create_dir(&drop_in).unwrap();
            let from = folder.path().join("share/doc/unstun/own-user.conf");
            std::fs::copy(from, drop_in.join("own-user.conf")).unwrap();
        }
        let Some(verified) = verified() else { break };
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
