//! The API as its description has it: every operation is used once, and its answer compared with the description. Then the
//! stream of events, lists in parts, and keys of requests.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::rest::{Description, check, curl, send, token, web};
use crate::space::until;
use crate::tools::run_script;

/// An administrator, with the operations that it has used.
struct Client {
    web: String,
    secret: String,
    used: RefCell<BTreeSet<String>>,
}

impl Client {
    fn new(datastore: &Datastore) -> Client {
        let secret = token(datastore, "admin --role admin");
        Client { web: web(datastore), secret, used: RefCell::default() }
    }

    fn note(&self, method: &str, route: &str) {
        let operation = Description::of_api(&self.web, &[]).operation(method, route).expect(route);
        self.used.borrow_mut().insert(format!("{method} {}", operation.path));
    }

    /// Sends a request that succeeds.
    fn ok(&self, method: &str, route: &str, body: Value) -> Value {
        let text = body.to_string();
        let options: &[&str] = if body.is_null() { &[] } else { &["-d", &text] };
        let (status, answer) = curl(&self.web, Some(&self.secret), method, route, options);
        assert!((200..300).contains(&status), "{method} {route} {text}: {status}: {answer}");
        self.note(method, route);
        answer
    }

    fn get(&self, route: &str) -> Value {
        self.ok("GET", route, Value::Null)
    }

    fn post(&self, route: &str, body: Value) -> Value {
        self.ok("POST", route, body)
    }

    /// Waits until a job has ended.
    fn ended(&self, job: &Value) {
        let state = || self.get(&format!("/jobs/{}", job["id"]))["state"].as_str().unwrap().to_owned();
        let ended =
            until("the job", || Some(state()).filter(|state| !["running", "queued"].contains(&&**state)));
        assert_eq!(ended, "done");
    }
}

#[test]
fn every_answer_is_as_the_description_says() {
    let datastore = Datastore::new();
    let channels = datastore.beside("alarms");
    fs::create_dir(&channels).unwrap();
    fs::write(channels.join("works.toml"), "kind = 'command'\ncommand = ['/bin/true']\n").unwrap();
    let daemon = datastore.start_as(&["--alarms-every", "1s", "--alarms-dir", channels.to_str().unwrap()]);
    let client = Client::new(&datastore);
    of_vms(&client, &datastore);
    of_snapshots(&client, &datastore);
    of_jobs(&client, &datastore);
    of_datastores(&client, &datastore);
    of_policies(&client);
    of_alarms(&client, &datastore);
    of_access(&client);
    let described = Description::of_api(&client.web, &[]).all();
    let used = client.used.borrow();
    let unused: Vec<_> = described.difference(&used).filter(|one| *one != "GET /events").collect();
    assert!(unused.is_empty(), "not used: {unused:?}");
    daemon.stop();
}

fn of_vms(client: &Client, datastore: &Datastore) {
    let disks = json!([{"size_bytes": 16 << 20}]);
    client.post("/vms", json!({"name": "web", "disks": disks, "store": "redo", "datastore": null}));
    client.post("/vms", json!({"name": "db", "disks": disks, "datastore": null}));
    client.get("/vms");
    client.get("/vms/web");
    client.get("/vms/web/space");
    client.get("/vms/web/events");
    client.get("/vms/web/record?step_s=60");
    client.get("/vms/web/cost");
    client.ok("PUT", "/vms/web/limits", json!({"iops": 20000}));
    client.ok("PUT", "/vms/web/labels", json!({"tags": ["prod"], "note": "the shop"}));
    client.ok("PUT", "/vms/web/guest", json!({"access": "unix:/run/web.sock", "frozen_ms_max": 500}));
    client.post("/vms/db/rename", json!({"name": "database"}));
    client.post("/vms/database/rename", json!({"name": "db"}));
    client.ok("PUT", "/vms/web/shared-writers", json!({"shared": false}));
    client.ok("PUT", "/vms/web/snapshot-dir", json!({"dir": null}));
    client.post("/vms/web/disks", json!({"size_bytes": 1 << 20}));
    client.ok("PUT", "/vms/web/disks/1/size", json!({"size_bytes": 2 << 20}));
    client.ok("PUT", "/vms/web/disks/1/mode", json!({"mode": "independent_nonpersistent"}));
    client.post("/vms/web/close", json!({}));
    client.post("/vms/web/open", json!({}));
    client.post("/vms/web/reset/preview", json!({}));
    client.post("/vms/web/reset", json!({}));
    client.post("/vms/web/open", json!({}));
    client.ok("DELETE", "/vms/web/disks/1?delete_files=true", Value::Null);
    let folder = datastore.beside("import");
    crate::programs::tool(
        "cp",
        &["-r", datastore.path().join("web").to_str().unwrap(), folder.to_str().unwrap()],
    );
    client.post("/import", json!({"path": folder, "name": "old"}));
    client.post("/vms/old/remove/preview", json!({"delete_disks": true}));
    client.ok("DELETE", "/vms/old?delete_disks=true", Value::Null);
    let binned = client.get("/bin");
    client.post("/bin/restore", json!({"entry": binned[0]["id"]}));
    client.ok("DELETE", "/vms/old?delete_disks=true", Value::Null);
    client.post("/bin/empty/preview", json!({}));
    client.post("/bin/empty", json!({}));
    of_sources(client, datastore);
}

