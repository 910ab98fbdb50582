//! The page of the lab's reports, and the reports themselves in a browser: they run no script and reach nothing.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::console::{browser, link, web};
use crate::console_vms::{fits, go};
use crate::daemon::Datastore;
use crate::tools::run_script;

/// A page that tries what a report must not do.
const HOSTILE: &str = "<!DOCTYPE html><title>hostile</title><style>p { color: rgb(1, 2, 3) }</style><p>a report</p>\
    <script>document.title = 'ran'</script><form action='/logout' method='post'><button>x</button></form>\
    <img src='/console.svg' onerror=\"document.title = 'ran'\">";

#[test]
fn reports_of_a_folder_are_listed_and_shown_without_scripts() {
    let datastore = Datastore::new();
    let folder = datastore.beside("reports");
    let daemon = datastore.start_as(&["--lab-reports", folder.to_str().unwrap()]);
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    browser.click("nav a[href='/reports']");
    browser.at("/reports");
    browser.sees("there is no such folder on the daemon's host");
    fs::create_dir(&folder).unwrap();
    go(&mut browser, &datastore, "/reports");
    browser.sees("There is no report yet.");
    datastore.json("vm create web --disk 16M");
    run_script(&datastore.uri("web/disk0"), &["write -P 1 0 8M".to_owned()]);
    crate::space::until("the report of the VM", || {
        let (page, book) = (folder.join("web.html"), folder.join("web.xlsx"));
        let line = format!("lab report --vm web --since 10m -o {} --xlsx {}", page.display(), book.display());
        datastore.run(&line).status.success().then_some(())
    });
    let name = "a <b>hostile name & 'more' 100%";
    fs::write(folder.join(format!("{name}.html")), HOSTILE).unwrap();
    fs::write(folder.join(format!("{}.html", "m".repeat(250))), HOSTILE).unwrap();
    fs::write(folder.join("run.json"), "{}").unwrap();
    fs::write(datastore.beside("secret.html"), "secret").unwrap();
    symlink(datastore.beside("secret.html"), folder.join("link.html")).unwrap();
    go(&mut browser, &datastore, "/reports");
    browser.sees("web.xlsx");
    let listed = browser.text();
    assert!(!listed.contains("link.html") && !listed.contains("run.json"), "{listed}");
    fits(&mut browser, "reports-full");
    go(&mut browser, &datastore, "/reports");
    browser.eval(&format!(
        "[...document.querySelectorAll('tbody a')].find(link => link.innerText === {}).click()",
        json!(format!("{name}.html"))
    ));
    browser.sees("a report");
    assert_eq!(browser.eval("[document.title, self.origin]"), json!(["hostile", "null"]));
    assert_eq!(browser.eval("getComputedStyle(document.querySelector('p')).color"), "rgb(1, 2, 3)");
    let loaded = "document.querySelector('img').naturalWidth";
    assert_eq!(browser.eval(loaded), 0, "it loads nothing");
    assert_eq!(browser.eval("fetch('/').then(() => 'reached', () => 'refused')"), "refused");
    browser.eval("document.querySelector('button').click()");
    // The form was not sent, so the session goes on.
    go(&mut browser, &datastore, "/reports");
    browser.click("a[href='/reports/web.html']");
    browser.at("/reports/web.html");
    browser.sees("VM web");
    browser.picture(&crate::console::pictures().join("report-1280-light.png"));
    daemon.stop();
}

/// Width of A4 without the margins of a page's style, 186 mm at 96 pixels an inch.
const PAPER_PIXELS: u64 = 703;

/// Names of the elements that end beyond the window, in a page with all parts unfolded.
const CUT_OFF: &str = "document.querySelectorAll('details').forEach(part => part.open = true); \
    [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName)";

