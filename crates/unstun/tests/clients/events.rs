//! `unstun events` for all VMs.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::daemon::Datastore;
use crate::rest::{send, token, web};

fn shown(event: &Value) -> (String, String) {
    let field = |name: &str| event[name].as_str().unwrap().to_owned();
    (field("vm"), field("operation"))
}

#[test]
fn the_events_of_all_vms_are_printed_in_the_order_of_their_times() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    assert_eq!(datastore.json("events"), serde_json::json!([]));
    for vm in ["web", "db"] {
        datastore.json(&format!("vm create {vm} --disk 16M"));
    }
    for take in ["web a", "db a", "web b"] {
        datastore.json(&format!("snapshot take {take}"));
    }
    let takes = |events: Value| {
        let all: Vec<_> = events.as_array().unwrap().iter().map(shown).collect();
        all.into_iter().filter(|(_, operation)| operation == "take").map(|(vm, _)| vm).collect::<Vec<_>>()
    };
    assert_eq!(takes(datastore.json("events")), ["web", "db", "web"]);
    assert_eq!(takes(datastore.json("events db")), ["db"]);
    // A token for one VM sees the events of this one.
    let secret = token(&datastore, "db --role viewer --vm db");
    let again = ["-H", "Last-Event-ID: 0.0.0", "-o", "all.txt"];
    let file = datastore.beside("all.txt");
    let again = [again[0], again[1], again[2], file.to_str().unwrap()];
    assert_eq!(send(&web(&datastore), Some(&secret), "GET", "/events?follow=false", &again).0, 200);
    let sent = std::fs::read_to_string(&file).unwrap();
    assert!(sent.contains(r#""vm":"db""#) && !sent.contains(r#""vm":"web""#), "{sent}");
    assert_eq!(send(&web(&datastore), Some(&secret), "GET", "/events?follow=perhaps", &[]).0, 400);
    daemon.stop();
    let daemon = datastore.start();
    assert_eq!(takes(datastore.json("events")), ["web", "db", "web"], "they are on file");
    daemon.stop();
}

#[test]
fn events_are_followed_as_they_happen_until_the_daemon_ends() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("snapshot take web before");
    let mut command = datastore.command(&["events", "--follow", "--json"]);
    let mut following = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut next_take = move || loop {
        let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if event["operation"] == "take" {
            return event["snapshot"].as_str().unwrap().to_owned();
        }
    };
    assert_eq!(next_take(), "before");
    datastore.json("vm create db --disk 16M");
    datastore.json("snapshot take db after");
    assert_eq!(next_take(), "after");
    daemon.stop();
    let ended = following.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("no daemon serves datastore"), "{said}");
}
