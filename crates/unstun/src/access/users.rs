//! Users of this host, who reach the API over its Unix socket: who they are, and what they may do.
//!
//! Root, the daemon's own user and the members of the group `unstun` are administrators. The file `/etc/unstun/users`
//! gives roles to others.

use std::ffi::CString;
use std::path::Path;

use api::error::{Error, ErrorKind, Result};
use api::{Role, VmGlob};
use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use tracing::warn;

use super::callers::Caller;

/// Members of this group are administrators, which is as much as root: the API names any path.
pub(crate) const ADMINS_GROUP: &str = "unstun";
/// Roles of other users: one line `USER ROLE [VM-PATTERN...]` each. Text behind `#` is a comment.
pub(crate) const USERS_FILE: &str = "/etc/unstun/users";
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Line of the file.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    user: String,
    role: Role,
    vms: Vec<VmGlob>,
}

/// Returns the group of the administrators, if this host has it.
pub(crate) fn admins_group() -> Option<Gid> {
    Group::from_name(ADMINS_GROUP).ok().flatten().map(|group| group.gid)
}

/// Returns whether the file of users exists: the socket is open to all users of the host then.
pub(crate) fn has_users_file() -> bool {
    Path::new(USERS_FILE).exists()
}

/// Identifies a user of this host, and with `gid` a process of it, which may have another group than the user's own. It may ask
/// a directory service, on a thread that may block.
///
/// # Errors
/// `Unidentified`: the user has no access. `Failed`: the directory service has failed.
pub(crate) async fn look_up(uid: u32, gid: Option<u32>) -> Result<Caller> {
    let identified = tokio::task::spawn_blocking(move || identify(uid, gid)).await;
    identified.map_err(|e| Error::failed(format!("looking user {uid} up: {e}")))?
}

fn identify(uid: u32, gid: Option<u32>) -> Result<Caller> {
    // These need no directory service, which may hang.
    if uid == 0 {
        return Ok(Caller::user("user root (uid 0)".to_owned(), Role::Admin, Vec::new()));
    }
    if uid == rustix::process::geteuid().as_raw() {
        return Ok(Caller::user(format!("user {uid}"), Role::Admin, Vec::new()));
    }
    let failed = |e: Errno| Error::failed(format!("looking user {uid} up: {}", e.desc()));
    let user = User::from_uid(Uid::from_raw(uid)).map_err(failed)?;
    let primary = gid.map(Gid::from_raw).or(user.as_ref().map(|user| user.gid));
    let name = user.map(|user| user.name);
    let who = match &name {
        Some(name) => format!("user {name} (uid {uid})"),
        None => format!("user {uid}"),
    };
    let admins = Group::from_name(ADMINS_GROUP).map_err(failed)?;
    if let (Some(admins), Some(primary)) = (admins, primary)
        && is_member(name.as_deref(), primary, admins.gid).map_err(failed)?
    {
        return Ok(Caller::user(who, Role::Admin, Vec::new()).of_host(uid));
    }
    let of_file = name.and_then(|name| read_file().into_iter().find(|entry| entry.user == name));
    match of_file {
        Some(Entry { role, vms, .. }) => Ok(Caller::user(who, role, vms).of_host(uid)),
        None => {
            let message = format!(
                "{who} has no access: an administrator adds the user to the group {ADMINS_GROUP}, or gives it a role in \
                 {USERS_FILE}"
            );
            Err(Error::new(ErrorKind::Unidentified, message))
        }
    }
}

fn is_member(name: Option<&str>, primary: Gid, of: Gid) -> Result<bool, Errno> {
    let Some(name) = name.and_then(|name| CString::new(name).ok()) else { return Ok(primary == of) };
    Ok(primary == of || getgrouplist(&name, primary)?.contains(&of))
}

/// Returns the entries of the file. A wrong line gives no role; the other lines count.
fn read_file() -> Vec<Entry> {
    let text = match std::fs::metadata(USERS_FILE) {
        Ok(found) if found.len() <= FILE_BYTES_MAX => std::fs::read_to_string(USERS_FILE),
        Ok(found) => {
            warn!(
                "{USERS_FILE} has {} bytes, expected at most {FILE_BYTES_MAX}; it is not read",
                found.len()
            );
            return Vec::new();
        }
        Err(e) => Err(e),
    };
    match text {
        Ok(text) => text.lines().enumerate().filter_map(|(n, line)| entry_of(n + 1, line)).collect(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => {
            warn!("{USERS_FILE}: {e}");
            Vec::new()
        }
    }
}

fn entry_of(number: usize, line: &str) -> Option<Entry> {
    match parse(line) {
        Ok(entry) => entry,
        Err(e) => {
            warn!("{USERS_FILE}: line {number}: {e}; the line gives no role");
            None
        }
    }
}

fn parse(line: &str) -> std::result::Result<Option<Entry>, String> {
    let line = line.split_once('#').map_or(line, |(before, _)| before);
    let mut words = line.split_whitespace();
    let Some(user) = words.next() else { return Ok(None) };
    let expected = "expected USER ROLE [VM-PATTERN...], such as `alice operator web-*`";
    let role = words.next().ok_or_else(|| format!("user {user} has no role; {expected}"))?;
    let role = <Role as clap::ValueEnum>::from_str(role, false).map_err(|_| {
        format!("role {role:?} of user {user}: expected metrics, viewer, operator or admin; {expected}")
    })?;
    let vms = words.map(str::parse).collect::<std::result::Result<_, String>>()?;
    Ok(Some(Entry { user: user.to_owned(), role, vms }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_a_user_a_role_on_some_vms() {
        assert_eq!(parse("").unwrap(), None);
        assert_eq!(parse("  # all of them").unwrap(), None);
        let entry = parse("alice operator web-* db # until May").unwrap().unwrap();
        assert_eq!((entry.user.as_str(), entry.role), ("alice", Role::Operator));
        assert_eq!(entry.vms.iter().map(VmGlob::as_str).collect::<Vec<_>>(), ["web-*", "db"]);
    }

    #[test]
    fn a_wrong_line_says_what_was_found_and_expected() {
        for (line, expected) in [
            ("alice", "user alice has no role; expected USER ROLE"),
            ("alice root", "role \"root\" of user alice: expected metrics, viewer, operator or admin"),
            ("alice viewer web/1", "\"web/1\": expected a VM's name"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn the_daemons_own_user_and_root_are_administrators_and_nobody_is_not() {
        let own = rustix::process::geteuid().as_raw();
        for uid in [0, own] {
            assert_eq!(identify(uid, Some(0)).unwrap().role, Role::Admin);
        }
        let error = identify(65_533, Some(65_533)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unidentified);
        assert!(error.message.contains("user 65533 has no access: an administrator adds"), "{error}");
    }
}
