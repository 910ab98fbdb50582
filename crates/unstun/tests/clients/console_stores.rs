//! Pages of the console about datastores in a browser: their forecast, forms, checks, imports, and what is broken.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::console::{browser, link, send, web};
use crate::daemon::Datastore;
use crate::datastores::folder;

/// Seconds between two samples of the free space.
const SAMPLE_S: u64 = 1800;

/// Writes samples as a daemon makes them that has looked at the datastore for two days, in which it became fuller.
pub(crate) fn observe_for_two_days(datastore: &Datastore) {
    let daemon = datastore.start();
    let free = datastore.json("status")["free_bytes"].as_u64().unwrap();
    daemon.stop();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let sample = |n: u64| json!({"unix_s": now - 60 - n * SAMPLE_S, "free_bytes": free + n * (free / 500)});
    let samples: Vec<_> = (0..96).rev().map(sample).collect();
    let file = datastore.path().join(".unstun/alarm-samples");
    std::fs::write(file, json!({"samples": {"ds": samples}}).to_string()).unwrap();
}

#[test]
fn datastores_show_their_forecast_and_are_added_checked_and_removed() {
    let datastore = Datastore::new();
    observe_for_two_days(&datastore);
    let second = folder(&datastore, "second");
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    crate::tools::run_script(&datastore.uri("web/disk0"), &["write -P 1 0 1M".to_owned()]);
    datastore.json("snapshot take web first");
    crate::tools::run_script(&datastore.uri("web/disk0"), &["write -P 2 0 1M".to_owned()]);
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    browser.click("nav a[href='/datastores']");
    browser.at("/datastores");
    browser.sees("full on");
    assert_eq!(browser.eval("document.querySelectorAll('figure svg path.device').length"), 1);
    browser.sees("Snapshot first of VM web: at most 1 MiB");
    send(&mut browser, "/datastores/add", &[("path", "second")], "expected one that begins with /");
    let fields = [("path", second.to_str().unwrap()), ("name", "fast")];
    send(&mut browser, "/datastores/add", &fields, "Datastore fast is served, with 0 VMs.");
    browser.sees("unknown: a forecast needs six hours of observation");
    send(&mut browser, "/datastores/ds/check", &[], "nothing was found");
    browser.go(&format!("{}/datastores", web(&datastore)), "/datastores");
    send(&mut browser, "/datastores/ds/scrub", &[], "scrubs datastore ds");
    crate::space::until("the scrub", || {
        browser.go(&format!("{}/datastores/ds/scrub", web(&datastore)), "/datastores/ds/scrub");
        browser.text().contains("nothing was found").then_some(())
    });
    browser.go(&format!("{}/datastores", web(&datastore)), "/datastores");
    send(&mut browser, "/datastores/fast/remove/preview", &[], "Its content stays.");
    browser.click("button.loss");
    browser.at("/datastores");
    browser.sees("Datastore fast is no longer served");
    assert_eq!(datastore.json("datastore list").as_array().unwrap().len(), 1);
    // "Commit..." leads to the preview of the commit.
    browser.click("button[value=commit]");
    browser.at("/vms/web/preview");
    browser.sees("once the commit starts you cannot revert to first");
    daemon.stop();
}

#[test]
fn a_folder_of_vmware_is_imported_and_a_broken_vm_leads_to_its_repair() {
    let datastore = Datastore::new();
    let (folder, _) = crate::import::foreign_vm(&datastore);
    let daemon = datastore.start();
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    browser.click("a[href='/create']");
    browser.at("/create");
    send(&mut browser, "/import", &[("path", "/nowhere/web.vmx")], "/nowhere/web.vmx");
    send(&mut browser, "/import", &[("path", "/nowhere/web.ova")], "/nowhere/web.ova: no such file");
    let fields = [("path", folder.to_str().unwrap()), ("name", "esx")];
    send(&mut browser, "/import", &fields, "VM esx is imported, with 3 snapshots.");
    browser.at("/vms/esx");
    browser.sees("as-imported");
    browser.go(&format!("{}/create", web(&datastore)), "/create");
    let fields = [("name", "big"), ("size", "16M 32M"), ("when_full", "error"), ("store", "redo")];
    send(&mut browser, "/create", &fields, "VM big is created");
    let shown = datastore.json("vm show big");
    assert_eq!((shown["disks"].as_array().unwrap().len(), &shown["when_full"]), (2, &json!("error")));
    daemon.stop();
    // A base that is gone breaks the VM.
    std::fs::remove_file(datastore.path().join("big/big.vmdk")).unwrap();
    let daemon = datastore.start();
    browser.go(&link(&datastore, ""), "/");
    browser.go(&format!("{}/repair", web(&datastore)), "/repair");
    let home = datastore.path().join("big").display().to_string();
    browser.sees(&format!("unstun repair {home} --yes"));
    browser.click("h2 a[href='/vms/big']");
    browser.at("/vms/big");
    browser.sees("The VM is not served");
    send(&mut browser, "/vms/big/open", &[], "big.vmdk");
    daemon.stop();
}
