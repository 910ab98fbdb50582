//! Users whose folders `OWN_FOLDER` may be opened. The records in such a folder decide what is written and removed.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, StatxFlags};

use super::open::Opened;
use crate::dir::OWN_FOLDER;
use crate::error::Errno;

const ROOT: u32 = 0;
/// The kernel's overflow user, to which file servers map root.
const NOBODY: u32 = 65_534;

/// Trusted users; None trusts all.
#[derive(Debug, Clone, Default)]
pub(super) struct Owners(Option<Arc<BTreeSet<u32>>>);

impl Owners {
    /// Adds the owner of an open folder. Uses cached attributes, so the call does not wait for a file server.
    pub(super) fn trust_owner_of(&mut self, folder: impl AsFd) -> Result<(), Errno> {
        let this_user = rustix::process::geteuid().as_raw();
        let mut all = self.0.as_deref().cloned().unwrap_or_else(|| [ROOT, NOBODY, this_user].into());
        all.insert(owner(folder, AtFlags::STATX_DONT_SYNC)?);
        self.0 = Some(Arc::new(all));
        Ok(())
    }

    /// Refuses a folder named `OWN_FOLDER` of a user who is not trusted.
    pub(super) fn check(&self, opened: Opened, name: &str) -> Result<Opened, Errno> {
        match &self.0 {
            Some(trusted)
                if name == OWN_FOLDER && !trusted.contains(&owner(&opened.fd, AtFlags::empty())?) =>
            {
                Err(Errno::FOREIGN_OWNER)
            }
            _ => Ok(opened),
        }
    }
}

fn owner(folder: impl AsFd, flags: AtFlags) -> Result<u32, Errno> {
    let found = rustix::fs::statx(folder, c"", AtFlags::EMPTY_PATH | flags, StatxFlags::UID)?;
    Ok(found.stx_uid)
}
