//! Clients of other projects against the server: libnbd's (nbdinfo, nbdcopy) and QEMU's (qemu-io, qemu-img).

use std::path::Path;
use std::process::Command;

use crate::support::{CLUSTER, MIB, Server};

fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let result = Command::new(program).args(arguments).output();
    let output = result.unwrap_or_else(|e| panic!("{program} is needed for this test (apt package): {e}"));
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Runs a client that has to succeed, and returns its output.
fn client(program: &str, arguments: &[&str]) -> String {
    let (ok, text) = run(program, arguments);
    assert!(ok, "{program} {arguments:?} failed:\n{text}");
    text
}

fn qemu_io(uri: &str, commands: &[&str]) -> String {
    let mut arguments = vec!["-f", "raw", uri];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    client("qemu-io", &arguments)
}

/// Writes bytes that do not repeat within a file of this size.
fn write_pattern(path: &Path, bytes: u64, hole: std::ops::Range<u64>) {
    let word = |i: u64| if hole.contains(&(i * 8)) { [0; 8] } else { (i * 0x9e37_79b9 + 1).to_le_bytes() };
    let content: Vec<u8> = (0..bytes / 8).flat_map(word).collect();
    std::fs::write(path, content).unwrap();
}

#[test]
fn nbdinfo_lists_the_servers_features() {
    let server = Server::with_exports(&[("vm/disk0", 64 * MIB, false), ("vm/disk0@old", MIB, true)]);
    let text = client("nbdinfo", &[&server.uri("vm/disk0")]);
    for line in [
        "export-size: 67108864 (64M)",
        "description: memory vm/disk0",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 512",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
        "base:allocation",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    let old = client("nbdinfo", &[&server.uri("vm/disk0@old")]);
    assert!(old.contains("is_read_only: true") && old.contains("can_trim: false"), "{old}");
    let list = client("nbdinfo", &["--list", &server.uri("")]);
    assert!(list.contains("vm/disk0@old") && list.contains("export-size: 1048576"), "{list}");
}

#[test]
fn qemu_nbd_lists_exports_with_their_contexts() {
    let server = Server::with_exports(&[("vm/disk0", MIB, false), ("vm/disk0@old", MIB, true)]);
    let text = client("qemu-nbd", &["--list", "--socket", server.socket().to_str().unwrap()]);
    for line in ["exports available: 2", "export: 'vm/disk0@old'", "min block: 512", "base:allocation"] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn the_empty_name_is_the_only_export() {
    let server = Server::start(MIB);
    assert!(client("nbdinfo", &["--size", &server.uri("")]).contains("1048576"));
    let two = Server::with_exports(&[("a", MIB, false), ("b", MIB, false)]);
    let (ok, text) = run("nbdinfo", &["--size", &two.uri("")]);
    assert!(!ok && text.contains("no export named ''"), "{text}");
    let (ok, text) = run("nbdinfo", &["--size", &two.uri("c")]);
    assert!(!ok && text.contains("no export named 'c'"), "{text}");
}

#[test]
fn nbdcopy_reads_and_writes_over_several_connections() {
    let server = Server::start(64 * MIB);
    let (source, back) = (server.folder().join("source"), server.folder().join("back"));
    write_pattern(&source, 64 * MIB, 8 * MIB..24 * MIB);
    client("nbdcopy", &["--connections=4", "--flush", source.to_str().unwrap(), &server.uri("disk")]);
    client("nbdcopy", &["--connections=4", &server.uri("disk"), back.to_str().unwrap()]);
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&back).unwrap(), "what came back differs");
    assert!(server.with(|catalogue, _| catalogue.disk("disk").flushes.get()) > 0);
}

#[test]
fn qemu_img_converts_maps_and_compares() {
    let server = Server::start(32 * MIB);
    let source = server.folder().join("source.raw");
    write_pattern(&source, 32 * MIB, 4 * MIB..12 * MIB);
    let (source, uri) = (source.to_str().unwrap(), server.uri("disk"));
    client("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri]);
    client("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
    let map = client("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(
        map.contains(
            r#""start": 4194304, "length": 8388608, "depth": 0, "present": true, "zero": true, "data": false"#
        ),
        "{map}"
    );
    let qcow2 = server.folder().join("out.qcow2");
    client("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, qcow2.to_str().unwrap()]);
    client("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", qcow2.to_str().unwrap(), &uri]);
    let info = client("nbdinfo", &["--map", &uri]);
    assert!(info.contains("hole,zero"), "{info}");
}

#[test]
fn qemu_io_patterns_hold_through_every_command() {
    let server = Server::start(64 * MIB);
    let text = qemu_io(
        &server.uri("disk"),
        &[
            "write -P 0x11 0 1M",
            "write -f -P 0x22 4k 512",
            "aio_write -P 0x33 2M 64k",
            "aio_write -P 0x34 3M 4k",
            "aio_flush",
            "read -P 0x11 0 4k",
            "read -P 0x22 4k 512",
            "read -P 0x33 2M 64k",
            "read -P 0x34 3M 4k",
            "write -z 64k 64k",
            "read -P 0 64k 64k",
            "write -z -u 128k 64k",
            "read -P 0 128k 64k",
            "discard 0 1M",
            "read -P 0 0 1M",
            "write -P 0x55 32M 32M",
            "read -P 0x55 32M 32M",
            "flush",
        ],
    );
    assert!(!text.contains("failed"), "{text}");
    let allocated = server.with(|catalogue, _| catalogue.disk("disk").flushes.get());
    assert!(allocated >= 2, "FUA and flush reach the volume");
}

#[test]
fn errors_reach_the_client_with_their_errno() {
    let server = Server::with_exports(&[("disk", MIB, false), ("old", MIB, true)]);
    server.with(|catalogue, _| catalogue.disk("disk").full.set(true));
    let (_, text) = run("qemu-io", &["-f", "raw", "-c", "write 0 4k", &server.uri("disk")]);
    assert!(text.contains("No space left on device"), "{text}");
    let (ok, text) = run("qemu-io", &["-f", "raw", "-c", "write 0 4k", &server.uri("old")]);
    assert!(!ok && text.contains("Permission denied"), "QEMU will not open it for writing: {text}");
}

#[test]
fn trimmed_clusters_are_holes_to_the_next_client() {
    let server = Server::start(MIB);
    let uri = server.uri("disk");
    qemu_io(&uri, &["write -P 1 0 1M", "discard 0 512k"]);
    let map = client("nbdinfo", &["--map", "--json", &uri]);
    let first = r#""offset": 0, "length": 524288, "type": 3"#;
    assert!(map.contains(first), "{CLUSTER}-byte clusters:\n{map}");
}

#[test]
fn tcp_serves_the_same_exports_as_a_unix_socket() {
    let server = Server::start(8 * MIB);
    qemu_io(&server.tcp_uri("disk"), &["write -P 0x77 1M 1M", "flush"]);
    qemu_io(&server.uri("disk"), &["read -P 0x77 1M 1M"]);
    let back = server.folder().join("back");
    client("nbdcopy", &[&server.tcp_uri("disk"), back.to_str().unwrap()]);
    client(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", back.to_str().unwrap(), &server.tcp_uri("disk")],
    );
}
