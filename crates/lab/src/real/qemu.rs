//! QEMU's own snapshots: qemu-storage-daemon over a raw file, an external qcow2 snapshot, and its active commit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use blk::{Error, Result};
use serde_json::json;

use super::operations::{OperationState, Operations, SnapshotDisk};
use super::program;
use super::qmp::Qmp;
use super::server::Server;
use super::storage_daemon::{self, socket};
use crate::subject::CommitEnd;

const CREATE_LIMIT: Duration = Duration::from_secs(60);
/// Interval of the checks of a commit's state.
const LOOK: Duration = Duration::from_millis(50);
/// I/O as a careful administrator sets it up: past the page cache, through io_uring.
const ACCESS: &str = "aio=io_uring,cache.direct=on";
/// Options of an overlay: QEMU's default size of a cluster, or subclusters of a 32nd of a cluster.
const CLUSTERS: &str = "cluster_size=64k";
const SUBCLUSTERS: &str = "cluster_size=128k,extended_l2=on";

pub(super) struct Qemu {
    folder: PathBuf,
    server: Server,
    qmp: Qmp,
    overlay_options: &'static str,
    /// The node of the export: the raw file, or the topmost overlay.
    top: String,
}

impl Qemu {
    /// Serves `folder/disk.raw`, which exists, under the export name `disk`.
    pub(super) fn start(folder: &Path, extended_l2: bool) -> Result<Qemu> {
        let base = folder.join("disk.raw");
        let file = format!("driver=file,node-name=file,filename={},{ACCESS}", base.display());
        let blockdevs = [file, "driver=raw,node-name=base,file=file".into()];
        let (server, qmp) = storage_daemon::start(&blockdevs, "base", folder)?;
        let overlay_options = if extended_l2 { SUBCLUSTERS } else { CLUSTERS };
        Ok(Qemu { folder: folder.to_owned(), server, qmp, overlay_options, top: "base".into() })
    }

    pub(super) fn uri(folder: &Path) -> String {
        format!("nbd+unix:///disk?socket={}", socket(folder).display())
    }

    fn overlay(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.qcow2"))
    }

    fn not_the_latest(&self, name: &str) -> Error {
        let cause =
            format!("{name} is not the latest snapshot, {} is; QEMU commits and reads that one", self.top);
        Error::unsupported("qemu", cause)
    }

    /// Returns the state of the commit: (bytes moved, total bytes, whether the rest can be merged in a pause). None
    /// once it is over.
    fn commit_state(&mut self) -> Result<Option<(u64, u64, bool)>> {
        let jobs = self.qmp.call("query-block-jobs", json!({}))?;
        let Some(job) = jobs.as_array().and_then(|jobs| jobs.iter().find(|job| job["device"] == "commit"))
        else {
            return Ok(None);
        };
        let number = |field: &str| job[field].as_u64().unwrap_or(0);
        Ok(Some((number("offset"), number("len"), job["ready"] == true)))
    }
}

/// QEMU counts the I/O of the exported node, not of the files under it.
impl Operations for Qemu {
    fn take(&mut self, name: &str, _: &OperationState) -> Result<()> {
        let overlay = self.overlay(name);
        let base = self.folder.join("disk.raw");
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q", "-f", "qcow2", "-o", self.overlay_options, "-F", "raw", "-b"]);
        create.arg(&base).arg(&overlay);
        program::run(&mut create, CREATE_LIMIT)?;
        let node = format!("{name}-node");
        let file =
            json!({ "driver": "file", "filename": overlay, "aio": "io_uring", "cache": { "direct": true } });
        let wanted = json!({ "driver": "qcow2", "node-name": node, "file": file, "backing": null });
        self.qmp.call("blockdev-add", wanted)?;
        self.qmp.call("blockdev-snapshot", json!({ "node": self.top, "overlay": node }))?;
        self.top = node;
        Ok(())
    }

    /// Commits the topmost overlay actively. The job is `ready` when the rest could be merged in a pause.
    fn commit(&mut self, name: &str, state: &OperationState) -> Result<CommitEnd> {
        let node = format!("{name}-node");
        if node != self.top {
            return Err(self.not_the_latest(name));
        }
        self.qmp.call("block-commit", json!({ "job-id": "commit", "device": node }))?;
        let mut completes = false;
        while let Some((done, total, ready)) = self.commit_state()? {
            state.check_cancelled("block-commit")?;
            let mut progress = state.progress.lock().expect("no panic inside");
            (progress.done_bytes, progress.total_bytes) = (done, Some(total));
            drop(progress);
            if ready && !completes {
                self.qmp.call("block-job-complete", json!({ "device": "commit" }))?;
                completes = true;
            }
            std::thread::park_timeout(LOOK);
        }
        self.top = "base".into();
        self.qmp.call("blockdev-del", json!({ "node-name": node }))?;
        let overlay = self.overlay(name);
        std::fs::remove_file(&overlay)
            .map_err(|e| blk::Errno::from(e).at(overlay.display().to_string(), "removing the overlay"))?;
        Ok(CommitEnd::Done)
    }

    /// Returns the backing file, which is not written until the commit.
    fn frozen(&mut self, name: &str) -> Result<Vec<SnapshotDisk>> {
        match self.top == format!("{name}-node") {
            true => Ok(vec![SnapshotDisk::File(self.folder.join("disk.raw"))]),
            false => Err(self.not_the_latest(name)),
        }
    }

    fn close(&mut self) -> Result<()> {
        self.server.stop()
    }
}
