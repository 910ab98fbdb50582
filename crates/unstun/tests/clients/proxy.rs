//! The API and the console on a Unix socket for a proxy: a token or a session is needed, whatever process connects.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use crate::cdp::Browser;
use crate::daemon::{Daemon, Datastore};
use crate::programs::tool;
use crate::rest::{send, token};

/// The host does not matter: curl connects to the socket.
const HOST: &str = "http://console.example";

fn socket(datastore: &Datastore) -> PathBuf {
    datastore.beside("web.sock")
}

fn start(datastore: &Datastore) -> Daemon<'_> {
    datastore.start_as(&["--web", &format!("unix:{}", socket(datastore).display())])
}

fn status_of(datastore: &Datastore, secret: Option<&str>, route: &str) -> u16 {
    let socket = socket(datastore);
    send(HOST, secret, "GET", route, &["--unix-socket", socket.to_str().unwrap()]).0
}

/// Begins a proxy for one socket, and returns its URL. It lasts as long as the test's process.
fn proxy(to: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, Ok(server)) = (client.unwrap(), UnixStream::connect(&to)) else { continue };
            let (mut requests, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut requests, &mut &server);
                let _ = server.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut answers, &mut &client);
                let _ = TcpStream::shutdown(&client, Shutdown::Both);
            });
        }
    });
    url
}

/// The tests run as root, who is an administrator on the API's own socket.
#[test]
fn the_proxy_s_own_user_has_no_rights_on_its_socket() {
    let datastore = Datastore::new();
    let daemon = start(&datastore);
    let secret = token(&datastore, "viewer --role viewer");
    let of = |secret, route| status_of(&datastore, secret, route);
    assert_eq!([of(None, "/vms"), of(Some("wrong"), "/vms")], [401, 401]);
    assert_eq!([of(Some(&secret), "/vms"), of(Some(&secret), "/tokens")], [200, 403]);
    let mode = std::fs::metadata(socket(&datastore)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
    let audit = datastore.json("audit").to_string();
    assert!(audit.contains(&format!("unix:{}", socket(&datastore).display())), "{audit}");
    let shown = format!("unix:{}", socket(&datastore).display());
    assert_eq!(datastore.json("status")["web"][1], shown.as_str());
    assert_eq!(
        datastore.json("console")["urls"].as_array().unwrap().len(),
        1,
        "it is no address for browsers"
    );
    daemon.stop();
    assert!(!socket(&datastore).exists(), "the daemon removes its socket");
}

#[test]
fn a_browser_uses_the_console_through_a_proxy() {
    let datastore = Datastore::new();
    let daemon = start(&datastore);
    datastore.json("vm create web --disk 16M");
    let secret = token(&datastore, "op --role operator");
    let url = proxy(socket(&datastore));
    let mut browser = Browser::start(&datastore.beside("profile"));
    browser.go(&url, "/login");
    browser.fill("input[name=token]", &secret);
    browser.click("form button");
    browser.at("/");
    browser.click("a[href='/vms/web']");
    browser.at("/vms/web");
    browser.fill("input[name=name]", "first");
    browser.click("form[action='/vms/web/take'] button");
    browser.sees("Snapshot first is taken");
    let foreign = "fetch('/vms/web/take', {method: 'POST', headers: {'content-type': \
                   'application/x-www-form-urlencoded'}, body: 'name=x&form_key=y'}).then(answer => answer.text())";
    let said = browser.eval(foreign);
    assert!(said.as_str().unwrap().contains("another session"), "a form of another site: {said}");
    assert_eq!(datastore.json("vm show web")["snapshots"], 1);
    daemon.stop();
}

/// The header of nginx and others says whether the browser's connection is encrypted.
#[test]
fn the_cookie_is_for_tls_only_where_the_proxy_speaks_it() {
    let datastore = Datastore::new();
    let daemon = start(&datastore);
    let secret = token(&datastore, "viewer --role viewer");
    let socket = socket(&datastore);
    let log_in = |more: &[&str]| {
        let form = format!("token={secret}");
        let url = format!("{HOST}/login");
        let mut all = vec!["-si", "--unix-socket", socket.to_str().unwrap(), "-d", &form, &url];
        all.extend(more);
        let said = tool("curl", &all).to_lowercase();
        said.lines().find(|line| line.starts_with("set-cookie")).unwrap().to_owned()
    };
    let (plain, encrypted) = (log_in(&[]), log_in(&["-H", "X-Forwarded-Proto: https"]));
    for cookie in [&plain, &encrypted] {
        assert!(cookie.contains("samesite=strict") && cookie.contains("httponly"), "{cookie}");
    }
    assert!(!plain.contains("; secure") && encrypted.contains("; secure"), "{plain}\n{encrypted}");
    daemon.stop();
}

#[test]
fn a_dead_daemon_s_socket_is_replaced_and_a_living_process_s_or_a_file_is_not() {
    let datastore = Datastore::new();
    let daemon = start(&datastore);
    let secret = token(&datastore, "viewer --role viewer");
    daemon.kill();
    assert!(socket(&datastore).exists());
    let daemon = start(&datastore);
    assert_eq!(status_of(&datastore, Some(&secret), "/vms"), 200);
    daemon.stop();
    let refused = |cause: &str| {
        let daemon = start(&datastore);
        datastore.json("vm list");
        daemon.stop();
        let log = std::fs::read_to_string(datastore.beside("daemon.log")).unwrap();
        assert!(log.contains("the API is not served on unix:") && log.contains(cause), "{cause}: {log}");
    };
    let other = UnixListener::bind(socket(&datastore)).unwrap();
    refused("another process listens on this socket");
    assert!(UnixStream::connect(socket(&datastore)).is_ok(), "it is still the other process's");
    drop(other);
    std::fs::remove_file(socket(&datastore)).unwrap();
    std::fs::write(socket(&datastore), "a file").unwrap();
    refused("the path exists and is not a socket");
    assert_eq!(std::fs::read(socket(&datastore)).unwrap(), b"a file");
}
