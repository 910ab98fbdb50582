//! The VM of an OVA as its descriptor has it: the name, and the disks with their sizes and slots.

use std::path::Path;
use std::rc::Rc;

use api::error::Result;
use blk::Env;
use blk::reactor::OpenMode;
use vmdk::ova::{Attachment, Ova, OvaDisk, slots};

use crate::daemon::source::image::{Terms, open_folder};
use crate::daemon::source::verbs::in_time;
use crate::daemon::source::watched_files::WatchedFiles;
use crate::daemon::state::Daemon;

/// Characters of a controller's model that are shown.
const MODEL_CHARS_MAX: usize = 40;

/// VM of an OVA.
pub(in crate::daemon) struct OvaVm {
    /// As written; untrusted, may be empty.
    pub name: String,
    /// In the order of controllers and units.
    pub disks: Vec<OvaVmDisk>,
    /// Identity of the file.
    pub fingerprint: Option<String>,
}

/// Disk of an OVA.
pub(in crate::daemon) struct OvaVmDisk {
    pub size_bytes: u64,
    /// Number among the disks with content; None for an empty disk.
    pub part: Option<u32>,
    /// Whether the manifest has a hash of its file.
    pub has_hash: bool,
    /// Controller and unit, such as `sata0:1`; None where the descriptor has none that a VM can have.
    pub slot: Option<String>,
    /// What the descriptor says of its controller, for people.
    pub attached: String,
}

impl Daemon {
    /// Reads the descriptor of an OVA, and with `verify` compares its hash. The disks are not read.
    pub(in crate::daemon) async fn read_ova(self: &Rc<Self>, path: &str, verify: bool) -> Result<OvaVm> {
        let (env, terms, wanted) = (self.env.clone(), self.image_terms(), path.to_owned());
        in_time(&self.env, path, async move { read(&env, &wanted, &terms, verify).await }).await
    }
}

async fn read(env: &Env, path: &str, terms: &Terms, verify: bool) -> Result<OvaVm> {
    let (dir, name) = open_folder(env, Path::new(path), &terms.own_roots).await?;
    let file = dir.open(&name, OpenMode::Read).await?;
    terms.descriptors.admit_image(path, 1)?;
    let files = WatchedFiles::over(env, vec![file.clone()]).await?;
    let ova = Ova::open(file).await?;
    if verify && ova.has_hash_of(&ova.descriptor) {
        ova.verify(&ova.descriptor, async |_| Ok(())).await?;
    }
    files.verify().await?;
    let slots = slots(ova.disks.iter().map(|disk| disk.attachment.as_ref()));
    let mut parts = 0..;
    let disk = |(disk, slot): (&OvaDisk, Option<vmdk::vmx::Slot>)| OvaVmDisk {
        size_bytes: disk.capacity_bytes,
        part: disk.file.as_ref().and_then(|_| parts.next()),
        has_hash: disk.file.as_ref().is_some_and(|file| ova.has_hash_of(&file.name)),
        slot: slot.map(|slot| slot.to_string()),
        attached: disk.attachment.as_ref().map_or("not attached".to_owned(), shown),
    };
    let disks = ova.disks.iter().zip(slots).map(disk).collect();
    Ok(OvaVm { name: ova.name.clone(), disks, fingerprint: files.fingerprint() })
}

/// Returns an attachment as `scsi0:1 (lsilogic)`. The model is untrusted.
fn shown(attachment: &Attachment) -> String {
    let (bus, controller) = (attachment.bus.name(), attachment.controller);
    let unit = attachment.unit.map_or("?".to_owned(), |unit| unit.to_string());
    let printable = |char: &char| char.is_ascii_graphic() || *char == ' ';
    let model: String = attachment.model.chars().filter(printable).take(MODEL_CHARS_MAX).collect();
    let model = if model.is_empty() { model } else { format!(" ({model})") };
    format!("{bus}{controller}:{unit}{model}")
}
