//! The metrics: their form, what they count, and the rules and the dashboard of `packaging/` on a real Prometheus that
//! scrapes a real daemon.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::daemon::Datastore;
use crate::programs::{tool, try_tool};
use crate::space::until;
use crate::tools::run_script;

/// Returns a program of Prometheus's package, which the set-up unpacks beside the build.
fn program(name: &str) -> String {
    let build =
        Path::new(env!("CARGO_BIN_EXE_unstun")).ancestors().nth(2).expect("in a profile of the build");
    build.join("prometheus/usr/bin").join(name).to_str().unwrap().to_owned()
}

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("packaging").join(file)
}

fn web(datastore: &Datastore) -> String {
    datastore.json("status")["web"][0].as_str().unwrap().to_owned()
}

fn token(datastore: &Datastore) -> String {
    let created = datastore.json("token create prometheus --role metrics");
    created["secret"].as_str().unwrap().to_owned()
}

fn scrape(web: &str, secret: &str) -> String {
    tool("curl", &["-sf", "-H", &format!("Authorization: Bearer {secret}"), &format!("{web}/metrics")])
}

/// Returns the value of a line of the text.
fn value(text: &str, line: &str) -> f64 {
    let found = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("no {line} in\n{text}"))
}

/// A VM with a snapshot and known requests.
fn load(datastore: &Datastore) {
    datastore.json("vm create web --disk 16M");
    datastore.json("snapshot take web before");
    let script = ["write -P 1 0 64k", "write -P 2 64k 64k", "read 0 64k", "flush"].map(str::to_owned);
    run_script(&datastore.uri("web/disk0"), &script);
}

#[test]
fn the_text_has_the_form_that_prometheus_reads_and_counts_every_request() {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&["--cores", "2"]);
    load(&datastore);
    datastore.json("vm create other --disk 16M --store redo");
    let (web, secret) = (web(&datastore), token(&datastore));
    let text = scrape(&web, &secret);
    let file = datastore.beside("metrics.txt");
    fs::write(&file, &text).unwrap();
    let check = format!("'{}' check metrics < '{}'", program("promtool"), file.display());
    let checked = try_tool("bash", &["-c", &check]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success(), "promtool check metrics: {said}");
    let of_web = r#"vm="web",disk="0",op="#;
    assert_eq!(value(&text, &format!(r#"unstun_io_bytes_total{{{of_web}"write"}}"#)), 131_072.0);
    assert!(value(&text, &format!(r#"unstun_io_duration_seconds_count{{{of_web}"write"}}"#)) >= 2.0);
    assert!(value(&text, &format!(r#"unstun_io_duration_seconds_count{{{of_web}"flush"}}"#)) >= 1.0);
    assert_eq!(value(&text, r#"unstun_vm_snapshots{vm="web",datastore="ds"}"#), 1.0);
    assert_eq!(value(&text, r#"unstun_vm_up{vm="other",datastore="ds"}"#), 1.0);
    assert_eq!(value(&text, r#"unstun_stun_seconds_count{operation="take"}"#), 1.0);
    assert!(value(&text, r#"unstun_datastore_free_bytes{datastore="ds"}"#) > 0.0);
    let vms = try_tool(
        "curl",
        &["-sf", "-H", &format!("Authorization: Bearer {secret}"), &format!("{web}/api/v1/vms")],
    );
    assert!(!vms.status.success(), "a token for metrics reads nothing else");
    assert!(!try_tool("curl", &["-sf", &format!("{web}/metrics")]).status.success(), "without a token");
    daemon.stop();
}

#[test]
fn the_alert_rules_are_sound() {
    let rules = packaging("prometheus/unstun.rules.yml");
    tool(&program("promtool"), &["check", "rules", rules.to_str().unwrap()]);
}

/// A Prometheus that scrapes a daemon.
struct Prometheus {
    child: Child,
    url: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(datastore: &Datastore, web: &str, secret: &str) -> Prometheus {
        let (folder, target) = (datastore.beside("prometheus"), web.strip_prefix("http://").unwrap());
        fs::create_dir(&folder).unwrap();
        let rules = packaging("prometheus/unstun.rules.yml");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n- job_name: \
             unstun\n  authorization: {{credentials: '{secret}'}}\n  static_configs: [{{targets: ['{target}']}}]\n",
            rules.display()
        );
        fs::write(folder.join("prometheus.yml"), config).unwrap();
        // The port is free now; nothing else of the tests takes a port by its number.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(program("prometheus"))
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        Prometheus { child, url: format!("http://{address}") }
    }

    /// Returns the result of a query; None where Prometheus refuses it or does not answer yet.
    fn query(&self, query: &str) -> Option<Vec<Value>> {
        let form = format!("query={query}");
        let said =
            try_tool("curl", &["-s", "--data-urlencode", &form, &format!("{}/api/v1/query", self.url)]);
        let answer: Value = serde_json::from_slice(&said.stdout).ok()?;
        (answer["status"] == "success").then(|| answer["data"]["result"].as_array().unwrap().clone())
    }
}

/// Returns the queries of the dashboard for all VMs.
fn queries() -> Vec<String> {
    let text = fs::read_to_string(packaging("grafana/unstun.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let all = targets.map(|target| target["expr"].as_str().unwrap().replace("$vm", ".*"));
    all.map(|query| query.replace("$__rate_interval", "1m")).collect()
}

#[test]
fn every_query_of_the_dashboard_has_a_result_on_a_real_prometheus() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    load(&datastore);
    let (web, secret) = (web(&datastore), token(&datastore));
    let prometheus = Prometheus::start(&datastore, &web, &secret);
    for query in queries() {
        let is_of_jobs = query.contains("unstun_job");
        until(&query, || {
            // A rate needs requests between two scrapes.
            run_script(&datastore.uri("web/disk0"), &["write -P 3 0 4k".to_owned(), "read 0 4k".to_owned()]);
            datastore.json("snapshot take web again");
            datastore.json("snapshot commit web again --yes");
            let result = prometheus.query(&query)?;
            (is_of_jobs || !result.is_empty()).then_some(())
        });
    }
    let rules = prometheus.query("ALERTS{alertstate='firing'}").unwrap();
    assert!(rules.is_empty(), "nothing is wrong with this daemon: {rules:?}");
    drop(prometheus);
    daemon.stop();
}
