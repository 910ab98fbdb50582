//! The web console in a browser, and its protection against other sites with curl.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cdp::Browser;
use crate::daemon::{Daemon, Datastore};
use crate::programs::{tool, try_tool};
use crate::skip::skip;
use crate::space::until;

pub(crate) fn web(datastore: &Datastore) -> String {
    datastore.json("status")["web"][0].as_str().unwrap().to_owned()
}

pub(crate) fn link(datastore: &Datastore, vm: &str) -> String {
    datastore.json(&format!("console {vm}"))["urls"][0].as_str().unwrap().to_owned()
}

pub(crate) fn browser(datastore: &Datastore) -> Browser {
    Browser::start(&datastore.beside("profile"))
}

/// Fills fields of the form with that action, sends it, and waits until the next page says `seen`.
pub(crate) fn send(browser: &mut Browser, action: &str, fields: &[(&str, &str)], seen: &str) {
    for (name, value) in fields {
        browser.fill(&format!("form[action='{action}'] [name={name}]"), value);
    }
    // A form in a closed part of the page is sent too.
    browser.click(&format!("form[action='{action}'] button"));
    browser.sees(seen);
}

/// Clicks the button of a snapshot's form in the tree.
fn choose(browser: &mut Browser, verb: &str, snapshot: &str) {
    let node = format!(
        "[...document.querySelectorAll('ul.tree li')].find(li => li.querySelector('strong')?.innerText === '{snapshot}')"
    );
    browser.eval(&format!("{node}.querySelector('button[value={verb}]').click()"));
}

#[test]
fn a_user_logs_in_takes_sees_changes_live_commits_reverts_and_logs_out() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("vm create db --disk 16M --store redo");
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    browser.sees("2 of 2 VMs");
    browser.click("a[href='/vms/web']");
    browser.at("/vms/web");
    browser.fill("form[action='/vms/web/take'] input[name=name]", "first");
    browser.click("form[action='/vms/web/take'] button");
    browser.sees("Snapshot first is taken; the guest waited");
    datastore.json("snapshot take web upgrade");
    browser.sees("upgrade");
    assert!(browser.text().contains("Snapshot first is taken"), "a refresh keeps what was said");
    choose(&mut browser, "commit", "upgrade");
    browser.at("/vms/web/preview");
    browser.sees("once the commit starts you cannot revert to upgrade");
    browser.click("button.loss");
    browser.at("/vms/web");
    browser.sees("commits.");
    assert!(!datastore.json("snapshot tree web").to_string().contains("\"upgrade\""));
    choose(&mut browser, "revert", "first");
    browser.at("/vms/web/preview");
    browser.click("button.loss");
    browser.at("/vms/web");
    browser.sees("revert");
    let events = datastore.json("events web").to_string();
    assert!(events.contains("\"revert\""), "{events}");
    browser.click("form[action='/logout'] button");
    browser.at("/login");
    browser.go(&web(&datastore), "/login");
    let audit = datastore.json("audit").to_string();
    assert!(audit.contains("snapshot commit") && audit.contains("snapshot revert"), "{audit}");
    daemon.stop();
}

#[test]
fn a_vm_is_created_loaded_removed_and_restored() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    browser.sees("There is no VM yet");
    browser.fill("form[action='/create'] input[name=name]", "web");
    browser.fill("form[action='/create'] input[name=size]", "many");
    browser.click("form[action='/create'] button");
    browser.sees("\"many\"");
    browser.fill("form[action='/create'] input[name=name]", "web");
    browser.fill("form[action='/create'] input[name=size]", "16M");
    browser.click("form[action='/create'] button");
    browser.at("/vms/web");
    browser.sees("VM web is created");
    // Two looks with requests in between make the first point.
    let write = "write -P 1 0 1M".to_owned();
    crate::space::until("the charts to begin", || {
        crate::tools::run_script(&datastore.uri("web/disk0"), std::slice::from_ref(&write));
        (browser.eval("document.querySelectorAll('svg path.guest').length") == 2).then_some(())
    });
    datastore.json("vm remove web --delete-disks --yes");
    browser.go(&format!("{}/bin", web(&datastore)), "/bin");
    browser.click("form[action='/bin/restore'] button");
    browser.sees("VM web is back");
    assert_eq!(datastore.json("vm show web")["name"], "web");
    daemon.stop();
}

