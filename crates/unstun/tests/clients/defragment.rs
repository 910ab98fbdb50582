//! Defragmentation of a native disk that a client uses: the content stays, in the running disk and in a snapshot.

use std::path::Path;

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::nbd::Nbd;
use crate::programs::tool;
use crate::tools::{assert_same, run_script};

const BLOCK: u64 = 4096;
const DISK_BLOCKS: u64 = 4096;
/// The blocks behind these are written during the defragmentation.
const STILL_BLOCKS: u64 = 3072;

/// Writes every second block, in an order that is not that of the disk.
fn scatter(byte: u64) -> Vec<String> {
    let blocks = (0..DISK_BLOCKS / 2).map(|n| n * 1001 % (DISK_BLOCKS / 2) * 2);
    let writes = blocks.map(|block| format!("write -q -P {} {} 4096", byte + block % 100, block * BLOCK));
    writes.chain(["flush".to_owned()]).collect()
}

fn average_run(datastore: &Datastore) -> u64 {
    datastore.json("space web")["disks"][0]["average_run_bytes"].as_u64().unwrap()
}

fn copy(datastore: &Datastore, export: &str, name: &str) -> String {
    let file = datastore.beside(name).to_str().unwrap().to_owned();
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &datastore.uri(export), &file]);
    file
}

fn cut(file: &str, bytes: u64) {
    std::fs::File::options().write(true).open(file).unwrap().set_len(bytes).unwrap();
}

fn is_same(datastore: &Datastore, export: &str, file: &str) {
    assert_same(Path::new(file), "raw", &datastore.uri(export));
}

/// Checks a job, and returns the message of its event.
fn ended(datastore: &Datastore, job: &Value) -> String {
    let fields = (&job["operation"], &job["state"], &job["bytes"], &job["bytes_done"]);
    assert_eq!(
        fields,
        (&json!("defragment"), &json!("done"), &json!("scanned"), &json!(DISK_BLOCKS * BLOCK)),
        "{job}"
    );
    let events = datastore.json("events web");
    let last = events.as_array().unwrap().iter().rfind(|event| event["operation"] == "defragment");
    last.unwrap()["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_disk_in_use_is_laid_out_in_order_and_shows_the_same() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    run_script(&datastore.uri("web/disk0"), &["write -q -P 1 0 16M".to_owned(), "flush".to_owned()]);
    datastore.json("snapshot take web a");
    run_script(&datastore.uri("web/disk0"), &scatter(50));
    datastore.json("snapshot take web b");
    let (running, sealed) =
        (copy(&datastore, "web/disk0", "running"), copy(&datastore, "web/disk0@a", "sealed"));
    let fragmented = average_run(&datastore);
    assert!(fragmented <= 2 * BLOCK, "{fragmented}");
    let message = ended(&datastore, &datastore.json("vm defragment web"));
    assert!(message.starts_with("0 MiB moved"), "snapshots show all blocks: {message}");

    datastore.json("snapshot commit web b --yes");
    let mut client = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    let uri = datastore.uri("web/disk0");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..3 * (DISK_BLOCKS - STILL_BLOCKS) {
                let block = STILL_BLOCKS + n * 7 % (DISK_BLOCKS - STILL_BLOCKS);
                client
                    .write(block * BLOCK, &[(n / (DISK_BLOCKS - STILL_BLOCKS)) as u8 + 7; BLOCK as usize])
                    .unwrap();
            }
        });
        let message = ended(&datastore, &datastore.json("vm defragment web/disk0 --copy-shared"));
        assert!(!message.starts_with("0 MiB moved"), "{message}");
    });
    drop(client);
    let still = STILL_BLOCKS * BLOCK;
    run_script(&uri, &[format!("read -q -P 9 {still} {}", DISK_BLOCKS * BLOCK - still), "flush".to_owned()]);
    datastore.json("vm defragment web --copy-shared");
    let ordered = average_run(&datastore);
    assert!(ordered >= 1 << 20, "{ordered}");
    // The rest was overwritten.
    cut(&running, still);
    let head = copy(&datastore, "web/disk0", "after");
    cut(&head, still);
    assert_same(Path::new(&running), "raw", &head);
    is_same(&datastore, "web/disk0@a", &sealed);
    daemon.stop();

    let _daemon = datastore.start();
    let again = copy(&datastore, "web/disk0", "again");
    cut(&again, still);
    assert_same(Path::new(&running), "raw", &again);
    is_same(&datastore, "web/disk0@a", &sealed);
    assert_eq!(datastore.json("check")["findings"], json!([]));
}

#[test]
fn disks_in_files_are_refused_with_the_reason() {
    let datastore = Datastore::new();
    let _daemon = datastore.start();
    datastore.json("vm create old --disk 1M --store redo");
    let (code, said) = datastore.fails("vm defragment old");
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("its disks are files"), "{said}");
    assert_eq!(datastore.json("space old")["disks"][0]["average_run_bytes"], json!(null));
}
