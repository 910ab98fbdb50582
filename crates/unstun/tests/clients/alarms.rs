//! Alarms on a real daemon: raised, acknowledged and cleared; delivered to a web server, a mail server and a program of the
//! test; and channels that hang, refuse, or are not safe.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use crate::daemon::{Daemon, Datastore};
use crate::programs::tool;
use crate::space::until;
use crate::tools::run_script;

const SECRET: &str = "a secret of the test";

/// Starts a daemon that looks every second, with the channels in a folder of the test.
fn start<'a>(datastore: &'a Datastore, channels: &Path) -> Daemon<'a> {
    let channels = channels.to_str().unwrap().to_owned();
    datastore.start_as(&["--alarms-every", "1s", "--alarms-dir", &channels])
}

fn folder(datastore: &Datastore) -> PathBuf {
    let channels = datastore.beside("channels");
    fs::create_dir(&channels).unwrap();
    channels
}

fn write(channels: &Path, name: &str, text: &str) {
    let path = channels.join(format!("{name}.toml"));
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Serves connections on a port of this machine; each returns what it received, which is sent on.
fn serve<T: Send + 'static>(
    work: impl Fn(&mut BufReader<TcpStream>) -> Option<T> + Send + 'static,
) -> (u16, Receiver<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Some(got) = work(&mut BufReader::new(stream))
                && sender.send(got).is_err()
            {
                return;
            }
        }
    });
    (port, receiver)
}

/// Reads a request, and answers it: its headers in small letters, and its body.
fn take_request(stream: &mut BufReader<TcpStream>) -> Option<(Vec<String>, Vec<u8>)> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        match line.trim_end() {
            "" => break,
            line => headers.push(line.to_lowercase()),
        }
    }
    let length = headers.iter().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    stream.get_mut().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok()?;
    Some((headers, body))
}

/// Speaks SMTP as a server, and returns the mail. With `refuses` it takes none.
fn take_mail(stream: &mut BufReader<TcpStream>, refuses: bool) -> Option<String> {
    let mut say = {
        let mut out = stream.get_ref().try_clone().ok()?;
        move |line: &str| out.write_all(format!("{line}\r\n").as_bytes()).ok()
    };
    say("220 test")?;
    let mut mail = String::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|&read| read > 0)?;
        let verb = line.split([' ', '\r']).next().unwrap_or_default().to_uppercase();
        match verb.as_str() {
            "RCPT" if refuses => say("550 no such user here")?,
            "DATA" => {
                say("354 go on")?;
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).ok().filter(|&read| read > 0)?;
                    if line == ".\r\n" {
                        break;
                    }
                    mail.push_str(&line);
                }
                say("250 taken")?;
                return Some(mail);
            }
            _ => say("250 test")?,
        };
    }
}

fn alarms(datastore: &Datastore) -> Vec<Value> {
    datastore.json("alarm list").as_array().unwrap().clone()
}

/// Writes so much after a snapshot that its space is an alarm.
fn fill(datastore: &Datastore) {
    datastore.json("vm create web --disk 16M");
    run_script(&datastore.uri("web/disk0"), &["write -P 1 0 8M".to_owned()]);
    datastore.json("snapshot take web a");
    run_script(&datastore.uri("web/disk0"), &["write -P 2 0 8M".to_owned()]);
    datastore.json("alarm set snapshot_space 20 --vm w*");
}

