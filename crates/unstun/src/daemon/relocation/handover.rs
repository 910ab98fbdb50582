//! Hand-over of a VM from one datastore to another. The VM has a source home and a target home. Exactly one of them is
//! the VM at any time, even if only one of the datastores is present.
//!
//! The source home records the move durably before anything is created at the target, and its record decides: with
//! `Prepared` the source is the VM, with `Committed` the target is. The target home has the record `Target` until the
//! move is completed. A missing source datastore therefore matters only while that record exists, and a missing target
//! datastore only after the step.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::WhenFull;
use blk::dir::{OWN_FOLDER, TEMPORARY_SUFFIX};
use blk::{Dir, Error, ErrorKind, Result};
use futures_util::stream::{self, StreamExt};
use tracing::warn;

use crate::daemon::datastore::{Datastore, Home, LOOKS_MAX};
use crate::daemon::relocation::record::{self, MoveRecord};
use crate::daemon::relocation::recovery;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_folder::HomeFolder;
use crate::daemon::vm::home_removal::{remove_folder, remove_made, remove_with_files};
use crate::daemon::vm::paths::{is_dir, open_path};
use crate::daemon::vm::{formats, labels, limits, mark, memory, native_homes, settings};

async fn record(home: &Home) -> Result<Option<MoveRecord>> {
    MoveRecord::read(home.datastore.dir.env(), &home.path).await
}

async fn own(home: &Home) -> Result<Dir> {
    record::own(home.datastore.dir.env(), &home.path).await
}

/// The user's settings that move with the VM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub when_full: WhenFull,
    pub shared_writers: bool,
}

/// Durably records the intent, and then creates a target home that no start takes for a VM. `id` is that of the VM to
/// be created in the target's store.
pub(crate) async fn begin(from: &Home, to: &Home, terms: Terms, id: Option<u128>) -> Result<()> {
    let source = own(from).await?;
    record::prepare(&source, &to.path).await?;
    native_homes::set_moving(from, true).await?;
    let name = to.path.file_name().unwrap_or_default().to_string_lossy();
    let dir = to.datastore.dir.open_dir(&name, true).await?;
    to.datastore.dir.sync().await?;
    // The folder gets its final name when its content is complete.
    let making = format!("{OWN_FOLDER}{TEMPORARY_SUFFIX}");
    let own = dir.open_dir(&making, true).await?;
    MoveRecord::Target { from: from.path.clone() }.write(&own).await?;
    settings::write_when_full(&own, terms.when_full).await?;
    settings::write_shared_writers(&own, terms.shared_writers).await?;
    limits::copy(&source, &own).await?;
    labels::copy(&source, &own).await?;
    memory::copy(&source, &own).await?;
    if id.is_some() {
        mark::write(&own, id).await?;
    }
    dir.rename(&making, OWN_FOLDER).await?;
    dir.sync().await
}

/// Leaves out the homes that have no record of a move: most of them. A record that comes later belongs to a move of this
/// daemon.
async fn with_move_records(
    datastore: &Rc<Datastore>,
    homes: Vec<(String, PathBuf)>,
) -> Vec<(String, PathBuf)> {
    let look = async |(name, path): (String, PathBuf)| {
        let own = async { datastore.open_candidate(&path).await?.open_dir(OWN_FOLDER, false).await };
        let has_record = match own.await {
            Ok(own) => !matches!(MoveRecord::read_in(&own).await, Ok(None)),
            Err(e) if e.kind == ErrorKind::NotFound => false,
            // A folder that is no home does not matter.
            Err(_) => datastore.is_inhabited(&path).await.unwrap_or(true),
        };
        has_record.then_some((name, path))
    };
    let looks = stream::iter(homes.into_iter().map(look)).buffered(LOOKS_MAX);
    looks.filter_map(async |found| found).collect().await
}

/// Durably carries out the step: from here on the VM is the target home.
pub(crate) async fn step(from: &Home) -> Result<()> {
    record::commit(&own(from).await?).await
}

/// Returns whether the source home records the step now, durably or not.
pub(crate) async fn has_stepped(from: &Home) -> Result<bool> {
    Ok(matches!(record(from).await?, Some(MoveRecord::Committed { .. })))
}

/// Undoes the step if `step` has carried it out.
pub(crate) async fn step_back(from: &Home, to: &Home) -> Result<()> {
    MoveRecord::Prepared { to: to.path.clone() }.write(&own(from).await?).await
}

