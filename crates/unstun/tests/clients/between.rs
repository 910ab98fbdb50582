//! Moves of a VM between two datastores of the daemon while clients stay attached. Exactly one of its two homes is the
//! VM, even after a kill, a cancellation or the loss of a datastore.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::datastores::{folder, two};
use crate::nbd::Nbd;
use crate::space::Mounted;
use crate::tools::{Branched, assert_same, run_script, snapshots};

pub(crate) fn io(datastore: &Datastore, line: &str) {
    run_script(&datastore.uri("web/disk0"), &[line.to_owned()]);
}

pub(crate) fn place(datastore: &Datastore) -> (String, String) {
    let shown = datastore.json("vm show web");
    let text = |key: &str| shown[key].as_str().unwrap().to_owned();
    (text("datastore"), text("store"))
}

/// Starts a move that cannot end by itself.
pub(crate) fn slow_move(datastore: &Datastore, to: &str) -> Value {
    let job = datastore.json(&format!("vm move web --to {to} --detach"))["id"].clone();
    datastore.json(&format!("job limit {job} 1M"));
    job
}

#[test]
fn a_guest_writes_on_while_its_vm_goes_through_all_stores_of_two_datastores() {
    let datastore = Datastore::new();
    let (daemon, second) = two(&datastore);
    let Branched { mut twin, then, uri } = Branched::web(&datastore);
    let tree = snapshots(&datastore, "web");
    let by_folder = second.to_str().unwrap();
    for (to, store) in [
        (by_folder, "redo"),
        ("ds", "redo"),
        ("second", "native"),
        ("ds", "native"),
        ("second", "native"),
        ("ds", "redo"),
        (by_folder, "native"),
    ] {
        let was = PathBuf::from(datastore.json("vm show web")["home"].as_str().unwrap());
        thread::scope(|scope| {
            let writer = scope.spawn(|| twin.scribble(&uri, 40));
            let job = datastore.json(&format!("vm move web --to {to} --store {store}"));
            assert_eq!((&job["operation"], &job["state"]), (&json!("move"), &json!("done")), "{job}");
            writer.join().unwrap();
        });
        let name = if to == by_folder { "second" } else { to };
        assert_eq!(place(&datastore), (name.to_owned(), store.to_owned()));
        assert!(!was.exists(), "{}: nothing of it is left", was.display());
        assert_eq!(snapshots(&datastore, "web"), tree);
        twin.assert_same_as("raw", &uri);
        assert_same(&then, "raw", &datastore.uri("web/disk0@a"));
        if store == "native" {
            assert_eq!(datastore.json("check")["findings"], json!([]));
        }
    }
    let events = datastore.json("events web").as_array().unwrap().len();
    daemon.kill();
    let daemon = datastore.start();
    twin.assert_same_as("raw", &uri);
    assert_same(&then, "raw", &datastore.uri("web/disk0@a"));
    assert!(datastore.json("events web").as_array().unwrap().len() >= events, "its events have come along");
    daemon.stop();
}

#[test]
fn one_client_stays_attached_and_what_cannot_be_moved_is_refused() {
    let datastore = Datastore::new();
    let (daemon, second) = two(&datastore);
    datastore.json("vm create web --disk 16M");
    datastore.json("vm create db --disk 16M,16M");
    let mut guest = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    io(&datastore, "write -P 7 4k 4k");
    // Without --store, the store type stays the same.
    datastore.json("vm move web/disk0 --to second");
    assert_eq!(place(&datastore), ("second".to_owned(), "native".to_owned()));
    assert_eq!(guest.read(4096, 4096).unwrap(), [7; 4096]);
    io(&datastore, "write -P 8 8k 4k");
    assert_eq!(guest.read(8192, 4096).unwrap(), [8; 4096]);
    guest.flush().unwrap();
    let (code, said) = datastore.fails("datastore remove second --yes");
    assert!(code == 3 && said.contains("disk0"), "the client is still one: {said}");
    fs::create_dir(second.join("db")).unwrap();
    for (line, code, word) in [
        ("vm move web --to second", 3, "already"),
        ("vm move web --to nowhere", 4, "nowhere"),
        ("vm move web --to /tmp", 4, "/tmp"),
        ("vm move db/disk0 --to second", 3, "together"),
        ("vm move db --to second", 3, "exists"),
        ("vm move web", 2, "--to"),
    ] {
        let (found, said) = datastore.fails(line);
        assert!(found == code && said.contains(word), "{line}: {found}: {said}");
    }
    drop(guest);
    daemon.stop();
}

