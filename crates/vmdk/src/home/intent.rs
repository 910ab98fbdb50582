//! One atomic change of several small files of a folder.
//!
//! Order: every new file durable under a temporary name - the names synced - the record of the change renamed into place and
//! synced, which *is* the change - the files renamed, old ones removed, synced - the record removed, synced. Until the
//! record is in place nothing has happened; from then on carrying it out can be repeated, because a temporary file
//! that is missing was renamed already.
//!
//! The record must be durably gone before this returns: replayed after a later change it would undo that one.

use std::collections::BTreeMap;

use blk::dir::TEMPORARY_SUFFIX;
use blk::{Dir, Error, ErrorKind, Result};
use futures_util::future::join_all;

use crate::keyvalue::KeyValues;
use crate::text::{TEXT_BYTES_MAX, decimal, wrong};

/// The only folder of ours in a VM's home.
pub(super) const PRIVATE_FOLDER: &str = ".unstun";
const RECORD: &str = "intent";

/// Files to put in place of others, and files to remove.
#[derive(Debug, Default)]
pub(super) struct Intent {
    pub replace: BTreeMap<String, Vec<u8>>,
    pub remove: Vec<String>,
}

impl Intent {
    pub async fn commit(&self, dir: &Dir) -> Result<()> {
        if self.replace.is_empty() && self.remove.is_empty() {
            return Ok(());
        }
        if let (Some((name, content)), 1, true) =
            (self.replace.first_key_value(), self.replace.len(), self.remove.is_empty())
        {
            // One rename is atomic by itself.
            return dir.replace_file(name, content).await;
        }
        let private = match self.stage(dir).await {
            Ok(private) => private,
            Err(e) => {
                self.unstage(dir).await;
                return Err(e);
            }
        };
        // From here nobody can tell from an error whether the change is on disk, least of all that it is not.
        let done = async {
            private.sync().await?;
            carry_out(dir, &private, self.replace.keys(), &self.remove).await
        };
        done.await.map_err(|e: Error| match e.kind {
            ErrorKind::NoSpace => Error::new(ErrorKind::Io, e.place, e.cause),
            _ => e,
        })
    }

    /// Everything up to the rename that is the change. When it fails the record is not in place.
    async fn stage(&self, dir: &Dir) -> Result<Dir> {
        let private = dir.open_dir(PRIVATE_FOLDER, true).await?;
        // Waits for all even when one fails, so that none of them creates its file after the clean-up.
        let staged = join_all(self.replace.iter().map(|(name, content)| dir.stage_file(name, content))).await;
        staged.into_iter().collect::<Result<()>>()?;
        dir.sync().await?;
        private.stage_file(RECORD, &self.record()).await?;
        private.rename(&temporary(RECORD), RECORD).await?;
        Ok(private)
    }

    /// Nothing refers to the temporary files; what stays behind is removed at the next load.
    async fn unstage(&self, dir: &Dir) {
        for name in self.replace.keys() {
            let _ = dir.unlink_if_present(&temporary(name)).await;
        }
    }

    fn record(&self) -> Vec<u8> {
        let mut record = KeyValues::new(RECORD);
        record.set("version", "1");
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

fn temporary(name: &str) -> String {
    format!("{name}{TEMPORARY_SUFFIX}")
}

async fn carry_out(
    dir: &Dir,
    private: &Dir,
    renames: impl IntoIterator<Item = impl AsRef<str>>,
    removals: &[String],
) -> Result<()> {
    for name in renames {
        match dir.rename(&temporary(name.as_ref()), name.as_ref()).await {
            Err(e) if e.kind == ErrorKind::NotFound => {}
            other => other?,
        }
    }
    for name in removals {
        dir.unlink_if_present(name).await?;
    }
    dir.sync().await?;
    private.unlink_if_present(RECORD).await?;
    private.sync().await
}

/// Finishes the change of a record that is still there, and removes what a change left behind that never became one.
pub(super) async fn recover(dir: &Dir) -> Result<()> {
    let names = dir.list().await?;
    if names.iter().any(|name| name.trim_end_matches('/') == PRIVATE_FOLDER) {
        let private = dir.open_dir(PRIVATE_FOLDER, false).await?;
        let ours = private.list().await?;
        if ours.iter().any(|name| name == RECORD) {
            let bytes = private.read_file(RECORD, TEXT_BYTES_MAX as u64).await?;
            let (renames, removals) = read_record(&private.path_of(RECORD), &bytes)?;
            carry_out(dir, &private, &renames, &removals).await?;
        }
        remove_temporary(&private, &ours).await?;
    }
    remove_temporary(dir, &names).await
}

async fn remove_temporary(dir: &Dir, names: &[String]) -> Result<()> {
    for name in names.iter().filter(|name| name.ends_with(TEMPORARY_SUFFIX)) {
        dir.unlink_if_present(name).await?;
    }
    Ok(())
}

fn read_record(file: &str, bytes: &[u8]) -> Result<(Vec<String>, Vec<String>)> {
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
    Ok((list("renames", "rename")?, list("removals", "remove")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back() {
        let intent = Intent {
            replace: BTreeMap::from([("web.vmx".into(), b"x".to_vec()), ("a \"b\".vmdk".into(), vec![])]),
            remove: vec!["web-000001.vmdk".into(), "web-000001-delta.vmdk".into()],
        };
        let (renames, removals) = read_record("intent", &intent.record()).unwrap();
        assert_eq!(renames, ["a \"b\".vmdk", "web.vmx"]);
        assert_eq!(removals, intent.remove);
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
