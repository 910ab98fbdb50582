//! Forms of the console about VMs, in a browser: settings, disks, moves, removal, and all chosen VMs together.

use serde_json::json;

use crate::cdp::Browser;
use crate::console::{browser, fits_with_any_name, link, pictures, send, web};
use crate::daemon::Datastore;
use crate::datastores::two;

pub(crate) fn go(browser: &mut Browser, datastore: &Datastore, path: &str) {
    browser.go(&format!("{}{path}", web(datastore)), path);
}

/// Takes a picture of the page on a telephone, where it has to fit, with any name.
pub(crate) fn fits(browser: &mut Browser, name: &str) {
    for theme in ["light", "dark"] {
        browser.look(400, theme);
        browser.picture(&pictures().join(format!("{name}-400-{theme}.png")));
    }
    fits_with_any_name(browser, 400, name);
    browser.look(1280, "light");
}

#[test]
fn settings_and_disks_of_a_vm_are_changed_on_its_page() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("snapshot take web first");
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, "web"), "/vms/web");
    let fields = [("name", "second"), ("message", "before the upgrade")];
    send(&mut browser, "/vms/web/rename-snapshot", &fields, "The snapshot has the name second.");
    let snapshot = &datastore.json("snapshot tree web")["snapshots"][0];
    assert_eq!((&snapshot["name"], &snapshot["message"]), (&json!("second"), &json!("before the upgrade")));
    browser.click("a[href='/vms/web/settings']");
    browser.at("/vms/web/settings");
    let of = |verb: &str| format!("/vms/web/{verb}");
    let fields = [("note", "the shop"), ("tags", "prod, shop")];
    send(&mut browser, &of("labels"), &fields, "Note and tags are saved.");
    let fields = [("iops", "2000"), ("iops_burst", "5000"), ("bandwidth", "100M"), ("weight", "50")];
    send(&mut browser, &of("limits"), &fields, "Limits: 2000 IOPS (bursts of 5000 for 10 s), 100 MiB/s");
    send(&mut browser, &of("limits"), &[("iops", "9")], "iops: found 9, expected 10 to 100000000");
    let fields = [("access", "unix:/run/agent.sock"), ("frozen_ms_max", "500")];
    send(&mut browser, &of("guest"), &fields, "File systems are frozen with unix:/run/agent.sock.");
    send(&mut browser, &of("shared-writers"), &[], "Several clients may write a disk.");
    let fields = [("size", "32M"), ("mode", "independent-persistent")];
    send(&mut browser, &of("disks/add"), &fields, "disk1 of 32 MiB is added.");
    send(&mut browser, &of("disks/1/grow"), &[("size", "64M")], "disk1 has 64 MiB.");
    send(&mut browser, &of("disks/1/grow"), &[("size", "1M")], "a disk can only grow");
    let mode = [("mode", "independent-nonpersistent")];
    send(&mut browser, &of("disks/1/mode"), &mode, "disk1 is independent-nonpersistent.");
    let shown = datastore.json("vm show web");
    assert_eq!((&shown["note"], &shown["tags"]), (&json!("the shop"), &json!(["prod", "shop"])), "{shown}");
    assert_eq!((&shown["limits"]["weight"], &shown["guest"]["frozen_ms_max"]), (&json!(50), &json!(500)));
    assert_eq!(
        (&shown["disks"][1]["size_bytes"], &shown["shared_writers"]),
        (&json!(64 << 20), &json!(true))
    );
    fits(&mut browser, "settings-full");
    // The reset is offered only now.
    go(&mut browser, &datastore, "/vms/web");
    browser.click("button[value=reset]");
    browser.at("/vms/web/preview");
    browser.sees("Reset the nonpersistent disks of web?");
    browser.click("button.loss");
    browser.at("/vms/web");
    go(&mut browser, &datastore, "/vms/web/settings");
    send(&mut browser, &of("disks/1/remove"), &[("files", "delete")], "disk1 is removed");
    send(&mut browser, &of("rename"), &[("name", "shop")], "VM web has the name shop.");
    browser.at("/vms/shop/settings");
    assert_eq!(datastore.json("vm show shop")["disks"].as_array().unwrap().len(), 1);
    let audit = datastore.json("audit").to_string();
    for operation in ["vm rename", "vm set", "vm disk add", "vm disk grow", "vm disk set", "vm disk remove"] {
        assert!(audit.contains(operation), "{operation}: {audit}");
    }
    daemon.stop();
}

