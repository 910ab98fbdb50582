//! Policies on a real daemon: takes at their times while a guest writes, removals, a kill, tags, and damaged input.

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::load::Fio;
use crate::rest::{curl, token, web};
use crate::space::until;

/// Returns the names of a VM's snapshots, each with who took it.
fn snapshots(datastore: &Datastore, vm: &str) -> Vec<(String, String)> {
    let tree = datastore.json(&format!("snapshot tree {vm}"));
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let all = tree["snapshots"].as_array().unwrap();
    all.iter().map(|one| (text(&one["name"]), text(&one["created_by"]))).collect()
}

/// Returns a schedule of once a minute, the first time of which is in three seconds.
fn soon() -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(3);
    format!("*:*:{}", time.strftime("%S"))
}

#[test]
fn a_policy_takes_while_guests_write_and_removes_its_own() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for store in ["native", "redo"] {
        datastore.json(&format!("vm create {store} --disk 64M --store {store}"));
        datastore.json(&format!("snapshot take {store} mine"));
    }
    let load = ["native", "redo"].map(|vm| Fio::verify(&datastore.uri(&format!("{vm}/disk0")), 64));
    let created = datastore
        .command(&[
            "--json",
            "policy",
            "create",
            "often",
            "--schedule",
            &soon(),
            "--keep-last",
            "1",
            "--vm",
            "*",
        ])
        .output()
        .unwrap();
    assert!(created.status.success(), "{created:?}");
    let taken = until("the first run", || {
        let shown = datastore.json("policy show often");
        (shown["last"]["taken"].as_u64() == Some(2)).then_some(shown)
    });
    assert_eq!(
        (taken["last"]["failed"].as_u64(), taken["problems"].as_array().map(Vec::len)),
        (Some(0), Some(0))
    );
    let scheduled = snapshots(&datastore, "native")[1].clone();
    assert_eq!(scheduled.1, "policy often");
    // The second of the scheduled run has its snapshots.
    let apply = || datastore.json("policy apply often")["taken"].as_array().unwrap().len();
    assert_eq!(until("another second", || Some(apply()).filter(|&taken| taken > 0)), 2);
    for vm in ["native", "redo"] {
        until("the removal of the first one", || {
            let now = snapshots(&datastore, vm);
            let by_hand = now[0].0 == "mine" && now[0].1.starts_with("user ");
            (by_hand && now.len() == 2 && now[1].0 != scheduled.0).then_some(())
        });
    }
    load.into_iter().for_each(Fio::finish);
    daemon.stop();
}

#[test]
fn policies_and_tags_outlive_a_kill_and_what_exists_is_not_removed_unasked() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("vm set web --add-tag prod --note shop");
    datastore.json("policy create p --schedule yearly --keep-last 1 --tag prod");
    datastore.json("policy apply p");
    datastore.json("snapshot take web mine");
    let (code, said) = datastore.fails("policy set p --removes all");
    assert!(code == 3 && said.contains("--yes lets the policy remove them"), "{said}");
    daemon.kill();
    let daemon = datastore.start();
    assert_eq!(datastore.json("vm show web")["note"], "shop");
    let shown = datastore.json("policy show p");
    assert_eq!((shown["vms"][0].as_str(), shown["policy"]["removes"].as_str()), (Some("web"), Some("own")));
    assert_eq!(snapshots(&datastore, "web").len(), 2);
    let preview = datastore.json("policy set p --removes all --dry-run");
    assert_eq!(preview["vms"][0]["removed"].as_array().map(Vec::len), Some(1), "{preview}");
    assert_eq!(datastore.json("policy show p")["policy"]["removes"], "own", "nothing was changed");
    datastore.json("policy set p --removes all --yes");
    until("the removal", || (snapshots(&datastore, "web").len() == 1).then_some(()));
    assert_eq!(snapshots(&datastore, "web")[0].0, "mine", "the last one is kept");
    datastore.json("policy set p --removes own --yes");
    // A move takes the tags and the labels along.
    datastore.json("policy apply p");
    datastore.json("vm move web --store redo");
    assert_eq!(datastore.json("vm show web")["tags"][0], "prod");
    assert_eq!(snapshots(&datastore, "web")[1].1, "policy p");
    datastore.json("policy remove p");
    assert_eq!(snapshots(&datastore, "web").len(), 2);
    daemon.stop();
}

#[test]
fn a_configuration_is_exported_and_imported_elsewhere() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("policy create p --schedule daily --keep-last 3 --vm *");
    datastore.json("alarm set snapshot_old 12 --vm web*");
    let secret = token(&datastore, "ci --role operator --quota 1G");
    let export = datastore.json("config export");
    let file = datastore.beside("unstun.json");
    std::fs::write(&file, export.to_string()).unwrap();
    assert!(!export.to_string().contains(&secret));
    let other = Datastore::new();
    let second = other.start();
    other.json("vm create web --disk 16M");
    let import = format!("config import {}", file.display());
    let counts =
        |done: &Value| ["policies", "tokens", "thresholds", "unchanged"].map(|of| done[of].as_u64().unwrap());
    assert_eq!(counts(&other.json(&format!("{import} --dry-run"))), [1, 1, 1, 0]);
    assert_eq!(other.json("policy list"), json!([]), "nothing was changed");
    assert_eq!(counts(&other.json(&import)), [1, 1, 1, 0]);
    assert_eq!(other.json("config export"), export);
    assert_eq!(curl(&web(&other), Some(&secret), "GET", "/vms", &[]).0, 200);
    assert_eq!(counts(&other.json(&import)), [0, 0, 0, 3]);
    other.json("policy set p --keep-last 4");
    let (code, said) = other.fails(&import);
    assert!(
        code == 3 && said.contains("policy p: there with another content; nothing was changed"),
        "{said}"
    );
    assert_eq!(counts(&other.json(&format!("{import} --replace"))), [1, 0, 0, 2]);
    assert_eq!(other.json("config export"), export);
    for (text, expected) in [
        ("{\"version\": 7}", "version: found 7, expected 1"),
        ("{\"version\": 1, \"polices\": []}", "unknown field `polices`"),
        ("{", "EOF"),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, said) = other.fails(&import);
        assert!(code == 2 && said.contains(expected) && said.contains("unstun.json"), "{said}");
    }
    assert_eq!(other.fails("config import /absent.json").0, 4);
    daemon.stop();
    second.stop();
}

