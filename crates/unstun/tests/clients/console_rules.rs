//! Pages of the console about policies, and about the rules, mutes and channels of alarms, in a browser.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::cdp::Browser;
use crate::console::{browser, link, raise_alarm, send, web};
use crate::console_vms::{fits, go};
use crate::daemon::Datastore;
use crate::space::until;

/// Returns the values of a field of the page.
fn value(browser: &mut Browser, name: &str) -> Value {
    browser.eval(&format!("document.querySelector('main [name={name}]').value"))
}

/// Sends the form of a policy's fields.
fn preview(browser: &mut Browser, fields: &[(&str, &str)], seen: &str) {
    send(browser, "/policies/preview", fields, seen);
    browser.at("/policies/preview");
}

fn count(browser: &mut Browser, selector: &str) -> Value {
    browser.eval(&format!("document.querySelectorAll(\"{selector}\").length"))
}

#[test]
fn a_policy_with_all_rules_is_created_changed_and_removed_with_a_preview() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    std::fs::write(datastore.repositories(), "[offsite]\nplace = \"/nowhere\"\n").unwrap();
    for name in ["a", "b", "c"] {
        datastore.json(&format!("snapshot take web {name}"));
    }
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    go(&mut browser, &datastore, "/policies");
    browser.click("a[href='/policies/create']");
    browser.at("/policies/create");
    let fields = [
        ("name", "often"),
        ("schedule", "Mon..Fri 22:00 UTC; yearly UTC"),
        ("weekly", "4"),
        ("min_age", "36h"),
        ("commit_window", "at night"),
        ("tags", "prod, db"),
        ("catch_up", "no"),
        ("repository", "offsite"),
        ("backup_keep", "14 daily, 8 weekly"),
    ];
    preview(&mut browser, &fields, "such as Mon..Fri 22:00-06:00");
    assert_eq!(value(&mut browser, "schedule"), "Mon..Fri 22:00 UTC; yearly UTC", "nothing is typed twice");
    preview(&mut browser, &[("commit_window", "Sat,Sun 22:00-06:00; 01:00-02:00")], "Create policy often?");
    browser.sees("often-20");
    assert_eq!(datastore.json("policy list"), json!([]), "a preview changes nothing");
    fits(&mut browser, "policy-preview");
    browser.click("main form button");
    browser.sees("Policy often is created; it applies to 1 VMs now.");
    let expected = json!({
        "name": "often", "schedule": ["Mon..Fri 22:00 UTC", "yearly UTC"], "vms": ["*"], "tags": ["prod", "db"],
        "keep": {"last": 0, "hourly": 0, "daily": 7, "weekly": 4, "monthly": 0, "yearly": 0, "min_age_s": 129600, "all": false},
        "template": "{policy}-{time}", "catch_up": false, "removes": "own", "quiesce": "no", "enabled": true,
        "commit_window": ["Sat,Sun 22:00-06:00", "01:00-02:00"],
        "backup": {"repository": "offsite", "keep": {
            "last": 0, "hourly": 0, "daily": 14, "weekly": 8, "monthly": 0, "yearly": 0, "min_age_s": 0, "all": false,
        }},
    });
    assert_eq!(datastore.json("policy show often")["policy"], expected);
    // The change says what it removes before it does.
    browser.click("a[href='/policies/often/settings']");
    browser.at("/policies/often/settings");
    let fields = [("daily", ""), ("weekly", ""), ("last", "1"), ("min_age", ""), ("removes", "all")];
    preview(&mut browser, &fields, "Change policy often?");
    browser.sees("The policy will remove 2 snapshots that exist.");
    assert_eq!(datastore.json("vm show web")["snapshots"], 3);
    browser.click("button.loss");
    browser.sees("Policy often is changed; it applies to 1 VMs now.");
    until("the removals", || (datastore.json("vm show web")["snapshots"] == 1).then_some(()));
    go(&mut browser, &datastore, "/policies/often/settings");
    fits(&mut browser, "policy-settings");
    send(&mut browser, "/policies/often/remove", &[], "Policy often is removed; its snapshots stay.");
    assert_eq!(datastore.json("policy list"), json!([]));
    go(&mut browser, &datastore, "/policies/often/settings");
    browser.sees("often");
    browser.sees("To the overview");
    let audit = datastore.json("audit").to_string();
    for operation in ["policy create", "policy set", "policy remove"] {
        assert!(audit.contains(operation), "{operation}: {audit}");
    }
    daemon.stop();
}