fn of_sources(client: &Client, datastore: &Datastore) {
    let image = datastore.beside("image.raw");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let disk = json!({"from": {"uri": image, "copy": false}});
    client.post("/vms/db/disks", disk);
    let sources = client.get("/sources");
    let route = format!(
        "/sources/{}/copy?datastore={}",
        sources[0]["number"],
        sources[0]["datastore"].as_str().unwrap()
    );
    client.ended(&client.post(&route, Value::Null));
    client.ok("DELETE", "/vms/db/disks/1?delete_files=true", Value::Null);
}

/// A file with the memory of a guest is found when the VM is opened.
fn of_memory(client: &Client, datastore: &Datastore) {
    let tree = client.get("/vms/web/snapshots");
    let id = tree["snapshots"][0]["id"].as_str().unwrap();
    let text = json!({"vm": "web", "snapshot": id, "ram_bytes": 1 << 20, "qemu": "7.2.1"}).to_string();
    let mut file = 0x184D_2A50_u32.to_le_bytes().to_vec();
    file.extend((text.len() as u32).to_le_bytes());
    file.extend(text.as_bytes());
    client.post("/vms/web/close", json!({}));
    fs::write(datastore.path().join(format!("web/.unstun/memory-{id}.lz4")), file).unwrap();
    client.post("/vms/web/open", json!({}));
    let memory = client.get("/vms/web/memory/a");
    assert_eq!((&memory["ram_bytes"], &memory["snapshot"]), (&json!(1 << 20), &json!("a")));
}

fn of_snapshots(client: &Client, datastore: &Datastore) {
    for name in ["a", "b"] {
        client.post("/vms/web/snapshots", json!({"name": name, "quiesce": "try"}));
        run_script(&datastore.uri("web/disk0"), &[format!("write -P {} 0 1M", name.len())]);
    }
    client.post("/vms/web/snapshots/rename", json!({"snapshot": "b", "name": "c", "message": "renamed"}));
    client.post("/vms/web/snapshots/rename", json!({"snapshot": "c", "name": "b"}));
    client.get("/vms/web/snapshots");
    of_memory(client, datastore);
    client.post("/vms/web/diff", json!({"disk": 0, "from": "a", "to": "b"}));
    client.post("/vms/web/clone", json!({"snapshot": "a", "name": "copy"}));
    let revert =
        json!({"snapshot": "a", "take_first": "now", "disconnect": false, "purge": false, "keep": false});
    client.post("/vms/web/revert/preview", revert.clone());
    client.post("/vms/web/revert", revert.clone());
    client.post("/vms/web/discard/preview", json!({"snapshot": "now"}));
    client.post("/vms/web/discard", json!({"snapshot": "now"}));
    client.post("/vms/web/undo/preview", json!({}));
    client.post("/vms/web/undo", json!({}));
    client.post("/vms/copy/snapshots", json!({"name": "c"}));
    client.post("/vms/copy/commit/preview", json!({"snapshot": "c"}));
    client.ended(&client.post("/vms/copy/commit", json!({"snapshot": "c"})));
}

