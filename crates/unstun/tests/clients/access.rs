//! Access to the API over TCP, with curl: what each role may do, tokens and their end, TLS, and the audit.

use serde_json::{Value, json};

use crate::daemon::{Daemon, Datastore};
use crate::rest::{curl, token, web};
use crate::space::until;

#[test]
fn each_role_may_do_what_the_table_says_and_a_limited_token_reaches_its_vms_only() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let web = web(&datastore);
    datastore.json("vm create web1 --disk 16M");
    datastore.json("vm create db --disk 16M");
    datastore.json("snapshot take web1 first");
    let secrets =
        ["viewer", "operator", "admin"].map(|role| token(&datastore, &format!("{role} --role {role}")));
    let take = ["-d", r#"{"name":"s"}"#];
    let commit = ["-d", r#"{"snapshot":"first"}"#];
    for (method, route, body, expected) in [
        ("GET", "/vms/web1", &[][..], [200, 200, 200]),
        ("POST", "/vms/web1/commit/preview", &commit, [200, 200, 200]),
        ("POST", "/vms/web1/snapshots", &take, [403, 201, 409]),
        ("POST", "/vms/web1/commit", &commit, [403, 403, 202]),
        ("DELETE", "/vms/db?delete_disks=true", &[], [403, 403, 200]),
        ("GET", "/tokens", &[], [403, 403, 200]),
        ("GET", "/audit", &[], [403, 403, 200]),
        ("PUT", "/vms/web1", &[], [405, 405, 405]),
        ("GET", "/nothing", &[], [404, 404, 404]),
    ] {
        let statuses = secrets.each_ref().map(|secret| curl(&web, Some(secret), method, route, body).0);
        assert_eq!(statuses, expected, "{method} {route}");
        let unknown = curl(&web, None, method, route, body).0;
        assert!([401, 404, 405].contains(&unknown), "{method} {route}: {unknown}");
    }
    let limited = token(&datastore, "limited --role operator --vm web*");
    datastore.json("vm create db2 --disk 16M");
    let ask = |method, route, body: &[&str]| curl(&web, Some(&limited), method, route, body);
    let (status, vms) = ask("GET", "/vms", &[]);
    assert_eq!((status, vms.as_array().unwrap().len(), &vms[0]["name"]), (200, 1, &json!("web1")), "{vms}");
    assert_eq!(ask("GET", "/vms/db2", &[]).0, 403);
    assert_eq!(ask("GET", "/status", &[]).0, 403);
    let clone = |name: &str| format!(r#"{{"snapshot":"s","name":"{name}"}}"#);
    assert_eq!(ask("POST", "/vms/web1/clone", &["-d", &clone("mine")]).0, 403, "a name out of its reach");
    assert_eq!(ask("POST", "/vms/web1/clone", &["-d", &clone("web2")]).0, 201);
    daemon.stop();
}

#[test]
fn a_token_outlives_the_daemon_and_ends_when_it_expires_or_is_revoked() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let kept = token(&datastore, "kept --role viewer");
    let (code, said) = datastore.fails("token create kept --role viewer");
    assert!(code == 3 && said.contains("token kept exists already"), "{said}");
    daemon.kill();
    let daemon = datastore.start();
    let web = web(&datastore);
    let status_of = |secret: &str| curl(&web, Some(secret), "GET", "/vms", &[]).0;
    assert_eq!(status_of(&kept), 200, "a created token is durable");
    assert_eq!(status_of(&format!("{kept}0")), 401);
    let short = token(&datastore, "short --role viewer --expires 1s");
    until("the token to expire", || (status_of(&short) == 401).then_some(()));
    datastore.json("token revoke kept");
    assert_eq!(status_of(&kept), 401);
    let file = std::fs::read_to_string(datastore.path().join(".unstun/tokens")).unwrap();
    assert!(!file.contains(&short), "the file has no secret");
    daemon.stop();
}

/// Returns the lines that a syslog daemon has got.
fn received(socket: &std::os::unix::net::UnixDatagram) -> Vec<String> {
    let mut bytes = [0; 8192];
    socket.set_nonblocking(true).unwrap();
    std::iter::from_fn(|| socket.recv(&mut bytes).ok().map(|n| String::from_utf8_lossy(&bytes[..n]).into()))
        .collect()
}

#[test]
fn the_audit_is_copied_to_the_system_s_log_whether_it_is_there_or_not() {
    let datastore = Datastore::new();
    let path = datastore.beside("log.sock");
    let daemon = datastore.start_as(&["--syslog", path.to_str().unwrap()]);
    datastore.json("vm create before --disk 16M");
    let syslog = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    datastore.json("vm create web --disk 16M");
    datastore.fails("vm create web --disk 16M");
    let lines = received(&syslog);
    let [created, refused] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(created.starts_with("<85>") && created.contains(&format!(" unstun[{}]: user ", daemon.id())));
    assert!(created.ends_with("from api.sock: vm create (/vms): 201"), "{created}");
    assert!(refused.contains("vm create (/vms): 409: "), "{refused}");
    assert_eq!(datastore.json("audit").as_array().unwrap().len(), 3, "the audit has all of them");
    daemon.stop();
    let daemon = datastore.start_as(&["--syslog", "none"]);
    datastore.json("vm create db --disk 16M");
    assert_eq!(received(&syslog), [""; 0]);
    daemon.stop();
}

/// The quota of a token counts what its VMs use.
#[test]
fn an_operator_takes_nothing_more_when_its_vms_use_its_quota() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    let secret = token(&datastore, "ci --role operator --quota 1M");
    let take = |name: &str| {
        let body = format!(r#"{{"name":"{name}"}}"#);
        let key = format!("Idempotency-Key: {name}");
        curl(&web(&datastore), Some(&secret), "POST", "/vms/web/snapshots", &["-d", &body, "-H", &key])
    };
    let first = take("a");
    assert_eq!(first.0, 201);
    crate::tools::run_script(&datastore.uri("web/disk0"), &["write -P 1 0 4M".to_owned()]);
    let (status, said) = take("b");
    let said = said["error"]["message"].as_str().unwrap().to_owned();
    assert!(status == 403 && said.contains("its VMs use 4 MiB, and its quota is 1 MiB"), "{said}");
    assert_eq!(take("a"), first, "what was done has its answer");
    daemon.stop();
}

fn on_every_address(datastore: &Datastore) -> (Daemon<'_>, String) {
    let daemon = datastore.start_as(&["--web", "0.0.0.0:0"]);
    let all = datastore.json("status")["web"].clone();
    let beyond = all[1].as_str().unwrap();
    assert!(beyond.starts_with("https://"), "beyond loopback there is TLS: {all}");
    let (_, port) = beyond.rsplit_once(':').unwrap();
    let url = format!("https://localhost:{port}");
    (daemon, url)
}

#[test]
fn beyond_loopback_there_is_tls_with_a_certificate_that_stays() {
    let datastore = Datastore::new();
    let (daemon, url) = on_every_address(&datastore);
    let secret = token(&datastore, "all --role viewer");
    let certificate = datastore.path().join(".unstun/tls.crt");
    let trusting = ["--cacert", certificate.to_str().unwrap()];
    assert_eq!(curl(&url, Some(&secret), "GET", "/status", &trusting).0, 200);
    assert_eq!(curl(&url, None, "GET", "/status", &trusting).0, 401);
    assert_eq!(curl(&url, Some(&secret), "GET", "/status", &[]).0, 0, "an unknown certificate");
    let plain = url.replace("https", "http");
    assert_eq!(curl(&plain, Some(&secret), "GET", "/status", &[]).0, 0, "clear text");
    let first = std::fs::read(&certificate).unwrap();
    daemon.stop();
    let (daemon, url) = on_every_address(&datastore);
    assert_eq!(std::fs::read(&certificate).unwrap(), first);
    assert_eq!(curl(&url, Some(&secret), "GET", "/status", &trusting).0, 200);
    daemon.stop();
}

#[test]
fn a_wrong_certificate_or_address_and_damaged_tokens_keep_no_guest_from_its_disk() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    let secret = token(&datastore, "all --role viewer");
    daemon.stop();
    std::fs::write(datastore.path().join(".unstun/tls.crt"), "renewed wrongly").unwrap();
    let tokens = datastore.path().join(".unstun/tokens");
    let whole = std::fs::read(&tokens).unwrap();
    std::fs::write(&tokens, &whole[..40]).unwrap();
    let daemon = datastore.start_as(&["--web", "0.0.0.0:0", "--web", "192.0.2.1:1"]);
    crate::tools::run_script(&datastore.uri("web/disk0"), &["write -P 1 0 64k".to_owned()]);
    let all = datastore.json("status")["web"].clone();
    assert_eq!(all.as_array().unwrap().len(), 1, "loopback only: {all}");
    let log = std::fs::read_to_string(datastore.beside("daemon.log")).unwrap();
    for cause in ["tls.crt: no certificate", "the API is not served on 192.0.2.1:1", "no token is accepted"] {
        assert!(log.contains(cause), "{cause}: {log}");
    }
    assert_eq!(curl(&web(&datastore), Some(&secret), "GET", "/vms", &[]).0, 401);
    for command in ["token list", "token create other --role viewer"] {
        let (code, said) = datastore.fails(command);
        assert!(code == 6 && said.contains("tokens: line 1") && said.contains("moved aside"), "{said}");
    }
    assert_eq!(std::fs::read(&tokens).unwrap(), whole[..40], "what is damaged stays as it is");
    daemon.stop();
}

