//! Snapshots with frozen file systems, through Debian's guest agent in the guest: file systems with nothing to repair, a
//! hook of an application, an agent that hangs, and one that dies while the guest is frozen.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::image::{assert_clean, copy_out};
use crate::initramfs::HOOKED;
use crate::machine::Machine;
use crate::programs::{tool, try_tool};
use crate::reset::{DISKS, churn_on, mount, new_file_systems, unmount};
use crate::wire::Ask;

pub(crate) fn file_systems_are_frozen_for_a_snapshot() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    new_file_systems(&datastore, "native");
    // Short: the path of a socket has at most 107 bytes.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let agent = format!("unix:{}", socket.display());
    datastore.json(&format!("vm set web --guest-agent {agent}"));
    let mut machine = Machine::with_agent(&datastore, "web", DISKS.len(), &socket);
    mount(&mut machine);
    machine.ask::<()>(&Ask::StartAgent);
    machine.ask::<()>(&Ask::StartChurn);

    takes(&datastore, &mut machine);
    an_agent_that_hangs(&datastore, &mut machine);
    an_agent_that_dies(&datastore, &mut machine, &socket, &agent);

    machine.ask::<()>(&Ask::StopAgent { continues: false });
    unmount(&mut machine);
    machine.quit();
    for (disk, kind) in DISKS {
        assert_clean(&datastore, &format!("web/{disk}"), kind);
    }
    daemon.stop();
}

fn takes(datastore: &Datastore, machine: &mut Machine<'_>) {
    churn_on(machine);
    datastore.json("snapshot take web rough");
    let taken = datastore.json("snapshot take web calm --quiesce=require");
    let quiesced = &taken["quiesced"];
    println!("quiesced: {quiesced}, stun {} us", taken["stun_us"]);
    assert_eq!((&quiesced["consistent"], &quiesced["file_systems"]), (&json!(true), &json!(DISKS.len())));
    assert!(quiesced["frozen_us"].as_u64().unwrap() > 0 && quiesced["cause"].is_null(), "{quiesced}");
    let flags: Vec<_> = datastore.json("snapshot tree web")["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|snapshot| snapshot["quiesced"].as_bool().unwrap())
        .collect();
    assert_eq!(flags, [false, true]);
    let events = datastore.json("events web");
    let event = events.as_array().unwrap().iter().find(|event| event["operation"] == "quiesce").unwrap();
    assert_eq!((&event["snapshot"], &event["frozen_us"]), (&json!("calm"), &quiesced["frozen_us"]));
    // The guest writes on.
    churn_on(machine);
    assert_clean(datastore, "web/disk0@calm", "ext4");
    assert_xfs_is_complete(datastore, "web/disk1@calm");
    assert!(needs_recovery(datastore, "rough"), "without a freeze there is a journal to replay");
    assert!(!needs_recovery(datastore, "calm"));
    let calm = copy_out(datastore, "web/disk0@calm", "calm.raw");
    let hooked = tool("debugfs", &["-R", &format!("cat /{HOOKED}"), calm.to_str().unwrap()]);
    assert_eq!(hooked, "freeze\n", "the application's hook has run before");
    fs::remove_file(calm).unwrap();
}

/// Asserts that there is nothing to repair beside the log. A frozen XFS leaves a record there on purpose, so that the next
/// mount removes files that were open and had no name any more (Linux 6.1, xfs_fs_freeze).
fn assert_xfs_is_complete(datastore: &Datastore, export: &str) {
    let copy = copy_out(datastore, export, "xfs.raw");
    let output = try_tool("xfs_repair", &["-n", "-f", copy.to_str().unwrap()]);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let faults: Vec<_> =
        said.lines().filter(|line| line.contains("would") || line.contains("bad ")).collect();
    assert!(
        faults.is_empty() && said.contains("No modify flag set, skipping filesystem flush"),
        "{faults:?}: {said}"
    );
    fs::remove_file(copy).unwrap();
}

/// Returns whether the ext4 file system of a snapshot says that its journal is to be replayed.
fn needs_recovery(datastore: &Datastore, snapshot: &str) -> bool {
    let copy: PathBuf = copy_out(datastore, &format!("web/disk0@{snapshot}"), "flag.raw");
    let said = tool("dumpe2fs", &["-h", copy.to_str().unwrap()]);
    fs::remove_file(copy).unwrap();
    said.contains("needs_recovery")
}

fn an_agent_that_hangs(datastore: &Datastore, machine: &mut Machine<'_>) {
    machine.ask::<()>(&Ask::StopAgent { continues: true });
    let taken = datastore.json("snapshot take web hung --quiesce");
    let cause = taken["quiesced"]["cause"].as_str().unwrap();
    assert!(cause.contains("no answer in time") && taken["snapshot"]["quiesced"] == false, "{taken}");
    let (code, said) = datastore.fails("snapshot take web never --quiesce=require");
    assert!(code == 3 && said.contains("no snapshot was taken"), "{code}: {said}");
    let tree = datastore.json("snapshot tree web").to_string();
    assert!(tree.contains("\"hung\"") && !tree.contains("\"never\""), "{tree}");
    machine.ask::<()>(&Ask::ContinueAgent);
    // It answers now to what it was asked meanwhile, and then again to what it is asked.
    let again = datastore.json("snapshot take web again --quiesce=require");
    assert_eq!(again["quiesced"]["consistent"], true, "{again}");
    churn_on(machine);
}

/// The agent dies while the guest is frozen. `unstun thaw` thaws it through the next agent, by the record that a daemon
/// leaves which dies at the same time.
fn an_agent_that_dies(datastore: &Datastore, machine: &mut Machine<'_>, socket: &Path, agent: &str) {
    let mut client = UnixStream::connect(socket).unwrap();
    let mut answers = BufReader::new(client.try_clone().unwrap());
    let mut frozen: Value = Value::Null;
    for command in ["guest-ping", "guest-fsfreeze-freeze"] {
        writeln!(client, "{}", json!({ "execute": command })).unwrap();
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        frozen = serde_json::from_str(&line).unwrap();
    }
    assert_eq!(frozen["return"], json!(DISKS.len()));
    machine.ask::<()>(&Ask::StopAgent { continues: false });
    drop((client, answers));
    machine.ask::<()>(&Ask::StartAgent);
    let records = datastore.path().join(".unstun/frozen");
    fs::write(records.join("web"), json!({ "vm": "web", "access": agent }).to_string()).unwrap();
    let thawed = datastore.json("thaw --for 60s");
    assert_eq!((&thawed[0]["vm"], &thawed[0]["cause"]), (&json!("web"), &Value::Null), "{thawed}");
    assert_eq!(fs::read_dir(&records).unwrap().count(), 0);
    churn_on(machine);
}