fn of_jobs(client: &Client, datastore: &Datastore) {
    client.post("/vms/copy/move/preview", json!({"store": "native"}));
    client.ended(&client.post("/vms/copy/move", json!({"store": "native"})));
    client.ended(&client.post("/vms/db/defragment", json!({})));
    client.post(
        "/vms",
        json!({"name": "big", "disks": [{"size_bytes": 512 << 20}], "store": "redo", "datastore": null}),
    );
    client.post("/vms/big/snapshots", json!({"name": "a"}));
    run_script(&datastore.uri("big/disk0"), &["write -P 1 0 512M".to_owned()]);
    // The limit must come before the end.
    let (commit, limit) = (r#"{"snapshot":"a"}"#, r#"{"limit_bytes_s":1048576}"#);
    let send = |method: &str, route: &str, body: &str| {
        send(&client.web, Some(&client.secret), method, route, &["-d", body])
    };
    let (status, job) = send("POST", "/vms/big/commit", commit);
    let route = format!("/jobs/{}", job["id"]);
    let (limited, answer) = send("PUT", &format!("{route}/limit"), limit);
    check(&client.web, ("POST", "/vms/big/commit"), &["-d", commit], (status, &job));
    check(&client.web, ("PUT", &format!("{route}/limit")), &["-d", limit], (limited, &answer));
    assert_eq!((status, limited), (202, 200), "{answer}");
    client.note("PUT", &format!("{route}/limit"));
    client.post(&format!("{route}/pause"), Value::Null);
    client.post(&format!("{route}/resume"), Value::Null);
    client.get("/jobs");
    client.post(&format!("{route}/cancel"), Value::Null);
}

fn of_datastores(client: &Client, datastore: &Datastore) {
    client.get("/status");
    let main = client.get("/datastores")[0]["name"].as_str().unwrap().to_owned();
    client.post(&format!("/check?datastore={main}"), Value::Null);
    client.ended(&client.post(&format!("/scrub?datastore={main}"), Value::Null));
    client.get(&format!("/scrub?datastore={main}"));
    let folder = datastore.beside("more");
    fs::create_dir(&folder).unwrap();
    client.post("/datastores", json!({"path": folder, "name": "more"}));
    client.post("/datastores/more/remove/preview", Value::Null);
    client.ok("DELETE", "/datastores/more", Value::Null);
}

fn of_policies(client: &Client) {
    let policy = json!({"name": "p", "schedule": ["daily"], "keep": {"last": 1}, "vms": ["web"]});
    client.post("/policies/preview", policy.clone());
    client.post("/policies", policy.clone());
    client.ok("PUT", "/policies/p", policy);
    client.post("/policies/p/apply", json!({}));
    client.get("/policies");
    client.get("/policies/p");
    client.ok("DELETE", "/policies/p", Value::Null);
}

fn of_alarms(client: &Client, datastore: &Datastore) {
    client.get("/alarms/rules");
    client.ok("PUT", "/alarms/rules", json!({"rule": "snapshot_space", "value": 1}));
    client.post("/vms/db/snapshots", json!({"name": "s"}));
    run_script(&datastore.uri("db/disk0"), &["write -P 1 0 8M".to_owned()]);
    client.post("/vms/db/snapshots", json!({"name": "t"}));
    run_script(&datastore.uri("db/disk0"), &["write -P 2 0 8M".to_owned()]);
    until("the alarm", || {
        client
            .get("/alarms")
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["id"] == "snapshot_space:db")
            .then_some(())
    });
    client.post("/alarms/snapshot_space:db/acknowledge", json!({"note": "seen"}));
    client.ok("DELETE", "/alarms/snapshot_space:db/acknowledge", Value::Null);
    let muted = client.post("/alarms/mutes", json!({"rule": "latency", "for_s": 60}));
    client.get("/alarms/mutes");
    client.ok("DELETE", &format!("/alarms/mutes/{}", muted["id"]), Value::Null);
    client.get("/alarms/channels");
    client.post("/alarms/channels/works/test", Value::Null);
    client.ok("DELETE", "/alarms/rules/snapshot_space", Value::Null);
}

fn of_access(client: &Client) {
    client.post("/tokens", json!({"name": "ci", "role": "viewer"}));
    client.get("/tokens");
    client.ok("DELETE", "/tokens/ci", Value::Null);
    client.get("/audit?last=5");
    client.post("/console", Value::Null);
    client.ok("PUT", "/alarms/rules", json!({"rule": "latency", "value": 50}));
    let config = client.get("/config");
    let imported = client.post("/config?replace=true", config.clone());
    let unchanged = config["tokens"].as_array().unwrap().len() + 1;
    assert_eq!(imported, json!({"policies": 0, "tokens": 0, "thresholds": 0, "unchanged": unchanged}));
}

