//! HTTP client of the daemon's API, for the client commands: one connection, one request, one typed answer.
//!
//! Each request opens a connection, so that a command that polls survives a restart of the daemon.

use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::error::{Error, ErrorBody, ErrorKind, Result};
use crate::location::{Datastore, variable};
use crate::name::{DatastoreName, DiskRef, VmName};
use crate::{
    BinEmptied, BinEmpty, BinEntry, BinRestore, BinRestored, Checked, CommitPreview, CommitTarget,
    Datastore as Listed, DatastoreAdd, DatastoreRemovePreview, DatastoreRemoved, Diff, Differences, Discard,
    Disconnect, Disk, DiskCreate, DiskGrow, DiskGrown, DiskRemoved, DiskSetMode, Event, Job, JobLimit, Loss,
    Reset, Revert, SharedWriters, SnapshotDir, SnapshotTake, SnapshotTaken, SnapshotTree, Status, Vm,
    VmClone, VmClosed, VmCreate, VmImport, VmMove, VmOpen, VmRemove, VmRemovePreview, VmRemoved, VmSpace,
    VmSummary,
};

/// Maximum size of an answer. Events are the longest answer: at about 200 bytes each, over 300,000 of them fit.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const NO_BODY: Option<&()> = None;

fn disk_path(disk: &DiskRef) -> String {
    format!("/vms/{}/disks/{}", disk.vm, disk.number)
}

#[derive(Debug, Clone)]
pub struct Client {
    datastore: PathBuf,
    socket: PathBuf,
    /// Datastore that the command names, if it names one.
    within: Option<Within>,
}

/// Reference to one of a daemon's datastores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Within {
    Name(DatastoreName),
    /// Absolute path without symbolic links.
    Folder(PathBuf),
}

/// Returns the folder or the name that `text` stands for, or `None` if it is neither.
pub fn within(text: &Path) -> Option<Within> {
    match text.canonicalize() {
        Ok(path) => Some(Within::Folder(path)),
        Err(_) => text.to_str()?.parse().ok().map(Within::Name),
    }
}

/// Returns a single-threaded runtime: a command waits only for sockets, timers and signals.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::failed(format!("tokio runtime: {e}")))
}

impl Client {
    /// Returns a client of the daemon that serves the command's datastore. `named` is the value of --datastore.
    pub fn for_command(named: Option<&Path>) -> Result<Self> {
        if let Some(Within::Name(name)) = named.and_then(within)
            && let Ok(datastore) = Datastore::for_client(variable().as_deref())
        {
            return Ok(Self::of(&datastore.served_by(), Some(Within::Name(name))));
        }
        let datastore = Datastore::for_client(named.map(Path::to_path_buf).or_else(variable).as_deref())?;
        let served_by = datastore.served_by();
        let within = (served_by != datastore).then(|| Within::Folder(datastore.root().to_path_buf()));
        Ok(Self::of(&served_by, within))
    }

    pub fn new(datastore: &Datastore) -> Self {
        Self { datastore: datastore.root().to_owned(), socket: datastore.api_socket(), within: None }
    }

    pub fn of(datastore: &Datastore, within: Option<Within>) -> Self {
        Self { within, ..Self::new(datastore) }
    }

    /// Returns the datastore that the command names. `None` means that it names none; the main one applies where
    /// needed.
    pub async fn within(&self) -> Result<Option<DatastoreName>> {
        match &self.within {
            None => Ok(None),
            Some(within) => self.named(within).await.map(Some),
        }
    }

    /// Returns the datastore's name in the daemon; fails with `NotFound` if the daemon does not serve it.
    pub async fn named(&self, within: &Within) -> Result<DatastoreName> {
        let all = self.datastore_list().await?;
        let found = all.iter().find(|one| match within {
            Within::Name(name) => one.name == *name,
            Within::Folder(path) => one.path == *path,
        });
        found.map(|one| one.name.clone()).ok_or_else(|| {
            let known: Vec<_> =
                all.iter().map(|one| format!("{} ({})", one.name, one.path.display())).collect();
            let wanted = match within {
                Within::Name(name) => name.to_string(),
                Within::Folder(path) => path.display().to_string(),
            };
            let remedy = "`unstun datastore add` serves another";
            Error::not_found(format!("no datastore {wanted}; there is {}; {remedy}", known.join(", ")))
        })
    }