#[test]
fn a_viewer_sees_what_a_policy_does_and_no_form_and_forged_forms_are_refused() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("policy create nightly --schedule yearly --keep-daily 7 --vm *");
    let secret = datastore.json("token create eve --role viewer")["secret"].as_str().unwrap().to_owned();
    let mut browser = browser(&datastore);
    browser.go(&web(&datastore), "/login");
    browser.fill("input[name=token]", &secret);
    browser.click("form button");
    browser.at("/");
    go(&mut browser, &datastore, "/policies/nightly/settings");
    browser.sees("nightly-20");
    assert_eq!(count(&mut browser, "main form"), 0);
    go(&mut browser, &datastore, "/policies/create");
    browser.sees("needs role admin");
    go(&mut browser, &datastore, "/alarms/rules");
    browser.sees("is older than N hours");
    assert_eq!(count(&mut browser, "main form"), 0);
    let key = browser.eval("document.querySelector('input[name=form_key]').value");
    let forge = |path: &str, body: &str| {
        let body = format!("{body}&form_key={}", key.as_str().unwrap());
        let headers = "{'content-type': 'application/x-www-form-urlencoded'}";
        format!(
            "fetch('{path}', {{method: 'POST', headers: {headers}, body: '{body}'}}).then(answer => answer.text())"
        )
    };
    for (path, body) in [
        ("/policies/nightly/remove", ""),
        ("/policies/nightly/switch", "verb=off"),
        ("/policies/create", "name=x&schedule=daily&daily=1&vms=web"),
        ("/alarms/rules", "rule=latency&value=1"),
        ("/alarms/rules/latency/reset", ""),
        ("/alarms/rules/mute", "rule=latency&time=8h"),
        ("/alarms/channels/test", "channel=pager"),
    ] {
        let said = browser.eval(&forge(path, body));
        assert!(said.as_str().unwrap().contains("needs role"), "{path}: {said}");
    }
    assert_eq!(datastore.json("policy list")[0]["policy"]["enabled"], true);
    daemon.stop();
}

#[test]
fn thresholds_mutes_and_channels_of_alarms_are_changed_in_the_console() {
    let datastore = Datastore::new();
    let channels = datastore.beside("channels");
    std::fs::create_dir(&channels).unwrap();
    for (name, text) in [("pager", "kind = \"command\"\ncommand = [\"/bin/true\"]\n"), ("broken", "kind = 1")]
    {
        let file = channels.join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let daemon = datastore.start_as(&["--alarms-every", "1s", "--alarms-dir", channels.to_str().unwrap()]);
    datastore.json("vm create web --disk 16M");
    raise_alarm(&datastore);
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    go(&mut browser, &datastore, "/alarms");
    let of = "/alarms/snapshot_space:web";
    send(&mut browser, &format!("{of}/acknowledge"), &[("note", "seen")], "is acknowledged.");
    send(&mut browser, &format!("{of}/unacknowledge"), &[], "is not acknowledged any more.");
    send(&mut browser, &format!("{of}/mute"), &[("time", "2h")], "Not delivered until");
    assert_eq!(datastore.json("alarm mutes")[0]["alarm"], "snapshot_space:web");
    fits(&mut browser, "alarms-muted");
    send(&mut browser, "/alarms/mutes/1/end", &[], "Delivered again: alarm snapshot_space:web.");
    assert_eq!(datastore.json("alarm mutes"), json!([]));
    browser.click("a[href='/alarms/rules']");
    browser.at("/alarms/rules");
    browser.sees("20 percent");
    let fields = [("rule", "snapshot_old"), ("value", "12"), ("vm", "w*")];
    send(&mut browser, "/alarms/rules", &fields, "The threshold of rule snapshot_old is set.");
    browser.sees("w*: 12 hours");
    send(&mut browser, "/alarms/rules", &[("rule", "latency"), ("value", "off")], "rule latency is set.");
    send(
        &mut browser,
        "/alarms/rules",
        &[("rule", "policy"), ("value", "7")],
        "expected 1 (on) or null (off)",
    );
    fits(&mut browser, "alarm-rules");
    let rules = datastore.json("alarm rules");
    let shown = |name: &str| {
        rules.as_array().unwrap().iter().find(|one| one["rule"] == name).unwrap()["thresholds"].clone()
    };
    assert_eq!(shown("snapshot_old")[0]["value"], 12);
    assert_eq!((&shown("latency")[0]["value"], &shown("policy")), (&Value::Null, &json!([])));
    send(&mut browser, "/alarms/rules/snapshot_old/reset", &[], "Rule snapshot_old has its default again.");
    browser.sees("72 hours");
    browser.sees("pager");
    assert_eq!(count(&mut browser, "form[action='/alarms/channels/test']"), 1, "the broken one has none");
    send(&mut browser, "/alarms/channels/test", &[], "A test message was delivered over channel pager.");
    let fields = [("rule", "snapshot_space"), ("vm", "w*"), ("time", "1d")];
    send(&mut browser, "/alarms/rules/mute", &fields, "rule snapshot_space of VMs w*.");
    browser.at("/alarms");
    assert_eq!(datastore.json("alarm mutes")[0]["vm"], "w*");
    let audit = datastore.json("audit").to_string();
    for operation in ["alarm unack", "alarm mute", "alarm unmute", "alarm set", "alarm reset", "alarm test"] {
        assert!(audit.contains(operation), "{operation}: {audit}");
    }
    daemon.stop();
}
