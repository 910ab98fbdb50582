//! Atomic change of several small files, in the home and in other own folders.
//!
//! Order: write every new file durably under a temporary name beside its target; sync the names, folder by folder;
//! rename the record of the change into place and sync it, which *is* the change; rename the files, remove old ones,
//! and sync every folder; remove the record and sync. Before the record is in place nothing has happened. After that
//! the steps can be repeated, because a missing temporary file has been renamed already.
//!
//! The removal of the record must be durable before the call returns: if the record were replayed after a later change,
//! it would undo that change.

use std::collections::{BTreeMap, BTreeSet};

use blk::dir::{OWN_FOLDER, TEMPORARY_SUFFIX};
use blk::{Dir, Error, ErrorKind, Result};
use futures_util::future::join_all;

use super::folders::{FolderSet, Role, outside};
use crate::keyvalue::KeyValues;
use crate::read::parse;
use crate::text::{TEXT_BYTES_MAX, check_written, decimal, wrong};

/// Name of the record of a change that is not carried out yet, in the private folder.
pub(crate) const RECORD: &str = "intent";

/// Files to replace and files to remove. Names are plain (in the home), `.unstun/NAME`, or absolute paths in own
/// folders of the home.
#[derive(Debug, Default)]
pub(super) struct Intent {
    /// Marks this home's temporary files in shared folders.
    pub tag: String,
    pub replace: BTreeMap<String, Vec<u8>>,
    pub remove: Vec<String>,
}

/// Returns the name of a file in the private folder, as used in records.
pub(super) fn private_name(name: &str) -> String {
    format!("{OWN_FOLDER}/{name}")
}

/// A file of a change.
struct Target {
    /// Identifies the folder.
    folder: String,
    dir: Dir,
    name: String,
    /// Name of the temporary file without its suffix.
    staged: String,
}

impl Target {
    async fn find(folders: &FolderSet, tag: &str, written: &str) -> Result<Target> {
        let home = folders.home();
        if let Some(name) = written.strip_prefix(OWN_FOLDER).and_then(|rest| rest.strip_prefix('/')) {
            let dir = home.dir.open_dir(OWN_FOLDER, true).await?;
            return Ok(Target { folder: OWN_FOLDER.into(), dir, name: name.into(), staged: name.into() });
        }
        let place = folders.place(written).await?;
        if place.folder.role != Role::Own {
            return Err(outside(&home.path, written));
        }
        let alone = place.folder.path == home.path;
        let staged = if alone { place.name.clone() } else { format!("{}.{tag}", place.name) };
        Ok(Target { folder: place.folder.path, dir: place.folder.dir, name: place.name, staged })
    }

    async fn find_all(
        folders: &FolderSet,
        tag: &str,
        names: impl Iterator<Item = &String>,
    ) -> Result<Vec<Target>> {
        let mut targets = Vec::new();
        for name in names {
            targets.push(Target::find(folders, tag, name).await?);
        }
        Ok(targets)
    }

    fn temporary(&self) -> String {
        temporary(&self.staged)
    }
}

/// Syncs each folder once.
async fn sync(targets: impl Iterator<Item = &Target>) -> Result<()> {
    let mut synced = BTreeSet::new();
    for target in targets {
        if synced.insert(&target.folder) {
            target.dir.sync().await?;
        }
    }
    Ok(())
}

impl Intent {
    pub(super) async fn commit(&self, folders: &FolderSet) -> Result<()> {
        if self.replace.is_empty() && self.remove.is_empty() {
            return Ok(());
        }
        for (name, content) in &self.replace {
            check_written(&folders.path_of(name), content)?;
        }
        folders.cache.changing(self.replace.keys().chain(&self.remove), self.write(folders)).await
    }

