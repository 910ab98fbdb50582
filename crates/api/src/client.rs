//! HTTP client of the daemon's API, for the client commands: one connection, one request, one typed answer.
//!
//! Each request opens a connection, so that a command that polls survives a restart of the daemon.

use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::error::{Error, ErrorBody, ErrorKind, Result};
use crate::event_stream::EventStream;
use crate::location::{Datastore, variable};
use crate::name::{DatastoreName, DiskRef, PolicyName, SnapshotRef, TokenName, VmName};
use crate::routes::with_routes;
use crate::{
    Alarm, AlarmAcknowledge, AlarmChannel, AlarmMute, AlarmMuted, AlarmRuleShown, AlarmThreshold, AuditEntry,
    BinEmptied, BinEmpty, BinEntry, BinRestore, BinRestored, Checked, CommitPreview, CommitTarget, Config,
    ConfigImported, ConsoleLink, DatastoreAdd, DatastoreRemovePreview, DatastoreRemoved, Diff, Differences,
    Discard, Disconnect, Disk, DiskCreate, DiskGrow, DiskGrown, DiskRemoved, DiskSetMode, Event, Job,
    JobLimit, Loss, Policy, PolicyApplied, PolicyApply, PolicyPreview, PolicyStatus, Recorded, Reset, Revert,
    SharedWriters, Snapshot, SnapshotDir, SnapshotMemory, SnapshotRename, SnapshotTake, SnapshotTaken,
    SnapshotTree, Status, Token, TokenCreate, TokenCreated, Vm, VmClone, VmClosed, VmCost, VmCreate,
    VmDefragment, VmGuest, VmImport, VmLabels, VmLimits, VmMove, VmMovePreview, VmOpen, VmRemove,
    VmRemovePreview, VmRemoved, VmRename, VmSpace, VmSummary,
};

/// Maximum size of an answer. Events are the longest answer: at about 200 bytes each, over 300,000 of them fit.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const NO_BODY: Option<&()> = None;

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

    pub async fn remove_vm(&self, vm: &VmName, request: &VmRemove) -> Result<VmRemoved> {
        let VmRemove { delete_disks, purge, keep } = *request;
        self.vm_remove(vm, delete_disks, purge, keep).await
    }

    pub async fn bin_entries(&self, datastore: Option<&DatastoreName>) -> Result<Vec<BinEntry>> {
        match datastore {
            None => self.call(Method::GET, "/bin", NO_BODY).await,
            Some(name) => self.bin_list(name).await,
        }
    }

    pub async fn remove_disk(&self, disk: &DiskRef, delete_files: bool) -> Result<DiskRemoved> {
        self.disk_remove(&disk.vm, disk.number, delete_files).await
    }

    pub async fn grow_disk(&self, disk: &DiskRef, size_bytes: u64) -> Result<DiskGrown> {
        self.disk_grow(&disk.vm, disk.number, &DiskGrow { size_bytes }).await
    }

    pub async fn set_disk_mode(&self, disk: &DiskRef, request: &DiskSetMode) -> Result<Disk> {
        self.disk_set_mode(&disk.vm, disk.number, request).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        let request = Request::builder().method(method).header(CONTENT_TYPE, "application/json");
        let response = self.begin(request, path, body).await?;
        let bytes = self.read(response.into_body()).await?;
        serde_json::from_slice(&bytes).map_err(|e| self.broken(&format!("answer to {path}: {e}")))
    }

    /// Begins a stream of the events of all VMs, after the one with the ID `last`. With `follow` the stream continues with
    /// new events.
    pub async fn event_stream(&self, last: &str, follow: bool) -> Result<EventStream> {
        let request = Request::builder().method(Method::GET).header("Last-Event-ID", last);
        let response = self.begin(request, &format!("/events?follow={follow}"), NO_BODY).await?;
        Ok(EventStream::new(response.into_body()))
    }

    /// Sends a request, and returns the beginning of its answer. An answer that is not a success is an error.
    async fn begin(
        &self,
        request: Builder,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Incoming>> {
        let body = match body {
            Some(value) => {
                serde_json::to_vec(value).map_err(|e| Error::failed(format!("request {path}: {e}")))?
            }
            None => Vec::new(),
        };
        let request = request
            .uri(format!("/api/v1{path}"))
            .header(HOST, "unstun")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| Error::failed(format!("request {path}: {e}")))?;
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.unreachable(&e))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.broken(&e.to_string()))?;
        // The task ends with the connection; the request below reports a failure of the connection.
        tokio::spawn(async move { drop(connection.await) });
        let response = sender.send_request(request).await.map_err(|e| self.broken(&e.to_string()))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        match serde_json::from_slice::<ErrorBody>(&self.read(response.into_body()).await?) {
            Ok(body) => Err(Error::from(body)),
            Err(_) => Err(self.broken(&format!("HTTP status {} to {path}", status.as_u16()))),
        }
    }

    async fn read(&self, body: Incoming) -> Result<Bytes> {
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        Ok(body.map_err(|e| self.broken(&e.to_string()))?.to_bytes())
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

/// Defines a method of the client for each route.
macro_rules! methods {
    ($($method:ident $path:literal => $name:ident($($argument:ident: $type:ty),*) -> $answer:ty
        $(as $status:literal)? $(, $body:ty: $value:expr)?;)*) => {
        impl Client {$(
            pub async fn $name(&self, $($argument: $type),*) -> Result<$answer> {
                self.call(Method::$method, &format!($path), body!($($value)?)).await
            }
        )*}
    };
}

with_routes!(methods);
