//! A repository: made, opened, and what its log says.

use std::sync::Arc;

use blk::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};

use crate::event::{DiskBackup, Event};
use crate::hex::hex;
use crate::key::{self, KeySummary, Keys, Secret};
use crate::log::{self, Appended};
use crate::names;
use crate::objects::{Objects, Put};
use crate::seal::random;
use crate::state::State;

/// Version of the format that this code reads and writes.
const FORMAT: u32 = 1;
/// Sizes that a chunk can have, in bytes; a power of two.
const CHUNK_BYTES: std::ops::RangeInclusive<u32> = 4096..=1 << 20;
/// Requests that create the description of a new repository: a store must carry out one of them.
const CREATIONS: usize = 4;
/// Attempts to append an event that does not depend on other entries.
const APPENDS_MAX: u32 = 1000;

/// What the object `repository` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryInfo {
    /// Version of the format.
    pub format: u32,
    /// Identity of the repository: 32 hexadecimal digits.
    pub id: String,
    /// Bytes of a chunk; the last one of a disk can be shorter.
    pub chunk_bytes: u32,
    /// When it was made, in microseconds since 1970.
    pub made_us: u64,
}

impl RepositoryInfo {
    /// Returns what the wrapped keys authenticate.
    fn bound(&self) -> String {
        format!("{} {}", self.id, self.chunk_bytes)
    }
}

/// An open repository.
pub struct Repository {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) keys: Keys,
    pub(crate) info: RepositoryInfo,
    pub(crate) state: State,
    /// Who writes, for people.
    pub(crate) writer: String,
    key_id: String,
}

impl Repository {
    /// Makes a repository whose only key opens with `secret`.
    ///
    /// # Errors
    /// `Exists`: there is one already. `Unsupported`: the store cannot create an object only if its name is free.
    pub async fn init(
        objects: Arc<dyn Objects>,
        (secret, label): (&Secret, &str),
        chunk_bytes: u32,
        (writer, now_us): (&str, u64),
    ) -> Result<Repository> {
        if !chunk_bytes.is_power_of_two() || !CHUNK_BYTES.contains(&chunk_bytes) {
            let expected = format!("a power of two from {} to {}", CHUNK_BYTES.start(), CHUNK_BYTES.end());
            return Err(Error::invalid(
                objects.place(),
                format!("chunks of {chunk_bytes} bytes: expected {expected}"),
            ));
        }
        refuse_existing(&*objects).await?;
        let info = RepositoryInfo { format: FORMAT, id: hex(&random::<16>()?), chunk_bytes, made_us: now_us };
        let keys = Keys::new()?;
        // The key is there before the repository is, so that no repository exists without one.
        let key_id = key::add(&*objects, &info.bound(), &keys, secret, label, now_us).await?;
        let text = serde_json::to_vec_pretty(&info).expect("plain JSON");
        let text = Bytes::from(text);
        // All at once: some stores look for the object first and create it then, which is not one step.
        let creations = (0..CREATIONS).map(|_| objects.put_new(names::REPOSITORY, text.clone()));
        let created = try_join_all(creations).await?;
        let created = created.into_iter().filter(|put| *put == Put::Created).count();
        // Without any the answer was lost, or another program has made a repository meanwhile.
        if created == 0 && objects.get(names::REPOSITORY).await? != text {
            return Err(exists(&*objects));
        }
        if created > 1 {
            // So that nothing there looks like a repository. The error is the store's, whether or not this succeeds.
            let _ = objects.delete(names::REPOSITORY).await;
            let _ = objects.delete(&format!("{}{key_id}", names::KEYS)).await;
            return Err(no_conditional_puts(&*objects));
        }
        Ok(Repository { objects, keys, info, state: State::default(), writer: writer.to_owned(), key_id })
    }

    /// Opens a repository.
    ///
    /// # Errors
    /// `NotFound`: there is none. `Refused`: `secret` does not open it. `Unsupported`: it is of a later version.
    pub async fn open(objects: Arc<dyn Objects>, secret: &Secret, writer: &str) -> Result<Repository> {
        let info = read_info(&*objects).await?;
        let (keys, key_id) = key::open(&*objects, &info.bound(), secret).await?;
        let state = log::read_state(&*objects, &keys).await?;
        Ok(Repository { objects, keys, info, state, writer: writer.to_owned(), key_id })
    }

    /// Returns what the repository is.
    pub fn info(&self) -> &RepositoryInfo {
        &self.info
    }

    /// Returns where the repository is.
    pub fn place(&self) -> &str {
        self.objects.place()
    }

    /// Returns what its log says, as far as it was read.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the identity of a backup's disk: another content has another one.
    pub fn identity(&self, number: u32, disk: &DiskBackup) -> String {
        let root = disk.root.map_or("zeros".to_owned(), |root| hex(&root.id[..8]));
        format!("{}/{number}/{}/{root}", &self.info.id[..16], disk.number)
    }

