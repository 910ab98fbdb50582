//! Invalid requests are refused with what was expected, and the exit code states the kind of refusal.

use crate::daemon::Datastore;
use crate::tools::run_script;

#[test]
fn a_second_daemon_is_refused() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let (code, said) = datastore.fails("up");
    assert_eq!(code, 5, "{said}");
    assert!(said.contains("ds"), "names the datastore: {said}");
    // The first daemon is not affected.
    datastore.json("status");
    daemon.stop();
    assert_eq!(datastore.fails("status").0, 1, "no daemon answers");
}

#[test]
fn exit_codes_distinguish_the_kinds_of_refusal() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    run_script(&datastore.uri("web/disk0"), &["write -P 1 0 1M".to_owned()]);
    datastore.json("snapshot take web a");
    for (line, code, word) in [
        ("vm create web", 2, "--disk"),
        ("vm create ../web --disk 16M", 2, "../web"),
        ("vm create big --disk 16Q", 2, "16Q"),
        ("vm create odd --disk 1000", 2, "1000"),
        ("vm create huge --disk 65T", 2, "65T"),
        ("snapshot take web a/b", 2, "a/b"),
        ("vm create web --disk 16M", 3, "web"),
        ("snapshot take web a", 3, "a"),
        ("snapshot commit web a", 3, "--yes"),
        ("snapshot delete web a", 3, "commit"),
        ("vm show absent", 4, "absent"),
        ("snapshot commit web nothing --yes", 4, "nothing"),
        ("job pause 99", 4, "99"),
    ] {
        let (found, said) = datastore.fails(line);
        assert_eq!(found, code, "{line}: {said}");
        assert!(said.contains(word), "{line}: does not say `{word}`: {said}");
    }
    // None of these commands changed anything.
    assert_eq!(datastore.json("snapshot tree web")["snapshots"].as_array().unwrap().len(), 1);
    run_script(&datastore.uri("web/disk0"), &["read -P 1 0 1M".to_owned()]);
    daemon.stop();
}

#[test]
fn the_preview_says_what_a_commit_will_do() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    datastore.json("snapshot take web a");
    run_script(&datastore.uri("web/disk0"), &["write -P 1 0 1M".to_owned(), "flush".to_owned()]);
    let preview = datastore.json("snapshot commit web a --dry-run");
    assert_eq!(preview["bytes_to_move"], 1 << 20, "{preview}");
    assert!(
        preview["warning"].as_str().unwrap().contains("cannot revert to a, even if you cancel it"),
        "{preview}"
    );
    assert_eq!(datastore.json("snapshot tree web")["snapshots"].as_array().unwrap().len(), 1);
    daemon.stop();
}

#[test]
fn a_removed_vm_leaves_its_files_without_delete_disks() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create kept --store redo --disk 16M");
    datastore.json("vm create gone --store redo --disk 16M");
    datastore.json("vm remove kept");
    datastore.json("vm remove gone --delete-disks --purge --yes");
    assert!(datastore.path().join("kept/kept-flat.vmdk").exists());
    assert!(!datastore.path().join("gone").exists());
    assert_eq!(datastore.json("vm list"), serde_json::json!([]));
    daemon.stop();
}

#[test]
fn of_two_who_make_the_same_vm_one_wins_and_nothing_of_it_is_lost() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for round in 0..8 {
        let line = format!("vm create web{round} --disk 16M,16M,16M,16M");
        let codes: Vec<_> = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| datastore.fails(&line).0)).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        assert_eq!(codes.iter().filter(|&&code| code == 0).count(), 1, "{codes:?}");
        assert!(codes.iter().all(|code| [0, 3].contains(code)), "{codes:?}");
        let uri = datastore.uri(&format!("web{round}/disk3"));
        run_script(&uri, &["write -P 1 0 1M".to_owned(), "read -P 1 0 1M".to_owned()]);
    }
    assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 8);
    daemon.stop();
}
