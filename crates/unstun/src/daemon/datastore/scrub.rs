//! Check of a datastore's store while it is in use, with every block read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::DatastoreName;
use api::{Checked, Severity};
use engine::Job;
use engine::job::SCRUB;
use engine::native::check::{Fault, Finding, Report};
use tracing::{error, info};

use crate::daemon::datastore::Datastore;
use crate::daemon::state::Daemon;
use crate::daemon::vm::mark;
use crate::daemon::vm::vm_record::{Kept, VmRecord};

/// Maximum number of VMs that a note names.
const NAMED_MAX: usize = 5;

impl Daemon {
    /// Checks the store of a datastore while it is in use; for `None`, that of the main one. Fails with `NotFound` if
    /// there is no store.
    pub(crate) async fn store_check(&self, datastore: Option<DatastoreName>) -> Result<Checked> {
        let datastore = self.datastore(datastore.as_ref())?;
        let copies = self.copies(&datastore).await;
        let (in_store, in_files) = self.homes_by_store(&datastore).await?;
        let is_needed = !in_store.is_empty() && copies.is_empty();
        let mut checked = match store_there(&datastore).await {
            Err(e) if e.kind == ErrorKind::NotFound && !is_needed => {
                Checked { path: datastore.path.clone(), findings: Vec::new() }
            }
            store => self.checked(&datastore, &store?.check().await?).await,
        };
        checked.findings.extend(copies);
        checked.findings.extend(not_looked_at(&datastore, &in_files));
        Ok(checked)
    }

    /// Returns the homes of a datastore: those of VMs in its store, and those of VMs with files.
    async fn homes_by_store(&self, datastore: &Rc<Datastore>) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
        let (mut in_store, mut in_files) = (Vec::new(), Vec::new());
        for (_, home) in datastore.inhabitants().await? {
            match mark::read(&self.env, &home).await {
                Ok(Some(_)) => in_store.push(home),
                _ => in_files.push(home),
            }
        }
        Ok((in_store, in_files))
    }

    /// Starts a scrub of a datastore's store. Only one runs at a time.
    pub(crate) async fn store_scrub(self: &Rc<Self>, datastore: Option<DatastoreName>) -> Result<api::Job> {
        let datastore = self.datastore(datastore.as_ref())?;
        let store = store_there(&datastore).await?;
        let open = self.tracked(|t| (t.job.operation == SCRUB && !t.job.state().is_over()).then_some(t.id));
        if let Some(id) = open.into_iter().flatten().next() {
            return Err(Error::refused(format!("a scrub is already in progress (job {id})")));
        }
        let id = self.next_job();
        let job = Job::new(self.env.clone(), id, SCRUB, String::new());
        self.track(&datastore, None, job.control());
        *datastore.scrubbed.borrow_mut() = None;
        let (daemon, worker) = (self.clone(), job.clone());
        self.env.spawn_detached(Box::pin(async move {
            match store.scrub(&worker).await {
                Ok(report) => {
                    let checked = daemon.checked(&datastore, &report).await;
                    log_damage(&checked);
                    *datastore.scrubbed.borrow_mut() = Some(checked);
                }
                Err(e) if worker.is_cancelled() => {
                    info!("datastore {}: the scrub ended: {e}", datastore.name);
                }
                Err(e) => error!("datastore {}: the scrub failed: {e}", datastore.name),
            }
        }));
        self.job_do(id, |_| Ok(())).await
    }

    /// Returns the findings of the last scrub.
    pub(crate) fn store_scrubbed(&self, datastore: Option<DatastoreName>) -> Result<Checked> {
        let found = self.datastore(datastore.as_ref())?.scrubbed.borrow().clone();
        found.ok_or_else(|| {
            Error::not_found("no scrub has ended since the daemon started; run `unstun scrub`")
        })
    }

    async fn checked(&self, datastore: &Rc<Datastore>, report: &Report) -> Checked {
        let owners = self.owners(datastore).await;
        answer(&datastore.native.path(), report, &owners)
    }

    /// Returns the name of each node of the store, such as `web/disk0` or `web/disk0@a`.
    async fn owners(&self, datastore: &Rc<Datastore>) -> BTreeMap<u64, String> {
        let mut owners = BTreeMap::new();
        let daemon = |layer: &str| layer.strip_prefix('n').and_then(|number| number.parse().ok());
        let here = |entry: &&Rc<VmRecord>| {
            matches!(entry.kept, Kept::Native(_)) && Rc::ptr_eq(&entry.datastore, datastore)
        };
        for entry in self.entries().iter().filter(here) {
            let state = entry.running.state().await;
            for disk in &state.disks {
                let name = format!("{}/disk{}", entry.name, disk.number);
                owners.extend(daemon(&disk.top).map(|daemon| (daemon, name)));
            }
            for snapshot in &state.snapshots {
                for (number, layer) in &snapshot.disks {
                    let name = format!("{}/disk{number}@{}", entry.name, snapshot.name);
                    owners.extend(daemon(layer).map(|daemon| (daemon, name)));
                }
            }
        }
        owners
    }
}

