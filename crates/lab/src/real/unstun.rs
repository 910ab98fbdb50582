//! Our own daemon, measured through the interfaces that every user has: REST for the operations, NBD for the load.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use blk::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use super::nbd;
use super::rest::Rest;
use super::server::Server;
use super::verbs::{DatedStun, Frozen, Verbs, Watch};
use crate::run::Counters;
use crate::subject::{CommitEnd, LayerSeen};

const VM: &str = "lab";
/// Interval of the checks of a commit, and of the list of connected clients.
const LOOK: Duration = Duration::from_millis(20);
/// Checks of a commit for each read of the files' counters: once a second.
const HOST_LOOKS: u64 = 50;
/// Limit for readers that have disconnected: ten seconds of checks.
const READERS_LOOKS: u32 = 500;

pub struct Daemon {
    server: Server,
    rest: Rest,
    /// Folder of the sockets.
    folder: PathBuf,
    disks: usize,
    /// The events up to this one have been read.
    told: u64,
}

impl Daemon {
    /// Starts `program`, the binary under test, and creates a VM with new disks.
    pub fn start(program: &Path, folder: &Path, store: &str, disk_bytes: &[u64]) -> Result<Daemon> {
        let datastore = folder.join("datastore");
        std::fs::create_dir_all(&datastore)
            .map_err(|e| blk::Errno::from(e).at(datastore.display().to_string(), "making the datastore"))?;
        let rest = Rest { socket: datastore.join(".unstun/api.sock") };
        let mut command = Command::new(program);
        command.arg("--datastore").arg(&datastore).args(["up", "--nbd"]);
        command.arg(format!("unix:{}", socket(folder).display()));
        let server = Server::start(&mut command, folder, || rest.get("/status").is_ok())?;
        let disks: Vec<_> = disk_bytes.iter().map(|bytes| json!({ "size_bytes": bytes })).collect();
        rest.post("/vms", &json!({ "name": VM, "disks": disks, "store": store }))?;
        let (folder, disks) = (folder.to_owned(), disk_bytes.len());
        Ok(Daemon { server, rest, folder, disks, told: 0 })
    }

    pub fn uri(folder: &Path, disk: usize) -> String {
        format!("nbd+unix:///{VM}/disk{disk}?socket={}", socket(folder).display())
    }

    /// Waits until the snapshot has no readers: the daemon notices a dropped connection a moment later. If a reader
    /// stays longer, the daemon's refusal names it.
    fn wait_for_readers(&self, name: &str, watch: &Watch) -> Result<()> {
        for _ in 0..READERS_LOOKS {
            watch.go_on("commit")?;
            let vm = self.rest.get(&format!("/vms/{VM}"))?;
            let mut clients = vm["clients"].as_array().into_iter().flatten();
            if !clients.any(|client| client["snapshot"] == name) {
                break;
            }
            std::thread::park_timeout(LOOK);
        }
        Ok(())
    }

    fn wait_for(&self, job: u64, watch: &Watch) -> Result<CommitEnd> {
        let mut looks = 0u64;
        loop {
            watch.go_on("commit")?;
            if looks.is_multiple_of(HOST_LOOKS) {
                self.look_at_host(watch);
            }
            looks += 1;
            let job = self.rest.get(&format!("/jobs/{job}"))?;
            let mut progress = watch.progress.lock().expect("no panic inside");
            progress.done_bytes = job["bytes_done"].as_u64().unwrap_or(0);
            progress.total_bytes = job["bytes_total"].as_u64();
            drop(progress);
            match job["state"].as_str().unwrap_or("") {
                "done" => return Ok(CommitEnd::Done),
                "failed" | "cancelled" => {
                    let cause =
                        job["error"]["message"].as_str().unwrap_or("the job was cancelled").to_string();
                    return Err(Error::new(ErrorKind::Io, "commit", cause));
                }
                _ => std::thread::park_timeout(LOOK),
            }
        }
    }

    /// Reads the files' counters. A failed read leaves the previous values.
    fn look_at_host(&self, watch: &Watch) {
        if let Ok(vm) = self.rest.get(&format!("/vms/{VM}")) {
            *watch.host.lock().expect("no panic inside") = (Some(counters(&vm)), layers(&vm));
        }
    }

    fn look_at_stuns(&mut self, watch: &Watch) -> Result<()> {
        let events = self.rest.get(&format!("/vms/{VM}/events?after={}", self.told))?;
        for event in events.as_array().into_iter().flatten() {
            self.told = event["id"].as_u64().unwrap_or(self.told);
            let Some(stun_us) = event["stun_us"].as_u64().filter(|&us| us > 0) else { continue };
            let time = event["time"].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
            let Some(time) = time else { continue };
            let cause = event["operation"].as_str().unwrap_or("").to_string();
            let stun = DatedStun { end_unix_us: time.as_microsecond(), stun_us, cause };
            watch.stuns.lock().expect("no panic inside").push(stun);
        }
        Ok(())
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("nbd.sock")
}

/// Sums the counters of the disks. Native disks share a file, and each of them shows all of its I/O.
fn counters(vm: &Value) -> Counters {
    let disks = vm["disks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let apart = if vm["store"] == "native" { 1 } else { disks.len() };
    let mut sum = Counters::default();
    disks.iter().take(apart).for_each(|disk| sum += counted(&disk["io"], "device_"));
    sum
}

fn layers(vm: &Value) -> Vec<LayerSeen> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of_disk = |disk: Value| {
        (0..).zip(list(&disk["layers"])).filter(|(_, layer)| !layer["io"].is_null()).map(
            move |(height, layer)| LayerSeen {
                name: format!("disk{}/{}", disk["number"], layer["descriptor"]),
                height,
                host: counted(&layer["io"], ""),
            },
        )
    };
    list(&vm["disks"]).into_iter().flat_map(of_disk).collect()
}

/// Reads the counters of a `DiskIo` or a `LayerIo`.
fn counted(io: &Value, prefix: &str) -> Counters {
    let count = |field: &str| io[format!("{prefix}{field}")].as_u64().unwrap_or(0);
    Counters {
        reads: count("reads"),
        writes: count("writes"),
        flushes: count("flushes"),
        read_bytes: count("read_bytes"),
        written_bytes: count("written_bytes"),
        table_reads: count("table_reads"),
        table_writes: count("table_writes"),
        ..Counters::default()
    }
}

impl Verbs for Daemon {
    fn take(&mut self, name: &str, _: &Watch) -> Result<()> {
        self.rest.post(&format!("/vms/{VM}/snapshots"), &json!({ "name": name })).map(drop)
    }

    fn commit(&mut self, name: &str, watch: &Watch) -> Result<CommitEnd> {
        self.wait_for_readers(name, watch)?;
        let job = self.rest.post(&format!("/vms/{VM}/commit"), &json!({ "snapshot": name }))?;
        let number = job["id"].as_u64().unwrap_or(0);
        let ended = self.wait_for(number, watch);
        self.look(watch);
        ended
    }

    fn frozen(&mut self, name: &str) -> Result<Vec<Frozen>> {
        let socket = socket(&self.folder);
        let uri = |disk| format!("nbd+unix:///{VM}/disk{disk}@{name}?socket={}", socket.display());
        (0..self.disks).map(|disk| Ok(Frozen::Export(nbd::dial(&uri(disk))?))).collect()
    }

    fn look(&mut self, watch: &Watch) {
        self.look_at_host(watch);
        // After an error the next look reads the same events again.
        let _ = self.look_at_stuns(watch);
    }

    fn close(&mut self) -> Result<()> {
        self.server.stop()
    }
}