/// Tokens and thresholds are written before the policies, which fail here: one more than there can be.
#[test]
fn an_import_that_fails_changes_nothing() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let secret = token(&datastore, "admin --role admin");
    token(&datastore, "ci --role viewer");
    datastore.json("alarm set snapshot_old 12");
    let before = datastore.json("config export");
    let mut wanted = before.clone();
    wanted["tokens"][1]["token"]["role"] = "operator".into();
    wanted["tokens"][1]["token"]["name"] = "ci2".into();
    wanted["thresholds"][0]["value"] = 13.into();
    let sha256 = "a".repeat(64);
    wanted["tokens"]
        .as_array_mut()
        .unwrap()
        .push(json!({"sha256": sha256, "token": before["tokens"][1]["token"]}));
    let policy =
        |n: usize| json!({"name": format!("p{n}"), "schedule": ["daily"], "keep": {"last": 1}, "vms": ["x"]});
    wanted["policies"] = (0..1001).map(policy).collect();
    let file = datastore.beside("body.json");
    let import = |config: &Value| {
        std::fs::write(&file, config.to_string()).unwrap();
        let body = format!("@{}", file.display());
        let url = web(&datastore);
        crate::rest::send(&url, Some(&secret), "POST", "/config?replace=true", &["--data-binary", &body])
    };
    let (status, said) = import(&wanted);
    assert_eq!((status, &said["error"]["kind"]), (409, &json!("refused")), "{said}");
    assert!(said["error"]["message"].as_str().unwrap().contains("1001 policies: expected at most 1000"));
    assert_eq!(datastore.json("config export"), before);
    wanted["policies"].as_array_mut().unwrap().pop();
    assert_eq!(import(&wanted).0, 200, "one less is imported");
    assert_eq!(datastore.json("config export")["thresholds"], wanted["thresholds"]);
    daemon.stop();
    // The file of the alarms is damaged: it is not replaced, and nothing else is.
    let alarms = datastore.path().join(".unstun/alarms");
    std::fs::write(&alarms, "{").unwrap();
    let daemon = datastore.start();
    let before = datastore.json("config export");
    wanted["tokens"][2]["token"]["role"] = "metrics".into();
    let (status, said) = import(&wanted);
    assert_eq!(status, 500, "{said}");
    assert_eq!(datastore.json("config export"), before);
    daemon.stop();
}

/// The daemon is killed while an import is under way, until a kill has come between its files.
#[test]
fn an_import_that_a_kill_interrupts_is_complete_after_the_next_start() {
    let datastore = Datastore::new();
    let mut daemon = datastore.start();
    token(&datastore, "ci --role viewer");
    datastore.json("alarm set snapshot_old 12");
    datastore.json("policy create p --schedule daily --keep-last 1 --vm x");
    let own = |name: &str| datastore.path().join(".unstun").join(name);
    let content = |name: &str| std::fs::read(own(name)).unwrap();
    let file = datastore.beside("unstun.json");
    let mut is_between = false;
    for round in 2.. {
        let before = datastore.json("config export");
        let mut wanted = before.clone();
        wanted["tokens"][0]["token"]["role"] = ["operator", "viewer"][round % 2].into();
        wanted["thresholds"][0]["value"] = (10 + round).into();
        wanted["policies"][0]["keep"]["last"] = round.into();
        std::fs::write(&file, wanted.to_string()).unwrap();
        let earlier = ["tokens", "policies"].map(content);
        let mut import = datastore.begin(&format!("config import {} --replace", file.display()));
        while content("tokens") == earlier[0] && import.try_wait().unwrap().is_none() {}
        daemon.kill();
        import.wait().unwrap();
        is_between |= content("tokens") != earlier[0] && content("policies") == earlier[1];
        daemon = datastore.start();
        let found = datastore.json("config export");
        assert!(found == wanted || found == before && content("tokens") == earlier[0], "{found}");
        assert!(!own("config-import").exists());
        if is_between {
            break;
        }
        assert!(round < 50, "no kill came between the files");
    }
    daemon.stop();
}

#[test]
fn what_is_no_policy_is_refused_with_the_field_and_an_example() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for (line, code, expected) in [
        ("policy create p --schedule daily --vm x", 2, "keep: expected a rule, such as last: 7"),
        (
            "policy create p --keep-last 1 --vm x",
            2,
            "schedule: expected at least one calendar expression, such as daily",
        ),
        ("policy create p --schedule daily --keep-last 1", 2, "applies to no VM"),
        ("policy create p --schedule sometimes --keep-last 1 --vm x", 2, "examples are `daily`"),
        ("policy create p --schedule daily --keep-last 1 --vm x --commit-window 22:00", 2, "HH:MM-HH:MM"),
        ("policy create p --schedule daily --keep-last 1 --vm x --template y", 2, "{time}"),
        ("policy show p", 4, "no policy p"),
        ("policy set p --keep-last 1", 4, "no policy p"),
        ("policy apply p", 4, "no policy p"),
    ] {
        let (found, said) = datastore.fails(line);
        assert!(found == code && said.contains(expected), "{line}: {found}: {said}");
    }
    daemon.stop();
}