/// Lets a snapshot of VM web keep so much that it is an alarm.
pub(crate) fn raise_alarm(datastore: &Datastore) {
    let write =
        |byte: u8| crate::tools::run_script(&datastore.uri("web/disk0"), &[format!("write -P {byte} 0 8M")]);
    write(1);
    datastore.json("snapshot take web large");
    write(2);
    datastore.json("alarm set snapshot_space 20");
    crate::space::until("the alarm", || datastore.json("alarm list").as_array().unwrap().first().map(drop));
}

#[test]
fn policies_are_created_applied_and_disabled_and_alarms_acknowledged() {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&["--alarms-every", "1s"]);
    datastore.json("vm create web --disk 16M");
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    browser.click("a[href='/policies']");
    browser.at("/policies");
    browser.sees("There is no policy yet");
    browser.fill("form[action='/policies/create'] input[name=name]", "nightly");
    browser.fill("form[action='/policies/create'] input[name=schedule]", "sometimes");
    browser.click("form[action='/policies/create'] button");
    browser.sees("examples are");
    browser.fill("form[action='/policies/create'] input[name=name]", "nightly");
    browser.fill("form[action='/policies/create'] input[name=schedule]", "yearly");
    browser.click("form[action='/policies/create'] button");
    browser.sees("Policy nightly is created; it applies to 1 VMs now.");
    browser.click("form[action='/policies/nightly/apply'] button");
    browser.sees("1 snapshots are taken.");
    browser.click("form[action='/policies/nightly/switch'] button");
    browser.sees("Policy nightly is disabled.");
    assert_eq!(datastore.json("policy show nightly")["policy"]["enabled"], false);
    raise_alarm(&datastore);
    browser.go(&format!("{}/alarms", web(&datastore)), "/alarms");
    browser.sees("the snapshots of VM web use");
    browser.fill("form[action='/alarms/snapshot_space:web/acknowledge'] input[name=note]", "seen");
    browser.click("form[action='/alarms/snapshot_space:web/acknowledge'] button");
    browser.sees("Alarm snapshot_space:web is acknowledged.");
    browser.go(&format!("{}/vms/web", web(&datastore)), "/vms/web");
    browser.sees("the snapshots of VM web use");
    assert_eq!(datastore.json("alarm list")[0]["acknowledged"]["note"], "seen");
    let audit = datastore.json("audit").to_string();
    assert!(audit.contains("alarm ack") && audit.contains("policy set"), "{audit}");
    daemon.stop();
}

#[test]
fn tokens_are_created_and_revoked_and_the_audit_is_for_administrators() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    browser.click("a[href='/access']");
    browser.at("/access");
    browser.sees("There is no token.");
    let field = |name: &str| format!("form[action='/access/create'] input[name={name}]");
    browser.fill(&field("name"), "ci");
    browser.fill(&field("days"), "soon");
    browser.click("form[action='/access/create'] button");
    browser.sees("expected a number");
    for (name, value) in [("name", "ci"), ("days", "30"), ("vms", "web*")] {
        browser.fill(&field(name), value);
    }
    browser.eval("document.querySelector('form[action=\"/access/create\"] select').value = 'viewer'");
    browser.click("form[action='/access/create'] button");
    browser.sees("The secret of token ci is shown only here: ");
    let said = browser.text();
    let secret =
        said.split("shown only here: ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let token = datastore.json("token list")[0].clone();
    assert_eq!((&token["role"], &token["vms"]), (&"viewer".into(), &json!(["web*"])));
    // The secret is nowhere else.
    let audit = datastore.json("audit").to_string();
    assert!(audit.contains("token create") && !audit.contains(&secret), "{audit}");
    // Its user is no administrator.
    browser.click("header form button");
    browser.at("/login");
    browser.fill("input[name=token]", &secret);
    browser.click("form button");
    browser.at("/");
    assert_eq!(browser.eval("document.querySelectorAll('a[href=\"/access\"]').length"), 0);
    browser.go(&format!("{}/access", web(&datastore)), "/access");
    browser.sees("needs role admin");
    browser.go(&link(&datastore, ""), "/");
    browser.click("a[href='/access']");
    browser.at("/access");
    browser.sees("token create");
    browser.click("form[action='/access/ci/revoke'] button");
    browser.sees("Token ci is revoked.");
    assert_eq!(datastore.json("token list"), json!([]));
    daemon.stop();
}

