//! Labels of a VM: its tags and its note, and who took which of its snapshots; the file in its home's `.unstun` folder.
//!
//! `docs/formats/vmdk.md` describes the file ("Labels of a VM").

use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use api::name::{PolicyName, RepositoryName, Tag};
use api::{VmGuest, VmLabels};
use blk::sync::TaskMutex;
use blk::{Dir, Error, ErrorKind};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::daemon::vm::home_folder::HomeFolder;

const LABELS_NAME: &str = "labels";
/// Name of a damaged file that was set aside.
const DAMAGED_NAME: &str = "labels.damaged";
/// Maximum size of the file in bytes: 10,000 snapshots at less than 400 bytes each.
const LABELS_BYTES_MAX: u64 = 4 << 20;

/// Content of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Labels {
    pub tags: Vec<Tag>,
    pub note: String,
    /// How the guest is reached; null for the default. A newer version may have other kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    guest_access: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frozen_ms_max: Option<u64>,
    /// Socket of QEMU's monitor; null for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    qmp: Option<String>,
    /// By the snapshot's id. A snapshot of other software has none.
    snapshots: BTreeMap<String, SnapshotLabel>,
    /// Fields of a newer version, which stay.
    #[serde(flatten)]
    others: serde_json::Map<String, serde_json::Value>,
}

/// Who took a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotLabel {
    /// As in the audit: `user NAME (uid N)`, `token NAME` or `policy NAME`.
    pub by: String,
    /// The policy that took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// Whether the guest's file systems were frozen at its instant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quiesced: bool,
    /// The backup that a policy has made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupRef>,
}

/// A backup in a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupRef {
    pub repository: RepositoryName,
    pub number: u32,
}

/// A policy, and the scheduled time of a take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyRef {
    pub name: PolicyName,
    pub scheduled: Timestamp,
}

/// Returns an id as the API shows it.
fn hexadecimal(id: u128) -> String {
    format!("{id:032x}")
}

impl SnapshotLabel {
    pub(crate) fn of_caller(who: &str) -> SnapshotLabel {
        SnapshotLabel { by: who.to_owned(), policy: None, quiesced: false, backup: None }
    }

    pub(crate) fn of_policy(name: &PolicyName, scheduled: Timestamp) -> SnapshotLabel {
        let policy = PolicyRef { name: name.clone(), scheduled };
        SnapshotLabel { by: format!("policy {name}"), policy: Some(policy), quiesced: false, backup: None }
    }
}

impl Labels {
    pub(crate) fn of_snapshot(&self, id: u128) -> Option<&SnapshotLabel> {
        self.snapshots.get(&hexadecimal(id))
    }

    pub(crate) fn add(&mut self, id: u128, label: SnapshotLabel) {
        self.snapshots.insert(hexadecimal(id), label);
    }

    /// Removes the labels of snapshots that are not `known` any more.
    pub(crate) fn retain(&mut self, known: &BTreeSet<u128>) {
        let known: BTreeSet<String> = known.iter().map(|id| hexadecimal(*id)).collect();
        self.snapshots.retain(|id, _| known.contains(id));
    }

    /// Returns the content of the file.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("labels are JSON")
    }

    pub(crate) fn guest(&self) -> VmGuest {
        let default = VmGuest::default();
        let access = self.guest_access.as_ref().and_then(|text| text.parse().ok());
        let qmp = self.qmp.as_ref().and_then(|text| text.parse().ok());
        VmGuest { access, frozen_ms_max: self.frozen_ms_max.unwrap_or(default.frozen_ms_max), qmp }
    }

    pub(crate) fn set_guest(&mut self, guest: &VmGuest) {
        self.guest_access = guest.access.as_ref().map(ToString::to_string);
        let is_default = guest.frozen_ms_max == VmGuest::default().frozen_ms_max;
        self.frozen_ms_max = (!is_default).then_some(guest.frozen_ms_max);
        self.qmp = guest.qmp.as_ref().map(ToString::to_string);
    }

    pub(crate) fn shown(&self) -> VmLabels {
        VmLabels { tags: self.tags.clone(), note: self.note.clone() }
    }
}

/// Labels of an open VM.
#[derive(Default)]
pub(crate) struct VmRecordLabels {
    now: RefCell<Labels>,
    /// Labels of the takes under way, whose snapshots may not exist yet.
    taking: RefCell<Vec<SnapshotLabel>>,
    /// One change at a time: each writes the whole file.
    changing: TaskMutex,
}

impl VmRecordLabels {
    pub(crate) fn new(labels: Labels) -> VmRecordLabels {
        VmRecordLabels { now: RefCell::new(labels), ..VmRecordLabels::default() }
    }