#[test]
fn a_vm_is_moved_closed_opened_and_removed_with_a_preview() {
    let datastore = Datastore::new();
    let (daemon, second) = two(&datastore);
    datastore.json("vm create web --disk 16M --store redo");
    crate::tools::run_script(&datastore.uri("web/disk0"), &["write -P 1 0 1M".to_owned()]);
    datastore.json("snapshot take web first");
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, "web"), "/vms/web");
    go(&mut browser, &datastore, "/vms/web/settings");
    let here = [("datastore", ""), ("store", "redo")];
    send(&mut browser, "/vms/web/move/preview", &here, "the VM is already in that store");
    let fields = [("datastore", "second"), ("store", "native")];
    send(&mut browser, "/vms/web/move/preview", &fields, "and what the guest writes meanwhile");
    browser.sees("second, the native store");
    fits(&mut browser, "move");
    assert!(!second.join("store.unstun").exists(), "a preview makes no store");
    browser.click("form[action='/vms/web/move'] button");
    browser.at("/vms/web");
    browser.sees("moves the VM");
    browser.at("/vms/web");
    browser.sees("native on datastore second");
    go(&mut browser, &datastore, "/vms/web/settings");
    send(&mut browser, "/vms/web/defragment", &[], "defragments the VM");
    crate::space::until("the job's end", || (datastore.json("status")["open_jobs"] == 0).then_some(()));
    go(&mut browser, &datastore, "/vms/web/settings");
    send(&mut browser, "/vms/web/close", &[], "VM web is closed; other tools can use its files");
    browser.at("/vms/web");
    fits(&mut browser, "closed");
    send(&mut browser, "/vms/web/open", &[], "VM web is open.");
    // A client is in the way of a removal, and is named.
    let guest = crate::nbd::Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    go(&mut browser, &datastore, "/vms/web/settings");
    send(&mut browser, "/vms/web/remove/preview", &[], "Clients are connected");
    assert_eq!(browser.eval("document.querySelectorAll('button.loss').length"), 0);
    drop(guest);
    crate::space::until("the client's end", || {
        (datastore.json("vm show web")["nbd_clients"] == 0).then_some(())
    });
    go(&mut browser, &datastore, "/vms/web/settings");
    send(&mut browser, "/vms/web/remove/preview", &[], "The bin keeps it until");
    browser.sees("first");
    fits(&mut browser, "removal");
    browser.click("button.loss");
    browser.at("/");
    browser.sees("VM web is removed; the bin keeps it until");
    assert_eq!(datastore.json("vm list"), json!([]));
    go(&mut browser, &datastore, "/bin");
    send(&mut browser, "/bin/empty/preview", &[], "cannot be undone");
    browser.click("button.loss");
    browser.at("/bin");
    browser.sees("1 entries are removed for good");
    assert_eq!(datastore.json("bin list"), json!([]));
    daemon.stop();
}

#[test]
fn the_pages_of_a_vm_have_the_lines_that_attach_it_and_its_space() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    for (pattern, name) in [(1, "first"), (2, "second")] {
        let write = format!("write -P {pattern} 64k 64k");
        crate::tools::run_script(&datastore.uri("web/disk0"), &[write]);
        datastore.json(&format!("snapshot take web {name}"));
    }
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, "web"), "/vms/web");
    for choice in ["--as qemu", "--as libvirt --via vhost-user", "--as proxmox"] {
        let words: Vec<_> = choice.split(' ').collect();
        let via = words.get(3).copied().unwrap_or("nbd");
        let path = format!("/vms/web/attach?as={}&via={via}", words[1]);
        go(&mut browser, &datastore, &path);
        let expected = datastore.json(&format!("attach web {choice}"))["snippet"].clone();
        let shown = browser.eval("document.querySelector('pre').textContent");
        assert_eq!(shown.as_str().unwrap(), expected.as_str().unwrap().trim_end(), "{choice}");
    }
    go(&mut browser, &datastore, "/vms/web/attach?as=proxmox&via=vhost-user");
    browser.sees("vhost-user needs shared guest memory");
    go(&mut browser, &datastore, "/vms/web/space");
    browser.sees("Only here");
    browser.click("form[action='/vms/web/space'] button");
    browser.sees("64 KiB differ in 1 ranges of disk0 between snapshot first and the running state");
    fits(&mut browser, "differences");
    daemon.stop();
}