#[test]
fn a_page_of_a_daemon_that_was_killed_leads_to_the_login() {
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&["--web", "127.0.0.1:0"]);
    datastore.json("vm create web --disk 16M");
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, "web"), "/vms/web");
    let address = web(&datastore).strip_prefix("http://").unwrap().to_owned();
    daemon.kill();
    browser.sees("no connection to the daemon");
    let daemon = datastore.start_as(&["--web", &address]);
    browser.at("/login");
    daemon.stop();
}

#[test]
fn a_revert_names_the_clients_and_disconnects_them_only_if_the_user_says_so() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("snapshot take web first");
    let mut guest = crate::nbd::Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    assert_eq!(guest.write(0, &[1; 4096]).unwrap(), 0);
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, "web"), "/vms/web");
    choose(&mut browser, "revert", "first");
    browser.at("/vms/web/preview");
    browser.sees("Clients use the running disks");
    browser.click("button.loss");
    assert_eq!(browser.eval("location.pathname"), "/vms/web/preview", "the box has to be ticked");
    browser.click("input[name=disconnect]");
    browser.click("button.loss");
    browser.at("/vms/web");
    assert!(guest.read(0, 4096).is_err(), "it was disconnected");
    daemon.stop();
}

/// A viewer sees no form that changes anything, and the daemon refuses what the page does not offer.
#[test]
fn a_viewer_looks_only() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("vm create db --disk 16M");
    let secret =
        datastore.json("token create eve --role viewer --vm web")["secret"].as_str().unwrap().to_owned();
    let mut browser = browser(&datastore);
    browser.go(&web(&datastore), "/login");
    browser.fill("input[name=token]", &secret);
    browser.click("form button");
    browser.at("/");
    browser.sees("1 of 1 VMs");
    browser.click("a[href='/vms/web']");
    browser.at("/vms/web");
    assert_eq!(browser.eval("document.querySelectorAll('main form').length"), 0);
    let key = browser.eval("document.querySelector('input[name=form_key]').value");
    let send = "fetch('/vms/VM/take', {method: 'POST', headers: {'content-type': 'application/x-www-form-urlencoded'}, \
                body: 'name=x&form_key=KEY'}).then(answer => answer.text())";
    let of_vm = |vm: &str| send.replace("VM", vm).replace("KEY", key.as_str().unwrap());
    for (vm, cause) in [("web", "needs role operator"), ("db", "needs role operator")] {
        let said = browser.eval(&of_vm(vm));
        let said = said.as_str().unwrap();
        assert!(said.contains(cause) || said.contains("none of its VMs"), "{said}");
    }
    assert_eq!(datastore.json("vm show web")["snapshots"], 0);
    daemon.stop();
}

/// Starts a daemon with a folder that has a report.
fn start_with_reports(datastore: &Datastore) -> Daemon<'_> {
    let folder = datastore.beside("reports");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("web.html"), "a report").unwrap();
    datastore.start_as(&["--alarms-every", "1s", "--lab-reports", folder.to_str().unwrap()])
}

/// Pictures of the pages, as artefacts of the run.
/// A browser opens six connections to a host. Pages that it keeps, to show them again, would stop it.
#[test]
fn a_page_that_is_left_keeps_no_connection() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let mut browser = browser(&datastore);
    let record = "window.streams = []; window.EventSource = class extends EventSource { \
                  constructor(url) { super(url); streams.push(this); } };";
    browser.call("Page.enable", &json!({}));
    browser.call("Page.addScriptToEvaluateOnNewDocument", &json!({"source": record}));
    browser.go(&link(&datastore, ""), "/");
    let open = "streams.map(stream => stream.readyState === EventSource.OPEN)";
    let is = |browser: &mut Browser, expected: Value| {
        until(open, || (browser.eval(open) == expected).then_some(()));
    };
    is(&mut browser, json!([true]));
    let event =
        |name: &str| format!("void dispatchEvent(new PageTransitionEvent('{name}', {{persisted: true}}))");
    browser.eval(&event("pagehide"));
    assert_eq!(browser.eval(open), json!([false]));
    browser.eval(&event("pageshow"));
    is(&mut browser, json!([false, true]));
    let shown = |hidden: &str| {
        format!("Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}})")
    };
    let changed = "document.dispatchEvent(new Event('visibilitychange'))";
    browser.eval(&format!("{}; void {changed}", shown("true")));
    assert_eq!(browser.eval(open), json!([false, false]));
    browser.eval(&format!("{}; void {changed}", shown("false")));
    is(&mut browser, json!([false, false, true]));
    daemon.stop();
}