    pub fn datastore(&self) -> &Path {
        &self.datastore
    }

    pub async fn status(&self) -> Result<Status> {
        self.get("/status").await
    }

    pub async fn vm_create(&self, request: &VmCreate) -> Result<Vm> {
        self.call(Method::POST, "/vms", Some(request)).await
    }

    pub async fn vm_list(&self) -> Result<Vec<VmSummary>> {
        self.get("/vms").await
    }

    pub async fn vm_show(&self, vm: &VmName) -> Result<Vm> {
        self.get(&format!("/vms/{vm}")).await
    }

    pub async fn vm_space(&self, vm: &VmName) -> Result<VmSpace> {
        self.get(&format!("/vms/{vm}/space")).await
    }

    pub async fn vm_remove(&self, vm: &VmName, request: &VmRemove) -> Result<VmRemoved> {
        let VmRemove { delete_disks, purge, keep } = request;
        let path = format!("/vms/{vm}?delete_disks={delete_disks}&purge={purge}&keep={keep}");
        self.call(Method::DELETE, &path, NO_BODY).await
    }

    pub async fn vm_remove_preview(&self, vm: &VmName, request: &VmRemove) -> Result<VmRemovePreview> {
        self.call(Method::POST, &format!("/vms/{vm}/remove/preview"), Some(request)).await
    }

    pub async fn bin_list(&self, datastore: Option<&DatastoreName>) -> Result<Vec<BinEntry>> {
        let query = datastore.map_or(String::new(), |name| format!("?datastore={name}"));
        self.get(&format!("/bin{query}")).await
    }

    pub async fn bin_restore(&self, request: &BinRestore) -> Result<BinRestored> {
        self.call(Method::POST, "/bin/restore", Some(request)).await
    }

    pub async fn bin_empty_preview(&self, request: &BinEmpty) -> Result<BinEmptied> {
        self.call(Method::POST, "/bin/empty/preview", Some(request)).await
    }

    pub async fn bin_empty(&self, request: &BinEmpty) -> Result<BinEmptied> {
        self.call(Method::POST, "/bin/empty", Some(request)).await
    }

    pub async fn vm_import(&self, request: &VmImport) -> Result<Vm> {
        self.call(Method::POST, "/import", Some(request)).await
    }

    pub async fn vm_clone(&self, vm: &VmName, request: &VmClone) -> Result<Vm> {
        self.call(Method::POST, &format!("/vms/{vm}/clone"), Some(request)).await
    }

    pub async fn vm_move(&self, vm: &VmName, request: &VmMove) -> Result<Job> {
        self.call(Method::POST, &format!("/vms/{vm}/move"), Some(request)).await
    }

    pub async fn vm_close(&self, vm: &VmName, disconnect: bool) -> Result<VmClosed> {
        self.call(Method::POST, &format!("/vms/{vm}/close"), Some(&Disconnect { disconnect })).await
    }

    pub async fn vm_open(&self, vm: &VmName, request: &VmOpen) -> Result<Vm> {
        self.call(Method::POST, &format!("/vms/{vm}/open"), Some(request)).await
    }

    pub async fn vm_set_shared_writers(&self, vm: &VmName, shared: bool) -> Result<Vm> {
        self.call(Method::PUT, &format!("/vms/{vm}/shared-writers"), Some(&SharedWriters { shared })).await
    }

    pub async fn vm_set_snapshot_dir(&self, vm: &VmName, request: &SnapshotDir) -> Result<Vm> {
        self.call(Method::PUT, &format!("/vms/{vm}/snapshot-dir"), Some(request)).await
    }

