//! The output of `attach`, passed to the programs for which it is meant.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::daemon::Datastore;
use crate::tools::run_script;

/// Runs QEMU with a machine that is never started: its disks are opened nevertheless. Returns the standard output of
/// QEMU's monitor.
fn qemu(arguments: &[&str]) -> String {
    let mut child = Command::new("qemu-system-x86_64")
        .args(["-machine", "q35,accel=tcg", "-display", "none", "-S", "-nodefaults", "-monitor", "stdio"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("qemu-system-x86_64: {e}; `make setup` installs it"));
    child.stdin.take().unwrap().write_all(b"info block\nquit\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn qemu_takes_the_snippets_for_it_and_for_proxmox() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M,8M");
    run_script(&datastore.uri("web/disk0"), &["write -P 1 0 1M".to_owned()]);
    let attach = datastore.json("attach web");
    let snippet = attach["snippet"].as_str().unwrap();
    let lines =
        snippet.lines().filter(|line| !line.starts_with('#')).map(|line| line.trim_end_matches(" \\"));
    let arguments: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let said = qemu(&arguments);
    assert!(said.contains("unstun-disk0") && said.contains("unstun-disk1"), "{said}");

    let proxmox = datastore.json("attach web --as proxmox");
    let command = proxmox["snippet"].as_str().unwrap();
    let quoted = command.split('\'').nth(1).unwrap();
    assert_eq!(quoted.split_whitespace().collect::<Vec<_>>(), arguments);

    let socket = &attach["socket"];
    assert_eq!(
        (socket["path"].as_str(), socket["mode"].as_str()),
        (datastore.nbd_socket().to_str(), Some("660"))
    );
    daemon.stop();
}

#[test]
fn qemu_takes_the_vhost_user_snippet() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M,8M");
    let attach = datastore.json("attach web --via vhost-user");
    let snippet = attach["snippet"].as_str().unwrap().replace("size=1G", "size=128M");
    let lines =
        snippet.lines().filter(|line| !line.starts_with('#')).map(|line| line.trim_end_matches(" \\"));
    let arguments: Vec<&str> =
        ["-m", "128M"].into_iter().chain(lines.flat_map(str::split_whitespace)).collect();
    qemu(&arguments);
    assert!(attach["socket"]["path"].as_str().unwrap().contains("/vhost/web.disk0.g"), "{attach}");
    daemon.stop();
}
