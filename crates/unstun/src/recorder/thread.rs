//! The thread that has the record's files: neither a guest nor an answer of the API waits for their file system.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use api::error::{Error, Result};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::activity::Activity;
use super::series::Series;

/// Maximum number of messages that wait: half a minute's looks, and requests. More are left out.
const MESSAGES_MAX: usize = 64;
/// Time for which an answer waits for the files. A datastore that hangs must not hang a page.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Minimum time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(600);
/// Age from which on the record of a VM that is not served is removed: a month more than the record reaches back.
const UNUSED_S: u64 = 62 * 24 * 3600;
/// Interval at which such records are looked for.
const UNUSED_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// What the disks of all series did in a second.
pub(super) struct Looked {
    pub second: i64,
    /// By the name of the series' folder.
    pub series: Vec<(String, Vec<(u32, Activity)>)>,
}

type Work = Box<dyn FnOnce(&mut Files) + Send>;

/// Sends work to the thread.
pub(super) struct Thread(SyncSender<Work>);

/// The series of the record.
pub(super) struct Files {
    folder: PathBuf,
    series: BTreeMap<String, Series>,
    /// Series of the last look.
    present: BTreeSet<String>,
    warned: Option<Instant>,
}

impl Thread {
    /// Starts the thread. The folder is created with the first file.
    pub(super) fn start(folder: PathBuf) -> Result<Thread> {
        let (sender, inbox) = sync_channel(MESSAGES_MAX);
        let thread =
            std::thread::Builder::new().name("recorder".into()).spawn(move || work_off(folder, &inbox));
        thread.map_err(|e| Error::failed(format!("starting a thread for the recorder: {e}")))?;
        Ok(Thread(sender))
    }

    /// Hands work over. Returns false if it is left out, because the files are too slow.
    pub(super) fn send(&self, work: impl FnOnce(&mut Files) + Send + 'static) -> bool {
        !matches!(self.0.try_send(Box::new(work)), Err(TrySendError::Full(_) | TrySendError::Disconnected(_)))
    }

    /// Returns the answer of work.
    ///
    /// # Errors
    /// Those of the work, and `Failed` if the files do not answer.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Files) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let sent = self.send(move |files| {
            let place = files.folder.display().to_string();
            let _ = answer.send(work(files).map_err(|e| Error::failed(format!("{place}: {e}"))));
        });
        match tokio::time::timeout(ANSWER_MAX, answered).await {
            Ok(Ok(answer)) if sent => answer,
            _ => Err(Error::failed(
                "the files of the recorder do not answer; `unstun status` shows whether their datastore hangs",
            )),
        }
    }
}

impl Files {
    pub(super) fn folder_of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn series(&mut self, name: &str) -> &mut Series {
        let folder = self.folder_of(name);
        self.series.entry(name.to_owned()).or_insert_with(|| Series::new(&folder))
    }

    pub(super) fn add(&mut self, looked: &Looked) {
        self.present = looked.series.iter().map(|(name, _)| name.clone()).collect();
        for (name, disks) in &looked.series {
            let written = self.series(name).add(looked.second, disks);
            self.warn_of(name, written);
        }
    }

    pub(super) fn keep_around(&mut self, name: &str, second: i64) {
        let written = self.series(name).keep_around(second);
        self.warn_of(name, written);
    }

    fn warn_of(&mut self, name: &str, written: std::io::Result<()>) {
        let Err(e) = written else { return };
        if self.warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            self.warned = Some(Instant::now());
            warn!("{}: some seconds are not recorded: {e}", self.folder_of(name).display());
        }
    }

    /// Writes what is not on file yet.
    pub(super) fn close(&mut self) {
        self.present.clear();
        self.close_absent();
    }

    /// Closes the series of VMs and stores that are not open any more.
    fn close_absent(&mut self) {
        let absent: Vec<_> =
            self.series.keys().filter(|name| !self.present.contains(*name)).cloned().collect();
        for name in absent {
            let closed = self.series.remove(&name).map_or(Ok(()), |mut series| series.close());
            self.warn_of(&name, closed);
        }
    }

    /// Removes the records of VMs that have long been removed.
    fn remove_unused(&mut self) -> std::io::Result<()> {
        self.close_absent();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let is_open = entry.file_name().to_str().is_none_or(|name| self.series.contains_key(name));
            if !is_open && entry.file_type()?.is_dir() && is_unused(&entry.path())? {
                info!(
                    "{}: the record of a VM that is not served any more is removed",
                    entry.path().display()
                );
                std::fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Returns whether no file of a folder has changed for `UNUSED_S`.
fn is_unused(folder: &Path) -> std::io::Result<bool> {
    let now = SystemTime::now();
    for file in std::fs::read_dir(folder)? {
        let age = now.duration_since(file?.metadata()?.modified()?).unwrap_or_default();
        if age.as_secs() < UNUSED_S {
            return Ok(false);
        }
    }
    Ok(true)
}

fn work_off(folder: PathBuf, inbox: &Receiver<Work>) {
    let mut files = Files { folder, series: BTreeMap::new(), present: BTreeSet::new(), warned: None };
    // Not at once: the VMs are being opened.
    let mut looked = Instant::now();
    for work in inbox {
        work(&mut files);
        if looked.elapsed() >= UNUSED_INTERVAL {
            looked = Instant::now();
            if let Err(e) = files.remove_unused() {
                warn!("{}: {e}", files.folder.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_a_vm_that_is_gone_for_two_months_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        let mut files =
            Files { folder: root, series: BTreeMap::new(), present: BTreeSet::new(), warned: None };
        // The second VM was open, and is removed while the daemon runs.
        for name in ["vm-2", "vm-1"] {
            files.add(&Looked { second: 1000, series: vec![(name.to_owned(), Vec::new())] });
        }
        files.series.get_mut("vm-2").unwrap().close().unwrap();
        for (name, age_s) in [("vm-1", UNUSED_S + 10), ("vm-2", UNUSED_S + 10), ("vm-3", UNUSED_S - 10_000)] {
            let own = folder.path().join(name);
            std::fs::create_dir_all(&own).unwrap();
            std::fs::write(own.join("1s.000001.0"), "").unwrap();
            for file in std::fs::read_dir(own).unwrap() {
                let file = std::fs::OpenOptions::new().write(true).open(file.unwrap().path()).unwrap();
                file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
            }
        }
        files.remove_unused().unwrap();
        let kept = ["vm-1", "vm-2", "vm-3"].map(|name| folder.path().join(name).exists());
        assert_eq!(kept, [true, false, true]);
    }
}