#[test]
fn an_alarm_is_raised_delivered_acknowledged_and_cleared() {
    let datastore = Datastore::new();
    let channels = folder(&datastore);
    let (web, requests) = serve(take_request);
    let (smtp, mails) = serve(|stream| take_mail(stream, false));
    write(
        &channels,
        "hook",
        &format!("kind = 'webhook'\nurl = 'http://127.0.0.1:{web}/alarms?x=1'\nsecret = '{SECRET}'\n"),
    );
    write(
        &channels,
        "mail",
        &format!(
            "kind = 'email'\nserver = '127.0.0.1'\nport = {smtp}\ntls = 'none'\nfrom = 'unstun@example.org'\nto = ['ops@example.org']\n"
        ),
    );
    let out = datastore.beside("out");
    write(
        &channels,
        "program",
        &format!("kind = 'command'\ncommand = ['/usr/bin/tee', '{}']\n", out.display()),
    );
    write(
        &channels,
        "critical",
        "kind = 'webhook'\nurl = 'http://127.0.0.1:1/'\nmin_severity = 'critical'\n",
    );
    let daemon = start(&datastore, &channels);
    fill(&datastore);
    let raised = until("the alarm", || alarms(&datastore).pop());
    assert_eq!(
        (raised["id"].as_str(), raised["severity"].as_str()),
        (Some("snapshot_space:web"), Some("warning"))
    );
    assert!(
        raised["message"].as_str().unwrap().contains("8 MiB, 50 % of its disks (limit 20 %)"),
        "{raised}"
    );

    let (headers, body) = requests.recv().unwrap();
    let message: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(message["alarms"][0]["id"], "snapshot_space:web");
    let header = |name: &str| {
        headers.iter().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap().to_owned()
    };
    let signed = datastore.beside("signed");
    fs::write(&signed, [format!("{}.", header("x-unstun-timestamp")).as_bytes(), &body].concat()).unwrap();
    let digest = tool("openssl", &["dgst", "-sha256", "-hmac", SECRET, "-r", signed.to_str().unwrap()]);
    let digest = digest.split(' ').next().unwrap();
    assert_eq!(header("x-unstun-signature"), format!("sha256={digest}"));
    let mail = mails.recv().unwrap();
    assert!(mail.contains("warning snapshot_space:web") && mail.contains("To: ops@example.org"), "{mail}");
    let told = until("the program's input", || fs::read(&out).ok().filter(|text| !text.is_empty()));
    assert_eq!(serde_json::from_slice::<Value>(&told).unwrap()["alarms"][0]["rule"], "snapshot_space");

    datastore.json("alarm ack snapshot_space:web --note seen");
    daemon.kill();
    let daemon = start(&datastore, &channels);
    let kept = until("the alarm of before", || alarms(&datastore).pop());
    assert_eq!((kept["acknowledged"]["note"].as_str(), &kept["raised"]), (Some("seen"), &raised["raised"]));
    datastore.json("snapshot commit web a --yes");
    until("its end", || alarms(&datastore).is_empty().then_some(()));
    let ended = datastore.json("alarm list --all");
    assert!(ended[0]["cleared"].is_string(), "{ended}");
    let (_, body) = requests.recv().unwrap();
    assert!(serde_json::from_slice::<Value>(&body).unwrap()["alarms"][0]["cleared"].is_string());
    let delivered = datastore.json("alarm channels");
    let of =
        |name: &str| delivered.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone();
    assert_eq!(of("critical")["failed"], 0, "it takes critical alarms only");
    daemon.stop();
}

#[test]
fn a_mute_holds_deliveries_back_and_channels_that_fail_hold_up_nothing() {
    let datastore = Datastore::new();
    let channels = folder(&datastore);
    // It accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    write(&channels, "hangs", &format!("kind = 'webhook'\nurl = 'http://127.0.0.1:{port}/'\n"));
    let (smtp, _mails) = serve(|stream| take_mail(stream, true));
    write(
        &channels,
        "refuses",
        &format!(
            "kind = 'email'\nserver = '127.0.0.1'\nport = {smtp}\ntls = 'none'\nfrom = 'a@example.org'\nto = ['b@example.org']\n"
        ),
    );
    write(&channels, "unsafe", "kind = 'command'\ncommand = ['/bin/true']\n");
    fs::set_permissions(channels.join("unsafe.toml"), fs::Permissions::from_mode(0o666)).unwrap();
    write(&channels, "fails", "kind = 'command'\ncommand = ['/bin/sh', '-c', 'echo no disk >&2; exit 3']\n");
    let (web, requests) = serve(take_request);
    write(&channels, "works", &format!("kind = 'webhook'\nurl = 'http://127.0.0.1:{web}/'\n"));
    let daemon = start(&datastore, &channels);
    datastore.json("alarm mute snapshot_space --vm w* --for 1h");
    fill(&datastore);
    until("the alarm", || alarms(&datastore).pop());
    datastore.json("alarm test works");
    let (_, first) = requests.recv().unwrap();
    let first: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(first["test"], true, "the alarm is muted: {first}");
    for (line, code, expected) in [
        ("alarm test refuses", 1, "550"),
        ("alarm test unsafe", 2, "mode 666: others may write it"),
        ("alarm test fails", 1, "exit status: 3: no disk"),
        ("alarm test absent", 4, "there is no file absent.toml"),
        ("alarm ack absent:web", 4, "no alarm \"absent:web\" lasts"),
        ("alarm mute nothing --for 1h", 2, "it is no rule"),
        ("alarm set datastore_full 7", 2, "has no number"),
        ("alarm set datastore_fills 3 --vm web", 2, "is not about VMs"),
        ("alarm set snapshot_old 0", 2, "expected 1 to"),
        ("alarm unmute 7", 4, "no mute 7"),
    ] {
        let (found, said) = datastore.fails(line);
        assert!(found == code && said.contains(expected), "{line}: {found}: {said}");
    }
    datastore.json("alarm unmute 1");
    datastore.json("alarm mutes");
    // The alarm ends, and another one is delivered while the silent server has not answered.
    datastore.json("snapshot commit web a --yes");
    let (_, body) = requests.recv().unwrap();
    assert!(serde_json::from_slice::<Value>(&body).unwrap()["alarms"][0]["cleared"].is_string());
    daemon.stop();
}
