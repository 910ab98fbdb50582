//! Bodies of requests: untrusted JSON, checked before any other code sees it.

use std::path::Path;

use api::error::{Error, ErrorKind, Result};
use api::{
    AlarmAcknowledge, AlarmMute, AlarmThreshold, BinEmpty, BinRestore, CommitTarget, Config, DatastoreAdd,
    Diff, Discard, Disconnect, DiskCreate, DiskFrom, DiskGrow, DiskSetMode, ImageFormat, JobLimit, Policy,
    PolicyApply, Reset, Revert, SharedWriters, SnapshotDir, SnapshotRename, SnapshotTake, TokenCreate,
    VmClone, VmCreate, VmDefragment, VmGuest, VmImport, VmLabels, VmLimits, VmMove, VmOpen, VmRemove,
    VmRename,
};
use api::{name, units};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::access::tokens;
use crate::daemon::image_at;

/// Maximum number of disks of one VM: four SCSI controllers with 15 disks each, as VMware's own limit.
const DISKS_MAX: usize = 60;
/// Maximum number of folders of one import. Far more folders than a VM has disks would be a mistake.
const ROOTS_MAX: usize = 60;
/// The kernel's own limit on a path.
const PATH_BYTES_MAX: usize = 4096;

/// Body that a route accepts. The parser checks its shape, `check` its values.
pub trait Request: DeserializeOwned {
    fn check(&self) -> std::result::Result<(), String> {
        Ok(())
    }
}

pub fn parse<T: Request>(bytes: &[u8]) -> Result<T> {
    let body: T = serde_json::from_slice(bytes).map_err(|e| {
        // The error's own category counts some values among the faults of syntax.
        let is_json = serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
        let kind = if is_json { ErrorKind::Invalid } else { ErrorKind::Malformed };
        Error::new(kind, format!("the request's body: {e}"))
    })?;
    body.check().map_err(Error::invalid)?;
    Ok(body)
}

impl Request for BinEmpty {}
impl Request for AlarmAcknowledge {
    fn check(&self) -> std::result::Result<(), String> {
        name::check_message(&self.note)
    }
}

impl Request for AlarmMute {
    fn check(&self) -> std::result::Result<(), String> {
        AlarmMute::check(self)
    }
}

impl Request for AlarmThreshold {
    fn check(&self) -> std::result::Result<(), String> {
        AlarmThreshold::check(self)
    }
}

impl Request for Config {
    fn check(&self) -> std::result::Result<(), String> {
        Config::check(self)
    }
}

impl Request for PolicyApply {}
impl Request for BinRestore {}
impl Request for CommitTarget {}
impl Request for Diff {}
impl Request for DiskSetMode {}
impl Request for Disconnect {}
impl Request for Discard {}
impl Request for Reset {}
impl Request for Revert {}
impl Request for VmClone {}
impl Request for VmDefragment {}
impl Request for VmOpen {}
impl Request for VmRemove {}
impl Request for VmRename {}
impl Request for VmMove {
    fn check(&self) -> std::result::Result<(), String> {
        match (self.store, &self.datastore) {
            (None, None) => Err("a move without a target: expected a store, a datastore, or both".to_owned()),
            _ => Ok(()),
        }
    }
}

impl Request for VmCreate {
    fn check(&self) -> std::result::Result<(), String> {
        if self.disks.is_empty() || self.disks.len() > DISKS_MAX {
            return Err(format!("VM with {} disks: expected 1 to {DISKS_MAX}", self.disks.len()));
        }
        self.disks.iter().try_for_each(Request::check)
    }
}

impl Request for DiskCreate {
    fn check(&self) -> std::result::Result<(), String> {
        if self.size_bytes != 0 || self.from.is_none() {
            units::check_disk_size(self.size_bytes)?;
        }
        self.from.iter().try_for_each(check_from)?;
        self.dir.iter().try_for_each(|dir| check_path(dir))
    }
}

impl Request for DiskGrow {
    fn check(&self) -> std::result::Result<(), String> {
        units::check_disk_size(self.size_bytes)
    }
}

impl Request for VmImport {
    fn check(&self) -> std::result::Result<(), String> {
        if self.allow_roots.len() > ROOTS_MAX {
            return Err(format!("{} allowed roots: expected at most {ROOTS_MAX}", self.allow_roots.len()));
        }
        if self.write_sesparse && !self.in_place {
            return Err(
                "write_sesparse without in_place: expected both, as it admits writes into the folder"
                    .to_owned(),
            );
        }
        check_path(&self.path)?;
        self.allow_roots.iter().try_for_each(|root| check_path(root))
    }
}

impl Request for DatastoreAdd {
    fn check(&self) -> std::result::Result<(), String> {
        match image_at(&self.path) {
            Some(_) if self.path.as_os_str().len() >= PATH_BYTES_MAX => {
                Err(format!("path: expected less than {PATH_BYTES_MAX} bytes"))
            }
            Some(image) => image.map(drop).map_err(|e| e.message),
            None => check_path(&self.path),
        }
    }
}

impl Request for SharedWriters {}

impl Request for VmLimits {
    fn check(&self) -> std::result::Result<(), String> {
        VmLimits::check(self)
    }
}

impl Request for SnapshotDir {
    fn check(&self) -> std::result::Result<(), String> {
        self.dir.iter().try_for_each(|dir| check_path(dir))
    }
}

impl Request for SnapshotTake {
    fn check(&self) -> std::result::Result<(), String> {
        SnapshotTake::check(self)
    }
}

impl Request for SnapshotRename {
    fn check(&self) -> std::result::Result<(), String> {
        SnapshotRename::check(self)
    }
}