#[test]
fn an_answer_that_differs_from_the_description_is_found() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let client = Client::new(&datastore);
    let operation = Description::of_api(&client.web, &[]).operation("GET", "/jobs/1").unwrap();
    let error = json!({"error": {"kind": "not_found", "exit_code": 4, "message": "no job 1"}});
    operation.check(404, &error).unwrap();
    operation.check(202, &json!({})).unwrap_err();
    operation.check(404, &json!({"message": "no job 1"})).unwrap_err();
    operation
        .check(404, &json!({"error": {"kind": "missing", "exit_code": 4, "message": "no job 1"}}))
        .unwrap_err();
    let mut status = client.get("/status");
    let operation = Description::of_api(&client.web, &[]).operation("GET", "/status").unwrap();
    status.as_object_mut().unwrap().remove("vms");
    operation.check(200, &status).unwrap_err();
    let operation = Description::of_api(&client.web, &[]).operation("POST", "/vms").unwrap();
    operation.check_body(&json!({"name": "a", "disks": [], "stores": "redo"})).unwrap_err();
    daemon.stop();
}

/// Returns the first events of the stream, as ID and operation, after an ID.
fn streamed(client: &Client, secret: &str, after: Option<&str>, count: usize) -> Vec<(String, String)> {
    let last = after.map(|id| format!("Last-Event-ID: {id}"));
    let mut command = Command::new("curl");
    command.args(["-sN", "--max-time", "60", "-H", &format!("Authorization: Bearer {secret}")]);
    command.args(last.iter().flat_map(|last| ["-H", last.as_str()]));
    let mut curl =
        command.arg(format!("{}/api/v1/events", client.web)).stdout(Stdio::piped()).spawn().unwrap();
    let reader = std::io::BufReader::new(curl.stdout.take().unwrap());
    let mut found = Vec::new();
    let mut id = String::new();
    for line in std::io::BufRead::lines(reader) {
        let line = line.unwrap();
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.to_owned();
        }
        if let Some(text) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(text).unwrap();
            found.push((id.clone(), event["operation"].as_str().unwrap().to_owned()));
        }
        if found.len() == count {
            break;
        }
    }
    curl.kill().unwrap();
    curl.wait().unwrap();
    found
}

fn operations(events: &[(String, String)]) -> Vec<&str> {
    events.iter().map(|(_, operation)| operation.as_str()).collect()
}

#[test]
fn a_stream_of_events_continues_where_its_client_was_cut_off() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let client = Client::new(&datastore);
    for vm in ["web", "db"] {
        client.post("/vms", json!({"name": vm, "disks": [{"size_bytes": 1 << 20}], "datastore": null}));
    }
    // No daemon has started at this time, so that all events on file are sent.
    let (long_ago, all) = ("1.1.1", &client.secret);
    client.post("/vms/web/snapshots", json!({"name": "a"}));
    client.post("/vms/db/snapshots", json!({"name": "b"}));
    let found = streamed(&client, all, Some(long_ago), 2);
    assert_eq!(operations(&found), ["take", "take"]);
    client.post(
        "/vms/web/revert",
        json!({"snapshot": "a", "take_first": null, "disconnect": false, "purge": true, "keep": false}),
    );
    let id = found[1].0.clone();
    let again = streamed(&client, all, Some(&id), 3);
    assert!(operations(&again).ends_with(&["revert"]), "the last ones may come again: {again:?}");
    let last = again.last().unwrap().0.clone();
    client.post("/vms/web/snapshots", json!({"name": "c"}));
    client.post("/vms/db/snapshots", json!({"name": "d"}));
    let exact = streamed(&client, all, Some(&last), 2);
    assert!(operations(&exact).ends_with(&["take"]), "{exact:?}");
    let limited = token(&datastore, "limited --role viewer --vm db");
    let own = streamed(&client, &limited, Some(long_ago), 2);
    assert_eq!(operations(&own), ["take", "take"]);
    daemon.kill();
    let daemon = datastore.start();
    let client = Client { web: web(&datastore), ..client };
    client.post("/vms/db/snapshots", json!({"name": "e"}));
    let after = streamed(&client, &limited, Some(&exact[0].0), 2);
    assert_eq!(operations(&after).len(), 2);
    let (status, refused) = curl(&client.web, Some(&limited), "GET", "/events", &["-H", "Last-Event-ID: 7"]);
    assert!(
        status == 400 && refused["error"]["message"].as_str().unwrap().contains("Last-Event-ID"),
        "{refused}"
    );
    daemon.stop();
}