    pub(crate) fn get(&self) -> Ref<'_, Labels> {
        self.now.borrow()
    }

    /// Changes the labels: first on file, by `write`, then in force.
    pub(crate) async fn change(
        &self,
        change: impl AsyncFnOnce(&mut Labels),
        write: impl AsyncFnOnce(Labels) -> blk::Result<Labels>,
    ) -> blk::Result<()> {
        let _turn = self.changing.lock().await;
        let mut labels = self.get().clone();
        change(&mut labels).await;
        let written = write(labels).await?;
        self.now.replace(written);
        Ok(())
    }

    /// Notes that a take with a label begins; it ends when the result is dropped.
    pub(crate) fn begin_take(&self, label: SnapshotLabel) -> LabelledTake<'_> {
        self.taking.borrow_mut().push(label.clone());
        LabelledTake { labels: self, label }
    }

    /// Returns whether a take with this label is under way.
    pub(crate) fn is_taking(&self, label: &SnapshotLabel) -> bool {
        self.taking.borrow().contains(label)
    }

    /// Returns whether one take at most is under way.
    pub(crate) fn is_only_take(&self) -> bool {
        self.taking.borrow().len() <= 1
    }

    pub(crate) fn take(&self) -> VmRecordLabels {
        VmRecordLabels::new(self.now.take())
    }
}

/// A take under way.
pub(crate) struct LabelledTake<'a> {
    labels: &'a VmRecordLabels,
    pub label: SnapshotLabel,
}

impl Drop for LabelledTake<'_> {
    fn drop(&mut self) {
        let mut taking = self.labels.taking.borrow_mut();
        let own = taking.iter().position(|label| *label == self.label);
        taking.swap_remove(own.expect("it is noted until here"));
    }
}

/// Returns the labels of a home, and why they are not as the file says, if they are not. A damaged file does not keep the
/// VM from being served; it is set aside.
pub(crate) async fn read(home: &HomeFolder) -> blk::Result<(Labels, Option<String>)> {
    let place = home.own.path_of(LABELS_NAME);
    let labels = match home.read(LABELS_NAME, LABELS_BYTES_MAX).await {
        Ok(None) => return Ok((Labels::default(), None)),
        Ok(Some(bytes)) => serde_json::from_slice(&bytes).map_err(|e| Error::damaged(&place, e.to_string())),
        Err(e) => Err(e),
    };
    match labels {
        Ok(labels) => Ok((labels, None)),
        Err(error) if error.kind == ErrorKind::Damaged => {
            home.own.rename(LABELS_NAME, DAMAGED_NAME).await?;
            let remedy = format!(
                "the VM has no tags and no note now, and no policy removes its present snapshots; the file is kept as {DAMAGED_NAME}"
            );
            Ok((Labels::default(), Some(format!("{error}; {remedy}"))))
        }
        Err(error) => Err(error),
    }
}

/// Durably replaces the labels of a home.
pub(crate) async fn write(own: &Dir, text: &[u8]) -> blk::Result<()> {
    if text.len() as u64 > LABELS_BYTES_MAX {
        let message = format!("{} bytes of labels, expected at most {LABELS_BYTES_MAX}", text.len());
        return Err(Error::refused(own.path_of(LABELS_NAME), message));
    }
    own.replace_file(LABELS_NAME, text).await
}

/// Copies the labels of a home to another one. Durable when the call returns.
pub(crate) async fn copy(from: &Dir, to: &Dir) -> blk::Result<()> {
    match from.read_file(LABELS_NAME, LABELS_BYTES_MAX).await {
        Ok(bytes) => to.replace_file(LABELS_NAME, &bytes).await,
        Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::Damaged) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_read_as_they_were_written_with_the_fields_of_a_newer_version() {
        let text = r#"{"tags":["prod"],"note":"x","snapshots":{"01":{"by":"token ci"}},"owner":"a team"}"#;
        let labels: Labels = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&labels).unwrap(), text);
        let mut labels = Labels::default();
        let scheduled = "2026-11-27T02:00:00Z".parse().unwrap();
        let label = SnapshotLabel::of_policy(&"nightly".parse().unwrap(), scheduled);
        labels.snapshots.insert(hexadecimal(7), label.clone());
        let qmp = Some("unix:/run/web.qmp".parse().unwrap());
        let guest = VmGuest { access: Some("libvirt:web".parse().unwrap()), frozen_ms_max: 500, qmp };
        labels.set_guest(&guest);
        let again: Labels = serde_json::from_slice(&serde_json::to_vec(&labels).unwrap()).unwrap();
        assert_eq!((again.of_snapshot(7), again.guest()), (Some(&label), guest));
        labels.set_guest(&VmGuest::default());
        assert!(!serde_json::to_string(&labels).unwrap().contains("guest"));
        let newer: Labels = serde_json::from_str(r#"{"guest_access":"vsock:3"}"#).unwrap();
        assert_eq!(newer.guest(), VmGuest::default());
    }
}