    pub async fn reset_preview(&self, vm: &VmName, request: &Reset) -> Result<Loss> {
        self.call(Method::POST, &format!("/vms/{vm}/reset/preview"), Some(request)).await
    }

    pub async fn vm_reset(&self, vm: &VmName, request: &Reset) -> Result<Loss> {
        self.call(Method::POST, &format!("/vms/{vm}/reset"), Some(request)).await
    }

    pub async fn disk_add(&self, vm: &VmName, disk: &DiskCreate) -> Result<Disk> {
        self.call(Method::POST, &format!("/vms/{vm}/disks"), Some(disk)).await
    }

    pub async fn disk_remove(&self, disk: &DiskRef, delete_files: bool) -> Result<DiskRemoved> {
        let path = format!("{}?delete_files={delete_files}", disk_path(disk));
        self.call(Method::DELETE, &path, NO_BODY).await
    }

    pub async fn disk_grow(&self, disk: &DiskRef, size_bytes: u64) -> Result<DiskGrown> {
        let path = format!("{}/size", disk_path(disk));
        self.call(Method::PUT, &path, Some(&DiskGrow { size_bytes })).await
    }

    pub async fn disk_set_mode(&self, disk: &DiskRef, request: &DiskSetMode) -> Result<Disk> {
        self.call(Method::PUT, &format!("{}/mode", disk_path(disk)), Some(request)).await
    }

    pub async fn snapshot_take(&self, vm: &VmName, request: &SnapshotTake) -> Result<SnapshotTaken> {
        self.call(Method::POST, &format!("/vms/{vm}/snapshots"), Some(request)).await
    }

    pub async fn snapshot_tree(&self, vm: &VmName) -> Result<SnapshotTree> {
        self.get(&format!("/vms/{vm}/snapshots")).await
    }

    pub async fn snapshot_diff(&self, vm: &VmName, request: &Diff) -> Result<Differences> {
        self.call(Method::POST, &format!("/vms/{vm}/diff"), Some(request)).await
    }

    pub async fn commit_preview(&self, vm: &VmName, target: &CommitTarget) -> Result<CommitPreview> {
        self.call(Method::POST, &format!("/vms/{vm}/commit/preview"), Some(target)).await
    }

    pub async fn snapshot_commit(&self, vm: &VmName, target: &CommitTarget) -> Result<Job> {
        self.call(Method::POST, &format!("/vms/{vm}/commit"), Some(target)).await
    }

    pub async fn revert_preview(&self, vm: &VmName, request: &Revert) -> Result<Loss> {
        self.call(Method::POST, &format!("/vms/{vm}/revert/preview"), Some(request)).await
    }

    pub async fn snapshot_revert(&self, vm: &VmName, request: &Revert) -> Result<Loss> {
        self.call(Method::POST, &format!("/vms/{vm}/revert"), Some(request)).await
    }

    pub async fn discard_preview(&self, vm: &VmName, request: &Discard) -> Result<Loss> {
        self.call(Method::POST, &format!("/vms/{vm}/discard/preview"), Some(request)).await
    }

    pub async fn snapshot_discard(&self, vm: &VmName, request: &Discard) -> Result<Loss> {
        self.call(Method::POST, &format!("/vms/{vm}/discard"), Some(request)).await
    }

    pub async fn undo_preview(&self, vm: &VmName, request: &Reset) -> Result<Loss> {
        self.call(Method::POST, &format!("/vms/{vm}/undo/preview"), Some(request)).await
    }

    pub async fn snapshot_undo(&self, vm: &VmName, request: &Reset) -> Result<Loss> {
        self.call(Method::POST, &format!("/vms/{vm}/undo"), Some(request)).await
    }

    pub async fn events(&self, vm: &VmName, after: u64) -> Result<Vec<Event>> {
        self.get(&format!("/vms/{vm}/events?after={after}")).await
    }

