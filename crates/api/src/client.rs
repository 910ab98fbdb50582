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
use crate::name::{DatastoreName, DiskRef, PolicyName, TokenName, VmName};
use crate::{
    Alarm, AlarmAcknowledge, AlarmChannel, AlarmMute, AlarmMuted, AlarmRuleShown, AlarmThreshold, AuditEntry,
    BinEmptied, BinEmpty, BinEntry, BinRestore, BinRestored, Checked, CommitPreview, CommitTarget,
    ConsoleLink, Datastore as Listed, DatastoreAdd, DatastoreRemovePreview, DatastoreRemoved, Diff,
    Differences, Discard, Disconnect, Disk, DiskCreate, DiskGrow, DiskGrown, DiskRemoved, DiskSetMode, Event,
    Job, JobLimit, Loss, Policy, PolicyApplied, PolicyApply, PolicyPreview, PolicyStatus, Reset, Revert,
    SharedWriters, SnapshotDir, SnapshotTake, SnapshotTaken, SnapshotTree, Status, Token, TokenCreate,
    TokenCreated, Vm, VmClone, VmClosed, VmCreate, VmDefragment, VmImport, VmLabels, VmLimits, VmMove,
    VmOpen, VmRemove, VmRemovePreview, VmRemoved, VmSpace, VmSummary,
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
            let remedy = "`unstun datastore add` adds another";
            Error::not_found(format!(
                "no datastore {wanted}; the daemon serves {}; {remedy}",
                known.join(", ")
            ))
        })
    }

    pub fn datastore(&self) -> &Path {
        &self.datastore
    }

    pub async fn vm_remove(&self, vm: &VmName, request: &VmRemove) -> Result<VmRemoved> {
        let VmRemove { delete_disks, purge, keep } = request;
        let path = format!("/vms/{vm}?delete_disks={delete_disks}&purge={purge}&keep={keep}");
        self.call(Method::DELETE, &path, NO_BODY).await
    }

    pub async fn bin_list(&self, datastore: Option<&DatastoreName>) -> Result<Vec<BinEntry>> {
        let query = datastore.map_or(String::new(), |name| format!("?datastore={name}"));
        self.call(Method::GET, &format!("/bin{query}"), NO_BODY).await
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
                "no daemon serves datastore {datastore} (no answer on {socket}): start it with `unstun up \
                 --datastore {datastore}`"
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

/// Returns the last argument of `Client::call`.
macro_rules! body {
    () => {
        NO_BODY
    };
    ($body:expr) => {
        Some($body)
    };
}

/// Defines a method of the client for each route: `METHOD "PATH" => name(arguments) -> Answer, body;`. The path contains
/// the names of arguments.
macro_rules! routes {
    ($($method:ident $path:literal =>
        $name:ident($($argument:ident: $type:ty),*) -> $answer:ty $(, $body:expr)?;)*) => {
        impl Client {$(
            pub async fn $name(&self, $($argument: $type),*) -> Result<$answer> {
                self.call(Method::$method, &format!($path), body!($($body)?)).await
            }
        )*}
    };
}

routes! {
    GET "/status" => status() -> Status;
    GET "/datastores" => datastore_list() -> Vec<Listed>;
    POST "/datastores" => datastore_add(request: &DatastoreAdd) -> Listed, request;
    DELETE "/datastores/{name}" => datastore_remove(name: &DatastoreName) -> DatastoreRemoved;
    POST "/datastores/{name}/remove/preview" =>
        datastore_remove_preview(name: &DatastoreName) -> DatastoreRemovePreview;
    POST "/check?datastore={datastore}" => store_check(datastore: &DatastoreName) -> Checked;
    POST "/scrub?datastore={datastore}" => store_scrub(datastore: &DatastoreName) -> Job;
    GET "/scrub?datastore={datastore}" => store_scrubbed(datastore: &DatastoreName) -> Checked;
    POST "/bin/restore" => bin_restore(request: &BinRestore) -> BinRestored, request;
    POST "/bin/empty" => bin_empty(request: &BinEmpty) -> BinEmptied, request;
    POST "/bin/empty/preview" => bin_empty_preview(request: &BinEmpty) -> BinEmptied, request;

    POST "/import" => vm_import(request: &VmImport) -> Vm, request;
    GET "/vms" => vm_list() -> Vec<VmSummary>;
    POST "/vms" => vm_create(request: &VmCreate) -> Vm, request;
    GET "/vms/{vm}" => vm_show(vm: &VmName) -> Vm;
    GET "/vms/{vm}/space" => vm_space(vm: &VmName) -> VmSpace;
    POST "/vms/{vm}/remove/preview" =>
        vm_remove_preview(vm: &VmName, request: &VmRemove) -> VmRemovePreview, request;
    POST "/vms/{vm}/clone" => vm_clone(vm: &VmName, request: &VmClone) -> Vm, request;
    POST "/vms/{vm}/defragment" => vm_defragment(vm: &VmName, request: &VmDefragment) -> Job, request;
    POST "/vms/{vm}/move" => vm_move(vm: &VmName, request: &VmMove) -> Job, request;
    POST "/vms/{vm}/close" => vm_close(vm: &VmName, disconnect: bool) -> VmClosed, &Disconnect { disconnect };
    POST "/vms/{vm}/open" => vm_open(vm: &VmName, request: &VmOpen) -> Vm, request;
    PUT "/vms/{vm}/shared-writers" =>
        vm_set_shared_writers(vm: &VmName, shared: bool) -> Vm, &SharedWriters { shared };
    PUT "/vms/{vm}/limits" => vm_set_limits(vm: &VmName, request: &VmLimits) -> Vm, request;
    PUT "/vms/{vm}/labels" => vm_set_labels(vm: &VmName, request: &VmLabels) -> Vm, request;
    PUT "/vms/{vm}/snapshot-dir" =>
        vm_set_snapshot_dir(vm: &VmName, request: &SnapshotDir) -> Vm, request;
    POST "/vms/{vm}/reset" => vm_reset(vm: &VmName, request: &Reset) -> Loss, request;
    POST "/vms/{vm}/reset/preview" => reset_preview(vm: &VmName, request: &Reset) -> Loss, request;
    GET "/vms/{vm}/events?after={after}" => events(vm: &VmName, after: u64) -> Vec<Event>;
    POST "/vms/{vm}/disks" => disk_add(vm: &VmName, disk: &DiskCreate) -> Disk, disk;

    GET "/vms/{vm}/snapshots" => snapshot_tree(vm: &VmName) -> SnapshotTree;
    POST "/vms/{vm}/snapshots" => snapshot_take(vm: &VmName, request: &SnapshotTake) -> SnapshotTaken, request;
    POST "/vms/{vm}/diff" => snapshot_diff(vm: &VmName, request: &Diff) -> Differences, request;
    POST "/vms/{vm}/commit" => snapshot_commit(vm: &VmName, target: &CommitTarget) -> Job, target;
    POST "/vms/{vm}/commit/preview" =>
        commit_preview(vm: &VmName, target: &CommitTarget) -> CommitPreview, target;
    POST "/vms/{vm}/revert" => snapshot_revert(vm: &VmName, request: &Revert) -> Loss, request;
    POST "/vms/{vm}/revert/preview" => revert_preview(vm: &VmName, request: &Revert) -> Loss, request;
    POST "/vms/{vm}/discard" => snapshot_discard(vm: &VmName, request: &Discard) -> Loss, request;
    POST "/vms/{vm}/discard/preview" => discard_preview(vm: &VmName, request: &Discard) -> Loss, request;
    POST "/vms/{vm}/undo" => snapshot_undo(vm: &VmName, request: &Reset) -> Loss, request;
    POST "/vms/{vm}/undo/preview" => undo_preview(vm: &VmName, request: &Reset) -> Loss, request;

    GET "/policies" => policy_list() -> Vec<PolicyStatus>;
    POST "/policies" => policy_create(policy: &Policy) -> PolicyStatus, policy;
    POST "/policies/preview" => policy_preview(policy: &Policy) -> PolicyPreview, policy;
    GET "/policies/{name}" => policy_show(name: &PolicyName) -> PolicyStatus;
    PUT "/policies/{name}" => policy_set(name: &PolicyName, policy: &Policy) -> PolicyStatus, policy;
    DELETE "/policies/{name}" => policy_remove(name: &PolicyName) -> PolicyStatus;
    POST "/policies/{name}/apply" =>
        policy_apply(name: &PolicyName, request: &PolicyApply) -> PolicyApplied, request;

    GET "/alarms?all={all}" => alarm_list(all: bool) -> Vec<Alarm>;
    POST "/alarms/{id}/acknowledge" =>
        alarm_acknowledge(id: &str, request: &AlarmAcknowledge) -> Alarm, request;
    DELETE "/alarms/{id}/acknowledge" => alarm_unacknowledge(id: &str) -> Alarm;
    GET "/alarms/channels" => alarm_channels() -> Vec<AlarmChannel>;
    POST "/alarms/channels/{name}/test" => alarm_test(name: &str) -> AlarmChannel;
    GET "/alarms/mutes" => alarm_mutes() -> Vec<AlarmMuted>;
    POST "/alarms/mutes" => alarm_mute(request: &AlarmMute) -> AlarmMuted, request;
    DELETE "/alarms/mutes/{id}" => alarm_unmute(id: u64) -> AlarmMuted;
    GET "/alarms/rules" => alarm_rules() -> Vec<AlarmRuleShown>;
    PUT "/alarms/rules" => alarm_set_threshold(request: &AlarmThreshold) -> Vec<AlarmRuleShown>, request;
    DELETE "/alarms/rules/{rule}" => alarm_reset_rule(rule: &str) -> Vec<AlarmRuleShown>;

    GET "/tokens" => token_list() -> Vec<Token>;
    POST "/tokens" => token_create(request: &TokenCreate) -> TokenCreated, request;
    DELETE "/tokens/{name}" => token_revoke(name: &TokenName) -> Token;
    POST "/console" => console_link() -> ConsoleLink;
    GET "/audit?last={last}" => audit(last: usize) -> Vec<AuditEntry>;

    GET "/jobs" => job_list() -> Vec<Job>;
    GET "/jobs/{id}" => job_show(id: u64) -> Job;
    POST "/jobs/{id}/pause" => job_pause(id: u64) -> Job;
    POST "/jobs/{id}/resume" => job_resume(id: u64) -> Job;
    POST "/jobs/{id}/cancel" => job_cancel(id: u64) -> Job;
    PUT "/jobs/{id}/limit" => job_limit(id: u64, limit_bytes_s: Option<u64>) -> Job, &JobLimit { limit_bytes_s };
}