#[test]
fn a_move_that_is_cancelled_or_killed_leaves_the_vm_where_it_was() {
    for store in ["native", "redo"] {
        let datastore = Datastore::new();
        let (daemon, second) = two(&datastore);
        datastore.json(&format!("vm create web --disk 64M --store {store}"));
        io(&datastore, "write -P 1 0 32M");
        datastore.json("snapshot take web a");
        io(&datastore, "write -P 2 0 16M");
        let job = slow_move(&datastore, "second");
        let (code, said) = datastore.fails("datastore remove second --yes");
        assert!(code == 3 && said.contains("moved into or out of"), "{said}");
        assert_eq!(datastore.json(&format!("job cancel {job}"))["state"], "cancelled");
        assert!(!second.join("web").exists());
        io(&datastore, "read -P 2 0 16M");

        slow_move(&datastore, "second");
        daemon.kill();
        assert!(second.join("web").exists());
        // While the other datastore is missing, the VM is served from its present place, and not moved again.
        let hidden = datastore.beside("hidden");
        fs::rename(&second, &hidden).unwrap();
        let daemon = datastore.start();
        assert_eq!(place(&datastore), ("ds".to_owned(), store.to_owned()));
        io(&datastore, "write -P 3 0 1M");
        let third = folder(&datastore, "third");
        datastore.json(&format!("datastore add {}", third.display()));
        let (code, said) = datastore.fails("vm move web --to third");
        assert!(code == 3 && said.contains("earlier move"), "{said}");
        fs::rename(&hidden, &second).unwrap();
        datastore.json(&format!("datastore add {}", second.display()));
        assert!(!second.join("web").exists(), "no half VM is left");
        assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 1);
        datastore.json("vm move web --to second");
        run_script(
            &datastore.uri("web/disk0"),
            &["read -P 3 0 1M".to_owned(), "read -P 2 1M 15M".to_owned(), "read -P 1 16M 16M".to_owned()],
        );
        daemon.stop();
    }
}

/// Kills the daemon at random moments, possibly during the step of the move. After each start the VM is complete and
/// exists once.
#[test]
fn kill_9_at_any_moment_of_a_move_leaves_it_whole_and_once() {
    let datastore = Datastore::new();
    let (daemon, second) = two(&datastore);
    datastore.json("vm create web --disk 16M");
    io(&datastore, "write -P 1 0 8M");
    datastore.json("snapshot take web a");
    daemon.stop();
    for round in 0..12_u64 {
        let daemon = datastore.start();
        let (at, store) = place(&datastore);
        let to = if at == "ds" { "second" } else { "ds" };
        let store = if round % 3 == 2 && store == "native" { "redo" } else { "native" };
        let done_min = (round * 700) << 10;
        let job = datastore.json(&format!("vm move web --to {to} --store {store} --detach"))["id"].clone();
        loop {
            let job = datastore.json("job list").as_array().unwrap().iter().find(|j| j["id"] == job).cloned();
            let job = job.expect("it is listed until the daemon ends");
            if job["state"] != "running" || job["bytes_done"].as_u64().unwrap() >= done_min {
                break;
            }
        }
        daemon.kill();
        let daemon = datastore.start();
        assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 1);
        let homes = [datastore.path().join("web"), second.join("web")];
        assert_eq!(homes.iter().filter(|home| home.exists()).count(), 1, "round {round}");
        io(&datastore, "read -P 1 0 8M");
        let mut sealed = Nbd::attach(&datastore.nbd_socket(), "web/disk0@a").unwrap();
        assert!(sealed.read(0, 8 << 20).unwrap().iter().all(|byte| *byte == 1));
        drop(sealed);
        for one in datastore.json("datastore list").as_array().unwrap() {
            assert_eq!(one["notices"], json!([]), "{one}");
        }
        daemon.stop();
    }
}

/// Lifts the limit of a slow move, and returns the job when it has ended.
fn end(datastore: &Datastore, job: &Value) -> Value {
    // The job may have failed already.
    datastore.run(&format!("job limit {job} none"));
    loop {
        let jobs = datastore.json("job list");
        let job = jobs.as_array().unwrap().iter().find(|one| one["id"] == *job).unwrap().clone();
        if !["running", "waiting_for_space"].contains(&job["state"].as_str().unwrap()) {
            return job;
        }
    }
}

/// The files that the step changes were written when the move began, so the step needs no free space.
#[test]
fn a_vm_leaves_a_datastore_that_has_filled_up() {
    let Some(mounted) = Mounted::new() else { return };
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json(&format!("datastore add small={}", mounted.path().display()));
    datastore.json_at("small", "vm create web --disk 16M --store redo");
    io(&datastore, "write -P 1 0 16M");
    let job = slow_move(&datastore, "ds");
    mounted.fill();
    io(&datastore, "write -P 2 1M 1M");
    let ended = end(&datastore, &job);
    assert_eq!(ended["state"], "done", "{ended}");
    assert_eq!(place(&datastore), ("ds".to_owned(), "redo".to_owned()));
    assert!(!mounted.path().join("web").exists());
    let script = ["read -P 1 0 1M", "read -P 2 1M 1M", "read -P 1 2M 14M", "write -P 3 0 1M"];
    run_script(&datastore.uri("web/disk0"), &script.map(str::to_owned));
    daemon.stop();
}