    pub async fn store_check(&self, datastore: &DatastoreName) -> Result<Checked> {
        self.call(Method::POST, &format!("/check?datastore={datastore}"), NO_BODY).await
    }

    pub async fn store_scrub(&self, datastore: &DatastoreName) -> Result<Job> {
        self.call(Method::POST, &format!("/scrub?datastore={datastore}"), NO_BODY).await
    }

    pub async fn store_scrubbed(&self, datastore: &DatastoreName) -> Result<Checked> {
        self.get(&format!("/scrub?datastore={datastore}")).await
    }

    pub async fn datastore_list(&self) -> Result<Vec<Listed>> {
        self.get("/datastores").await
    }

    pub async fn datastore_add(&self, request: &DatastoreAdd) -> Result<Listed> {
        self.call(Method::POST, "/datastores", Some(request)).await
    }

    pub async fn datastore_remove(&self, name: &DatastoreName) -> Result<DatastoreRemoved> {
        self.call(Method::DELETE, &format!("/datastores/{name}"), NO_BODY).await
    }

    pub async fn datastore_remove_preview(&self, name: &DatastoreName) -> Result<DatastoreRemovePreview> {
        self.call(Method::POST, &format!("/datastores/{name}/remove/preview"), NO_BODY).await
    }

    pub async fn job_list(&self) -> Result<Vec<Job>> {
        self.get("/jobs").await
    }

    pub async fn job_show(&self, id: u64) -> Result<Job> {
        self.get(&format!("/jobs/{id}")).await
    }

    pub async fn job_pause(&self, id: u64) -> Result<Job> {
        self.call(Method::POST, &format!("/jobs/{id}/pause"), NO_BODY).await
    }

    pub async fn job_resume(&self, id: u64) -> Result<Job> {
        self.call(Method::POST, &format!("/jobs/{id}/resume"), NO_BODY).await
    }

    pub async fn job_cancel(&self, id: u64) -> Result<Job> {
        self.call(Method::POST, &format!("/jobs/{id}/cancel"), NO_BODY).await
    }

    pub async fn job_limit(&self, id: u64, limit_bytes_s: Option<u64>) -> Result<Job> {
        self.call(Method::PUT, &format!("/jobs/{id}/limit"), Some(&JobLimit { limit_bytes_s })).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::GET, path, NO_BODY).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        let (status, bytes) = self.exchange(method, path, body).await?;
        if (200..300).contains(&status) {
            return serde_json::from_slice(&bytes)
                .map_err(|e| self.broken(&format!("answer to {path}: {e}")));
        }
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => Err(Error::from(body)),
            Err(_) => Err(self.broken(&format!("HTTP status {status} to {path}"))),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(u16, Bytes)> {
        let body = match body {
            Some(value) => {
                serde_json::to_vec(value).map_err(|e| Error::failed(format!("request {path}: {e}")))?
            }
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header(HOST, "unstun")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| Error::failed(format!("request {path}: {e}")))?;
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.unreachable(&e))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.broken(&e.to_string()))?;
        // The task ends with the connection; the request below reports a failure of the connection.
        tokio::spawn(async move { drop(connection.await) });
        let response = sender.send_request(request).await.map_err(|e| self.broken(&e.to_string()))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|e| self.broken(&e.to_string()))?.to_bytes()))
    }

    fn unreachable(&self, cause: &std::io::Error) -> Error {
        let (datastore, socket) = (self.datastore.display(), self.socket.display());
        let message = match cause.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => format!(
                "no daemon serves datastore {datastore} (no one answers on {socket}): start it with \
                 `unstun up --datastore {datastore}`"
            ),
            _ => format!("daemon of datastore {datastore}: {socket}: {cause}"),
        };
        Error::new(ErrorKind::Unavailable, message)
    }

    fn broken(&self, cause: &str) -> Error {
        let datastore = self.datastore.display();
        Error::new(ErrorKind::Unavailable, format!("daemon of datastore {datastore}: {cause}"))
    }
}
