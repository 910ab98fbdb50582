//! The binary itself: exit codes, what goes to which stream, and what is asked before a commit.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use api::units::format_bytes;
use serde_json::Value;

use crate::support::{DELTA_BYTES, Own, UNSTUN};

fn unstun(datastore: &Path, line: &str) -> Output {
    Command::new(UNSTUN)
        .arg("--datastore")
        .arg(datastore)
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// With VM `web` and its snapshot `before`.
fn daemon() -> Own {
    let daemon = Own::start();
    for line in ["vm create web --disk 20G --disk 200G --store redo", "snapshot take web@before -m text"] {
        let output = unstun(&daemon.path(), line);
        assert_eq!(code(&output), 0, "{line}: {}", stderr(&output));
    }
    daemon
}

#[test]
fn exit_codes_show_what_happened() {
    let daemon = daemon();
    let _guest = daemon.guest("web/disk0");
    for (line, expected) in [
        ("status", 0),
        ("--help", 0),
        ("vm list", 0),
        ("vm show web", 0),
        ("snapshot tree web", 0),
        ("events web", 0),
        ("events", 0),
        ("job list", 0),
        ("snapshot commit web before --dry-run", 0),
        ("nonsense", 2),
        ("vm create web2 --disk 20GB", 2),
        ("snapshot take web", 2),
        ("snapshot take web@a b", 2),
        ("snapshot commit web", 2),
        ("snapshot commit web before --all", 2),
        ("vm create web --disk 1G", 3),
        ("snapshot take web before", 3),
        ("snapshot commit web before", 3),
        ("snapshot delete", 3),
        ("vm show absent", 4),
        ("snapshot commit web nothing --yes", 4),
        ("job cancel 7", 4),
        ("convert /nowhere/a.vmdk b.raw", 4),
        ("pull nbd+unix:///web/disk0?socket=/nowhere -o b.raw", 1),
        ("pull nbds://127.0.0.1/web/disk0 -o b.raw", 3),
        ("pull web/disk0 -o b.raw", 2),
        ("pull nbd://127.0.0.1/web/disk0", 2),
        ("snapshot revert web before --dry-run", 0),
        ("snapshot revert web before", 3),
        ("snapshot revert web before --yes", 3),
        ("snapshot revert web nothing --yes", 4),
        ("snapshot revert web before --yes --disconnect --purge", 0),
        ("snapshot discard web", 2),
        ("snapshot discard web before --yes --disconnect --purge", 0),
        ("vm disk add web 1G,mode=independent-nonpersistent", 0),
        ("vm reset web --yes --disconnect", 0),
        ("vm disk add web 1G,mode=independent-persistent", 0),
        ("vm disk grow web/disk0 40G", 0),
        ("vm disk grow web/disk9 40G", 4),
        ("vm disk set web/disk0 --mode persistent", 0),
        ("vm disk remove web/disk1 --delete-files", 0),
        ("vm disk add web --from /nowhere/old.qcow2", 4),
        ("vm set web", 2),
        ("snapshot take web@base", 0),
        ("snapshot take web@top", 0),
        ("vm clone web test1", 2),
        ("vm clone web@top test1", 0),
        // The clone keeps a layer of the discarded snapshot, which no snapshot owns then.
        ("snapshot discard web top --yes", 0),
        ("vm remove test1 --delete-disks --purge --yes", 0),
        ("snapshot consolidate web --dry-run", 0),
        ("snapshot consolidate web", 3),
        ("snapshot consolidate web --yes", 0),
        ("snapshot consolidate web --dry-run", 3),
        ("vm import /nowhere/at/all", 4),
        ("vm close web", 0),
        ("vm open web", 0),
        ("check /nowhere/at/all", 4),
        ("snapshot commit web base --yes", 0),
        ("vm remove web", 0),
    ] {
        let output = unstun(&daemon.path(), line);
        assert_eq!(code(&output), expected, "{line}: {} {}", stdout(&output), stderr(&output));
    }
}

#[test]
fn without_a_terminal_a_commit_needs_yes_and_still_says_what_it_would_do() {
    let daemon = daemon();
    let _guest = daemon.guest("web/disk0");
    let output = unstun(&daemon.path(), "snapshot commit web before");
    assert_eq!(code(&output), 3);
    let said = stderr(&output);
    for part in
        ["64 MiB", "once the commit starts you cannot revert to before, even if you cancel it", "--yes"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(json(&unstun(&daemon.path(), "snapshot tree web --json"))["snapshots"][0]["name"], "before");
}

#[test]
fn a_commit_is_followed_to_its_end() {
    let daemon = daemon();
    let _guest = daemon.guest("web/disk0");
    let output = unstun(&daemon.path(), "snapshot commit web --all --yes --json");
    assert_eq!((code(&output), &json(&output)["state"]), (0, &Value::from("done")));
    let jobs = json(&unstun(&daemon.path(), "job list --json"));
    assert_eq!(jobs[0]["bytes_done"], DELTA_BYTES);
}

#[test]
fn a_detached_commit_returns_its_job() {
    let daemon = daemon();
    let _guest = daemon.guest("web/disk0");
    let job = json(&unstun(&daemon.path(), "snapshot commit web@before --yes --detach --json"));
    assert_eq!(job["state"], "running");
    let paused = json(&unstun(&daemon.path(), "job pause 1 --json"));
    assert_eq!(paused["state"], "paused");
    let limited = json(&unstun(&daemon.path(), "job limit 1 200M --json"));
    assert_eq!(limited["limit_bytes_s"], 200 << 20);
    assert_eq!(json(&unstun(&daemon.path(), "job cancel 1 --json"))["state"], "cancelled");
}

#[test]
fn what_throws_data_away_asks_and_says_what_goes() {
    let daemon = daemon();
    let _guest = daemon.guest("web/disk0");
    let output = unstun(&daemon.path(), "snapshot revert web before");
    let said = stderr(&output);
    let own = format!("pid {} (", std::process::id());
    let preview = json(&unstun(&daemon.path(), "snapshot revert web before --dry-run --json"));
    let lost = preview["bytes_lost"].as_u64().unwrap();
    assert!((DELTA_BYTES..DELTA_BYTES + (1 << 20)).contains(&lost), "a delta has tables too: {lost}");
    for part in ["web to before", &format_bytes(lost), &own, ") writes to disk0", "--disconnect"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let asked = unstun(&daemon.path(), "snapshot revert web before --disconnect");
    assert!(code(&asked) == 3 && stderr(&asked).contains("--yes reverts without asking"), "{asked:?}");
    let done = json(&unstun(&daemon.path(), "snapshot revert web before --disconnect --yes --json"));
    assert_eq!((&done["operation"], &done["target"]), (&"revert".into(), &"before".into()));
}

#[test]
fn a_check_prints_its_findings_and_ends_with_6_where_there_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let descriptor = "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"vmfs\"\n\
                      RW 2048 VMFS \"gone-flat.vmdk\"\n";
    std::fs::write(folder.path().join("gone.vmdk"), descriptor).unwrap();
    let chain = folder.path().join("gone.vmdk");
    let output = unstun(folder.path(), &format!("check {}", chain.display()));
    assert_eq!(code(&output), 6, "{output:?}");
    let line = stdout(&output).lines().next().unwrap();
    assert!(
        line.starts_with("damage: ") && line.contains("gone-flat.vmdk") && line.contains("expected"),
        "{line}"
    );
    // One value, findings and all: a check that found something has not failed.
    let checked = json(&unstun(folder.path(), &format!("check {} --json", chain.display())));
    assert_eq!(checked["findings"][0]["severity"], "damage");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let daemon = daemon();
    for line in ["vm list", "vm list --json", "events web --follow", "events --follow", "help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(UNSTUN)
            .arg("--datastore")
            .arg(daemon.path())
            .args(line.split_whitespace())
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!((code(&output), stderr(&output)), (0, ""), "{line}");
    }
}

#[test]
fn the_first_command_of_a_newcomer_says_how_to_begin() {
    let empty = tempfile::tempdir().unwrap();
    let run = |line: &str| {
        let mut command = Command::new(UNSTUN);
        command.args(line.split_whitespace()).current_dir(empty.path()).env_remove("UNSTUN_DATASTORE");
        command.stdin(Stdio::null()).output().unwrap()
    };
    // A machine with an installed daemon has the default datastore.
    if !Path::new("/var/lib/unstun").exists() {
        let output = run("status");
        assert_eq!(code(&output), 4);
        assert!(stderr(&output).contains("`unstun up` creates ./unstun-data"), "{}", stderr(&output));
    }
    let output = run("up --datastore ./missing");
    assert_eq!(code(&output), 4);
    assert!(stderr(&output).contains("`unstun up --datastore ./missing --create`"), "{}", stderr(&output));
    assert!(!empty.path().join("missing").exists());
}

#[test]
fn delete_explains_and_does_nothing() {
    let daemon = daemon();
    let _guest = daemon.guest("web/disk0");
    let output = unstun(&daemon.path(), "snapshot delete web before");
    assert_eq!(code(&output), 3);
    for part in ["keeps everything written since", "throws away everything written since", "moves 64 MiB"] {
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
    assert_eq!(json(&unstun(&daemon.path(), "snapshot tree web --json"))["snapshots"][0]["name"], "before");
}

#[test]
fn take_and_show_say_whether_the_space_suffices() {
    let daemon = Own::start();
    for (create, worst) in [
        (
            "vm create small --disk 64M --store redo",
            " free; disks and deltas can grow by 64 MiB at worst, which fits\n",
        ),
        ("vm create large --disk 62T", " free, but disks and deltas can grow by 62.00 TiB at worst: "),
    ] {
        assert_eq!(code(&unstun(&daemon.path(), create)), 0);
        for line in ["vm show small", &format!("snapshot take small@{}", worst.len())] {
            let output = unstun(&daemon.path(), line);
            assert!(stdout(&output).contains(worst), "{output:?}");
        }
    }
}

#[test]
fn errors_are_json_when_asked_for() {
    let daemon = daemon();
    let output = unstun(&daemon.path(), "vm show absent --json");
    let error = &json(&output)["error"];
    assert_eq!((&error["kind"], &error["exit_code"]), (&Value::from("not_found"), &Value::from(4)));
    assert!(stderr(&output).contains("absent"));
}

#[test]
fn client_commands_create_no_datastore_and_name_the_one_they_used() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let output = unstun(&missing, "status");
    assert_eq!(code(&output), 4);
    assert!(stderr(&output).contains(missing.to_str().unwrap()));
    assert!(!missing.exists());
    let idle = unstun(folder.path(), "status");
    assert_eq!(code(&idle), 1);
    assert!(stderr(&idle).contains("unstun up --datastore"), "{}", stderr(&idle));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_datastore_is_named_found_here_or_the_systems() {
    let daemon = daemon();
    let named = Command::new(UNSTUN)
        .args(["status", "--json"])
        .env("UNSTUN_DATASTORE", daemon.path())
        .output()
        .unwrap();
    assert_eq!(code(&named), 0, "{}", stderr(&named));
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(daemon.path(), folder.path().join("unstun-data")).unwrap();
    for (line, variable) in [("status", None), ("status", Some(""))] {
        let mut command = Command::new(UNSTUN);
        command.arg(line).current_dir(folder.path()).env_remove("UNSTUN_DATASTORE");
        if let Some(value) = variable {
            command.env("UNSTUN_DATASTORE", value);
        }
        let output = command.output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
}

#[test]
fn an_output_file_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, raw) = (folder.path().join("a.vmdk"), folder.path().join("a.raw"));
    std::fs::write(&chain, "x").unwrap();
    std::fs::write(&raw, "precious").unwrap();
    let output = unstun(folder.path(), &format!("convert {} {}", chain.display(), raw.display()));
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert_eq!(std::fs::read(&raw).unwrap(), b"precious");
}

/// The lab is a program of its own, which `unstun` finds beside itself or on the PATH.
#[test]
fn the_lab_is_run_found_or_named_as_missing() {
    let listed = unstun(Path::new("."), "lab list --json");
    assert_eq!(code(&listed), 0, "{}", stderr(&listed));
    assert!(!json(&listed).as_array().unwrap().is_empty());
    let refused = unstun(Path::new("."), "lab run no-such-experiment");
    assert_eq!(code(&refused), 4, "{}", stderr(&refused));

    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let alone = folder.path().join("unstun");
    // A copy could not be run while a process that another test begins still has it open for writing.
    std::fs::hard_link(UNSTUN, &alone).unwrap();
    let missing = Command::new(&alone).args(["lab", "list"]).env("PATH", folder.path()).output().unwrap();
    assert_eq!(code(&missing), 1);
    assert!(stderr(&missing).contains("unstun-lab is neither in"), "{}", stderr(&missing));
    assert!(stderr(&missing).contains("make install"), "{}", stderr(&missing));

    let programs = Path::new(UNSTUN).parent().unwrap();
    // The folder that the command runs in chooses no program, not even by a relative PATH.
    let relative =
        Command::new(&alone).args(["lab", "list"]).current_dir(programs).env("PATH", ":.").output();
    assert_eq!(code(&relative.unwrap()), 1);
    let on_the_path = Command::new(&alone).args(["lab", "list"]).env("PATH", programs).output().unwrap();
    assert_eq!(code(&on_the_path), 0, "{}", stderr(&on_the_path));
    let mut other = Command::new(programs.join("unstun-lab"));
    let other = other.arg("list").env("UNSTUN_CALLER_VERSION", "0.0.9").output().unwrap();
    assert_eq!(code(&other), 3);
    assert!(stderr(&other).contains("unstun 0.0.9 ran unstun-lab 0.1.0"), "{}", stderr(&other));
}
