//! Takes that freeze a guest's file systems, with an agent that the test plays.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Datastore};
use crate::fake_agent::{self, Answer};
use crate::tools::HeldOpen;

const FREEZE: &str = "guest-fsfreeze-freeze";
const THAW: &str = "guest-fsfreeze-thaw";
/// Time limit against hangs.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Time in which nothing comes.
const QUIET: Duration = Duration::from_millis(300);

/// A VM, an agent of its guest, and the commands that it gets. The folder of the socket has a short path.
struct Guest {
    _folder: tempfile::TempDir,
    access: String,
    commands: Receiver<String>,
}

fn guest(answer: impl FnMut(&str) -> Answer + Send + 'static) -> Guest {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let commands = fake_agent::start(&socket, answer);
    Guest { access: format!("unix:{}", socket.display()), _folder: folder, commands }
}

impl Guest {
    fn next(&self) -> String {
        self.commands.recv_timeout(ANSWER_MAX).expect("a command")
    }

    fn set(&self, datastore: &Datastore, vm: &str) -> Value {
        datastore.json(&format!("vm set {vm} --guest-agent {}", self.access))
    }
}

fn snapshots(datastore: &Datastore, vm: &str) -> Vec<(String, bool)> {
    let tree = datastore.json(&format!("snapshot tree {vm}"));
    let show = |s: &Value| (s["name"].as_str().unwrap().to_owned(), s["quiesced"].as_bool().unwrap());
    tree["snapshots"].as_array().unwrap().iter().map(show).collect()
}

#[test]
fn a_guest_is_frozen_for_a_take_on_both_stores() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let guest = guest(|_| Answer::Return(3));
    for store in ["native", "redo"] {
        datastore.json(&format!("vm create {store} --store {store} --disk 64M"));
        let vm = guest.set(&datastore, store);
        assert_eq!(vm["guest"], json!({"access": guest.access, "frozen_ms_max": 2000, "qmp": null}));
        let off = datastore.json(&format!("snapshot take {store} off --quiesce=require"));
        assert!(off["quiesced"]["cause"].as_str().unwrap().contains("no client is connected"), "{off}");
        let _client = HeldOpen::new(&datastore, store);
        let taken = datastore.json(&format!("snapshot take {store} calm --quiesce"));
        assert_eq!([guest.next(), guest.next()], [FREEZE, THAW]);
        let quiesced = &taken["quiesced"];
        assert_eq!(
            (&quiesced["consistent"], &quiesced["file_systems"]),
            (&json!(true), &json!(3)),
            "{taken}"
        );
        datastore.json(&format!("snapshot take {store} plain"));
        let expected =
            [("off", false), ("calm", true), ("plain", false)].map(|(name, is)| (name.to_owned(), is));
        assert_eq!(snapshots(&datastore, store), expected);
    }
    let client = HeldOpen::new(&datastore, "redo");
    assert!(guest.commands.recv_timeout(QUIET).is_err(), "no freeze that was not asked for");
    let said = String::from_utf8(datastore.run("snapshot take redo text --quiesce").stdout).unwrap();
    assert!(said.contains("3 file systems frozen for "), "{said}");
    drop(client);
    daemon.stop();
    // The setting and the labels are on file.
    let daemon = datastore.start();
    let _client = HeldOpen::new(&datastore, "native");
    assert!(snapshots(&datastore, "native")[1].1);
    datastore.json("vm set native --frozen-max 500");
    assert_eq!(datastore.json("vm show native")["guest"]["frozen_ms_max"], 500);
    datastore.json("vm set native --guest-agent none");
    let (code, said) = datastore.fails("snapshot take native never --quiesce=require");
    assert!(code == 3 && said.contains("vm set native --guest-agent"), "{code}: {said}");
    let taken = datastore.json("snapshot take native rough --quiesce");
    assert!(taken["quiesced"]["cause"].as_str().unwrap().contains("cannot reach its guest"), "{taken}");
    daemon.stop();
}

#[test]
fn what_was_thawed_too_early_is_labelled_or_taken_back() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let guest = guest(|command| Answer::Return(u64::from(command != THAW)));
    for store in ["native", "redo"] {
        datastore.json(&format!("vm create {store} --store {store} --disk 64M"));
        guest.set(&datastore, store);
        let _client = HeldOpen::new(&datastore, store);
        let taken = datastore.json(&format!("snapshot take {store} rough --quiesce"));
        assert!(taken["quiesced"]["cause"].as_str().unwrap().contains("another program thawed"), "{taken}");
        let (code, said) = datastore.fails(&format!("snapshot take {store} never --quiesce=require"));
        assert!(code == 3 && said.contains("snapshot never is being removed"), "{code}: {said}");
        loop {
            match snapshots(&datastore, store).as_slice() {
                [(name, false)] if name == "rough" => break,
                found => assert!(found.len() == 2, "{found:?}"),
            }
        }
    }
    let events = datastore.json("events native");
    let of_quiesce = |event: &&Value| event["operation"] == "quiesce";
    assert_eq!(events.as_array().unwrap().iter().filter(of_quiesce).count(), 2);
    daemon.stop();
}