impl Request for Policy {
    fn check(&self) -> std::result::Result<(), String> {
        Policy::check(self)
    }
}

impl Request for VmLabels {
    fn check(&self) -> std::result::Result<(), String> {
        VmLabels::check(self)
    }
}

impl Request for VmGuest {
    fn check(&self) -> std::result::Result<(), String> {
        VmGuest::check(self)
    }
}

impl Request for TokenCreate {
    fn check(&self) -> std::result::Result<(), String> {
        tokens::check(self)
    }
}

impl Request for JobLimit {
    fn check(&self) -> std::result::Result<(), String> {
        match self.limit_bytes_s {
            Some(0) => Err("limit of 0 bytes per second: expected more, or null for none".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Checks what is below a new disk: the URI of an NBD export, or a path.
fn check_from(from: &DiskFrom) -> std::result::Result<(), String> {
    from.key_file.iter().chain(&from.passphrase_file).try_for_each(|path| check_path(path))?;
    // A repository is named by a word, too.
    let is_name = from.format == Some(ImageFormat::Backup) && !from.uri.contains('/');
    match from.uri.contains("://") || is_name {
        true if from.uri.len() < PATH_BYTES_MAX && !from.uri.chars().any(char::is_control) => Ok(()),
        true => Err(format!("URI of less than {PATH_BYTES_MAX} bytes without control characters expected")),
        false => check_path(Path::new(&from.uri)),
    }
}

/// Checks a path. A relative path would refer to the daemon's own folder, and the registry keeps a path on one line.
fn check_path(path: &Path) -> std::result::Result<(), String> {
    let text = path.to_str().ok_or_else(|| format!("path {path:?}: expected UTF-8"))?;
    let sound = path.is_absolute() && text.len() < PATH_BYTES_MAX && !text.chars().any(char::is_control);
    match sound {
        true => Ok(()),
        false => Err(format!(
            "path {:?}: expected an absolute one of less than {PATH_BYTES_MAX} bytes without control characters",
            text.chars().take(80).collect::<String>()
        )),
    }
}

/// Parser of a body, which returns the body as the client would send it.
type Accept = fn(&[u8]) -> Result<Vec<u8>>;

/// Routes that have a body, with the path under `/api/v1`. A preview takes the body of its command.
pub const ROUTES: [(&str, Accept); 33] = [
    ("POST /vms", again::<VmCreate>),
    ("POST /import", again::<VmImport>),
    ("POST /vms/{vm}/clone", again::<VmClone>),
    ("POST /vms/{vm}/close", again::<Disconnect>),
    ("POST /vms/{vm}/reset", again::<Reset>),
    ("PUT /vms/{vm}/snapshot-dir", again::<SnapshotDir>),
    ("POST /vms/{vm}/disks", again::<DiskCreate>),
    ("PUT /vms/{vm}/disks/{number}/size", again::<DiskGrow>),
    ("PUT /vms/{vm}/disks/{number}/mode", again::<DiskSetMode>),
    ("POST /vms/{vm}/snapshots", again::<SnapshotTake>),
    ("POST /vms/{vm}/commit", again::<CommitTarget>),
    ("POST /vms/{vm}/revert", again::<Revert>),
    ("POST /vms/{vm}/discard", again::<Discard>),
    ("PUT /jobs/{id}/limit", again::<JobLimit>),
    ("POST /vms/{vm}/diff", again::<Diff>),
    ("POST /vms/{vm}/move", again::<VmMove>),
    ("POST /datastores", again::<DatastoreAdd>),
    ("PUT /vms/{vm}/shared-writers", again::<SharedWriters>),
    ("POST /vms/{vm}/undo", again::<Reset>),
    ("POST /vms/{vm}/open", again::<VmOpen>),
    ("PUT /vms/{vm}/limits", again::<VmLimits>),
    ("POST /vms/{vm}/defragment", again::<VmDefragment>),
    ("POST /tokens", again::<TokenCreate>),
    ("POST /policies", again::<Policy>),
    ("POST /policies/{name}/apply", again::<PolicyApply>),
    ("PUT /vms/{vm}/labels", again::<VmLabels>),
    ("POST /alarms/{alarm}/acknowledge", again::<AlarmAcknowledge>),
    ("POST /alarms/mutes", again::<AlarmMute>),
    ("PUT /alarms/rules", again::<AlarmThreshold>),
    ("POST /config", again::<Config>),
    // Their bytes are those after `~`.
    ("POST /vms/{vm}/snapshots/rename", again::<SnapshotRename>),
    ("PUT /vms/{vm}/guest", again::<VmGuest>),
    ("POST /vms/{vm}/rename", again::<VmRename>),
];

/// Asserts that a body that was accepted is accepted again as a client would send it, and means the same. The first
/// byte of `input` selects one of `ROUTES` (`a` is the first), and the rest is the body. It takes hostile bytes and
/// needs no daemon.
pub fn replay(input: &[u8]) -> Result<()> {
    let (first, body) = input.split_first().ok_or_else(|| Error::invalid("no byte to choose a route by"))?;
    let (route, accept) = ROUTES[usize::from(first.wrapping_sub(b'a')) % ROUTES.len()];
    let sent = accept(body)?;
    let again = accept(&sent);
    assert_eq!(again.as_ref(), Ok(&sent), "{route}: what was accepted is accepted again, and means the same");
    Ok(())
}

fn again<T: Request + Serialize>(bytes: &[u8]) -> Result<Vec<u8>> {
    let body: T = parse(bytes)?;
    serde_json::to_vec(&body).map_err(|e| Error::failed(format!("JSON: {e}")))
}
