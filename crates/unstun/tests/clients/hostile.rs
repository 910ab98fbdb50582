//! Damaged copies of real folders, as strangers may bring them. Each is checked and offered for import: no panic, no
//! hang, and bounded memory, while another VM is served.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bent::bend;
use crate::daemon::{Daemon, Datastore};
use crate::guest::seed;
use crate::random::Random;

/// Number of folders in `make test`; `make test-all` tests more.
const FOLDERS: u64 = 24;
/// Limit of the address space of a `check`, and of the daemon's resident memory, KiB.
const MEMORY_KIB: u64 = 512 << 10;
/// Time after which a hung program is killed, so that the test can name it. It measures nothing.
const HANG_S: &str = "300";

/// Creates the folder from which all others are made: two snapshots of a disk of 1 MiB.
fn template(datastore: &Datastore) -> PathBuf {
    let daemon = datastore.start();
    datastore.json("vm create esx --store redo --disk 1M");
    for name in ["one", "two"] {
        datastore.json(&format!("snapshot take esx {name}"));
    }
    datastore.json("vm remove esx");
    daemon.stop();
    let folder = datastore.beside("template");
    std::fs::rename(datastore.path().join("esx"), &folder).unwrap();
    folder
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            crate::daemon::copy(&entry.path(), &to.join(entry.file_name()));
        }
    }
}

/// Runs `unstun` with little memory, and returns whether it succeeded. Fails the test if it panicked, crashed or hung.
fn run(datastore: &Datastore, arguments: &[&str], replay: &str) -> bool {
    let limited = format!("ulimit -v {MEMORY_KIB}; exec timeout -s KILL {HANG_S} \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_unstun"), "--datastore"]).arg(datastore.path());
    // Malloc uses one arena, because each reserves 64 MiB of address space, used or not.
    command.args(arguments).env("MALLOC_ARENA_MAX", "1").env_remove("UNSTUN_DATASTORE");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    let bounded = code.is_some_and(|code| (0..=9).contains(&code)) && !said.contains("panicked");
    assert!(bounded, "unstun {}: {}, {said}\n{replay}", arguments.join(" "), output.status);
    output.status.success()
}

/// Returns the daemon's peak resident memory, KiB.
fn peak_kib(daemon: &Daemon<'_>) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn folders_of_strangers_are_checked_and_imported_or_refused() {
    let count = std::env::var("HOSTILE_FOLDERS").map_or(FOLDERS, |count| count.parse().unwrap());
    let first = seed();
    let datastore = Datastore::new();
    let template = template(&datastore);
    let daemon = datastore.start();
    datastore.json("vm create neighbour --disk 1M");
    let (mut sound, mut imported) = (0, 0);
    for seed in (0..count).map(|n| first.wrapping_add(n)) {
        let folder = datastore.beside("bent");
        copy_folder(&template, &folder);
        let bends = bend(&folder, &mut Random(seed));
        let replay = format!("replay: UNSTUN_SEED={seed} HOSTILE_FOLDERS=1; {}", bends.join(", "));
        let path = folder.to_str().unwrap();
        sound += u64::from(run(&datastore, &["check", path], &replay));
        let in_place: &[&str] = if seed.is_multiple_of(3) { &["--in-place"] } else { &[] };
        let name = format!("bent-{seed}");
        let arguments = [&["vm", "import", path, "--name", &name], in_place].concat();
        let was_imported = run(&datastore, &arguments, &replay);
        if was_imported {
            imported += 1;
            run(&datastore, &["snapshot", "take", &name, "s"], &replay);
            run(&datastore, &["vm", "show", &name], &replay);
        }
        let goes = |verb| run(&datastore, &["vm", verb, &name], &replay);
        // A removal is refused if files beside the VM cannot be read; a closed VM can be removed. Its ID would prevent
        // later imports.
        let removed = !was_imported || goes("remove") || goes("close") && goes("remove");
        assert!(removed, "{name} cannot be removed\n{replay}");
        let left = datastore.path().join(&name);
        let _ = std::fs::remove_dir_all(left);
        std::fs::remove_dir_all(&folder).unwrap();
        let peak = peak_kib(&daemon);
        assert!(peak <= MEMORY_KIB, "the daemon had {peak} KiB resident, at most {MEMORY_KIB}\n{replay}");
        let listed = datastore.run("vm list");
        let (rows, said) = (String::from_utf8_lossy(&listed.stdout), String::from_utf8_lossy(&listed.stderr));
        assert!(rows.contains("neighbour"), "vm list: {rows}{said}\n{replay}");
    }
    println!(
        "{count} folders from seed {first}: {sound} checked as sound, {imported} imported, {} KiB",
        peak_kib(&daemon)
    );
    datastore.json("snapshot take neighbour after");
    daemon.stop();
    let log = std::fs::read_to_string(datastore.beside("daemon.log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_vm_whose_files_went_away_hides_no_other() {
    let datastore = Datastore::new();
    let folder = template(&datastore);
    let daemon = datastore.start();
    datastore.json("vm create neighbour --disk 1M");
    datastore.json(&format!("vm import {} --name gone", folder.display()));
    std::fs::remove_dir_all(&folder).unwrap();
    let listed = datastore.json("vm list");
    let row = |name: &str| listed.as_array().unwrap().iter().find(|vm| vm["name"] == name).unwrap().clone();
    assert!(row("neighbour")["message"].is_null() && row("neighbour")["allocated_bytes"].is_number());
    assert!(row("gone")["message"].as_str().unwrap().contains("cannot be opened"), "{listed}");
    assert!(row("gone")["allocated_bytes"].is_null(), "{listed}");
    daemon.stop();
}