    async fn write(&self, folders: &FolderSet) -> Result<()> {
        let targets = Target::find_all(folders, &self.tag, self.replace.keys()).await?;
        let removals = Target::find_all(folders, &self.tag, self.remove.iter()).await?;
        if let ([target], true) = (&targets[..], removals.is_empty()) {
            // One rename is atomic by itself.
            let content = &self.replace[self.replace.keys().next().expect("one")];
            target.dir.stage_file(&target.staged, content).await?;
            if let Err(e) = target.dir.rename(&target.temporary(), &target.name).await {
                unstage(&targets).await;
                return Err(e);
            }
            return target.dir.sync().await.map_err(in_doubt);
        }
        let private = match self.stage(folders, &targets).await {
            Ok(private) => private,
            Err(e) => {
                unstage(&targets).await;
                return Err(e);
            }
        };
        // From here on, an error does not show whether the change is on disk.
        let done = async {
            private.sync().await?;
            carry_out(&private, &targets, &removals).await
        };
        done.await.map_err(in_doubt)
    }

    /// Carries out everything up to the rename that is the change. If it fails, the record is not in place.
    async fn stage(&self, folders: &FolderSet, targets: &[Target]) -> Result<Dir> {
        let home = &folders.home().dir;
        let private = home.open_dir(OWN_FOLDER, true).await?;
        if private.list().await?.iter().any(|name| name == RECORD) {
            let cause = "a change that failed is still on record here; restart unstun, which completes it";
            return Err(Error::refused(private.path_of(RECORD), cause));
        }
        // Waits for all, even if one fails, so that none creates its file after the clean-up.
        let contents = self.replace.values();
        let staged = targets
            .iter()
            .zip(contents)
            .map(|(target, content)| target.dir.stage_file(&target.staged, content));
        join_all(staged).await.into_iter().collect::<Result<Vec<_>>>()?;
        // The home is always included, because its private folder may be new.
        home.sync().await?;
        sync(targets.iter().filter(|target| target.folder != folders.home().path)).await?;
        private.stage_file(RECORD, &self.record()).await?;
        private.rename(&temporary(RECORD), RECORD).await?;
        Ok(private)
    }

    fn record(&self) -> Vec<u8> {
        let mut record = KeyValues::new(RECORD);
        record.set("version", "1");
        record.set("tag", &self.tag);
        record.set("renames", &self.replace.len().to_string());
        record.set("removals", &self.remove.len().to_string());
        for (index, name) in self.replace.keys().enumerate() {
            record.set(&format!("rename{index}"), name);
        }
        for (index, name) in self.remove.iter().enumerate() {
            record.set(&format!("remove{index}"), name);
        }
        record.to_bytes()
    }
}

/// Removes the temporary files, to which nothing refers. The next load removes any that remain.
async fn unstage(targets: &[Target]) {
    for target in targets {
        let _ = target.dir.unlink_if_present(&target.temporary()).await;
    }
}

/// Converts an error after the commit point: callers assume for other kinds that nothing has changed.
fn in_doubt(e: Error) -> Error {
    match e.kind {
        ErrorKind::Latched | ErrorKind::LeaseLost | ErrorKind::Cancelled => e,
        _ => Error::new(ErrorKind::Io, e.place, e.cause),
    }
}

fn temporary(name: &str) -> String {
    format!("{name}{TEMPORARY_SUFFIX}")
}

async fn carry_out(private: &Dir, renames: &[Target], removals: &[Target]) -> Result<()> {
    for target in renames {
        match target.dir.rename(&target.temporary(), &target.name).await {
            Err(e) if e.kind == ErrorKind::NotFound => {}
            other => other?,
        }
    }
    for target in removals {
        target.dir.unlink_if_present(&target.name).await?;
    }
    sync(renames.iter().chain(removals)).await?;
    private.unlink_if_present(RECORD).await?;
    private.sync().await
}

/// Returns whether a change was begun and is not carried out.
pub(super) async fn is_pending(folders: &FolderSet) -> Result<bool> {
    Ok(private_names(folders).await?.iter().any(|name| name == RECORD))
}

