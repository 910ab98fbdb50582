//! Names of a repository's objects.

/// Name of a pack: the epoch of the session that wrote it, and its number in that session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackName {
    /// Number of the log entry with which the session began.
    pub epoch: u32,
    /// Number of the pack in the session, from 0.
    pub number: u32,
}

/// Description of the repository, the only object that is not encrypted besides the keys.
pub(crate) const REPOSITORY: &str = "repository";
/// Before the names of wrapped keys.
pub(crate) const KEYS: &str = "keys/";
/// Before the numbers of log entries.
pub(crate) const LOG: &str = "log/";
/// Before the numbers of the entries whose state was recorded.
pub(crate) const STATE: &str = "state/";
/// Before the names of packs.
pub(crate) const PACKS: &str = "packs/";
/// Before the names of lists of chunks.
pub(crate) const INDEX: &str = "index/";

pub(crate) fn log(number: u32) -> String {
    format!("{LOG}{number:010}")
}

pub(crate) fn state(number: u32) -> String {
    format!("{STATE}{number:010}")
}

pub(crate) fn pack(name: PackName) -> String {
    format!("{PACKS}{:010}/{:08}", name.epoch, name.number)
}

pub(crate) fn packs_of(epoch: u32) -> String {
    format!("{PACKS}{epoch:010}/")
}

pub(crate) fn index(epoch: u32, number: u32) -> String {
    format!("{INDEX}{epoch:010}/{number:08}")
}

/// Returns the epoch and the number in a name of the form `PREFIX<epoch>/<number>`.
pub(crate) fn parse_pair(prefix: &str, name: &str) -> Option<(u32, u32)> {
    let (epoch, number) = name.strip_prefix(prefix)?.split_once('/')?;
    Some((epoch.parse().ok()?, number.parse().ok()?))
}

/// Returns the number in a name of the form `PREFIX<number>`.
pub(crate) fn parse_number(prefix: &str, name: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}
