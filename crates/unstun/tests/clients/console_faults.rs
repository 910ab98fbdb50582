//! Pages of the console while something is wrong: a datastore whose lease another host holds, and one that hangs.

use std::time::Duration;

use crate::console::{browser, link, send, web};
use crate::console_vms::{choose, fits, go, outcomes};
use crate::daemon::Datastore;
use crate::devices::{image, two_nodes};
use crate::file_systems::{Frozen, Odd};
use crate::skip::skip;
use crate::space::until;

/// Four claims at most, each after 41 s without a heartbeat of the owner: one whose write takes half a second is made again.
const CLAIM_MAX: Duration = Duration::from_secs(4 * 45);

#[test]
fn a_lease_is_taken_over_on_the_page_that_says_who_holds_it() {
    let datastore = Datastore::new();
    let file = image(&datastore, "lun.img");
    let Some((one, two)) = two_nodes(&file) else { return skip("no loop devices") };
    let (one, two) = (one.device.display(), two.device.display());
    datastore.json(&format!("datastore create {one}"));
    let daemon = datastore.start();
    datastore.json(&format!("datastore add lun={one}"));
    datastore.json_at("lun", "vm create web --disk 64M");
    daemon.stop();
    // A separate host has a folder of its own for locks.
    let other = Datastore::called("other");
    let apart = other.start_with(&[("RUNTIME_DIRECTORY", &other.beside("run"))]);
    other.json(&format!("datastore add lun={two}"));
    let daemon = datastore.start();
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    go(&mut browser, &datastore, "/datastores");
    browser.sees(&format!("pid {}", apart.id()));
    // The other host serves it still.
    browser.click("input[name=take_over]");
    browser.click("form[action='/datastores/add'] button.loss");
    // The list says it too, so this is the answer of the form.
    let answer = "document.querySelector('p.notice.fault')?.innerText.includes('serves it')";
    until("the refusal", || (browser.look_at(answer) == true).then_some(()));
    apart.pause();
    go(&mut browser, &datastore, "/datastores");
    fits(&mut browser, "take-over");
    browser.click("form[action='/datastores/add'] button.loss");
    assert_eq!(browser.eval("location.pathname"), "/datastores", "the box has to be ticked");
    browser.click("input[name=take_over]");
    browser.click("form[action='/datastores/add'] button.loss");
    // The claim waits until the owner's heartbeats have stayed out.
    browser.sees_within(CLAIM_MAX, "Datastore lun is served, with 1 VMs.");
    assert_eq!(browser.eval("document.querySelectorAll('input[name=take_over]').length"), 0);
    // Clients of the other host may come back, so the user opens the VM.
    send_open(&mut browser, &datastore);
    assert!(datastore.json("audit").to_string().contains("\"take_over\":true"));
    apart.resume();
    until("the loss of the lease", || {
        other.json("datastore list").to_string().contains("serves the store now").then_some(())
    });
    daemon.stop();
    apart.kill();
}

fn send_open(browser: &mut crate::cdp::Browser, datastore: &Datastore) {
    go(browser, datastore, "/vms/web/settings");
    send(browser, "/vms/web/open", &[], "VM web is open.");
    crate::tools::run_script(&datastore.uri("web/disk0"), &["write -P 1 0 1M".to_owned()]);
}

const HUNG: &str = "has not answered for";

#[test]
fn the_pages_answer_while_a_datastore_hangs() {
    let Some(odd) = Odd::new() else { return };
    let daemon = odd.start();
    let datastore = &odd.datastore;
    let mut browser = browser(datastore);
    browser.go(&link(datastore, ""), "/");
    let Some(frozen) = Frozen::new(odd.path()) else { return daemon.stop() };
    go(&mut browser, datastore, "/vms/kept-redo");
    let take = "form[action='/vms/kept-redo/take']";
    browser.fill(&format!("{take} [name=name]"), "late");
    browser.click(&format!("{take} button"));
    browser.sees("datastore odd has not answered for");
    for (path, seen) in [
        ("/", HUNG),
        ("/datastores", HUNG),
        ("/vms/kept-redo", HUNG),
        ("/vms/kept-redo/settings", HUNG),
        ("/vms/kept-native/space", HUNG),
        ("/vms/elsewhere", "VM elsewhere"),
        ("/bin", "Bin"),
        ("/activity", "Activity"),
        ("/policies", "Policies"),
        ("/create", "A new VM"),
    ] {
        go(&mut browser, datastore, path);
        browser.sees(seen);
    }
    // The others are served meanwhile.
    go(&mut browser, datastore, "/vms/elsewhere");
    send(&mut browser, "/vms/elsewhere/take", &[("name", "meanwhile")], "Snapshot meanwhile is taken");
    go(&mut browser, datastore, "/datastores");
    let offered = "document.querySelectorAll(\"form[action='/datastores/odd/check']\").length";
    assert_eq!(browser.eval(offered), 0, "a check would wait");
    go(&mut browser, datastore, "/");
    choose(&mut browser, &["elsewhere", "lost-redo"]);
    browser.fill("fieldset input[name=name]", "both");
    browser.click("button[formaction='/bulk/take']");
    browser.at("/bulk/take");
    let said = outcomes(&mut browser);
    assert!(said[0].1.starts_with("taken; the guest waited"), "{said:?}");
    assert!(said[1].1.contains(HUNG), "{said:?}");
    drop(frozen);
    until("an answer", || {
        go(&mut browser, datastore, "/datastores");
        (!browser.text().contains(HUNG)).then_some(())
    });
    // The take was in flight when the datastore hung, and is done.
    until("the take", || {
        datastore.json("snapshot tree kept-redo").to_string().contains("\"late\"").then_some(())
    });
    let base = web(datastore);
    browser.go(&format!("{base}/vms/kept-redo"), "/vms/kept-redo");
    browser.sees("late");
    daemon.stop();
}

#[test]
fn a_page_says_that_its_vm_is_gone_and_a_form_is_sent_once() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, "web"), "/vms/web");
    let take = "document.querySelector(\"form[action='/vms/web/take']\")";
    // The answer to the second request would say that there is one of that name.
    browser.eval(&format!(
        "{{ const form = {take}; form.elements.name.value = 'once'; for (const n of [1, 2, 3]) form.querySelector('button').click(); }}"
    ));
    browser.sees("Snapshot once is taken");
    let audit = datastore.json("audit");
    let takes =
        audit.as_array().unwrap().iter().filter(|entry| entry["operation"] == "snapshot take").count();
    assert_eq!(takes, 1, "{audit}");
    datastore.json("vm remove web --delete-disks --yes");
    browser.sees("this page shows an earlier state");
    browser.fill("form[action='/vms/web/take'] [name=name]", "late");
    browser.click("form[action='/vms/web/take'] button");
    browser.sees("web");
    browser.sees("To the overview");
    daemon.stop();
}

#[test]
fn a_form_that_is_sent_after_the_session_has_ended_says_so() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    let secret = datastore.json("token create eve --role admin")["secret"].as_str().unwrap().to_owned();
    let mut browser = browser(&datastore);
    browser.go(&web(&datastore), "/login");
    browser.fill("input[name=token]", &secret);
    browser.click("form button");
    browser.at("/");
    go(&mut browser, &datastore, "/vms/web/settings");
    let labels = "form[action='/vms/web/labels']";
    browser.fill(&format!("{labels} [name=note]"), "half typed");
    datastore.json("token revoke eve");
    browser.click(&format!("{labels} button"));
    browser.at("/login");
    browser.sees("what was sent was not carried out");
    assert_eq!(datastore.json("vm show web")["note"], "");
    daemon.stop();
}