#[test]
fn the_audit_has_changes_and_refusals_and_outlives_a_vm() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    let secret = token(&datastore, "ci --role operator");
    let at = web(&datastore);
    curl(&at, Some(&secret), "POST", "/vms/web/snapshots", &["-d", r#"{"name":"s"}"#]);
    curl(&at, Some(&secret), "POST", "/vms/web/revert", &["-d", r#"{"snapshot":"s"}"#]);
    curl(&at, Some("unstun_wrong"), "GET", "/vms", &[]);
    datastore.json("vm remove web --delete-disks --purge --yes");
    datastore.json("vm list");
    let entries = datastore.json("audit");
    let shown = |entry: &Value| {
        let text = |field: &str| entry[field].as_str().unwrap_or("-").to_owned();
        format!("{} {} {} {} {}", text("who"), text("from"), text("operation"), text("vm"), entry["status"])
    };
    let root = entries[0]["who"].as_str().unwrap().to_owned();
    let all: Vec<String> = entries.as_array().unwrap().iter().map(shown).collect();
    let expected = [
        format!("{root} api.sock vm create - 201"),
        format!("{root} api.sock token create - 201"),
        "token ci 127.0.0.1 snapshot take web 201".to_owned(),
        "token ci 127.0.0.1 snapshot revert web 403".to_owned(),
        "unknown 127.0.0.1 vm list - 401".to_owned(),
        format!("{root} api.sock vm remove web 200"),
    ];
    assert_eq!(all, expected);
    assert_eq!(entries[2]["request"], json!({"name": "s"}));
    assert!(!entries.to_string().contains(&secret), "no secret");
    daemon.stop();
}
