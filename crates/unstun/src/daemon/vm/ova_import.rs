//! Import of an OVA: a native VM whose disks are over the file, which is read in place.

use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use api::units::format_bytes;
use vmdk::vmx::VM_DISKS_MAX;

use crate::daemon::source::{OvaVm, OvaVmDisk};
use crate::daemon::state::Daemon;
use crate::daemon::vm::lifecycle::NewDisks;

/// Unit of the sizes of native disks.
const DISK_UNIT_BYTES: u64 = 4096;
/// Longest name of a VM.
const NAME_BYTES_MAX: usize = 64;

impl Daemon {
    /// Imports the VM of an OVA. Its disks show their content at once; hashes are compared, and the content is copied, in the
    /// background. After an error nothing is left.
    pub(crate) async fn vm_import_ova(
        self: &Rc<Self>,
        request: api::VmImport,
        path: String,
    ) -> Result<api::Vm> {
        refuse_options(&request, &path)?;
        let found = self.read_ova(&path, request.verify).await?;
        let name = match &request.name {
            Some(name) => name.clone(),
            None => vm_name(&found.name, &path)?,
        };
        if found.disks.is_empty() || found.disks.len() > VM_DISKS_MAX {
            let expected = format!("expected 1 to {VM_DISKS_MAX}");
            let cause = format!("the OVF descriptor has {} disks, {expected}", found.disks.len());
            return Err(Error::invalid(format!("{path}: {cause}")));
        }
        let create = api::VmCreate {
            name: name.clone(),
            disks: found.disks.iter().map(|disk| disk_over(disk, &request, &path)).collect(),
            store: api::Store::Native,
            when_full: request.when_full,
            datastore: request.datastore.clone(),
        };
        let disks = NewDisks {
            slots: found.disks.iter().map(|disk| disk.slot.clone()).collect(),
            fingerprint: found.fingerprint.clone(),
        };
        let created = self.create_native(create, disks).await;
        let entry = created.map_err(|e| match e.kind {
            ErrorKind::Exists if request.name.is_none() => {
                Error::new(e.kind, format!("{e}; choose another name with --name"))
            }
            _ => e,
        })?;
        self.note(&entry, &format!("imported from {path}: its disks are over the file, which is only read"));
        self.report_notices(&entry, notices(&found, &name, request.verify));
        self.show(&entry).await
    }
}

/// Refuses what an OVA cannot have.
fn refuse_options(request: &api::VmImport, path: &str) -> Result<()> {
    if request.store == Some(api::Store::Redo) {
        let cause = "the disks of an OVA are compressed, so no VM with files can have deltas over them";
        let remedy =
            "import it without --store redo; `unstun vm move VM --store redo` converts it under its guest";
        return Err(Error::refused(format!("{path}: {cause}; {remedy}")));
    }
    let wrong = match request {
        api::VmImport { in_place: true, .. } => "--in-place: nothing is written into an OVA",
        api::VmImport { write_sesparse: true, .. } => "--write-sesparse: nothing is written into an OVA",
        api::VmImport { ignore_content_ids: true, .. } => "--ignore-content-ids: an OVA has no chains",
        _ if !request.allow_roots.is_empty() => "--allow-root: all files of an OVA are in it",
        _ => return Ok(()),
    };
    Err(Error::invalid(format!("{path}: an OVA is imported without {wrong}; omit the option")))
}

/// Returns the name of the VM: what its descriptor has, with `-` for what a name cannot have.
fn vm_name(written: &str, path: &str) -> Result<VmName> {
    if let Ok(name) = written.parse() {
        return Ok(name);
    }
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let words = written.split(|c| !sound(c)).filter(|word| !word.is_empty());
    let joined = words.collect::<Vec<_>>().join("-");
    let name = joined.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let name = &name[..name.len().min(NAME_BYTES_MAX)];
    name.trim_end_matches('-').parse().map_err(|_| {
        let cause = format!(
            "the VM's name in the OVF descriptor is {:?}",
            written.chars().take(80).collect::<String>()
        );
        let expected = "expected letters or digits (a to z, 0 to 9)";
        Error::invalid(format!("{path}: {cause}, {expected}; choose a name with --name"))
    })
}

fn disk_over(disk: &OvaVmDisk, request: &api::VmImport, path: &str) -> api::DiskCreate {
    match disk.part {
        None => api::DiskCreate::new(disk.size_bytes.next_multiple_of(DISK_UNIT_BYTES)),
        // The size is that of the content: the descriptor may have rounded it up.
        part => {
            let image = api::DiskFrom::image(path);
            let format = Some(api::ImageFormat::Ova);
            let from = api::DiskFrom { format, part, copy: request.copy, verify: request.verify, ..image };
            api::DiskCreate { from: Some(from), ..api::DiskCreate::new(0) }
        }
    }
}

/// Returns what a user should know of the import: the hardware that the descriptor has for the disks, and their hashes.
fn notices(found: &OvaVm, name: &VmName, verify: bool) -> Vec<String> {
    let mut notices = Vec::new();
    if found.name != name.as_str() {
        notices.push(format!("the VM's name in the OVF descriptor is {:?}", found.name));
    }
    let disk = |(number, disk): (usize, &OvaVmDisk)| {
        let empty = if disk.part.is_none() { ", empty" } else { "" };
        let size = format_bytes(disk.size_bytes);
        let other = if disk.slot.is_none() {
            ", which is no slot of a VM: it has the first free SCSI slot"
        } else {
            ""
        };
        format!("disk{number} {size} {}{empty}{other}", disk.attached)
    };
    let disks: Vec<_> = found.disks.iter().enumerate().map(disk).collect();
    notices.push(format!("the OVF descriptor has {}", disks.join("; ")));
    let without = found.disks.iter().filter(|disk| disk.part.is_some() && !disk.has_hash).count();
    match (verify, without) {
        (false, _) => notices.push("the hashes of the manifest are not compared, as requested".to_owned()),
        (true, 0) => notices.push(
            "the hashes of the manifest are compared in the background: `unstun source list` shows the result"
                .to_owned(),
        ),
        (true, count) => {
            let cause = "the OVA has no manifest with their hashes";
            notices.push(format!("the content of {count} disks cannot be verified: {cause}"));
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_of_what_the_descriptor_has() {
        let long = "x".repeat(70);
        for (written, name) in [
            ("web", "web"),
            ("web--2", "web--2"),
            ("Web server (copy) 2", "Web-server-copy-2"),
            (" -_.a/b ", "a-b"),
            ("b\u{fc}ro 7", "b-ro-7"),
            (long.as_str(), &long[..64]),
        ] {
            assert_eq!(vm_name(written, "/a.ova").unwrap().as_str(), name, "{written}");
        }
        for written in ["", "--", "\u{4f60}\u{597d}"] {
            let error = vm_name(written, "/a.ova").unwrap_err().message;
            assert!(error.contains("/a.ova") && error.contains("--name"), "{error}");
        }
    }
}