/// Ticks the boxes of VMs on the overview.
pub(crate) fn choose(browser: &mut Browser, vms: &[&str]) {
    for vm in vms {
        browser.click(&format!("input[name=vm][value={vm}]"));
    }
}

/// Returns the outcome of each VM.
pub(crate) fn outcomes(browser: &mut Browser) -> Vec<(String, String)> {
    let rows = "[...document.querySelectorAll('tbody tr')].map(row => [row.children[0].innerText, row.children[1].innerText])";
    serde_json::from_value(browser.eval(rows)).unwrap()
}

#[test]
fn operations_on_all_chosen_vms_say_what_became_of_each() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for vm in ["db", "mail", "web"] {
        datastore.json(&format!("vm create {vm} --disk 16M"));
    }
    datastore.json("snapshot take db patch-day");
    datastore.json("vm set mail --add-tag old");
    datastore.json("policy create nightly --schedule yearly --keep-daily 7 --vm web --vm db");
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    browser.click("button[formaction='/bulk/take']");
    browser.sees("no VM is chosen");
    choose(&mut browser, &["db", "web"]);
    browser.fill("fieldset input[name=name]", "patch-day");
    browser.click("button[formaction='/bulk/take']");
    browser.at("/bulk/take");
    browser.sees("1 of 2 VMs failed.");
    let said = outcomes(&mut browser);
    assert!(said[0].0 == "db" && said[0].1.contains("patch-day"), "{said:?}");
    assert!(said[1].0 == "web" && said[1].1.starts_with("taken; the guest waited"), "{said:?}");
    fits(&mut browser, "bulk");
    go(&mut browser, &datastore, "/");
    choose(&mut browser, &["mail", "web"]);
    browser.click("button[formaction='/bulk/policy']");
    browser.at("/bulk/policy");
    let said = outcomes(&mut browser);
    assert!(said[0].1.contains("policy nightly applies to no open VM mail"), "{said:?}");
    assert!(said[1].1.starts_with("snapshot nightly-"), "{said:?}");
    for (verb, expected) in [("tag", json!(["old", "prod"])), ("untag", json!(["old"]))] {
        go(&mut browser, &datastore, "/");
        choose(&mut browser, &["mail", "web"]);
        browser.fill("fieldset input[name=tag]", "prod");
        browser.click(&format!("button[formaction='/bulk/{verb}']"));
        browser.at(&format!("/bulk/{verb}"));
        browser.sees("Done for 2 VMs.");
        assert_eq!(datastore.json("vm show mail")["tags"], expected);
    }
    assert_eq!(datastore.json("vm show db")["tags"], json!([]));
    // The same form without a script.
    browser.call("Emulation.setScriptExecutionDisabled", &json!({"value": true}));
    go(&mut browser, &datastore, "/");
    browser.sees("3 of 3 VMs");
    daemon.stop();
}

/// A limited administrator changes its own VM, and gets neither the forms nor the operations of others.
#[test]
fn who_is_limited_to_a_vm_sees_the_forms_of_its_rights() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("vm create db --disk 16M");
    let created = datastore.json("token create eve --role admin --vm web");
    let mut browser = browser(&datastore);
    browser.go(&web(&datastore), "/login");
    browser.fill("input[name=token]", created["secret"].as_str().unwrap());
    browser.click("form button");
    browser.at("/");
    go(&mut browser, &datastore, "/vms/web/settings");
    let count = |browser: &mut Browser, verb: &str| {
        browser.eval(&format!("document.querySelectorAll('form[action=\"/vms/web/{verb}\"]').length"))
    };
    for (verb, expected) in
        [("limits", 1), ("labels", 1), ("guest", 0), ("disks/add", 0), ("snapshot-dir", 0)]
    {
        assert_eq!(count(&mut browser, verb), expected, "{verb}");
    }
    send(&mut browser, "/vms/web/labels", &[("note", "mine")], "Note and tags are saved.");
    let forge = "(f => { f.action = 'ACTION'; f.querySelector('button').click(); })(document.querySelector('form[action=\"/vms/web/labels\"]'))";
    for (action, cause) in [
        ("/vms/db/labels", "VM db is none of its VMs"),
        ("/vms/web/snapshot-dir", "`vm set` is about more than its VMs"),
        ("/datastores/ds/check", "`datastore list` is about more than its VMs"),
    ] {
        go(&mut browser, &datastore, "/vms/web/settings");
        browser.eval(&forge.replace("ACTION", action));
        browser.sees(cause);
    }
    assert_eq!(datastore.json("vm show db")["note"], "");
    for path in ["/datastores", "/create", "/repair", "/vms/db/settings", "/vms/db/space", "/vms/db/attach"] {
        go(&mut browser, &datastore, path);
        browser.sees("may not do this");
    }
    daemon.stop();
}