/// Returns the names in the private folder; empty if there is none.
pub(super) async fn private_names(folders: &FolderSet) -> Result<Vec<String>> {
    match folders.home().dir.open_dir(OWN_FOLDER, false).await {
        Ok(private) => private.list().await,
        Err(e) if e.kind == ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Completes the change of a remaining record, and removes leftovers of changes that did not reach their commit point.
pub(super) async fn recover(folders: &FolderSet) -> Result<()> {
    make_names_durable(folders).await?;
    let home = &folders.home().dir;
    let ours = private_names(folders).await?;
    if !ours.is_empty() {
        let private = home.open_dir(OWN_FOLDER, false).await?;
        if ours.iter().any(|name| name == RECORD) {
            let bytes = private.read_file(RECORD, TEXT_BYTES_MAX as u64).await?;
            let record = parse(private.env(), private.path_of(RECORD), bytes, read_record).await?;
            let renames = Target::find_all(folders, &record.tag, record.renames.iter()).await?;
            let removals = Target::find_all(folders, &record.tag, record.removals.iter()).await?;
            carry_out(&private, &renames, &removals).await?;
        }
        remove_temporary(&private, TEMPORARY_SUFFIX).await?;
    }
    remove_temporary(home, TEMPORARY_SUFFIX).await
}

/// Makes the present names durable. A killed process may have left the removal of its record in the cache. After a loss
/// of power the record would exist again, and would rename files that a later change has prepared.
async fn make_names_durable(folders: &FolderSet) -> Result<()> {
    for folder in folders.own() {
        folder.dir.sync().await?;
    }
    match folders.home().dir.open_dir(OWN_FOLDER, false).await {
        Ok(private) => private.sync().await,
        Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Removes leftovers of this home from its other own folders.
pub(super) async fn remove_tagged(folders: &FolderSet, tag: &str) -> Result<()> {
    for folder in folders.own().skip(1) {
        remove_temporary(&folder.dir, &format!(".{tag}{TEMPORARY_SUFFIX}")).await?;
    }
    Ok(())
}

async fn remove_temporary(dir: &Dir, suffix: &str) -> Result<()> {
    for name in dir.list().await?.iter().filter(|name| name.ends_with(suffix)) {
        dir.unlink_if_present(name).await?;
    }
    Ok(())
}

#[derive(Debug)]
struct Record {
    tag: String,
    renames: Vec<String>,
    removals: Vec<String>,
}

fn read_record(file: &str, bytes: &[u8]) -> Result<Record> {
    let record = KeyValues::parse(file, bytes)?;
    let version = record.get("version")?.unwrap_or_default();
    if version != "1" {
        let cause = format!("version is \"{version}\", expected \"1\"; a newer unstun has written this");
        return Err(Error::unsupported(file, cause));
    }
    let list = |count_key: &str, key: &str| -> Result<Vec<String>> {
        let count: usize = decimal(file, count_key, record.get(count_key)?.unwrap_or_default(), "a number")?;
        let names = (0..count.min(bytes.len())).map(|index| {
            let key = format!("{key}{index}");
            record.get(&key)?.map(Into::into).ok_or_else(|| wrong(file, &key, "absent", "the name of a file"))
        });
        names.collect()
    };
    let tag = record.get("tag")?.unwrap_or_default().to_owned();
    Ok(Record { tag, renames: list("renames", "rename")?, removals: list("removals", "remove")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back() {
        let intent = Intent {
            tag: "0badcafe".into(),
            replace: BTreeMap::from([("web.vmx".into(), b"x".to_vec()), ("a \"b\".vmdk".into(), vec![])]),
            remove: vec!["web-000001.vmdk".into(), "/fast/web-000001-delta.vmdk".into()],
        };
        let record = read_record("intent", &intent.record()).unwrap();
        assert_eq!(
            (record.tag.as_str(), &record.renames[..]),
            ("0badcafe", &["a \"b\".vmdk".into(), "web.vmx".into()][..])
        );
        assert_eq!(record.removals, intent.remove);
    }

    #[test]
    fn bad_records_are_named() {
        let table = [
            ("", "version is \"\""),
            ("version = \"2\"\n", "version is \"2\""),
            ("version = \"1\"\n", "renames is \"\""),
            ("version = \"1\"\nrenames = \"1\"\nremovals = \"0\"\n", "rename0 is absent"),
            ("version = \"1\"\nrenames = \"0\"\nremovals = \"18446744073709551615\"\n", "remove0 is absent"),
        ];
        for (text, message) in table {
            let error = read_record("intent", text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