/// Returns the findings of a report; `owners` has the names of nodes.
pub(super) fn answer(path: &Path, report: &Report, owners: &BTreeMap<u64, String>) -> Checked {
    let file = path.display().to_string();
    let mut findings: Vec<_> = report.findings.iter().map(|found| present(found, &file, owners)).collect();
    if let Some(behind) = &report.behind {
        findings.push(note(&file, format!("checked as of checkpoint {}: {behind}", report.checkpoint)));
    }
    if report.more > 0 {
        findings.push(note(&file, format!("incomplete: {} more findings are not listed", report.more)));
    }
    Checked { path: path.to_path_buf(), findings }
}

fn log_damage(checked: &Checked) {
    let mut damaged = checked.findings.iter().filter(|finding| finding.severity == Severity::Damage);
    if let Some(first) = damaged.next() {
        let (path, more) = (checked.path.display(), damaged.count());
        error!("{path}: the scrub found damage: {}: {}, and {more} more findings", first.field, first.found);
    }
}

async fn store_there(datastore: &Datastore) -> Result<Rc<engine::native::Store>> {
    match datastore.native.open().await {
        Err(e) if e.kind == blk::ErrorKind::NotFound => {
            let cause =
                format!("datastore {} has no native disks and therefore no store", datastore.path.display());
            Err(Error::not_found(format!("{cause}; `unstun check PATH` checks files")))
        }
        opened => Ok(opened?),
    }
}

/// Returns a note that the check of a store reads no files of VMs.
fn not_looked_at(datastore: &Datastore, homes: &[PathBuf]) -> Option<api::Finding> {
    let first = homes.first()?;
    let folders: Vec<_> = homes
        .iter()
        .take(NAMED_MAX)
        .map(|home| home.file_name().unwrap_or_default().to_string_lossy())
        .collect();
    let more = if homes.len() > NAMED_MAX { ", ..." } else { "" };
    Some(api::Finding {
        severity: Severity::Note,
        file: datastore.path.display().to_string(),
        field: "check".to_owned(),
        found: format!(
            "limited to the store, without {} in files ({}{more})",
            vms(homes.len()),
            folders.join(", ")
        ),
        expected: "a separate check of each VM in files".to_owned(),
        remedy: format!("`unstun check {}` checks a VM's files, also while the VM runs", first.display()),
    })
}

fn vms(count: usize) -> String {
    format!("{count} VM{}", if count == 1 { "" } else { "s" })
}

fn note(file: &str, found: String) -> api::Finding {
    api::Finding {
        severity: Severity::Note,
        file: file.to_owned(),
        field: "report".to_owned(),
        found,
        expected: "the current state of the whole store".to_owned(),
        remedy: "repair the findings above, then check again".to_owned(),
    }
}

fn present(finding: &Finding, file: &str, owners: &BTreeMap<u64, String>) -> api::Finding {
    let hurt: Vec<String> = finding
        .affected
        .iter()
        .map(|hurt| {
            let who = owners.get(&hurt.node).cloned().unwrap_or_else(|| format!("node {}", hurt.node));
            format!("{who} bytes {} to {}", hurt.bytes.start, hurt.bytes.end)
        })
        .collect();
    let hurts = if hurt.is_empty() { String::new() } else { format!("; affects {}", hurt.join(", ")) };
    let (severity, field, expected, remedy) = words(finding.fault);
    api::Finding {
        severity,
        file: file.to_owned(),
        field: field.to_owned(),
        found: format!("{}{hurts}", finding.error),
        expected: expected.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// Returns severity, faulty part, expected content, and remedy.
fn words(fault: Fault) -> (Severity, &'static str, &'static str, &'static str) {
    const WHOLE: &str = "the content that was written";
    const COPY: &str = "copy the readable data to another datastore, and restore the rest from a backup";
    match fault {
        Fault::Superblock => (Severity::Damage, "superblock", WHOLE, COPY),
        Fault::Catalogue => (Severity::Damage, "catalogue", WHOLE, COPY),
        Fault::Lineage => (Severity::Damage, "lineage", "states that agree with each other", COPY),
        Fault::Map => (Severity::Damage, "map", WHOLE, COPY),
        Fault::Data => (Severity::Damage, "data", "a block that can be read", COPY),
        Fault::Place => (Severity::Damage, "map", "a block of a group of its kind", COPY),
        Fault::Doubled => (Severity::Damage, "map", "one owner of a block", COPY),
        Fault::Unmarked => (Severity::Damage, "bitmap", "a block in use that is marked as such", COPY),
        Fault::Birth => (Severity::Damage, "map", "a birth generation within the state's own", COPY),
        Fault::Bitmap => (
            Severity::Warning,
            "bitmap",
            WHOLE,
            "none needed: the data is intact, and the space is not reused",
        ),
        Fault::Leaked => (
            Severity::Warning,
            "bitmap",
            "free space",
            "none needed: the data is intact, and the space is lost",
        ),
    }
}
