//! The log: reads the entries of a repository, and appends one.

use blk::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures_util::future::join_all;

use crate::entry::{Entry, hash_of};
use crate::event::Event;
use crate::key::Keys;
use crate::names;
use crate::objects::{Objects, Put};
use crate::state::State;

/// Entries that are read at once.
const READ_AHEAD: u32 = 16;
/// Entries after which the state is recorded, so that a reader need not read all of the log.
const RECORD_EVERY: u32 = 64;
/// Requests to create one entry whose answers are errors.
const TRIES_MAX: u32 = 5;
/// Content of a recorded state's authentication, before its name.
const STATE_PURPOSE: &str = "state of ";

/// Reads entries from the one after `state` to the last, and applies them.
///
/// # Errors
/// `Damaged`: an entry is missing before others.
pub(crate) async fn follow(objects: &dyn Objects, keys: &Keys, state: &mut State) -> Result<()> {
    loop {
        let first = state.number + 1;
        let read_ahead = (first..first + READ_AHEAD).map(|number| read(objects, number));
        let bodies = join_all(read_ahead).await.into_iter().collect::<Result<Vec<_>>>()?;
        let Some(end) = bodies.iter().position(Option::is_none) else {
            bodies.iter().flatten().try_for_each(|body| apply(keys, state, body))?;
            continue;
        };
        bodies[..end].iter().flatten().try_for_each(|body| apply(keys, state, body))?;
        if bodies[end..].iter().all(Option::is_none) {
            return Ok(());
        }
        // The entries after it were created between the requests, or this one is lost.
        let number = state.number + 1;
        if read(objects, number).await?.is_none() {
            return Err(missing(number));
        }
    }
}

fn missing(number: u32) -> Error {
    let cause = "the entry is missing, and later ones are there; objects of the repository were removed, or restored from \
                 different times";
    Error::damaged(names::log(number), cause)
}

async fn read(objects: &dyn Objects, number: u32) -> Result<Option<Bytes>> {
    match objects.get(&names::log(number)).await {
        Ok(body) => Ok(Some(body)),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn apply(keys: &Keys, state: &mut State, body: &[u8]) -> Result<()> {
    let entry = Entry::open(keys, state.number + 1, body)?;
    state.apply(&entry, hash_of(body))
}

/// Returns the state of the whole log: from the latest recorded state that the list has, or from the first entry.
pub(crate) async fn read_state(objects: &dyn Objects, keys: &Keys) -> Result<State> {
    let listed = objects.list(names::STATE).await?;
    let mut numbers: Vec<_> =
        listed.iter().filter_map(|object| names::parse_number(names::STATE, &object.name)).collect();
    numbers.sort_unstable();
    let mut state = State::default();
    for number in numbers.iter().rev() {
        // The log has everything that a damaged record has.
        match recorded(objects, keys, *number).await {
            Err(e) if e.kind == ErrorKind::Damaged => {}
            found => {
                state = found?;
                break;
            }
        }
    }
    follow(objects, keys, &mut state).await?;
    // The numbers of lost entries must not be used again. Beyond `RECORD_EVERY` entries, a record of the state shows them.
    let last = numbers.last().is_some_and(|last| *last > state.number);
    let beyond = (state.number + 2..=state.number + RECORD_EVERY).map(|number| read(objects, number));
    let beyond = join_all(beyond).await.into_iter().collect::<Result<Vec<_>>>()?;
    // Entries that were created since `follow` are no gap.
    if last || beyond.iter().any(Option::is_some) {
        let number = state.number + 1;
        follow(objects, keys, &mut state).await?;
        if state.number < number {
            return Err(missing(number));
        }
    }
    Ok(state)
}

async fn recorded(objects: &dyn Objects, keys: &Keys, number: u32) -> Result<State> {
    let name = names::state(number);
    let body = objects.get(&name).await?;
    let text = keys.data.open(&name, format!("{STATE_PURPOSE}{name}").as_bytes(), &body)?;
    let state: State = serde_json::from_slice(&text).map_err(|e| {
        Error::unsupported(&name, format!("{e}; a later version of unstun may have written it"))
    })?;
    // A repository whose last entries were lost would otherwise be continued with numbers that were used before.
    let entry = read(objects, number).await?.ok_or_else(|| missing(number))?;
    if state.number != number || hash_of(&entry) != state.hash {
        return Err(Error::damaged(name, "the recorded state is not that of the log's entry"));
    }
    Ok(state)
}

/// What an append did.
pub(crate) enum Appended {
    /// The entry is durable, and applied to the state.
    Yes(u32),
    /// Another writer's entries came first, and are applied to the state. The event was not appended.
    Overtaken,
}

/// Appends an event after the last entry of `state`.
///
/// # Errors
/// After an error the entry may exist or come to exist: it is what the caller wanted, and harmless.
pub(crate) async fn append(
    objects: &dyn Objects,
    keys: &Keys,
    state: &mut State,
    event: Event,
    (writer, now_us): (&str, u64),
) -> Result<Appended> {
    let number = state.number + 1;
    let entry = Entry {
        number,
        previous: state.hash.clone(),
        token: Entry::new_token()?,
        time_us: now_us,
        writer: writer.to_owned(),
        event,
    };
    let (name, body) = (names::log(number), entry.seal(keys)?);
    let mut tries = 0;
    // The same bytes under the same name: a request that arrives late changes nothing.
    while let Err(failed) = objects.put_new(&name, body.clone()).await {
        tries += 1;
        if tries == TRIES_MAX || !matches!(failed.kind, ErrorKind::Io) {
            return Err(failed);
        }
    }
    follow_own(objects, keys, state, &entry).await
}

/// Determines by the entry that is there whether it is this writer's.
async fn follow_own(objects: &dyn Objects, keys: &Keys, state: &mut State, own: &Entry) -> Result<Appended> {
    let body = read(objects, own.number).await?.ok_or_else(|| {
        let cause =
            "the store confirmed the entry and does not have it; the store must show what it confirmed";
        Error::damaged(names::log(own.number), cause)
    })?;
    let found = Entry::open(keys, own.number, &body)?;
    state.apply(&found, hash_of(&body))?;
    if found.token != own.token {
        follow(objects, keys, state).await?;
        return Ok(Appended::Overtaken);
    }
    if own.number.is_multiple_of(RECORD_EVERY) {
        // A list may show a recorded state at any time, so only one that is complete is stored. Without it readers read
        // more entries, so a failure is not one of the append.
        let _ = record(objects, keys, state).await;
    }
    Ok(Appended::Yes(own.number))
}

async fn record(objects: &dyn Objects, keys: &Keys, state: &State) -> Result<Put> {
    let name = names::state(state.number);
    let text = serde_json::to_vec(state).expect("plain JSON");
    let body = keys.data.seal(format!("{STATE_PURPOSE}{name}").as_bytes(), &text)?;
    objects.put_new(&name, body.into()).await
}