/// Ends the daemon by `end` while it waits for the answer to a freeze.
fn ended_in_mid_freeze<'a>(datastore: &Datastore, guest: &Guest, daemon: Daemon<'a>, end: fn(Daemon<'a>)) {
    let _client = HeldOpen::new(datastore, "web");
    let mut taking = datastore.begin("snapshot take web calm --quiesce");
    assert_eq!(guest.next(), FREEZE);
    end(daemon);
    taking.wait().unwrap();
}

#[test]
fn a_daemon_that_ends_leaves_no_guest_frozen() {
    let datastore = Datastore::new();
    let guest = guest({
        let mut freezes = 0;
        move |command| {
            freezes += u32::from(command == FREEZE);
            // The first two freezes are not answered, as if they took long.
            if command == FREEZE && freezes < 3 { Answer::Silence } else { Answer::Return(1) }
        }
    });
    let record: PathBuf = datastore.path().join(".unstun/frozen/web");
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    guest.set(&datastore, "web");
    ended_in_mid_freeze(&datastore, &guest, daemon, Daemon::kill);
    assert!(record.exists(), "the record of a freeze comes before it");

    let daemon = datastore.start();
    assert_eq!(guest.next(), THAW, "by the next start");
    while !datastore.json("events web").to_string().contains("file systems of the guest are thawed") {}
    assert!(!record.exists());
    // The end does not wait for an agent for ever.
    ended_in_mid_freeze(&datastore, &guest, daemon, Daemon::stop);
    let left = fs::read(&record).unwrap();
    assert_eq!(datastore.json("thaw")[0], json!({"vm": "web", "access": guest.access, "cause": null}));
    assert_eq!(guest.next(), THAW, "by the command, without a daemon");
    assert!(!record.exists());
    assert_eq!(datastore.json("thaw"), json!([]));
    fs::write(&record, left).unwrap();
    assert_eq!(datastore.json("thaw --forget web")[0]["vm"], "web");
    assert!(!record.exists());
    assert_eq!(datastore.run("thaw --forget web").status.code(), Some(4), "there is none any more");

    let daemon = datastore.start();
    let _client = HeldOpen::new(&datastore, "web");
    let taken = datastore.json("snapshot take web calm --quiesce=require");
    assert_eq!(taken["quiesced"]["consistent"], true);
    daemon.stop();
}

#[test]
fn a_guest_that_may_stay_frozen_is_an_alarm_until_it_is_thawed() {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&["--alarms-every", "1s"]);
    let thaws = Arc::new(AtomicBool::new(false));
    let is_thawing = thaws.clone();
    let guest = guest(move |command| match command == THAW && !is_thawing.load(Ordering::Acquire) {
        true => Answer::Error("not now"),
        false => Answer::Return(2),
    });
    datastore.json("vm create web --disk 64M");
    guest.set(&datastore, "web");
    let _client = HeldOpen::new(&datastore, "web");
    let taken = datastore.json("snapshot take web rough --quiesce");
    assert!(taken["quiesced"]["cause"].as_str().unwrap().contains("not now"), "{taken}");
    let lasting = || datastore.json("alarm list").as_array().unwrap().first().cloned();
    let alarm = crate::space::until("the alarm", lasting);
    let fields = |name: &str| alarm[name].as_str().unwrap().to_owned();
    assert_eq!((fields("id"), fields("severity")), ("guest_frozen:web".into(), "critical".into()));
    assert!(fields("message").contains("fsfreeze -u"), "{alarm}");
    thaws.store(true, Ordering::Release);
    crate::space::until("the end of the alarm", || lasting().is_none().then_some(()));
    let secret = crate::rest::token(&datastore, "prometheus --role metrics");
    let bearer = format!("Authorization: Bearer {secret}");
    let metrics = format!("{}/metrics", crate::rest::web(&datastore));
    let text = crate::programs::tool("curl", &["-sf", "-H", &bearer, &metrics]);
    assert!(text.contains("\nunstun_guest_frozen_seconds_count 1\n"), "{text}");
    daemon.stop();
}

#[test]
fn policies_freeze_by_commands_that_only_root_names() {
    let datastore = Datastore::new();
    let guests = datastore.beside("guests");
    fs::create_dir_all(&guests).unwrap();
    let daemon = datastore.start_as(&["--guests-dir", guests.to_str().unwrap()]);
    datastore.json("vm create web --disk 64M");
    datastore.json("vm set web --guest-agent command:db");
    datastore.json("policy create each --schedule daily --keep-last 5 --vm web --quiesce require");
    let _client = HeldOpen::new(&datastore, "web");
    let applied = datastore.run("--json policy apply each");
    assert!(
        !applied.status.success() && String::from_utf8_lossy(&applied.stdout).contains("db.toml"),
        "no file yet"
    );

    let (file, said) = (guests.join("db.toml"), datastore.beside("said"));
    let command =
        |what: &str| format!("{what} = ['/bin/sh', '-c', 'echo {what} $UNSTUN_VM >> {}']\n", said.display());
    fs::write(&file, command("freeze") + &command("thaw")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    datastore.json("policy apply each");
    assert_eq!(fs::read_to_string(&said).unwrap(), "freeze web\nthaw web\n");
    let taken = snapshots(&datastore, "web");
    assert!(matches!(taken.as_slice(), [(_, true)]), "{taken:?}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let taken = datastore.json("snapshot take web rough --quiesce");
    assert!(taken["quiesced"]["cause"].as_str().unwrap().contains("others may write it"), "{taken}");
    daemon.stop();
}