pub(crate) fn pictures() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn every_page_fits_every_window_in_both_themes_and_is_read_without_a_script() {
    let datastore = Datastore::new();
    crate::console_stores::observe_for_two_days(&datastore);
    let daemon = start_with_reports(&datastore);
    datastore.json("vm create a-vm-with-quite-a-long-name-that-somebody-has-chosen --disk 16M");
    datastore.json("vm create web --disk 16M");
    for name in ["before-the-upgrade", "after", "later"] {
        datastore.json(&format!("snapshot take web {name} -m description"));
    }
    datastore.json("vm set web --add-tag prod --note shop");
    datastore.json("policy create nightly --schedule daily --keep-daily 7 --keep-weekly 4 --vm *");
    raise_alarm(&datastore);
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    let (base, folder) = (web(&datastore), pictures());
    let pages = [
        ("overview", "/"),
        ("vm", "/vms/web"),
        ("vm-month", "/vms/web?span=30d"),
        ("cost", "/vms/web/cost"),
        ("settings", "/vms/web/settings"),
        ("attach", "/vms/web/attach"),
        ("space", "/vms/web/space"),
        ("create", "/create"),
        ("datastores", "/datastores"),
        ("repair", "/repair"),
        ("activity", "/activity"),
        ("alarms", "/alarms"),
        ("alarm-rules", "/alarms/rules"),
        ("policies", "/policies"),
        ("policy", "/policies/nightly/settings"),
        ("policy-new", "/policies/create"),
        ("bin", "/bin"),
        ("reports", "/reports"),
        ("access", "/access"),
        ("login", "/login"),
    ];
    for (name, path) in pages {
        for &(width, theme) in looks() {
            browser.look(width, theme);
            browser.go(&format!("{base}{path}"), path);
            browser.picture(&folder.join(format!("{name}-{width}-{theme}.png")));
            fits_with_any_name(&mut browser, width, path);
        }
    }
    browser.call("Emulation.setScriptExecutionDisabled", &json!({"value": true}));
    browser.go(&format!("{base}/vms/web"), "/vms/web");
    browser.sees("before-the-upgrade");
    daemon.stop();
}

/// Adds a name without a space, longer than a window is wide, to each text that can have one: the page still fits.
pub(crate) fn fits_with_any_name(browser: &mut Browser, width: u64, page: &str) {
    let texts =
        "h1, h2, h3, p, li, dd, legend, summary, label, code, figcaption, option, header a, header span";
    browser
        .eval(&format!("document.querySelectorAll('{texts}').forEach(text => text.append('m'.repeat(255)))"));
    let wide = browser.eval("document.documentElement.scrollWidth");
    assert!(wide.as_u64().unwrap() <= width, "{page} at {width}: {wide}");
}

/// Widths of windows, and themes. `make test` has two of them; `make test-all` sets the variable.
fn looks() -> &'static [(u64, &'static str)] {
    const ALL: [(u64, &str); 5] =
        [(400, "dark"), (1280, "light"), (1280, "dark"), (2560, "light"), (400, "light")];
    match std::env::var("CONSOLE_LOOKS").as_deref() {
        Ok("all") => &ALL,
        _ => &ALL[..2],
    }
}

/// Returns the script of axe-core, if the set-up could unpack it beside the build.
fn axe() -> Option<String> {
    let build =
        Path::new(env!("CARGO_BIN_EXE_unstun")).ancestors().nth(2).expect("in a profile of the build");
    std::fs::read_to_string(build.join("axe/package/axe.min.js")).ok()
}

