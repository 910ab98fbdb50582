//! Hand-over of a VM from one datastore to another. The VM has a source home and a target home. Exactly one of them is
//! the VM at any time, even if only one of the datastores is present.
//!
//! The source home records the move durably before anything is created at the target, and its record decides. With
//! `leaving` the source is still the VM; with `left` the target is. The target home is marked as arriving until the
//! move is completed. A missing source datastore therefore matters only while that mark exists, and a missing target
//! datastore only after the step.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::WhenFull;
use blk::dir::{OWN_FOLDER, TEMPORARY_SUFFIX};
use blk::{Dir, Error, ErrorKind, Result};

use crate::daemon::datastore::native;
use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::relocation::recovery;
use crate::daemon::state::Daemon;
use crate::daemon::vm::formats::{self, is_dir, open_path};
use crate::daemon::vm::remove::{remove_folder, remove_made, remove_with_files};
use crate::log::log;

/// File in the source home's `.unstun` folder: `leaving PATH` or `left PATH`, with the path of the target home.
pub const DEPARTING_NAME: &str = "departing";
/// File beside it from the intent to the step, with the line for after the step. The step renames it and needs no
/// space.
const DEPARTED_NAME: &str = "departing.step";
/// File in the target home's `.unstun` folder: the path of the source home.
const ARRIVING_NAME: &str = "arriving";
/// File that the user creates in the `.unstun` folder of a home whose role is unknown. It states that this side is the
/// VM, and that the other side is lost.
const WHOLE_NAME: &str = "whole";
/// Maximum size of a line in bytes: a word and a path of the kernel's greatest length.
const LINE_BYTES_MAX: u64 = 8 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Handover {
    /// The source home is the VM.
    Leaving(PathBuf),
    /// The target home is the VM.
    Left(PathBuf),
}

impl Handover {
    fn parse(place: &str, line: &str) -> Result<Handover> {
        let path = |text: &str| text.starts_with('/').then(|| PathBuf::from(text));
        let read = match line.split_once(' ') {
            Some(("leaving", to)) => path(to).map(Handover::Leaving),
            Some(("left", to)) => path(to).map(Handover::Left),
            _ => None,
        };
        let cause = || format!("found {line:?}, expected `leaving /absolute/path` or `left /absolute/path`");
        read.ok_or_else(|| Error::damaged(place, cause()))
    }

    fn to(&self) -> &Path {
        match self {
            Handover::Leaving(to) | Handover::Left(to) => to,
        }
    }
}

async fn own(home: &Home) -> Result<Dir> {
    open_path(home.datastore.dir.env(), &home.path).await?.open_dir(OWN_FOLDER, false).await
}