#[test]
fn lists_come_in_parts() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let client = Client::new(&datastore);
    for n in 0..5 {
        let disks = json!([{"size_bytes": 1 << 20}]);
        client.post("/vms", json!({"name": format!("vm{n}"), "disks": disks, "datastore": null}));
    }
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let part = client.get(&format!("/vms?limit=2{after}"));
        let part = part.as_array().unwrap();
        names.extend(part.iter().map(|vm| vm["name"].as_str().unwrap().to_owned()));
        if part.len() < 2 {
            break;
        }
        after = format!("&after={}", names.last().unwrap());
    }
    assert_eq!(names, ["vm0", "vm1", "vm2", "vm3", "vm4"]);
    for name in ["a", "b", "c"] {
        client.post("/vms/vm0/snapshots", json!({"name": name}));
    }
    let first = client.get("/vms/vm0/events?limit=1");
    let rest = client.get(&format!("/vms/vm0/events?after={}", first[0]["id"]));
    assert!(
        rest.as_array().unwrap().len() >= 2 && rest[0]["id"].as_u64() > first[0]["id"].as_u64(),
        "{rest}"
    );
    assert_eq!(client.get("/jobs?limit=3"), json!([]));
    for query in ["limit=0", "limit=-1", "limits=1", "after=a/b"] {
        let (status, answer) = curl(&client.web, Some(&client.secret), "GET", &format!("/vms?{query}"), &[]);
        assert_eq!(status, 400, "{query}: {answer}");
    }
    daemon.stop();
}

#[test]
fn a_request_with_a_key_is_carried_out_once() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let client = Client::new(&datastore);
    client.post("/vms", json!({"name": "web", "disks": [{"size_bytes": 1 << 20}], "datastore": null}));
    let take = |key: &str, name: &str| {
        let (key, body) = (format!("Idempotency-Key: {key}"), json!({"name": name}).to_string());
        curl(&client.web, Some(&client.secret), "POST", "/vms/web/snapshots", &["-H", &key, "-d", &body])
    };
    let first = take("k1", "a");
    assert_eq!(first.0, 201, "{first:?}");
    assert_eq!(take("k1", "a"), first, "the answer of the first");
    assert_eq!(take("k2", "a").0, 409, "the name is taken");
    let (status, refused) = take("k1", "b");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(status == 409 && message.contains("another request"), "{refused}");
    assert_eq!(take(&"k".repeat(256), "b").0, 400);
    let taken = client.get("/vms/web/snapshots")["snapshots"].as_array().unwrap().len();
    assert_eq!(taken, 1);
    let (key, body) = ("Idempotency-Key: k", r#"{"name":"ci","role":"viewer"}"#);
    let (status, refused) =
        curl(&client.web, Some(&client.secret), "POST", "/tokens", &["-H", key, "-d", body]);
    assert!(status == 400 && refused["error"]["message"].as_str().unwrap().contains("secret"), "{refused}");
    daemon.stop();
}

#[test]
fn a_change_is_recorded_even_if_its_client_has_gone() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let client = Client::new(&datastore);
    client.post("/vms", json!({"name": "web", "disks": [{"size_bytes": 1 << 20}], "datastore": null}));
    let address = client.web.strip_prefix("http://").unwrap();
    for n in 0..40 {
        let body = json!({"name": format!("s{n}")}).to_string();
        let request = format!(
            "POST /api/v1/vms/web/snapshots HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            client.secret,
            body.len()
        );
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        // It goes at different moments of the request.
        (0..n % 8).for_each(|_| drop(client.get("/jobs")));
    }
    let counts = || {
        let taken = client.get("/vms/web/snapshots")["snapshots"].as_array().unwrap().len();
        let audit = client.get("/audit?last=1000");
        let is_take = |one: &&Value| one["operation"] == "snapshot take" && one["status"] == 201;
        (taken, audit.as_array().unwrap().iter().filter(is_take).count())
    };
    let taken =
        until("the record of each take", || Some(counts()).filter(|(taken, recorded)| taken == recorded)).0;
    assert!(taken > 0);
    daemon.stop();
}