#[test]
fn of_two_jobs_each_has_its_own_limit_and_is_paused_and_cancelled_alone() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let begin = |vm: &str| {
        datastore.json(&format!("vm create {vm} --disk 64M --store redo"));
        crate::tools::run_script(&datastore.uri(&format!("{vm}/disk0")), &["write -P 1 0 32M".to_owned()]);
        let job = datastore.json(&format!("vm move {vm} --store native --detach"))["id"].clone();
        datastore.json(&format!("job limit {job} 1M"));
        job
    };
    let (web_job, db_job) = (begin("web"), begin("db"));
    let state = |job: &serde_json::Value| {
        let all = datastore.json("job list");
        all.as_array().unwrap().iter().find(|one| one["id"] == *job).unwrap().clone()
    };
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    let limit = |job: &serde_json::Value| format!("/jobs/{job}/limit");
    send(&mut browser, &limit(&web_job), &[("rate", "2M")], &format!("Job {web_job} is limited to 2 MiB/s."));
    send(&mut browser, &limit(&db_job), &[("rate", "fast")], "\"fast\"");
    let limits = [&web_job, &db_job].map(|job| state(job)["limit_bytes_s"].clone());
    assert_eq!(limits, [json!(2 << 20), json!(1 << 20)]);
    let press = |browser: &mut Browser, job: &serde_json::Value, verb: &str, seen: &str| {
        browser.click(&format!("form[action='/jobs/{job}'] button[value={verb}]"));
        browser.sees(&format!("Job {job} is {seen}."));
    };
    press(&mut browser, &db_job, "pause", "paused");
    assert_eq!((&state(&web_job)["state"], &state(&db_job)["state"]), (&json!("running"), &json!("paused")));
    fits(&mut browser, "jobs");
    go(&mut browser, &datastore, "/");
    press(&mut browser, &db_job, "resume", "running");
    press(&mut browser, &web_job, "cancel", "cancelled");
    assert_eq!(state(&db_job)["state"], "running");
    press(&mut browser, &db_job, "cancel", "cancelled");
    daemon.stop();
}

#[test]
fn a_revert_takes_a_snapshot_of_the_running_state_first_if_it_has_a_name() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("snapshot take web first");
    crate::tools::run_script(&datastore.uri("web/disk0"), &["write -P 7 0 1M".to_owned()]);
    let mut browser = browser(&datastore);
    for (name, seen) in [("a/b", "a/b"), ("first", "first"), ("kept", "revert")] {
        browser.go(&link(&datastore, "web"), "/vms/web");
        browser.click("button[value=revert]");
        browser.at("/vms/web/preview");
        browser.fill("input[name=take_first]", name);
        browser.click("button.loss");
        browser.at("/vms/web");
        browser.sees(seen);
        let reverted = datastore.json("events web").to_string().contains("\"revert\"");
        assert_eq!(reverted, name == "kept", "a name that cannot be given reverts nothing");
    }
    assert_eq!(datastore.json("vm show web")["snapshots"], 2);
    let mut kept = crate::nbd::Nbd::attach(&datastore.nbd_socket(), "web/disk0@kept").unwrap();
    assert_eq!(kept.read(0, 4096).unwrap(), [7; 4096]);
    datastore.json("vm open web");
    crate::tools::run_script(&datastore.uri("web/disk0"), &["read -P 0 0 1M".to_owned()]);
    daemon.stop();
}
