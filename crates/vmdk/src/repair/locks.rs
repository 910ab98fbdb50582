//! Moves lock files and folders of VMware aside, if the user confirms that no program runs that holds them.

use std::collections::BTreeSet;

use super::{Action, Mend, PlanDraft, RepairOptions};
use crate::check::Inventory;
use crate::home::is_foreign_lock;
use crate::text::shown;

const FIELD: &str = "the lock";

pub(super) async fn mend(inventory: &Inventory<'_>, terms: &RepairOptions, draft: &mut PlanDraft) {
    let locks: BTreeSet<&String> = inventory.names.iter().filter(|name| is_foreign_lock(name)).collect();
    for name in locks {
        let plain = name.trim_end_matches('/');
        if !terms.stale_locks {
            let reason = "--stale-locks moves it aside; it is right only if no VMware product has this VM open, on any host, which \
                          no file proves";
            draft.refuse(inventory.path(plain), FIELD, reason.into());
            continue;
        }
        match inside(inventory, name).await {
            Ok(inside) => draft.move_aside(
                [name.clone()],
                Mend {
                    file: plain.into(),
                    action: Action::MoveAside,
                    lines: if inside.is_empty() { vec![name.clone()] } else { inside },
                    reason: "you vouch that no VMware product has this VM open".into(),
                    caution: Some(
                        "a VM that runs all the same, on this host or another, and this repair would write the same files"
                            .into(),
                    ),
                },
            ),
            Err(reason) => draft.refuse(inventory.path(plain), FIELD, reason),
        }
    }
}

/// Returns the files of a lock that is a folder.
async fn inside(inventory: &Inventory<'_>, name: &str) -> Result<Vec<String>, String> {
    let Some(plain) = name.strip_suffix('/') else { return Ok(Vec::new()) };
    let listed = async { inventory.dir.open_dir(plain, false).await?.list().await };
    let names = listed.await.map_err(|error| error.to_string())?;
    if let Some(folder) = names.iter().find(|name| name.ends_with('/')) {
        return Err(format!("it has a folder {} in it, as no lock has; look at it by hand", shown(folder)));
    }
    Ok(names.into_iter().map(|file| format!("{name}{file}")).collect())
}
