//! Log of datastores that begin to hang, answer again, or whose store fails.

use std::rc::Rc;

use api::name::DatastoreName;
use tracing::{error, info};

use crate::daemon::datastore::hang::Hang;
use crate::daemon::state::Daemon;
use crate::log::Reported;

/// Interval in microseconds between two checks of all datastores.
const WATCH_US: u64 = 1_000_000;

impl Daemon {
    /// Returns the first datastore that hangs.
    pub(crate) fn any_hang(&self) -> Option<Hang> {
        self.datastores().iter().find_map(|datastore| datastore.hang())
    }

    /// Logs when a datastore begins to hang, when it answers again, and when its store fails.
    pub(crate) async fn watch_hangs(self: Rc<Self>) {
        let mut hung: Vec<DatastoreName> = Vec::new();
        let failed = Reported::default();
        loop {
            for datastore in self.datastores() {
                // The lease reports its own loss.
                let broken = datastore.native.opened().and_then(|store| store.broken());
                if let Some(cause) = broken.filter(|cause| cause.kind != blk::ErrorKind::LeaseLost)
                    && failed.is_news((datastore.name.clone(), cause.to_string()))
                {
                    error!("datastore {}: its store failed and is read-only now: {cause}", datastore.name);
                }
                let (hang, known) = (datastore.hang(), hung.contains(&datastore.name));
                match hang {
                    Some(hang) if !known => {
                        error!("{}", hang.found());
                        hung.push(datastore.name.clone());
                    }
                    None if known => {
                        info!("datastore {} answers again", datastore.name);
                        hung.retain(|name| *name != datastore.name);
                    }
                    _ => {}
                }
            }
            self.env.sleep_us(WATCH_US).await;
        }
    }
}