    /// Reads what others have appended.
    pub async fn refresh(&mut self) -> Result<()> {
        log::follow(&*self.objects, &self.keys, &mut self.state).await
    }

    /// Appends an event after the entries that were read. Returns false if others came first.
    pub(crate) async fn append(&mut self, event: Event, now_us: u64) -> Result<Option<u32>> {
        let by = (&*self.writer, now_us);
        match log::append(&*self.objects, &self.keys, &mut self.state, event, by).await? {
            Appended::Yes(number) => Ok(Some(number)),
            Appended::Overtaken => Ok(None),
        }
    }

    /// Appends an event that stays true whatever others have appended.
    pub(crate) async fn append_always(&mut self, event: &Event, now_us: u64) -> Result<u32> {
        for _ in 0..APPENDS_MAX {
            if let Some(number) = self.append(event.clone(), now_us).await? {
                return Ok(number);
            }
        }
        let cause = format!("others appended to the log first, {APPENDS_MAX} times; try again");
        Err(Error::new(ErrorKind::Locked, self.place(), cause))
    }

    /// Gives up backups. They can be taken back until [`prune`](crate::prune) has reclaimed their space.
    pub async fn forget(&mut self, backups: Vec<u32>, now_us: u64) -> Result<()> {
        self.refresh().await?;
        backups.iter().try_for_each(|number| self.state.backup(*number).map(drop))?;
        self.append_always(&Event::Forget { backups }, now_us).await.map(drop)
    }

    /// Takes backups back that were given up.
    ///
    /// # Errors
    /// `NotFound`: one of them was not given up, or its space was reclaimed.
    pub async fn recall(&mut self, backups: Vec<u32>, now_us: u64) -> Result<()> {
        self.refresh().await?;
        loop {
            if let Some(number) = backups.iter().find(|number| !self.state.forgotten.contains_key(number)) {
                let cause = "it was not removed, or its space was reclaimed already";
                return Err(Error::not_found(format!("backup {number}"), cause));
            }
            if self.append(Event::Recall { backups: backups.clone() }, now_us).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Returns the keys with which this repository can be opened.
    pub async fn list_keys(&self) -> Result<Vec<KeySummary>> {
        key::list(&*self.objects, &self.key_id).await
    }

    /// Adds a key. The secrets of the others continue to open the repository.
    pub async fn add_key(&self, secret: &Secret, label: &str, now_us: u64) -> Result<String> {
        key::add(&*self.objects, &self.info.bound(), &self.keys, secret, label, now_us).await
    }

    /// Removes a key; its secret does not open the repository any more.
    pub async fn remove_key(&self, id: &str) -> Result<()> {
        key::remove(&*self.objects, &self.key_id, id).await
    }
}

fn no_conditional_puts(objects: &dyn Objects) -> Error {
    let cause = "the store replaced an object that should have been created only if its name was free; such a store loses backups \
                 when two programs write at once, and cannot be used: choose another one";
    Error::unsupported(objects.place(), cause)
}

fn exists(objects: &dyn Objects) -> Error {
    Error::new(ErrorKind::Exists, objects.place(), "there is a repository already")
}

async fn refuse_existing(objects: &dyn Objects) -> Result<()> {
    match objects.get(names::REPOSITORY).await {
        Ok(_) => Err(exists(objects)),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

async fn read_info(objects: &dyn Objects) -> Result<RepositoryInfo> {
    let body = objects.get(names::REPOSITORY).await.map_err(|e| match e.kind {
        ErrorKind::NotFound => {
            Error::not_found(objects.place(), "there is no repository here; `unstun repo init` makes one")
        }
        _ => e,
    })?;
    let damaged = |cause: String| Error::damaged(format!("{}/{}", objects.place(), names::REPOSITORY), cause);
    let version: serde_json::Value = serde_json::from_slice(&body).map_err(|e| damaged(e.to_string()))?;
    match version.get("format").and_then(serde_json::Value::as_u64) {
        Some(found) if found == u64::from(FORMAT) => {}
        Some(found) => {
            let cause = format!(
                "the repository has format {found}, and this version of unstun reads format {FORMAT}"
            );
            return Err(Error::unsupported(objects.place(), cause));
        }
        None => return Err(damaged("the field format is missing".into())),
    }
    let info: RepositoryInfo = serde_json::from_value(version).map_err(|e| damaged(e.to_string()))?;
    match info.chunk_bytes.is_power_of_two() && CHUNK_BYTES.contains(&info.chunk_bytes) {
        true => Ok(info),
        false => {
            Err(damaged(format!("chunk_bytes: {}, expected a power of two up to 1 MiB", info.chunk_bytes)))
        }
    }
}