#[test]
fn axe_finds_nothing_on_any_page_in_either_theme() {
    let Some(axe) = axe() else { return skip("there is no axe-core, because there is no npm") };
    let datastore = Datastore::new();
    crate::console_stores::observe_for_two_days(&datastore);
    let daemon = start_with_reports(&datastore);
    datastore.json("vm create web --disk 16M");
    datastore.json("snapshot take web before -m description");
    datastore.json("policy create nightly --schedule daily --keep-daily 7 --vm *");
    raise_alarm(&datastore);
    datastore.json("vm create closed --disk 16M");
    datastore.json("vm close closed");
    datastore.json("vm create old --disk 16M");
    datastore.json("vm remove old --delete-disks --yes");
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    let base = web(&datastore);
    let pages = [
        "/",
        "/vms/web",
        "/vms/web/cost",
        "/vms/web/settings",
        "/vms/web/attach",
        "/vms/web/space",
        "/vms/closed",
        "/create",
        "/datastores",
        "/datastores/ds/scrub",
        "/repair",
        "/activity",
        "/alarms",
        "/alarms/rules",
        "/policies",
        "/policies/nightly/settings",
        "/policies/create",
        "/bin",
        "/reports",
        "/access",
        "/login",
        "/vms/none",
    ];
    let themes = ["light", "dark"];
    for (number, path) in pages.into_iter().enumerate() {
        // Without the variable the themes take turns.
        let all = looks().len() > 2;
        for theme in themes.into_iter().skip(if all { 0 } else { number % 2 }).take(if all { 2 } else { 1 }) {
            browser.look(1280, theme);
            browser.go(&format!("{base}{path}"), path);
            browser.eval(&format!("{axe}; undefined"));
            let run = "axe.run().then(found => found.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' ')))";
            assert_eq!(browser.eval(run), json!([]), "{path}, {theme}");
        }
    }
    // The checker finds what it is there for.
    let planted = "document.querySelector('h1').innerHTML = '<img src=\"/console.svg\">'; axe.run().then(f => f.violations.length)";
    assert_ne!(browser.eval(planted), 0);
    daemon.stop();
}

/// Sends a request with curl, with the cookies of `jar`; returns the status and the page.
pub(crate) fn curl(jar: &str, url: &str, options: &[&str]) -> (u16, String) {
    let mut all = vec!["-s", "-b", jar, "-c", jar, "-w", "\n%{http_code}", url];
    all.extend(options);
    let said = String::from_utf8(try_tool("curl", &all).stdout).unwrap();
    let (page, status) = said.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), page.to_owned())
}

#[test]
fn another_site_can_send_nothing_and_a_link_logs_in_once() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    let (base, jar) = (web(&datastore), datastore.beside("jar"));
    let jar = jar.to_str().unwrap();
    let first = link(&datastore, "");
    assert_eq!(curl(jar, &format!("{base}/"), &[]).0, 303, "nobody has logged in");
    assert!(curl(jar, &first, &[]).1.contains("Logged in"));
    assert!(curl("/dev/null", &first, &[]).1.contains("this link has been used"));
    let (status, page) = curl(jar, &format!("{base}/vms/web"), &[]);
    assert!(status == 200 && page.contains("VM web"), "{page}");
    let take = format!("{base}/vms/web/take");
    curl(jar, &take, &["-d", "name=forged"]);
    let (_, page) = curl(jar, &format!("{base}/vms/web"), &[]);
    assert!(page.contains("the form is of another session"), "{page}");
    assert_eq!(datastore.json("vm show web")["snapshots"], 0);
    let (status, _) = curl(jar, &format!("{base}/vms/web"), &["-H", "Host: evil.example"]);
    assert_eq!(status, 403, "another name that leads here");
    let headers = tool("curl", &["-s", "-i", "-b", jar, &format!("{base}/")]).to_lowercase();
    for expected in [
        "content-security-policy: default-src 'none'",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ] {
        assert!(headers.contains(expected), "{headers}");
    }
    let cookies = std::fs::read_to_string(jar).unwrap();
    assert!(cookies.contains("#HttpOnly_127.0.0.1"), "{cookies}");
    let log = std::fs::read_to_string(datastore.beside("daemon.log")).unwrap();
    assert!(!log.contains(first.rsplit('=').next().unwrap()), "no link is logged");
    let unknown: Value =
        serde_json::from_str(&curl("/dev/null", &format!("{base}/api/v1/vms"), &[]).1).unwrap();
    assert_eq!(unknown["error"]["kind"], "unidentified");
    daemon.stop();
}