async fn line(home: &Home, name: &str) -> Result<Option<String>> {
    let read = async { own(home).await?.read_file(name, LINE_BYTES_MAX).await };
    match read.await {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

async fn handover(home: &Home) -> Result<Option<Handover>> {
    let place = home.path.join(OWN_FOLDER).join(DEPARTING_NAME);
    let line = line(home, DEPARTING_NAME).await?;
    line.map(|line| Handover::parse(&place.to_string_lossy(), &line)).transpose()
}

async fn write(home: &Home, name: &str, word: &str, to: &Home) -> Result<()> {
    let text = format!("{word} {}\n", to.path.display());
    own(home).await?.replace_file(name, text.as_bytes()).await
}

/// The user's settings that move with the VM.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub when_full: WhenFull,
    pub shared_writers: bool,
}

/// Durably records the intent, and then creates a target home that no start takes for a VM. `id` is that of the VM to
/// be created in the target's store.
pub async fn begin(from: &Home, to: &Home, terms: Terms, id: Option<u128>) -> Result<()> {
    write(from, DEPARTING_NAME, "leaving", to).await?;
    write(from, DEPARTED_NAME, "left", to).await?;
    native::set_moving(from, true).await?;
    let name = to.path.file_name().unwrap_or_default().to_string_lossy();
    let dir = to.datastore.dir.open_dir(&name, true).await?;
    to.datastore.dir.sync().await?;
    // The folder gets its final name when its content is complete.
    let making = format!("{OWN_FOLDER}{TEMPORARY_SUFFIX}");
    let own = dir.open_dir(&making, true).await?;
    own.replace_file(ARRIVING_NAME, format!("{}\n", from.path.display()).as_bytes()).await?;
    formats::write_when_full(&own, terms.when_full).await?;
    formats::write_shared_writers(&own, terms.shared_writers).await?;
    if id.is_some() {
        native::set_mark(&own, id).await?;
    }
    dir.rename(&making, OWN_FOLDER).await?;
    dir.sync().await
}

/// Durably carries out the step: from here on the VM is the target home.
pub async fn step(from: &Home) -> Result<()> {
    let own = own(from).await?;
    own.rename(DEPARTED_NAME, DEPARTING_NAME).await?;
    own.sync().await
}

/// Returns whether the source home records the step now, durably or not.
pub async fn has_stepped(from: &Home) -> Result<bool> {
    Ok(matches!(handover(from).await?, Some(Handover::Left(_))))
}

/// Undoes the step if `step` has carried it out.
pub async fn step_back(from: &Home, to: &Home) -> Result<()> {
    write(from, DEPARTING_NAME, "leaving", to).await
}

/// Cleans up after a failed move: removes the target home, and then the intent. Anything that cannot be removed now is
/// removed at the next start.
pub async fn give_up(from: &Home, to: &Home) -> Result<()> {
    remove_arrival(from, to).await?;
    native::set_moving(from, false).await?;
    let own = own(from).await?;
    own.unlink_if_present(DEPARTED_NAME).await?;
    own.unlink_if_present(DEPARTING_NAME).await?;
    own.sync().await
}

/// Completes a move after the step: removes the target's mark of arrival, and then the source home.
pub async fn complete(daemon: &Daemon, name: &str, from: &Home, to: &Home) -> api::error::Result<()> {
    arrived(to).await?;
    match native::mark(&daemon.env, &from.path).await? {
        Some(id) => {
            refuse_whole(from).await?;
            native::remove_vm(&from.datastore, id).await?
        }
        None => recovery::remove_files(daemon, from).await?,
    }
    from.datastore.registry.remove(name).await?;
    Ok(remove_folder(from, &open_path(&daemon.env, &from.path).await?).await?)
}

/// Removes the target home of a failed move. A folder that this move did not create stays.
async fn remove_arrival(from: &Home, to: &Home) -> Result<()> {
    if !is_dir(to.datastore.dir.env(), &to.path).await {
        return Ok(());
    }
    let dir = open_path(to.datastore.dir.env(), &to.path).await?;
    let making = format!("{OWN_FOLDER}{TEMPORARY_SUFFIX}");
    remove_with_files(&dir, &making).await?;
    match line(to, ARRIVING_NAME).await? {
        Some(path) if Path::new(&path) == from.path => {
            refuse_whole(to).await?;
            native::remove_marked(to).await?;
            remove_made(to).await
        }
        Some(_) => Ok(()),
        None if dir.list().await?.is_empty() => remove_folder(to, &dir).await,
        None => Ok(()),
    }
}

/// Durably removes the marks of a move from the home, which is the VM. The store's mark is removed first: without the
/// file no start would look for it.
async fn arrived(home: &Home) -> Result<()> {
    native::set_moving(home, false).await?;
    let own = own(home).await?;
    own.unlink_if_present(ARRIVING_NAME).await?;
    own.sync().await
}

/// Refuses to remove a home that was declared the VM meanwhile: it may have been written.
async fn refuse_whole(home: &Home) -> Result<()> {
    if !native::is_whole(home).await? {
        return Ok(());
    }
    let cause = "was to go with its move, and under another daemon its user has said that it is the VM; both sides stay";
    let remedy = "remove the one that you do not want: `unstun vm remove`, from the daemon that serves it";
    Err(Error::refused(home.path.display().to_string(), format!("{cause}; {remedy}")))
}

/// Refuses a home that is not the VM, or whose role is unknown.
pub async fn refuse_elsewhere(home: &Home) -> Result<()> {
    let place = home.path.display().to_string();
    match handover(home).await? {
        Some(Handover::Left(to)) => {
            let cause = format!("it has moved to {}, in a datastore that is not served", to.display());
            return Err(Error::refused(place, format!("{cause}; serve that one: `unstun datastore add`")));
        }
        // The source home is the VM, whatever the store records.
        Some(Handover::Leaving(_)) => return Ok(()),
        None => {}
    }
    let (cause, remedy) = match line(home, ARRIVING_NAME).await? {
        Some(from) => (
            format!("it is a copy, made by a move from {from}; whether the move has ended stands there"),
            "serve that datastore too: `unstun datastore add`",
        ),
        None if native::is_moving(home).await? => (
            "it is one side of a move that another daemon has begun; which side is the VM stands in its homes there"
                .to_owned(),
            "serve the datastore from there again, and the move ends",
        ),
        None => return Ok(()),
    };
    let own = own(home).await?;
    if own.list().await?.iter().any(|name| name == WHOLE_NAME) {
        arrived(home).await?;
        own.unlink_if_present(WHOLE_NAME).await?;
        return own.sync().await;
    }
    let last = format!(
        "If that is lost for good, and you know that this side is whole, make an empty file \
         {place}/{OWN_FOLDER}/{WHOLE_NAME} and `unstun vm open` it"
    );
    Err(Error::refused(place, format!("{cause}; {remedy}. {last}")))
}

/// Refuses a home with an old intent: another copy of it exists elsewhere.
pub async fn refuse_departing(home: &Home) -> Result<()> {
    let Some(handover) = handover(home).await? else { return Ok(()) };
    let to = handover.to().display();
    let cause = format!("an earlier move to {to} has left a copy there, in a datastore that is not served");
    let remedy = format!("serve it, and the copy goes; if it is lost, remove {OWN_FOLDER}/{DEPARTING_NAME}");
    Err(Error::refused(home.path.display().to_string(), format!("{cause}; {remedy}")))
}

impl Daemon {
    /// Ends the moves between datastores that a crash has interrupted, if both datastores are present. Runs before
    /// their homes are opened.
    pub async fn recover_handovers(self: &Rc<Self>, datastore: &Rc<Datastore>) {
        let homes = match datastore.inhabitants().await {
            Ok(homes) => homes,
            // Opening the homes reports the error.
            Err(_) => return,
        };
        for (name, path) in homes {
            let home = datastore.at(&path);
            if let Err(e) = self.recover_handover(&name, &home).await {
                log(format_args!("{}: what a move has left stays for now: {e}", path.display()));
            }
        }
    }

    async fn recover_handover(self: &Rc<Self>, name: &str, home: &Home) -> api::error::Result<()> {
        // The VM's move may be under way.
        let Ok(_claim) = self.claim(name) else { return Ok(()) };
        let Some(handover) = handover(home).await? else { return Ok(()) };
        let Some(to) = self.datastore_of(handover.to()).map(|datastore| datastore.at(handover.to())) else {
            return Ok(());
        };
        if self.entry(name).is_ok_and(|entry| entry.home == home.path) {
            return match handover {
                Handover::Leaving(_) => Ok(give_up(home, &to).await?),
                Handover::Left(_) => Ok(()),
            };
        }
        // Another daemon may hold the home through its own registry.
        formats::hold(self, &home.path).await?;
        // A killed daemon may have left the step in the cache. One side is removed now, so the record that decides is durable.
        own(home).await?.sync().await?;
        let settled = match handover {
            Handover::Leaving(_) => give_up(home, &to).await.map_err(Into::into),
            Handover::Left(_) => complete(self, name, home, &to).await,
        };
        self.holds.release(&home.path);
        // The registry's record of the VM is out of date for both homes.
        if self.idle_home(name).is_some() {
            self.forget(name);
        }
        settled
    }

    /// Returns whether the home's VM is in another datastore that is served. A home that could not be removed yet has
    /// no claim to the VM's name.
    pub async fn has_left(&self, home: &Home) -> bool {
        let handover = handover(home).await;
        matches!(handover, Ok(Some(Handover::Left(to))) if self.datastore_of(&to).is_some())
    }

    /// Returns the datastore that contains the home.
    fn datastore_of(&self, path: &Path) -> Option<Rc<Datastore>> {
        self.datastores().into_iter().find(|datastore| datastore.contains(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_departure_is_one_line() {
        let read = |line| Handover::parse("departing", line);
        assert_eq!(read("leaving /b/my web").unwrap(), Handover::Leaving("/b/my web".into()));
        assert_eq!(read("left /b/web").unwrap(), Handover::Left("/b/web".into()));
        for line in ["", "left", "left web", "gone /b/web"] {
            assert_eq!(read(line).unwrap_err().kind, ErrorKind::Damaged, "{line}");
        }
    }
}