/// Cleans up after a failed move: removes the target home, and then the intent. Anything that cannot be removed now is
/// removed at the next start.
pub(crate) async fn give_up(from: &Home, to: &Home) -> Result<()> {
    remove_arrival(from, to).await?;
    native_homes::set_moving(from, false).await?;
    record::remove(&own(from).await?).await
}

/// Completes a move after the step: removes the target's mark of arrival, and then the source home.
pub(crate) async fn complete(daemon: &Daemon, name: &str, from: &Home, to: &Home) -> api::error::Result<()> {
    arrived(to).await?;
    match mark::read(&daemon.env, &from.path).await? {
        Some(id) => {
            refuse_whole(from).await?;
            native_homes::remove_vm(&from.datastore, id).await?;
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
    match record(to).await? {
        Some(MoveRecord::Target { from: source }) if source == from.path => {
            refuse_whole(to).await?;
            native_homes::remove_marked(to).await?;
            remove_made(to).await
        }
        Some(_) => Ok(()),
        None if dir.list().await?.is_empty() => remove_folder(to, &dir).await,
        None => Ok(()),
    }
}

/// Durably ends the part of a home in its move: the home is the VM. The store's mark is removed first: without the
/// record no start would look for it.
async fn arrived(home: &Home) -> Result<()> {
    native_homes::set_moving(home, false).await?;
    record::remove(&own(home).await?).await
}

/// Refuses to remove a home that was declared the VM meanwhile: it may have been written.
async fn refuse_whole(home: &Home) -> Result<()> {
    if !native_homes::is_whole(home).await? {
        return Ok(());
    }
    let cause = "a move would remove this copy, but under another daemon it was declared to be the VM; both copies \
                 stay";
    let remedy =
        "remove the copy that you do not need with `unstun vm remove`, from the daemon that serves it";
    Err(Error::refused(home.path.display().to_string(), format!("{cause}; {remedy}")))
}

/// Refuses a home that is not the VM, or whose role is unknown.
pub(crate) async fn refuse_elsewhere(home: &Home, folder: &HomeFolder) -> Result<()> {
    let place = home.path.display();
    let record = if folder.has(record::RECORD_NAME) { record(home).await? } else { None };
    let (cause, remedy) = match record {
        Some(MoveRecord::Committed { to }) => {
            let cause = format!("the VM has moved to {}, in a datastore that is not served", to.display());
            let remedy = "add that datastore: `unstun datastore add`";
            return Err(Error::refused(place.to_string(), format!("{cause}; {remedy}")));
        }
        // The source home is the VM, whatever the store records.
        Some(MoveRecord::Prepared { .. }) => return Ok(()),
        Some(MoveRecord::Target { from }) => (
            format!(
                "this is a copy made by a move from {}, where the outcome of the move is recorded",
                from.display()
            ),
            "add that datastore too: `unstun datastore add`",
        ),
        Some(MoveRecord::Within { .. }) | None
            if native_homes::is_moving_as(home, folder.mark().await?).await? => (
            "this is one side of a move that another daemon began; its folders there record which side is the VM"
                .to_owned(),
            "serve the datastore from that daemon again, which completes the move",
        ),
        Some(MoveRecord::Within { .. }) | None => return Ok(()),
    };
    let last = "If the other side is lost permanently and this side is complete, `unstun vm open VM --take-over` \
                makes this side the VM";
    Err(Error::refused(place.to_string(), format!("{cause}; {remedy}. {last}")))
}

/// Makes this side of an interrupted move the VM, because its user states that the other side is lost permanently.
///
/// # Errors
/// `Refused` if the home takes part in no move, if the other side is there, served or not, and if it is the VM.
pub(crate) async fn take_over(home: &Home) -> Result<()> {
    let record = record(home).await?;
    if let Some(MoveRecord::Prepared { to: other } | MoveRecord::Target { from: other }) = &record {
        refuse_present(home, other).await?;
    }
    match record {
        Some(MoveRecord::Committed { to }) => {
            let cause = "this copy is older";
            let place = home.path.display().to_string();
            Err(Error::refused(place, format!("the VM has moved to {}; {cause}", to.display())))
        }
        // The record of a move between stores names what is still to be removed.
        Some(MoveRecord::Within { .. }) | None if native_homes::is_moving(home).await? => {
            native_homes::set_moving(home, false).await
        }
        Some(MoveRecord::Within { .. }) | None => {
            let cause = "the VM is not part of an interrupted move; there is nothing to take over";
            Err(Error::refused(home.path.display().to_string(), cause))
        }
        Some(MoveRecord::Prepared { .. } | MoveRecord::Target { .. }) => arrived(home).await,
    }
}

/// Refuses to take over from another side that exists and takes part in the same move: serving both datastores ends the
/// move without a loss.
async fn refuse_present(home: &Home, other: &Path) -> Result<()> {
    let same_move = match MoveRecord::read(home.datastore.dir.env(), other).await? {
        Some(
            MoveRecord::Prepared { to: back }
            | MoveRecord::Committed { to: back }
            | MoveRecord::Target { from: back },
        ) => back == home.path,
        Some(MoveRecord::Within { .. }) | None => false,
    };
    if !same_move {
        return Ok(());
    }
    let cause = format!("the other side of the move is not lost: it is in {}", other.display());
    let remedy = "add that datastore too (`unstun datastore add`), which completes the move";
    Err(Error::refused(home.path.display().to_string(), format!("{cause}; {remedy}")))
}

/// Refuses another move of a home while the record of an earlier one names what is still to be removed.
pub(crate) async fn refuse_recorded(home: &Home) -> Result<()> {
    if let Some(MoveRecord::Within { .. }) = record(home).await? {
        let cause = "the other side of an earlier move could not be removed; the log says why, and the next start tries again";
        return Err(Error::refused(home.path.display().to_string(), cause));
    }
    refuse_other_side(home).await
}

/// Refuses a move while the record of an earlier one names a side in another datastore. What a move within a datastore has left
/// is removed first, by `recovery::settle`.
pub(crate) async fn refuse_other_side(home: &Home) -> Result<()> {
    let cause = match record(home).await? {
        None | Some(MoveRecord::Within { .. }) => return Ok(()),
        Some(
            MoveRecord::Prepared { to: other }
            | MoveRecord::Committed { to: other }
            | MoveRecord::Target { from: other },
        ) => format!(
            "an earlier move left a copy in {}, in a datastore that is not served; add that datastore, and the copy \
             is removed; if the datastore is lost permanently: `unstun vm open VM --take-over`",
            other.display()
        ),
    };
    Err(Error::refused(home.path.display().to_string(), cause))
}

impl Daemon {
    /// Ends the moves between datastores that a crash has interrupted, if both datastores are present. Runs before
    /// their homes are opened.
    pub(crate) async fn recover_handovers(self: &Rc<Self>, datastore: &Rc<Datastore>) {
        // Opening the homes reports the error.
        let Ok(homes) = datastore.candidates().await else { return };
        for (name, path) in with_move_records(datastore, homes).await {
            let home = datastore.at(&path);
            if let Err(e) = self.recover_handover(&name, &home).await {
                warn!("{}: the remains of a move cannot be removed now: {e}", path.display());
            }
        }
    }

    async fn recover_handover(self: &Rc<Self>, name: &str, home: &Home) -> api::error::Result<()> {
        // The VM's move may be under way.
        let Ok(_claim) = self.claim(name) else { return Ok(()) };
        let (to, is_committed) = match record(home).await? {
            Some(MoveRecord::Prepared { to }) => (to, false),
            Some(MoveRecord::Committed { to }) => (to, true),
            _ => return Ok(()),
        };
        let Some(to) = self.datastore_of(&to).map(|datastore| datastore.at(&to)) else { return Ok(()) };
        if self.entry(name).is_ok_and(|entry| entry.home == home.path) {
            return if is_committed { Ok(()) } else { Ok(give_up(home, &to).await?) };
        }
        // Another daemon may hold the home through its own registry.
        formats::hold(self, &home.path).await?;
        // A killed daemon may have left the step in the cache. One side is removed now, so the record that decides is durable.
        own(home).await?.sync().await?;
        let settled = match is_committed {
            false => give_up(home, &to).await.map_err(Into::into),
            true => complete(self, name, home, &to).await,
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
    pub(crate) async fn has_left(&self, home: &Home) -> bool {
        let record = record(home).await;
        matches!(record, Ok(Some(MoveRecord::Committed { to })) if self.datastore_of(&to).is_some())
    }

    /// Returns the datastore that contains the home.
    fn datastore_of(&self, path: &Path) -> Option<Rc<Datastore>> {
        self.datastores().into_iter().find(|datastore| datastore.contains(path))
    }
}