#[test]
fn a_full_target_ends_the_move_and_not_the_guest() {
    let Some(mounted) = Mounted::new() else { return };
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json(&format!("datastore add small={}", mounted.path().display()));
    datastore.json("vm create web --disk 64M --store redo");
    io(&datastore, "write -P 1 0 16M");
    let job = slow_move(&datastore, "small");
    mounted.fill();
    io(&datastore, "write -P 2 16M 32M");
    let ended = end(&datastore, &job);
    assert_eq!((&ended["state"], &ended["error"]["kind"]), (&json!("failed"), &json!("no_space")), "{ended}");
    assert_eq!(place(&datastore), ("ds".to_owned(), "redo".to_owned()));
    assert!(!mounted.path().join("web").exists());
    let script = ["read -P 1 0 16M", "read -P 2 16M 32M", "write -P 3 0 1M"].map(str::to_owned);
    run_script(&datastore.uri("web/disk0"), &script);
    daemon.stop();
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Between the step and the message to the other side both homes exist, and only the source home records which one is
/// the VM.
#[test]
fn after_the_step_the_other_side_is_the_vm_and_is_served_once_that_is_known() {
    let datastore = Datastore::new();
    let (daemon, second) = two(&datastore);
    datastore.json_at("second", "vm create web --disk 16M --store redo");
    io(&datastore, "write -P 1 0 1M");
    daemon.stop();
    let (home, old) = (second.join("web"), datastore.beside("old"));
    copy_folder(&home, &old);
    let daemon = datastore.start();
    datastore.json("vm move web --to ds");
    io(&datastore, "write -P 2 0 1M");
    daemon.kill();
    // Restores the files as a crash directly after the step would have left them.
    let arrived = datastore.path().join("web");
    fs::rename(&old, &home).unwrap();
    fs::write(home.join(".unstun/move"), format!("committed {}\n", arrived.display())).unwrap();
    fs::write(arrived.join(".unstun/move"), format!("target {}\n", home.display())).unwrap();
    let hidden = datastore.beside("hidden");
    fs::rename(&second, &hidden).unwrap();

    let daemon = datastore.start();
    let listed = datastore.json("vm list");
    let said = listed[0]["message"].as_str().unwrap();
    assert!(listed[0]["condition"] == "broken" && said.contains("second/web"), "{listed}");
    fs::rename(&hidden, &second).unwrap();
    let (code, said) = datastore.fails("vm open web --take-over");
    assert!(code == 3 && said.contains("is not lost"), "{said}");
    datastore.json(&format!("datastore add {}", second.display()));
    assert_eq!(place(&datastore), ("ds".to_owned(), "redo".to_owned()));
    io(&datastore, "read -P 2 0 1M");
    assert!(!home.exists(), "the old copy is removed");
    let (code, said) = datastore.fails("vm open web --take-over");
    assert!(code == 3 && said.contains("not part of an interrupted move"), "{said}");
    datastore.json("datastore remove second --yes");
    daemon.stop();

    // A source home without the target's datastore: its record says that it is not the VM.
    let apart = Datastore::called("apart");
    let daemon = apart.start();
    apart.json("vm create web --disk 16M --store redo");
    daemon.stop();
    let mark = apart.path().join("web/.unstun/move");
    fs::write(&mark, "committed /nowhere/web\n").unwrap();
    let daemon = apart.start();
    let listed = apart.json("vm list");
    assert!(listed[0]["message"].as_str().unwrap().contains("/nowhere/web"), "{listed}");
    assert_ne!(apart.fails("vm open web").0, 0);
    let (code, said) = apart.fails("vm open web --take-over");
    assert!(code == 3 && said.contains("older"), "{said}");
    daemon.stop();
}

#[test]
fn an_import_in_place_keeps_its_files_when_it_moves() {
    let datastore = Datastore::new();
    let (folder, twin) = crate::import::foreign_vm(&datastore);
    let (daemon, second) = two(&datastore);
    datastore.json(&format!("vm import {} --in-place --name web", folder.display()));
    let files = || {
        let names =
            fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != ".unstun" && name != ".unstun-names").collect();
        names.sort();
        names
    };
    let before = files();
    for to in ["--store native", "--to second"] {
        datastore.json(&format!("vm move web {to}"));
        assert_eq!(files(), before, "{to}");
        twin.assert_same_as("raw", &datastore.uri("web/disk0"));
    }
    let events = datastore.json("events web").to_string();
    assert!(events.contains(&format!("stay in {}", folder.display())), "{events}");
    assert!(second.join("web").exists() && !folder.join(".unstun").exists());
    datastore.json("vm remove web --delete-disks --purge --yes");
    assert_eq!(files(), before);
    daemon.stop();
}