#[test]
fn pages_of_the_lab_are_not_cut_off_in_a_window_or_on_paper() {
    let datastore = Datastore::new();
    let folder = datastore.beside("lab");
    let made = datastore.run(&format!("lab reproduce sightler-5.5 -o {}", folder.display()));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = folder.join("report.html");
    let page = page.to_str().unwrap();
    let mut browser = browser(&datastore);
    for (width, media) in [(1280, "screen"), (PAPER_PIXELS, "print")] {
        browser.look(width, "light");
        browser.call("Emulation.setEmulatedMedia", &json!({"media": media}));
        browser.go(&format!("file://{page}"), page);
        assert_eq!(
            browser.eval("[matchMedia('print').matches, innerWidth]"),
            json!([media == "print", width])
        );
        assert_eq!(browser.eval(CUT_OFF), json!([]), "{media}, {width}");
        // Folded parts are open on paper.
        let folded = "document.querySelectorAll('details').forEach(part => part.open = false); \
            document.querySelector('details:not(.bulk) table').checkVisibility({contentVisibilityAuto: true})";
        assert_eq!(browser.eval(folded), json!(media == "print"), "{media}");
        // The check finds a column that is cut off.
        let planted =
            format!("document.querySelector('thead th').style.minWidth = '2000px'; {CUT_OFF}.length > 0");
        assert_eq!(browser.eval(&planted), json!(true));
        browser.picture(&crate::console::pictures().join(format!("lab-{media}.png")));
    }
}

#[test]
fn a_report_is_for_viewers_of_all_vms_and_nothing_else_of_the_host_is_served() {
    let datastore = Datastore::new();
    let folder = datastore.beside("reports");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("web.html"), HOSTILE).unwrap();
    fs::write(folder.join("web.xlsx"), "a workbook").unwrap();
    fs::write(folder.join("run.json"), "{}").unwrap();
    fs::write(datastore.beside("secret.html"), "secret").unwrap();
    symlink(datastore.beside("secret.html"), folder.join("link.html")).unwrap();
    let daemon = datastore.start_as(&["--lab-reports", folder.to_str().unwrap()]);
    datastore.json("vm create web --disk 16M");
    let base = web(&datastore);
    let log_in = |limit: &str, jar: &str| {
        let created = datastore.json(&format!("token create {jar} --role viewer {limit}"));
        let jar = datastore.beside(jar).display().to_string();
        let token = format!("token={}", created["secret"].as_str().unwrap());
        crate::console::curl(&jar, &format!("{base}/login"), &["--data-urlencode", &token]);
        jar
    };
    let (all, limited) = (log_in("", "all"), log_in("--vm web", "limited"));
    let get =
        |jar: &str, path: &str| crate::console::curl(jar, &format!("{base}{path}"), &["--path-as-is", "-i"]);
    let (status, page) = get(&all, "/reports/web.html");
    let page = page.to_lowercase();
    assert!(status == 200 && page.contains("content-security-policy: sandbox; default-src 'none'"), "{page}");
    assert!(page.contains("x-content-type-options: nosniff") && page.contains("a report"), "{page}");
    let (status, book) = get(&all, "/reports/web.xlsx");
    assert!(status == 200 && book.contains("attachment") && book.ends_with("a workbook"), "{book}");
    for name in [
        "run.json",
        "link.html",
        "..%2Fsecret.html",
        "../secret.html",
        "%2Fetc%2Fpasswd",
        "none.html",
        "x%00.html",
    ] {
        let (status, page) = get(&all, &format!("/reports/{name}"));
        assert!(status == 404 && !page.contains("secret\n"), "{name}: {status}: {page}");
    }
    for path in ["/reports", "/reports/web.html", "/reports/none.html"] {
        let (status, page) = get(&limited, path);
        assert!(status == 403 && page.contains("`lab report` is about more than its VMs"), "{path}: {page}");
    }
    assert!(!get(&limited, "/").1.contains("href=\"/reports\""));
    assert_eq!(get("/dev/null", "/reports/web.html").0, 303, "without a session");
    daemon.stop();
    let daemon = datastore.start();
    let base = web(&datastore);
    let mut browser = browser(&datastore);
    browser.go(&link(&datastore, ""), "/");
    assert_eq!(browser.eval("document.querySelectorAll('a[href=\"/reports\"]').length"), 0);
    browser.go(&format!("{base}/reports"), "/reports");
    browser.sees("unstun up --lab-reports DIR");
    daemon.stop();
}
